"""Runs made by hand for the tests of reports."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from zoo.benchmarks.records import Curve, Run


def curve(values: Sequence[float], steps: Sequence[float] | None = None, wall: Any = True) -> Curve:
    """A curve at steps 100, 200, …, one second each."""
    x = np.arange(1, len(values) + 1) * 100.0 if steps is None else np.array(steps, float)
    return Curve(x, np.array(values, float), x / 100.0 if wall is True else wall)


def run(label: str, seed: int | None, values: Sequence[float], **changes: Any) -> Run:
    """A finished run of ours on CartPole-v1."""
    steps, wall = changes.pop("steps", None), changes.pop("wall", True)
    fields: dict[str, Any] = {
        "label": label,
        "env": "CartPole-v1",
        "seed": seed,
        "source": Path(f"runs/{label}-{seed}"),
        "kind": "zoo",
        "unit": "environment steps",
        "metric": "return",
        "curves": {"evaluation": curve(values, steps, wall)},
        "status": "finished",
    }
    return Run(**{**fields, **changes})


def group(label: str, finals: Sequence[float], **changes: Any) -> list[Run]:
    """Runs with seeds 0, 1, … that end at these values."""
    return [run(label, seed, [0.0, final], **changes) for seed, final in enumerate(finals)]
