"""What runs in a process group, and waiting for that to change."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable

import pytest


def running(group: int) -> list[int]:
    """Processes of a group; what has ended and is not yet fetched by its parent is none."""
    psutil = pytest.importorskip("psutil")
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            if os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
    return found


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)
