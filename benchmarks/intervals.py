"""How sure figures from few runs are.

Two kinds of interval. ``interval`` resamples any statistic (stratified bootstrap, as rliable does).
``level``, ``difference``, ``improvement``, ``band`` and ``profile`` use the methods that held the
true value as often as they claim with few runs: docs/statistics.md has the table.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike

from zoo.benchmarks.statistics import checked, probability_of_improvement, trim
from zoo.benchmarks.student import t_quantile

__all__ = [
    "Band",
    "Estimate",
    "band",
    "detectable",
    "difference",
    "fewest_runs",
    "improvement",
    "interval",
    "level",
    "profile",
    "stratified_indices",
]


@dataclass(frozen=True)
class Estimate:
    """A figure and the interval that holds its true value with the stated confidence.

    Attributes
    ----------
    value : float
        The figure.
    low, high : float, optional
        The interval; None where there are too few runs for one.
    """

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def flat(self) -> bool:
        """Whether the interval has no width: the runs that count are all equal.

        It then says nothing about the runs that were not made.
        """
        return self.low is not None and self.low == self.high

    def excludes(self, value: float = 0.0) -> bool:
        """Whether there is an interval and it leaves out this value."""
        return (
            self.low is not None and self.high is not None and not (self.low <= value <= self.high)
        )


@dataclass(frozen=True)
class Band:
    """Estimates along an axis: ``centre``, ``low`` and ``high`` are [points], or they are None."""

    centre: np.ndarray
    low: np.ndarray | None = None
    high: np.ndarray | None = None


def fewest_runs(tasks: int = 1) -> int:
    """How many runs of each task an interval takes; with fewer, only the runs can be shown."""
    return 5 if tasks == 1 else 3


def level(scores: ArrayLike, confidence: float = 0.95) -> Estimate:
    """Interquartile mean of one group.

    Parameters
    ----------
    scores : array, [runs] or [runs, tasks]
    confidence : float

    Returns
    -------
    Estimate
        Without an interval below ``fewest_runs``.
    """
    scores = _matrix(scores)
    value, variance, df = _moments(scores)
    if len(scores) < fewest_runs(scores.shape[-1]):
        return Estimate(float(value))
    half = t_quantile(confidence, df) * np.sqrt(variance)
    return Estimate(float(value), float(value - half), float(value + half))


def difference(
    x: ArrayLike, y: ArrayLike, paired: bool = False, confidence: float = 0.95
) -> Estimate:
    """Interquartile mean of x less that of y.

    Parameters
    ----------
    x, y : array, [runs] or [runs, tasks]
        The numbers of runs may differ where they are not paired.
    paired : bool
        Whether row i of both shares its seed.
    confidence : float

    Returns
    -------
    Estimate
        Without an interval where either has fewer than ``fewest_runs``.
    """
    x, y = _matrix(x), _matrix(y)
    _same_tasks(x, y)
    if paired and len(x) != len(y):
        raise ValueError(f"paired runs are as many on both sides (got {len(x)} and {len(y)})")
    value_x, variance_x, df_x = _moments(x)
    value_y, variance_y, df_y = _moments(y)
    value = float(value_x - value_y)
    if min(len(x), len(y)) < fewest_runs(x.shape[-1]):
        return Estimate(value)
    variance = variance_x + variance_y
    if variance == 0:
        return Estimate(value, value, value)
    df = variance**2 / (variance_x**2 / df_x + variance_y**2 / df_y)
    half = float(t_quantile(confidence, df) * np.sqrt(variance))
    return Estimate(value, value - half, value + half)


def improvement(x: ArrayLike, y: ArrayLike, confidence: float = 0.95) -> Estimate:
    """Probability that a run of x beats one of y, averaged over tasks.

    Parameters
    ----------
    x, y : array, [runs] or [runs, tasks]
        The numbers of runs may differ.
    confidence : float
    """
    x, y = _matrix(x), _matrix(y)
    _same_tasks(x, y)
    if min(len(x), len(y)) < fewest_runs(x.shape[-1]):
        return Estimate(float(probability_of_improvement(x, y)))
    return interval(probability_of_improvement, x, y, confidence=confidence)


def band(values: ArrayLike, statistic: str = "iqm", confidence: float = 0.95) -> Band:
    """Interquartile mean (``iqm``) or ``mean`` of the runs at each point, and its interval there.

    Pointwise: at each point the interval holds the true value with the stated confidence, the band
    as a whole with less.

    Parameters
    ----------
    values : array, [runs, points]
    statistic : str
    confidence : float
    """
    values = np.asarray(values, dtype=np.float64)
    columns = values.T[:, :, None]
    centre, variance, df = _moments(columns, trimmed=statistic == "iqm")
    if len(values) < fewest_runs():
        return Band(centre)
    half = t_quantile(confidence, df) * np.sqrt(variance)
    return Band(centre, centre - half, centre + half)


def profile(scores: ArrayLike, tau: ArrayLike, confidence: float = 0.95) -> Band:
    """Performance profile: the fraction of runs above each threshold, with a pointwise band.

    Parameters
    ----------
    scores : array, [runs] or [runs, tasks]
    tau : array, [thresholds]
    confidence : float
    """
    scores, tau = _matrix(scores), np.asarray(tau, dtype=np.float64)
    above = (scores[..., None] > tau).mean(axis=0)
    centre = above.mean(axis=0)
    if len(scores) < fewest_runs(scores.shape[-1]):
        return Band(centre)
    z, n = NormalDist().inv_cdf((1 + confidence) / 2), len(scores)
    middle = (above + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * np.sqrt(above * (1 - above) / n + z * z / (4 * n * n))
    low, high = middle - half, middle + half
    below, beyond = np.sqrt(((above - low) ** 2).sum(0)), np.sqrt(((high - above) ** 2).sum(0))
    tasks = scores.shape[-1]
    return Band(
        centre, np.clip(centre - below / tasks, 0, 1), np.clip(centre + beyond / tasks, 0, 1)
    )


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
    reps: int = 2000,
    seed: int = 0,
    paired: bool = False,
    indices: tuple[np.ndarray, ...] | None = None,
) -> Estimate:
    """Stratified bootstrap of any statistic.

    Parameters
    ----------
    statistic : callable
        From as many arrays [..., runs, tasks] as ``scores`` to [...].
    *scores : array, [runs, tasks]
    confidence : float
    method : str
        ``percentile`` is rliable's: the quantiles of the resampled statistic. It is too narrow for
        few runs. ``expanded`` goes further out into them (Hesterberg 2015, What teachers should
        know about the bootstrap): as far as Student's t with n − 1 degrees of freedom lies, times
        √(n/(n−1)).
    reps, seed : int
        Number of resamples, and of the generator that draws them.
    paired : bool
        Draw the same rows of all arrays.
    indices : tuple of [reps, runs, tasks], optional
        The resamples themselves, one array for each of ``scores``.
    """
    arrays = [checked(s) for s in scores]
    value = float(statistic(*arrays))
    runs = min(len(a) for a in arrays)
    if runs < 2:
        return Estimate(value)
    if indices is None:
        generator = np.random.default_rng(seed)
        drawn = [stratified_indices(generator, reps, *a.shape) for a in arrays]
        indices = tuple(drawn[:1] * len(arrays) if paired else drawn)
    resampled = [np.take_along_axis(a[None], i, axis=1) for a, i in zip(arrays, indices)]
    tail = (1 - confidence) / 2
    if method == "expanded":
        t = float(t_quantile(confidence, runs - 1))
        tail = NormalDist().cdf(-math.sqrt(runs / (runs - 1)) * t)
    elif method != "percentile":
        raise ValueError(f"method is percentile or expanded (got {method!r})")
    low, high = np.quantile(statistic(*resampled), [tail, 1 - tail])
    return Estimate(value, float(low), float(high))


def detectable(spread: float, runs: int, confidence: float = 0.95) -> float:
    """The difference between two groups that this many runs of each just tell from none.

    Parameters
    ----------
    spread : float
        Standard deviation of the runs of one group.
    runs : int
        Of each group.
    confidence : float
    """
    return float(spread * math.sqrt(2 / runs) * t_quantile(confidence, 2 * runs - 2))


def _moments(scores: np.ndarray, trimmed: bool = True) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Interquartile mean, its variance and their degrees of freedom, [...] each (Yuen 1974)."""
    runs, tasks = scores.shape[-2:]
    pooled = np.sort(scores.reshape(*scores.shape[:-2], -1), axis=-1)
    cut = trim(runs * tasks) if trimmed else 0
    kept = pooled[..., cut : runs * tasks - cut]
    value = kept.mean(axis=-1)
    df = max(kept.shape[-1] - tasks, 1)
    winsorised = np.clip(scores, kept[..., 0, None, None], kept[..., -1, None, None])
    squares = ((winsorised - winsorised.mean(axis=-2, keepdims=True)) ** 2).sum(axis=(-2, -1))
    return value, squares / (kept.shape[-1] * df), np.full(value.shape, float(df))


def _matrix(scores: ArrayLike) -> np.ndarray:
    scores = np.asarray(scores, dtype=np.float64)
    return checked(scores[:, None] if scores.ndim == 1 else scores)


def _same_tasks(x: np.ndarray, y: np.ndarray) -> None:
    if x.shape[-1] != y.shape[-1]:
        raise ValueError(
            f"x has {x.shape[-1]} tasks and y {y.shape[-1]}: they are compared task by task."
        )
