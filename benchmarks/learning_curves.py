"""Learning curves of a group over steps and over time, and when its runs passed a threshold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from zoo.benchmarks.intervals import band
from zoo.benchmarks.records import Curve, Run
from zoo.benchmarks.report.page import Series, Trace
from zoo.benchmarks.tasks import PAST, Group, Task

__all__ = [
    "Passing",
    "median_speed",
    "over_steps",
    "over_time",
    "passing",
    "speed",
    "speed_unit",
]

#: points of a common axis where the runs were measured at different places
_POINTS = 80


def over_steps(group: Group, kind: str) -> Series:
    """Return a group's curve over steps: its IQM and band where all members were measured."""
    members = [(_name(m.run), m.curve.step, m.curve.value) for m in group.members]
    others = [(_name(r), c.step, c.value) for r, c in _uncounted(group, kind)]
    return _series(group, members, others)


def over_time(group: Group, kind: str) -> Series:
    """Return a group's curve over seconds of training: that over steps, at their mean times.

    Members without times are left out.
    """
    timed = [m for m in group.members if m.curve.wall_s is not None]
    traces = [(_name(m.run), m.curve.wall_s, m.curve.value) for m in timed]
    traces += [(_name(r), c.wall_s, c.value) for r, c in _uncounted(group, kind)]
    steps = _series(group, [(_name(m.run), m.curve.step, m.curve.value) for m in timed], ())
    times = [
        np.interp(steps.x, m.curve.step, m.curve.wall_s)
        for m in timed
        if m.curve.wall_s is not None
    ]
    return replace(
        steps,
        x=np.mean(times, axis=0) if steps.x.size else steps.x,
        traces=tuple(Trace(n, x, y) for n, x, y in traces if x is not None),
    )


def _name(run: Run) -> str:
    seed = "" if run.seed is None else f" seed {run.seed}"
    return f"{run.label}{seed}" + (
        "" if run.status in ("finished", "unknown") else f", {run.status}"
    )


def _uncounted(group: Group, kind: str) -> list[tuple[Run, Curve]]:
    return [(r, r.curves[kind]) for r in group.others if kind in r.curves]


_Named = tuple[str, np.ndarray, np.ndarray]


def _series(group: Group, members: Sequence[_Named], others: Sequence[_Named]) -> Series:
    traces = tuple(Trace(name, x, y) for name, x, y in (*members, *others))
    grid = _grid([x for _, x, _ in members])
    if not grid.size:
        return Series(group.label, group.colour, np.empty(0), np.empty(0), traces=traces)
    found = band(np.stack([_at(grid, x, y) for _, x, y in members]))
    return Series(group.label, group.colour, grid, found.centre, found.low, found.high, traces)


def _grid(axes: Sequence[np.ndarray]) -> np.ndarray:
    """Return the points at which all runs are known: their own ones where they share them."""
    if not axes:
        return np.empty(0)
    if all(np.array_equal(x, axes[0]) for x in axes) and len(axes[0]) <= 2 * _POINTS:
        return axes[0]
    low, high = max(x[0] for x in axes), min(x[-1] for x in axes)
    return np.linspace(low, high, _POINTS) if low < high else np.empty(0)


def _at(grid: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return a curve at the points of a grid, between measurements on the line that joins them.

    A curve with many more points than the grid is averaged around each point first: picking single
    ones would show noise.
    """
    if len(x) > 4 * len(grid):
        cells = np.array_split(np.arange(len(x)), 2 * len(grid))
        x, y = (np.array([values[c].mean() for c in cells]) for values in (x, y))
    return np.interp(grid, x, y)


@dataclass(frozen=True)
class Passing:
    """When the runs of a group first measured a threshold or more.

    Attributes
    ----------
    reached, runs : int
        How many did, and of how many; runs that failed or diverged are among them.
    step, seconds : float, optional
        The median over all of them, those that did not counting as later than any; None where it
        falls on one of those, or the times are not known.
    """

    reached: int
    runs: int
    step: float | None
    seconds: float | None


def passing(group: Group, threshold: float, task: Task) -> Passing:
    """Return when a group's runs passed a threshold for the first time, by the compared step."""
    lost = [r for r in group.others if r.status in ("failed", "diverged")]
    curves = [m.curve for m in group.members]
    curves += [r.curves[task.kind] for r in lost if task.kind in r.curves]
    never = len(group.members) + len(lost) - len(curves)
    steps, seconds, timed = [np.inf] * never, [np.inf] * never, True
    for curve in curves:
        known = np.ones(len(curve.step), bool) if task.at is None else curve.step <= task.at * PAST
        there = np.flatnonzero(known & (curve.value >= threshold))
        steps.append(float(curve.step[there[0]]) if there.size else np.inf)
        timed &= curve.wall_s is not None
        if curve.wall_s is not None:
            seconds.append(float(curve.wall_s[there[0]]) if there.size else np.inf)
    return Passing(
        reached=int(np.isfinite(steps).sum()),
        runs=len(steps),
        step=_median(steps),
        seconds=_median(seconds) if timed else None,
    )


def _median(values: Sequence[float]) -> float | None:
    """Return the upper median, which of an even number never averages with one not reached."""
    if not values:
        return None
    middle = sorted(values)[len(values) // 2]
    return middle if np.isfinite(middle) else None


def median_speed(group: Group, unit: str) -> float | None:
    """Return the median of the members' speeds in a unit, of those known."""
    known = [s for m in group.members if (s := speed(m.run, m.curve, unit)) is not None]
    return float(np.median(known)) if known else None


def speed_unit(task: Task) -> str:
    """Return what the speeds of a task count."""
    runs = [m.run for g in task.compared for m in g.members]
    if any(run.facts.get("tokens") for run in runs):
        return "tokens/s"
    return "updates/s" if task.unit == "updates" else "steps/s"


def speed(run: Run, curve: Curve, unit: str) -> float | None:
    """Return how much a run learned from per second; None where that is not known in the unit."""
    seconds = run.facts.get("wall_s")
    count = {"tokens/s": "tokens", "steps/s": "env_steps", "updates/s": "updates"}[unit]
    if seconds and run.facts.get(count):
        return float(run.facts[count]) / float(seconds)
    counted = {"updates": "updates/s"}.get(run.unit, "steps/s")
    if counted == unit and curve.wall_s is not None and curve.wall_s[-1] > 0:
        return float(curve.step[-1] / curve.wall_s[-1])
    return None
