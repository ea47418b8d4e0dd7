"""How a run ends: in order at a Ctrl-C, and with its evaluation in one line."""

from __future__ import annotations

import math
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zoo.core.many_seeds import ManySeeds
    from zoo.core.trainer import Trainer

__all__ = ["evaluation_line", "interrupts"]

#: when an evaluation was made, which is said in front of it
_COUNTERS = ("env_steps", "updates")


def evaluation_line(result: Mapping[str, Any]) -> str:
    """Return an evaluation's figures in one line; an interval stands behind its figure."""
    widths = {_measured(key, result): result[key] for key in result if key.endswith("_ci95")}
    shown = []
    for key, value in result.items():
        if not isinstance(value, int | float) or key.endswith("_ci95") or key in _COUNTERS:
            continue
        text = f"{key} {value:.3f}" if isinstance(value, float) else f"{key} {value}"
        if key in widths:  # one episode, or one prompt, has none
            width = widths[key]
            text += f" ± {width:.3f}" if width is not None and math.isfinite(width) else " ± ?"
        shown.append(text)
    return "  ".join(shown)


def _measured(width: str, result: Mapping[str, Any]) -> str:
    """Return the figure that a half-width is of: ``return_ci95`` is that of ``return_mean``."""
    stem = width.removesuffix("_ci95")
    return next((k for k in (stem, f"{stem}_mean", f"{stem}_strict") if k in result), stem)


@contextmanager
def interrupts(trainer: Trainer | ManySeeds) -> Iterator[None]:
    """Let the first Ctrl-C (or SIGTERM) end the run in order, and the second one at once."""

    def handle(number: int, frame: FrameType | None) -> None:
        if trainer.interrupted:
            raise KeyboardInterrupt
        trainer.interrupt()
        print("ending after this round; Ctrl-C again ends at once", file=sys.stderr, flush=True)

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
