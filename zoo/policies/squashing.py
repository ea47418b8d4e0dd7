"""Squashing: tanh into [−1, 1], and from there to the bounds of a Box of actions and back."""

from __future__ import annotations

import math

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor
from torch.nn import functional as F

from zoo.errors import UserError

__all__ = ["LOG_STD_RANGE", "ActionBounds", "log_slope"]

#: bounds on log σ before squashing
LOG_STD_RANGE = (-20.0, 2.0)


def log_slope(u: Tensor) -> Tensor:
    """Return log(1 − tanh² u) as 2·(log 2 − u − softplus(−2u)): finite and exact for any u."""
    return 2 * (math.log(2) - u - F.softplus(-2 * u))


class ActionBounds:
    """a = middle + half·y for y in [−1, 1], per dimension.

    Parameters
    ----------
    space : Box
        Of the actions, with finite bounds.
    algorithm : str
        Who squashes, for the message.

    Attributes
    ----------
    shape : tuple of int
        Of one action.
    size : int
        Its number of dimensions, dim(A).
    low, high, middle, half : ndarray
        [size] float32.

    Raises
    ------
    UserError
        For spaces that are no Box, and for infinite or empty ranges.
    """

    def __init__(self, space: spaces.Space[object], algorithm: str) -> None:
        if not isinstance(space, spaces.Box):
            raise UserError(f"{algorithm} needs continuous actions, a Box (got {space}).")
        self.low = space.low.reshape(-1).astype(np.float32)
        self.high = space.high.reshape(-1).astype(np.float32)
        self.middle, self.half = 0.5 * (self.low + self.high), 0.5 * (self.high - self.low)
        if not (np.isfinite(self.half).all() and (self.half > 0).all()):
            raise UserError(
                f"{algorithm} squashes actions into their bounds, which must be finite and apart"
                f" (got {space}): wrap the environment in gymnasium.wrappers.RescaleAction or give"
                " its action space bounds, or use algo=ppo."
            )
        self.shape: tuple[int, ...] = tuple(space.shape)
        self.size = int(np.prod(self.shape, dtype=int))
        self._unit = bool((self.middle == 0).all() and (self.half == 1).all())
        self._tensors: dict[torch.device, tuple[Tensor, Tensor]] = {}

    def _on(self, device: torch.device) -> tuple[Tensor, Tensor]:
        if device not in self._tensors:
            middle, half = torch.from_numpy(self.middle), torch.from_numpy(self.half)
            self._tensors[device] = middle.to(device), half.to(device)
        return self._tensors[device]

    def scaled(self, action: Tensor) -> Tensor:
        """Return actions [..., *shape] in environment units as y [M, size]."""
        flat = action.reshape(-1, self.size)
        if self._unit:
            return flat
        middle, half = self._on(action.device)
        return (flat - middle) / half

    def unscaled(self, y: Tensor) -> Tensor:
        """Return y [M, size] in environment units, [M, size]."""
        if self._unit:
            return y
        middle, half = self._on(y.device)
        return torch.addcmul(middle, y, half)

    def uniform(self, rng: np.random.Generator, shape: tuple[int, int]) -> tuple[np.ndarray, float]:
        """Draw actions [*shape, *self.shape] uniformly, and their log-density as scaled."""
        y = rng.uniform(-1.0, 1.0, (*shape, self.size)).astype(np.float32)
        action = (self.middle + self.half * y).reshape(*shape, *self.shape)
        return action, -self.size * math.log(2)
