"""Peak memory is the process's own."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from zoo.core.memory import budget_warning, machine_gib, peak_rss_gib, replay_warning


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


def test_replay_that_will_not_fit_is_forecast() -> None:
    said = replay_warning(1_000_000, 4 * 84 * 84, available=31.0)
    assert said is not None
    assert said.startswith("replay will grow to 26.3 GiB (1,000,000 observations of 28,224 bytes)")
    assert "this machine has 31 GiB: lower algo.replay.capacity" in said
    assert replay_warning(1_000_000, 4 * 84 * 84, available=53.0) is None
    assert machine_gib() > 0.5


def test_a_row_that_may_exceed_the_token_budget_is_forecast() -> None:
    said = budget_warning(512, 512 + 96)
    assert said is not None and said.startswith("a row may have 608 tokens")
    assert "makes a micro-batch of its own" in said
    assert budget_warning(608, 608) is None and budget_warning(None, 608) is None
