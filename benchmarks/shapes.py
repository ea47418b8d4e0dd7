"""How the scores of seeds may be distributed: what the coverage of intervals is simulated with.

Every shape is a rising function of a standard normal z, so that true values follow by integration
and pairs of any correlation by correlating their z.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from statistics import NormalDist

import numpy as np

from zoo.benchmarks.statistics import iqm

__all__ = ["SHAPES", "Shape", "grid", "true_value"]

Shape = Callable[[np.ndarray], np.ndarray]
_Z = NormalDist().inv_cdf


def _failing(fraction: float) -> Shape:
    """A fraction of the seeds learns nothing: scores near 0, the others' near 1."""
    return lambda z: 0.1 * z + (z > _Z(fraction))


def _ceiling(fraction: float) -> Shape:
    """A fraction of the seeds reaches the highest score that there is."""
    return lambda z: np.minimum(z, _Z(1 - fraction))


def _skewed(z: np.ndarray) -> np.ndarray:
    """Log-normal, skewness 3.3."""
    return (np.exp(0.75 * z) - 1) / 0.75


#: by the name that the tables have
SHAPES: dict[str, Shape] = {
    "normal": lambda z: z,
    "skewed": _skewed,
    "heavy tails": lambda z: z * np.exp(0.1 * z * z),  # Tukey's h = 0.2
    "a fifth fails": _failing(0.2),
    "a third fails": _failing(0.35),
    "30 % at a ceiling": _ceiling(0.3),
    "60 % at a ceiling": _ceiling(0.6),
    "normal, thrice as wide": lambda z: 3 * z,
    "skewed, thrice as wide": lambda z: 3 * _skewed(z),
    "skewed the other way": lambda z: -_skewed(-z),
    "none fails": lambda z: 0.1 * z + 1,
}


@lru_cache
def grid(points: int = 200_000) -> np.ndarray:
    """Standard normal quantiles in the middle of as many equally probable parts."""
    return np.array([_Z((i + 0.5) / points) for i in range(points)])


def true_value(shape: Shape, statistic: str = "iqm") -> float:
    """The statistic of infinitely many runs: ``iqm`` or ``mean``."""
    scores = shape(grid())
    return float(scores.mean() if statistic == "mean" else iqm(scores[:, None]))
