"""A figure, or figures along an axis, with what is known about where the true one lies."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

__all__ = ["Band", "Estimate"]


@dataclass(frozen=True)
class Estimate:
    """A figure and the interval that holds its true value with the stated confidence.

    Attributes
    ----------
    value : float
        The figure.
    low, high : float, optional
        The interval; both None where there are too few runs for one.
    """

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def flat(self) -> bool:
        """Whether the interval has no width: the runs that count are all equal.

        It then says nothing about runs that were not made.
        """
        return self.low is not None and self.low == self.high

    def excludes(self, value: float = 0.0) -> bool:
        """Whether there is an interval and this value lies outside it."""
        return (
            self.low is not None and self.high is not None and not (self.low <= value <= self.high)
        )


@dataclass(frozen=True)
class Band:
    """Estimates along an axis, each with an interval of its own.

    Attributes
    ----------
    centre : ndarray, [points]
    low, high : ndarray, [points], optional
        Both None where there are too few runs.
    """

    centre: np.ndarray
    low: np.ndarray | None = None
    high: np.ndarray | None = None
