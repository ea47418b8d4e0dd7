"""How sure figures from few runs are: the intervals that reports draw and draw conclusions from.

Methods were chosen by how often their intervals hold the true value, by simulation with 5 runs
upwards of scores such as training gives; docs/statistics.md has the table, :mod:`coverage` makes
it. Levels, differences and bands: expanded percentiles of the bootstrapped interquartile mean.
Fractions and probabilities: Wilson's score interval.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike

from zoo.benchmarks.bootstrap import expanded_band, interval, stratified_indices
from zoo.benchmarks.estimate import Band, Estimate
from zoo.benchmarks.statistics import (
    checked,
    iqm,
    performance_profile,
    probability_of_improvement,
)

__all__ = [
    "Band",
    "Estimate",
    "aggregate",
    "band",
    "detectable",
    "difference",
    "difference_band",
    "fewest_runs",
    "fewest_tasks",
    "improvement",
    "interval",
    "level",
    "profile",
    "stratified_indices",
]


def fewest_runs(paired: bool = False) -> int:
    """How many runs of a task an interval takes; of fewer, only the runs themselves are shown.

    Whatever the distribution, all of n runs lie on one side of its median once in 2ⁿ⁻¹ times: of 4
    once in 8, of 5 once in 16, of 6 once in 32. Only from 6 on can any interval within their range
    hold a level 95 % of the time, so paired differences, on which verdicts rest, ask for 6. Two
    groups of 5 are apart by chance once in 126 times.
    """
    return 6 if paired else 5


def fewest_tasks() -> int:
    """How many tasks an interval of an aggregate takes.

    Of fewer, the quartiles that the interquartile mean cuts at fall inside single tasks, whose few
    runs then bias it.
    """
    return 5


def level(scores: ArrayLike, confidence: float = 0.95) -> Estimate:
    """Interquartile mean of one group.

    Parameters
    ----------
    scores : array, [runs] or [runs, tasks]
    confidence : float

    Returns
    -------
    Estimate
        Without limits below ``fewest_runs``, and for several tasks below ``fewest_tasks``.
    """
    scores = _matrix(scores)
    if scores.shape[1] > 1:
        return aggregate(iqm, scores, confidence=confidence)
    return _only(band(scores, confidence=confidence))


def difference(
    x: ArrayLike, y: ArrayLike, paired: bool = False, confidence: float = 0.95
) -> Estimate:
    """By how much x lies above y.

    Parameters
    ----------
    x, y : array, [runs] or [runs, tasks]
        The numbers of runs may differ where they are not paired.
    paired : bool
        Row i of both has the same seed: gives the interquartile mean of the differences. Otherwise
        the difference of the interquartile means.
    confidence : float

    Returns
    -------
    Estimate
        Without limits where either has fewer than ``fewest_runs(paired)``, and for several tasks
        below ``fewest_tasks``.

    Raises
    ------
    ValueError
        For unequal numbers of tasks or of paired runs, or a score that is not finite.
    """
    x, y = _matrix(x), _matrix(y)
    _same_tasks(x, y)
    if paired:
        if len(x) != len(y):
            raise ValueError(f"paired runs are as many on both sides (got {len(x)} and {len(y)}).")
        gap = level(x - y, confidence)
        return gap if len(x) >= fewest_runs(paired=True) else Estimate(gap.value)
    if x.shape[1] == 1:
        return _only(difference_band(x, y, confidence=confidence))
    rounding = 1e-13 * max(np.abs(x).max(), np.abs(y).max())

    def iqm_gap(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        # means of five and of six equal scores differ by rounding, and that is no difference
        gap = iqm(x) - iqm(y)
        return np.where(np.abs(gap) <= rounding, 0.0, gap)

    return aggregate(iqm_gap, x, y, confidence=confidence)


def aggregate(
    statistic: Callable[..., np.ndarray], *scores: ArrayLike, confidence: float = 0.95
) -> Estimate:
    """Any statistic over several tasks, with its expanded percentile interval.

    Parameters
    ----------
    statistic : callable
        From as many arrays [..., runs, tasks] as ``scores`` to [...]: those in :mod:`statistics`.
    *scores : array, [runs, tasks]
    confidence : float

    Returns
    -------
    Estimate
        Without limits below ``fewest_runs`` or ``fewest_tasks``.
    """
    arrays = [checked(s) for s in scores]
    if min(len(a) for a in arrays) < fewest_runs() or arrays[0].shape[1] < fewest_tasks():
        return Estimate(float(statistic(*arrays)))
    return interval(statistic, *arrays, confidence=confidence, method="expanded")


def improvement(x: ArrayLike, y: ArrayLike, confidence: float = 0.95) -> Estimate:
    """Probability that a run of x beats one of y, averaged over tasks; ties count half.

    The interval is Wilson's for as many independent duels as the smaller group has runs, an upper
    bound on the variance (van Dantzig 1951) that holds whatever the two distributions are.

    Parameters
    ----------
    x, y : array, [runs] or [runs, tasks]
        The numbers of runs may differ.
    confidence : float

    Returns
    -------
    Estimate
        Without limits where either has fewer than ``fewest_runs``.
    """
    x, y = _matrix(x), _matrix(y)
    value = probability_of_improvement(x, y)
    runs = min(len(x), len(y))
    if runs < fewest_runs():
        return Estimate(float(value))
    low, high = _wilson(value, runs * x.shape[1], confidence)
    return Estimate(float(value), float(low), float(high))


def profile(scores: ArrayLike, tau: ArrayLike, confidence: float = 0.95) -> Band:
    """Performance profile: the fraction of runs, over all tasks, above each threshold.

    Parameters
    ----------
    scores : array, [runs] or [runs, tasks]
    tau : array, [thresholds]
    confidence : float

    Returns
    -------
    Band
        Pointwise; without limits below ``fewest_runs``.
    """
    scores = _matrix(scores)
    centre = performance_profile(scores, tau)
    if len(scores) < fewest_runs():
        return Band(centre)
    return Band(centre, *_wilson(centre, scores.size, confidence))


def band(values: ArrayLike, statistic: str = "iqm", confidence: float = 0.95) -> Band:
    """Interquartile mean (``iqm``) or ``mean`` of the runs at each point of a curve.

    Pointwise: each interval holds its true value with the stated confidence; all of them together
    do so less often.

    Parameters
    ----------
    values : array, [runs, points]
    statistic : str
    confidence : float

    Returns
    -------
    Band
        Without limits below ``fewest_runs``.
    """
    values = checked(values)
    return _shown(expanded_band([values], statistic, confidence), len(values))


def difference_band(
    x: ArrayLike, y: ArrayLike, statistic: str = "iqm", confidence: float = 0.95
) -> Band:
    """The statistic of x less that of y at each point; x: [n, points], y: [m, points]."""
    x, y = checked(x), checked(y)
    return _shown(expanded_band([x, y], statistic, confidence), min(len(x), len(y)))


def detectable(spread: float, runs: int, confidence: float = 0.95) -> float:
    """The difference between two groups of this many runs that their interval just tells from 0.

    Half the width of the interval for runs as evenly spread as a normal distribution. A true
    difference of this size is found half of the time, one of 1.4 times this size four times of
    five.

    Parameters
    ----------
    spread : float
        Standard deviation of the runs of either group.
    runs : int
        In each group.
    confidence : float

    Returns
    -------
    float
        Infinite below ``fewest_runs``.
    """
    if runs < fewest_runs():
        return math.inf
    even = np.array([NormalDist().inv_cdf((i + 0.5) / runs) for i in range(runs)])
    even *= spread / even.std(ddof=1)
    gap = difference(even, even, confidence=confidence)
    assert gap.low is not None and gap.high is not None
    return (gap.high - gap.low) / 2


def _shown(full: Band, runs: int) -> Band:
    return full if runs >= fewest_runs() else Band(full.centre)


def _wilson(fraction: np.ndarray, trials: int, confidence: float) -> tuple[np.ndarray, np.ndarray]:
    """Wilson's score interval: the p with |fraction − p| ≤ z √(p (1−p) / trials)."""
    z2 = NormalDist().inv_cdf((1 + confidence) / 2) ** 2 / trials
    middle = (fraction + z2 / 2) / (1 + z2)
    half = np.sqrt(z2 * fraction * (1 - fraction) + z2 * z2 / 4) / (1 + z2)
    return np.maximum(middle - half, 0.0), np.minimum(middle + half, 1.0)


def _matrix(scores: ArrayLike) -> np.ndarray:
    scores = np.asarray(scores, dtype=np.float64)
    return checked(scores[:, None] if scores.ndim == 1 else scores)


def _same_tasks(x: np.ndarray, y: np.ndarray) -> None:
    if x.shape[1] != y.shape[1]:
        raise ValueError(
            f"x has {x.shape[1]} tasks and y {y.shape[1]}: they are compared task by task."
        )


def _only(band: Band) -> Estimate:
    """The estimate at a band's one point."""
    centre = float(band.centre[0])
    if band.low is None or band.high is None:
        return Estimate(centre)
    return Estimate(centre, float(band.low[0]), float(band.high[0]))
