"""How sure figures from few runs are: the intervals that reports draw and draw conclusions from.

Methods were chosen by how often their intervals hold the true value, by simulation with 5 runs
upwards of scores such as training gives; docs/statistics.md has the table, :mod:`coverage` makes
it. Levels, differences and bands: expanded percentiles of the bootstrapped interquartile mean.
Fractions and probabilities: Wilson's score interval.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike

from zoo.benchmarks.bootstrap import (
    expanded_tail,
    interval,
    quantiles,
    rank_weights,
    stratified_indices,
)
from zoo.benchmarks.estimate import Band, Estimate
from zoo.benchmarks.statistics import (
    checked,
    iqm,
    performance_profile,
    probability_of_improvement,
    trim,
)

__all__ = [
    "Band",
    "Estimate",
    "band",
    "detectable",
    "difference",
    "difference_band",
    "fewest_runs",
    "improvement",
    "interval",
    "level",
    "profile",
    "stratified_indices",
]

#: points whose resamples are held in memory at once
_BLOCK = 256


def fewest_runs() -> int:
    """How many runs of a task an interval takes; of fewer, only the runs themselves are shown.

    No interval that holds for every shape of distribution can do without: of four runs all lie on
    one side of the true median in 1 case of 8.
    """
    return 5


def level(scores: ArrayLike, confidence: float = 0.95) -> Estimate:
    """Interquartile mean of one group.

    The level of ``x - y`` is the paired difference: the interquartile mean of the differences
    between runs that share a seed.

    Parameters
    ----------
    scores : array, [runs] or [runs, tasks]
    confidence : float

    Returns
    -------
    Estimate
        Without limits below ``fewest_runs``.
    """
    scores = _matrix(scores)
    if scores.shape[1] == 1:
        return _only(band(scores, confidence=confidence))
    if len(scores) < fewest_runs():
        return Estimate(float(iqm(scores)))
    return interval(iqm, scores, confidence=confidence, method="expanded")


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
        Without limits where either has fewer than ``fewest_runs``.

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
        return level(x - y, confidence)
    if x.shape[1] == 1:
        return _only(difference_band(x, y, confidence=confidence))
    rounding = 1e-13 * max(np.abs(x).max(), np.abs(y).max())

    def gap(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        # means of five and of six equal scores differ by rounding, and that is no difference
        gap = iqm(x) - iqm(y)
        return np.where(np.abs(gap) <= rounding, 0.0, gap)

    if min(len(x), len(y)) < fewest_runs():
        return Estimate(float(gap(x, y)))
    return interval(gap, x, y, confidence=confidence, method="expanded")


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
    return _band([checked(values)], statistic, confidence)


def difference_band(
    x: ArrayLike, y: ArrayLike, statistic: str = "iqm", confidence: float = 0.95
) -> Band:
    """The statistic of x less that of y at each point; x: [n, points], y: [m, points]."""
    return _band([checked(x), checked(y)], statistic, confidence)


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


def _band(groups: Sequence[np.ndarray], statistic: str, confidence: float) -> Band:
    """Of one group, or of the first less the second; [runs, points] each."""
    if statistic not in ("iqm", "mean"):
        raise ValueError(f"statistic is iqm or mean (got {statistic!r})")
    cuts = [trim(len(g)) if statistic == "iqm" else 0 for g in groups]
    ordered = [np.sort(g, axis=0) for g in groups]
    # measured from the middle run: of equal runs nothing but exact zeros is then resampled
    origins = [g[len(g) // 2] for g in ordered]
    offsets = [g - origin for g, origin in zip(ordered, origins)]
    centres = [o[c : len(o) - c].mean(axis=0) for o, c in zip(offsets, cuts)]
    signs = (1.0, -1.0)
    origin = sum(s * o for s, o in zip(signs, origins))
    centre = origin + sum(s * c for s, c in zip(signs, centres))
    if min(len(g) for g in groups) < fewest_runs():
        return Band(centre)
    tail = expanded_tail(
        np.stack([g.var(axis=0, ddof=1) for g in groups]), [len(g) for g in groups], confidence
    )
    drawn = [rank_weights(len(g), c, stream) for stream, (g, c) in enumerate(zip(groups, cuts))]
    limits = []
    for start in range(0, len(centre), _BLOCK):
        block = slice(start, start + _BLOCK)
        resampled = sum(s * (o[:, block].T @ w.T) for s, o, w in zip(signs, offsets, drawn))
        limits.append(quantiles(resampled, tail[block]))
    low, high = (np.concatenate(side) for side in zip(*limits))
    return Band(centre, origin + low, origin + high)


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
