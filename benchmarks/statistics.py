"""What is computed from final scores: the aggregates of rliable, over any number of resamples.

Scores are [..., runs, tasks], normalised so that tasks can be pooled: one run of each task is one
row, and leading axes hold bootstrap replicates. One task is ``values[:, None]``. Definitions:
Agarwal et al. 2021, Deep RL at the edge of the statistical precipice, and its code, rliable 1.2.0;
how sure the figures are is told by :mod:`intervals`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

__all__ = [
    "as_scores",
    "checked",
    "iqm",
    "mean",
    "median",
    "optimality_gap",
    "performance_profile",
    "probability_of_improvement",
    "trim",
]


def as_scores(tasks: Sequence[ArrayLike]) -> np.ndarray:
    """Put the runs of several tasks side by side: [runs, tasks].

    Parameters
    ----------
    tasks : sequence of [runs]
        The scores of each task's runs; as many in each.

    Raises
    ------
    ValueError
        Where the tasks differ in their number of runs, or a score is not finite.
    """
    columns = [np.asarray(task, dtype=np.float64) for task in tasks]
    counts = [len(column) for column in columns]
    if len(set(counts)) > 1:
        raise ValueError(
            f"an aggregate over tasks needs equally many runs of each (got {counts}): "
            "a task with more runs would count for more."
        )
    return checked(np.stack(columns, axis=-1))


def iqm(scores: ArrayLike) -> np.ndarray:
    """Interquartile mean: the mean without the lowest and the highest quarter of all scores.

    Runs and tasks are pooled. Of N scores ⌊N/4⌋ are cut at each end
    (``scipy.stats.trim_mean(scores, 0.25, axis=None)``), so that of 3 none are.

    Parameters
    ----------
    scores : array, [..., runs, tasks]

    Returns
    -------
    array, [...]
    """
    scores = checked(scores)
    pooled = scores.reshape(*scores.shape[:-2], -1)
    cut = trim(pooled.shape[-1])
    pooled = np.sort(pooled, axis=-1)
    return pooled[..., cut : pooled.shape[-1] - cut].mean(axis=-1)


def trim(count: int) -> int:
    """How many of this many scores the interquartile mean cuts at each end."""
    return count // 4


def mean(scores: ArrayLike) -> np.ndarray:
    """Mean over tasks of the mean over runs, [...] of [..., runs, tasks]."""
    return checked(scores).mean(axis=-2).mean(axis=-1)


def median(scores: ArrayLike) -> np.ndarray:
    """Median over tasks of the mean over runs, [...] of [..., runs, tasks].

    Of a single task this is the mean of its runs.
    """
    return np.median(checked(scores).mean(axis=-2), axis=-1)


def optimality_gap(scores: ArrayLike, gamma: float = 1.0) -> np.ndarray:
    """How far below ``gamma`` the runs lie on average: ``gamma − mean(min(score, gamma))``.

    Parameters
    ----------
    scores : array, [..., runs, tasks]
    gamma : float
        The score that is good enough; what exceeds it makes up for nothing.
    """
    return gamma - np.minimum(checked(scores), gamma).mean(axis=(-2, -1))


def probability_of_improvement(x: ArrayLike, y: ArrayLike) -> np.ndarray:
    """P(X > Y) + ½ P(X = Y) for a random run of each on one task, averaged over tasks.

    Parameters
    ----------
    x, y : array, [..., runs, tasks]
        As many tasks in both; the number of runs may differ.

    Returns
    -------
    array, [...]
        From 0 (every run of y is better) over 0.5 to 1.
    """
    x, y = checked(x), checked(y)
    if x.shape[-1] != y.shape[-1]:
        raise ValueError(
            f"x has {x.shape[-1]} tasks and y {y.shape[-1]}: they are compared task by task."
        )
    gap = x[..., :, None, :] - y[..., None, :, :]
    return (0.5 + 0.5 * np.sign(gap)).mean(axis=(-3, -2)).mean(axis=-1)


def performance_profile(scores: ArrayLike, tau: ArrayLike, average: bool = False) -> np.ndarray:
    """Fraction of runs, over all tasks, that score above each threshold.

    Parameters
    ----------
    scores : array, [..., runs, tasks]
    tau : array, [thresholds]
    average : bool
        Count tasks by the mean of their runs instead (rliable's average-score distribution).

    Returns
    -------
    array, [..., thresholds]
        Never rising along ``tau``.
    """
    scores, tau = checked(scores), np.asarray(tau, dtype=np.float64)
    counted = scores.mean(axis=-2) if average else scores.reshape(*scores.shape[:-2], -1)
    return (counted[..., None, :] > tau[:, None]).mean(axis=-1)


def checked(scores: ArrayLike) -> np.ndarray:
    """As float64 [..., runs, tasks], or a ValueError."""
    scores = np.asarray(scores, dtype=np.float64)
    if scores.ndim < 2 or 0 in scores.shape[-2:]:
        raise ValueError(f"scores are [runs, tasks] with at least one of each (got {scores.shape})")
    if not np.isfinite(scores).all():
        raise ValueError("a score is not finite: leave its run out and say so")
    return scores
