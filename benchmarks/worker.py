"""The process of one run: ``python -m zoo.benchmarks.worker PARENT ARGUMENTS OF ZOO …``.

It is ``zoo train`` that does not outlive its parent: where that one is killed, the run is told to
save and stop, as if by Ctrl-C, instead of training on with nobody to know.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

__all__ = ["follow"]

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def follow(parent: int) -> None:
    """Have the system send SIGTERM to this process when its parent ends (Linux)."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it ended before it was asked for
            raise SystemExit(130)


if __name__ == "__main__":
    follow(int(sys.argv[1]))
    from zoo.cli import main

    raise SystemExit(main(sys.argv[2:]))
