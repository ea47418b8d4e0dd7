"""Resampling runs: rliable's stratified bootstrap, and its percentiles widened for few runs.

For few runs the quantiles of a resampled statistic lie too close together, for two reasons:
resamples of n runs vary as a sum of squares divided by n does, where n − 1 is unbiased, and the
spread that they show is itself uncertain. Expanded percentiles (Hesterberg 2015, What teachers
should know about the bootstrap) answer both: not the quantiles at Φ(∓z) but those at
Φ(∓t √(n/(n−1))), with t from Student's distribution.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike

from zoo.benchmarks.estimate import Band, Estimate
from zoo.benchmarks.statistics import checked, trim
from zoo.benchmarks.student import t_quantile

__all__ = [
    "REPS",
    "expanded_band",
    "expanded_tail",
    "interval",
    "quantiles",
    "rank_weights",
    "resampled_band",
    "stratified_indices",
]

#: resamples: another seed moves a limit by some 3 % of the interval's width
REPS = 5000
#: resamples (of scores), or points (of curves), that are held in memory at once
_BLOCK = 250


def stratified_indices(
    generator: np.random.Generator, reps: int, runs: int, tasks: int
) -> np.ndarray:
    """Which run stands where in each resample: [reps, runs, tasks], drawn within each task."""
    return generator.integers(runs, size=(reps, runs, tasks))


def interval(
    statistic: Callable[..., np.ndarray],
    *scores: ArrayLike,
    confidence: float = 0.95,
    method: str = "percentile",
    reps: int = REPS,
    seed: int = 0,
    indices: Sequence[np.ndarray] | None = None,
) -> Estimate:
    """Stratified bootstrap of any statistic: runs are drawn anew within each task.

    Parameters
    ----------
    statistic : callable
        From as many arrays [..., runs, tasks] as ``scores`` to [...].
    *scores : array, [runs, tasks]
        Resampled independently of each other.
    confidence : float
    method : str
        ``percentile`` is rliable's, too narrow for few runs; ``expanded`` widens it.
    reps, seed : int
        Number of resamples, and the seed of their generator.
    indices : sequence of [reps, runs, tasks], optional
        The resamples themselves, one array for each of ``scores``, in place of drawing them.

    Returns
    -------
    Estimate
        Without limits where an array holds a single run of each task.

    Raises
    ------
    ValueError
        For an unknown method or a score that is not finite.
    """
    if method not in ("percentile", "expanded"):
        raise ValueError(f"method is percentile or expanded (got {method!r})")
    arrays = [checked(s) for s in scores]
    value = float(statistic(*arrays))
    if min(len(a) for a in arrays) < 2:
        return Estimate(value)
    if indices is None:
        generator = np.random.default_rng(seed)
        indices = [stratified_indices(generator, reps, *a.shape) for a in arrays]

    def resample(start: int) -> np.ndarray:
        drawn = (i[start : start + _BLOCK] for i in indices)
        return statistic(*(np.take_along_axis(a[None], i, axis=1) for a, i in zip(arrays, drawn)))

    resampled = np.concatenate([resample(s) for s in range(0, len(indices[0]), _BLOCK)])
    tail = np.asarray((1 - confidence) / 2)
    if method == "expanded":
        variances = np.array([a.var(axis=0, ddof=1).sum() for a in arrays])
        tail = expanded_tail(variances, [len(a) for a in arrays], confidence)
    low, high = quantiles(resampled, tail)
    return Estimate(value, float(low), float(high))


def expanded_tail(
    variances: np.ndarray, runs: Sequence[int], confidence: float = 0.95
) -> np.ndarray:
    """Where the expanded percentile interval begins: the fraction of resamples below it.

    For several groups the factor √(n/(n−1)) is that between the two estimates of the variance of
    the sum of their means, and the degrees of freedom are those of Welch and Satterthwaite.

    Parameters
    ----------
    variances : array, [groups, ...]
        Sample variances of the runs.
    runs : sequence of int, [groups]
        Two or more each.
    confidence : float

    Returns
    -------
    array, [...]
        Below ``(1 − confidence) / 2``.

    Examples
    --------
    >>> round(float(expanded_tail(np.ones(1), [5])), 5)  # t = 2.776, √(5/4) t = 3.104
    0.00095
    """
    n = np.asarray(runs, dtype=np.float64).reshape(-1, *[1] * (variances.ndim - 1))
    # equal runs: any weights do, as none of the quantiles differ
    variances = np.where(variances.sum(axis=0) > 0, variances, 1.0)
    shares = variances / n / (variances / n).sum(axis=0)
    factor = 1 / np.sqrt((shares * (n - 1) / n).sum(axis=0))
    df = 1 / (shares**2 / (n - 1)).sum(axis=0)
    z = factor * t_quantile(confidence, df)
    return 0.5 * np.vectorize(math.erfc, otypes=[np.float64])(z / math.sqrt(2))


def quantiles(resampled: np.ndarray, tail: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Quantiles at ``tail`` and 1 − ``tail``, linear between neighbours as ``np.quantile``'s.

    Parameters
    ----------
    resampled : array, [..., reps]
    tail : array, [...] or []
        At most ½.
    """
    last = resampled.shape[-1] - 1
    position = np.broadcast_to(tail * last, resampled.shape[:-1])[..., None]
    ends = min(int(position.max(initial=0.0)) + 1, last)
    ordered = np.partition(resampled, [ends, last - ends], axis=-1)
    lowest = np.sort(ordered[..., : ends + 1], axis=-1)
    highest = -np.sort(-ordered[..., last - ends :], axis=-1)
    below = np.floor(position).astype(np.int64)
    above = np.minimum(below + 1, ends)
    share = position - below

    def between(values: np.ndarray) -> np.ndarray:
        near = np.take_along_axis(values, below, axis=-1)
        far = np.take_along_axis(values, above, axis=-1)
        return (near + share * (far - near))[..., 0]

    return between(lowest), between(highest)


