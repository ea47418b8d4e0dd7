"""Seconds and peak memory of the parts of a run that nest in each other, on any device."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

__all__ = ["Phase", "Phases"]


@dataclass
class Phase:
    """What a part took: seconds over all its calls, and the most memory held during any, in GiB."""

    seconds: float = 0.0
    peak_gib: float = 0.0


class Phases:
    """Clock and memory meter.

    On CUDA memory is what torch's allocator gave out, and clocks are read once the device is idle;
    on a CPU it is the process's resident set (Linux).
    """

    def __init__(self, device: torch.device) -> None:
        self.device, self.seen = device, dict[str, Phase]()
        self._open: list[Phase] = []

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count what happens inside as part of ``name``, and of what is around it."""
        self._note()
        phase = self.seen.setdefault(name, Phase())
        self._open.append(phase)
        start = time.perf_counter()
        try:
            yield
        finally:
            self._note()
            phase.seconds += time.perf_counter() - start
            self._open.pop()

    def wrap(self, owner: Any, method: str, name: str) -> None:
        """Make every call of an object's method such a phase."""
        original: Callable[..., Any] = getattr(owner, method)

        def timed(*arguments: Any, **named: Any) -> Any:
            with self.phase(name):
                return original(*arguments, **named)

        setattr(owner, method, timed)

    def _note(self) -> None:
        """Read the peak since the last reading, for every phase that is open, and start anew."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
            peak = torch.cuda.max_memory_allocated(self.device) / 2**30
            torch.cuda.reset_peak_memory_stats(self.device)
        else:
            status = Path("/proc/self/status").read_text("ascii", errors="replace")
            peak = int(status.partition("VmHWM:")[2].split()[0]) / 2**20
            Path("/proc/self/clear_refs").write_text("5", "ascii")
        for phase in self._open:
            phase.peak_gib = max(phase.peak_gib, peak)
