"""Raw measurements to a curve: in order, finite, each step once; and what had to be done for it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from zoo.benchmarks.records import Collection, Curve, Note, Run, place

__all__ = ["EPISODES", "Series", "clean", "count", "diverged", "thin", "with_curves"]

#: how many episodes a training curve averages over, as Stable-Baselines3 does
EPISODES = 100
#: points that a curve made of single episodes keeps
_THINNED = 500


@dataclass(frozen=True)
class Series:
    """A cleaned curve.

    Attributes
    ----------
    curve : Curve, optional
        None where no finite point is left.
    remarks : tuple of str
        What was wrong with the input and what was done, each without a full stop.
    lost_from : float, optional
        The step from which on no value is finite, up to the end: the run diverged there. None
        where the last value is finite.
    """

    curve: Curve | None
    remarks: tuple[str, ...] = ()
    lost_from: float | None = None


def clean(
    steps: Sequence[float],
    values: Sequence[float],
    wall_s: Sequence[float] | None = None,
    window: int = 1,
) -> Series:
    """Make a curve of points in the order they were written.

    Where steps go back the later segment stands, as in a run that was resumed from a checkpoint;
    where single rows are out of order all over, they are sorted. Of a step written twice the later
    value stands. Points that are not finite are left out, and the end is told apart from the
    middle: a run whose last value is not finite must not be judged by the last one that was.

    Parameters
    ----------
    steps, values : sequence of float, [N]
        NaN and infinity where the source had no number.
    wall_s : sequence of float, [N], optional
        Seconds; left out where they fall or are not finite.
    window : int
        The values are single episodes' where this is more than 1: each becomes the mean of the
        last so many, several may end at one step, and the curve is thinned.

    Examples
    --------
    >>> clean([1, 2, 3, 2, 4], [0.1, 0.2, 0.3, 0.5, 0.6]).curve.value.tolist()
    [0.1, 0.5, 0.6]
    """
    remarks: list[str] = []
    walls = [math.nan] * len(steps) if wall_s is None else wall_s
    placed = [p for p in zip(steps, values, walls, strict=True) if math.isfinite(p[0])]
    if len(placed) < len(steps):
        remarks.append(f"{count(len(steps) - len(placed), 'point')} without a step left out")
    points = _in_order(placed, remarks, repeats=window > 1)
    finite = [math.isfinite(value) for _, value, _ in points]
    last = max((i for i, good in enumerate(finite) if good), default=-1)
    lost_from = points[last + 1][0] if last + 1 < len(points) else None
    holes = last + 1 - sum(finite[: last + 1])
    if holes:
        remarks.append(f"{count(holes, 'value')} that are no finite number left out")
    if lost_from is not None:
        remarks.append(f"no finite value from step {lost_from:,.0f} on, up to the end")
    kept = [p for p, good in zip(points, finite, strict=True) if good]
    if not kept:
        return Series(None, tuple(remarks), lost_from)
    step, value, wall = (np.array(column, np.float64) for column in zip(*kept, strict=True))
    if window > 1:
        last_of_step = np.append(np.diff(step) > 0, True)
        value = _rolling_mean(value, window)[last_of_step]
        step, wall = step[last_of_step], wall[last_of_step]
    timed = wall_s is not None and bool(np.isfinite(wall).all())
    if timed and (np.diff(wall) < 0).any():
        timed = False
        remarks.append("its clock goes back, so it has no curve over wall-clock")
    curve = Curve(step, value, wall if timed else None)
    return Series(thin(curve, _THINNED) if window > 1 else curve, tuple(remarks), lost_from)


def diverged(series: Mapping[str, Series], metric: str) -> bool:
    """Return whether a run ended in values that are not finite.

    A training accuracy is unknown, not lost, where every grading of the last round failed.
    """
    evaluation, training = series.get("evaluation"), series.get("training")
    if evaluation is not None and evaluation.lost_from is not None:
        return True
    if training is None or training.lost_from is None:
        return False
    if evaluation is None or evaluation.curve is None:
        return True
    return metric != "accuracy" and training.lost_from > float(evaluation.curve.step[-1])


def with_curves(
    run: Run, series: Mapping[str, Series], remarks: Sequence[str] = (), name: str | None = None
) -> Collection:
    """Return a run with its curves, and a note for each thing that has to be said about it.

    Parameters
    ----------
    run : Run
        Without curves; its status stands unless the curves say that it diverged.
    series : mapping
        Its cleaned curves.
    remarks : sequence of str
        On the run as a whole, without full stops.
    name : str, optional
        What the notes call it; by default the name of its folder or file.
    """
    curves = {key: one.curve for key, one in series.items() if one.curve is not None}
    status = "diverged" if diverged(series, run.metric) else run.status
    said = [*remarks, *(f"{key}: {text}" for key, one in series.items() for text in one.remarks)]
    notes = tuple(Note(f"{name or place(run.source)}: {text}.", run.source) for text in said)
    return Collection((replace(run, curves=curves, status=status),), notes)


def thin(curve: Curve, points: int) -> Curve:
    """Keep at most so many points, about evenly spaced over the steps; the last one stays."""
    if len(curve.step) <= points:
        return curve
    wanted = np.linspace(curve.step[0], curve.step[-1], points)
    kept = np.unique(np.searchsorted(curve.step, wanted, side="right") - 1)
    wall = None if curve.wall_s is None else curve.wall_s[kept]
    return Curve(curve.step[kept], curve.value[kept], wall)


def count(number: int, noun: str) -> str:
    """Write a number of things.

    Examples
    --------
    >>> count(1, "point"), count(1200, "point")
    ('1 point', '1,200 points')
    """
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


Point = tuple[float, float, float]


def _in_order(points: list[Point], remarks: list[str], repeats: bool) -> list[Point]:
    """Return the points by increasing step, each step once unless it may repeat."""
    backs = sum(b[0] < a[0] for a, b in pairwise(points))
    unique = len({step for step, _, _ in points}) == len(points)
    # A resumed run goes back now and then; rows in no order do so about every second time.
    if 3 * backs > len(points) - 1 and (unique or len(points) >= 8):
        remarks.append("its rows are in no order of steps: sorted")
        points, backs = sorted(points, key=lambda point: point[0]), 0
    kept: list[Point] = []
    replaced = changed = 0
    for point in points:
        while kept and kept[-1][0] > point[0]:
            kept.pop()
            replaced += 1
        if kept and kept[-1][0] == point[0] and not repeats:
            if _same(kept[-1][1], point[1]):
                continue
            kept.pop()
            changed += 1
        kept.append(point)
    if backs:
        remarks.append(
            f"its steps go back {count(backs, 'time')}: the later segment stands and"
            f" {count(replaced, 'point')} of the earlier one went"
        )
    if changed:
        remarks.append(f"{count(changed, 'step')} with two different values: the later one stands")
    return kept


def _rolling_mean(values: np.ndarray, window: int) -> np.ndarray:
    """Return the mean of each value and those before it, at most ``window`` in all."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(ends - window, 0)
    means: np.ndarray = (sums[ends] - sums[starts]) / (ends - starts)
    return means


def _same(a: float, b: float) -> bool:
    return a == b or (math.isnan(a) and math.isnan(b))