@lru_cache(maxsize=64)
def rank_weights(runs: int, cut: int, stream: int, reps: int = REPS) -> np.ndarray:
    """How much each of the sorted runs weighs in the trimmed mean of each resample.

    A resample's order follows from the ranks that were drawn, whatever the scores, so that one
    matrix product resamples any number of curves.

    Parameters
    ----------
    runs, cut : int
        Number of runs, and how many the mean leaves out at each end.
    stream : int
        Groups that are independent of each other take different ones.
    reps : int

    Returns
    -------
    array, [reps, runs]
        Rows that sum to 1.
    """
    generator = np.random.default_rng((stream, runs))
    ranks = np.sort(stratified_indices(generator, reps, runs, 1)[..., 0], axis=-1)
    kept = ranks[:, cut : runs - cut]
    cells = np.arange(reps)[:, None] * runs + kept
    counts = np.bincount(cells.ravel(), minlength=reps * runs).reshape(reps, runs)
    return counts / kept.shape[1]


def expanded_band(
    groups: Sequence[np.ndarray], statistic: str = "iqm", confidence: float = 0.95
) -> Band:
    """Expanded percentiles of one group's statistic, or of its difference between two, per point.

    Parameters
    ----------
    groups : one or two arrays, [runs, points]
        The number of runs may differ.
    statistic : str
        ``iqm`` or ``mean``.
    confidence : float

    Returns
    -------
    Band
        Without limits where a group has a single run.
    """
    runs = [len(g) for g in groups]
    if min(runs) < 2:
        return resampled_band(groups, statistic, None)
    variances = np.stack([g.var(axis=0, ddof=1) for g in groups])
    return resampled_band(groups, statistic, expanded_tail(variances, runs, confidence))


def resampled_band(groups: Sequence[np.ndarray], statistic: str, tail: np.ndarray | None) -> Band:
    """The statistic, and the quantiles of its resamples at ``tail`` [points] and 1 − ``tail``."""
    if statistic not in ("iqm", "mean"):
        raise ValueError(f"statistic is iqm or mean (got {statistic!r})")
    origin, centre = np.zeros(groups[0].shape[1]), np.zeros(groups[0].shape[1])
    parts = []
    for stream, (sign, group) in enumerate(zip((1.0, -1.0), groups)):
        cut = trim(len(group)) if statistic == "iqm" else 0
        ordered = np.sort(group, axis=0)
        # measured from the middle run: equal runs then leave exact zeros, no rounding
        middle = ordered[len(group) // 2]
        offsets = sign * (ordered - middle)
        origin += sign * middle
        centre += offsets[cut : len(group) - cut].mean(axis=0)
        parts.append((offsets.T, rank_weights(len(group), cut, stream).T))
    if tail is None:
        return Band(origin + centre)
    low, high = np.empty_like(centre), np.empty_like(centre)
    for start in range(0, len(centre), _BLOCK):
        block = slice(start, start + _BLOCK)
        resampled = np.zeros((len(centre[block]), REPS))
        for offsets, weights in parts:
            resampled += offsets[block] @ weights
        low[block], high[block] = quantiles(resampled, tail[block])
    return Band(origin + centre, origin + low, origin + high)
