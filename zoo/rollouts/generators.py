"""Generators side by side: environments of several seeds in one array, each drawn by its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

__all__ = ["Generators"]


class Generators:
    """Draw what an actor draws, [T, N, …], for S·N environments of which S generators own N each.

    Every generator is asked for exactly what it is asked for when its N environments are alone.

    Parameters
    ----------
    generators : sequence of numpy.random.Generator
        One for each seed.
    """

    def __init__(self, generators: Sequence[np.random.Generator]) -> None:
        self.generators = list(generators)

    def gumbel(self, size: tuple[int, ...]) -> np.ndarray:
        """Return Gumbel noise, float64."""
        return self._side_by_side(size, lambda own, shape: own.gumbel(size=shape))

    def standard_normal(self, size: tuple[int, ...], dtype: Any = np.float64) -> np.ndarray:
        """Return normal noise of deviation 1."""
        return self._side_by_side(size, lambda own, shape: own.standard_normal(shape, dtype=dtype))

    def _side_by_side(
        self,
        size: tuple[int, ...],
        draw: Callable[[np.random.Generator, tuple[int, ...]], np.ndarray],
    ) -> np.ndarray:
        if len(self.generators) == 1:
            return draw(self.generators[0], size)
        steps, envs, *shape = size
        own = (steps, envs // len(self.generators), *shape)
        return np.concatenate([draw(generator, own) for generator in self.generators], 1)
