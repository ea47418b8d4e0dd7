"""Peak memory is the process's own."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from zoo.core.memory import peak_rss_gib


def fresh(code: str) -> list[float]:
    """Run code in a process of its own and return the numbers that it prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return [float(line) for line in done.stdout.split()]


def test_the_peak_stays_after_memory_is_given_back():
    before, peak, after = fresh(
        "from zoo.core.memory import peak_rss_gib\nprint(peak_rss_gib())\n"
        "block = bytearray(b'x') * 2**28\nprint(peak_rss_gib())\n"
        "del block\nprint(peak_rss_gib())"
    )
    assert peak == pytest.approx(before + 0.25, abs=0.02)
    assert after == pytest.approx(peak, abs=0.02)  # the kernel counts in batches


@pytest.mark.skipif(sys.platform != "linux", reason="other systems count only the program itself")
def test_a_child_of_a_large_process_reports_its_own_memory():
    block = np.ones(2**26)
    (child,) = fresh("from zoo.core.memory import peak_rss_gib; print(peak_rss_gib())")
    assert child < 0.3 < block.nbytes / 2**30 < peak_rss_gib()
