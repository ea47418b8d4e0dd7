"""How much memory this process took."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

__all__ = ["peak_rss_gib"]


def peak_rss_gib() -> float:
    """Return the largest resident set of this process so far, in GiB.

    Linux's getrusage also counts what the process held before it became this program: a child of a
    large process would report its parent's memory. /proc tells of this program alone.
    """
    try:
        status = Path("/proc/self/status").read_text("ascii", errors="replace")
        return int(status.partition("VmHWM:")[2].split()[0]) / 2**20  # in KiB
    except (OSError, ValueError, IndexError):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak / (2**30 if sys.platform == "darwin" else 2**20)
