"""Squashing: tanh into [−1, 1], and from there to the bounds of a Box of actions and back.

    u ~ N(μ, σ),   y = tanh u,   a = middle + half·y        (per dimension)
    log π(y) = Σ log N(u; μ, σ) − Σ log(1 − y²),   log(1 − y²) = 2·(log 2 − u − softplus(−2u))

(Haarnoja et al. 2018, arXiv:1812.05905, appendix C; the second form is exact where 1 − y² rounds to
0.) log σ is clamped to [−20, 2] as in the authors' code and in Stable-Baselines3; a smooth bound
would start from another deviation, and published settings would mean something else.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor
from torch.nn import functional as F

from zoo.errors import UserError

__all__ = ["LOG_STD_RANGE", "ActionBounds", "squashed_log_prob", "squashed_sample"]

#: bounds on log σ before squashing
LOG_STD_RANGE = (-20.0, 2.0)


_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)
_LOG_2 = math.log(2)
#: the float32 next to 1: an action on its bound is read as tanh of 8.66
_INSIDE = 1 - 2**-24


def squashed_sample(mean: Tensor, log_std: Tensor) -> tuple[Tensor, Tensor]:
    """Draw y = tanh(μ + σ·ε) with gradients, by torch's own generator.

    Parameters
    ----------
    mean, log_std : Tensor
        [M, dim] float32; log σ before it is clamped.

    Returns
    -------
    y : Tensor
        [M, dim] float32 within [−1, 1].
    log_prob : Tensor
        [M] float32, natural log of the density of y.
    """
    log_std, noise = log_std.clamp(*LOG_STD_RANGE), torch.randn_like(mean)
    u = torch.addcmul(mean, log_std.exp(), noise)
    terms = 0.5 * noise.square() + log_std + _log_slope(u)
    return u.tanh(), -terms.sum(-1) - _HALF_LOG_2PI * mean.shape[-1]


def squashed_log_prob(y: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
    """Return the log-density of squashed actions, with gradients for mean and deviation.

    Parameters
    ----------
    y : Tensor
        [M, dim] float32; what is on its bound or beyond is read as the nearest float32 inside.
    mean, log_std : Tensor
        [M, dim] float32; log σ before it is clamped.

    Returns
    -------
    Tensor
        [M] float32, natural log.
    """
    log_std = log_std.clamp(*LOG_STD_RANGE)
    u = y.clamp(-_INSIDE, _INSIDE).atanh()
    scaled = (u - mean) * (-log_std).exp()
    terms = 0.5 * scaled.square() + log_std + _log_slope(u)
    return -terms.sum(-1) - _HALF_LOG_2PI * mean.shape[-1]


def _log_slope(u: Tensor) -> Tensor:
    """Return log(1 − tanh² u), finite and exact for any u."""
    return 2 * (_LOG_2 - u - F.softplus(-2 * u))


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
        finite = np.isfinite(self.low) & np.isfinite(self.high)
        if not (finite & (self.low < self.high)).all():
            raise UserError(
                f"{algorithm} squashes actions into their bounds, which must be finite and apart"
                f" (got {space}): wrap the environment in gymnasium.wrappers.RescaleAction or give"
                " its action space bounds, or use algo=ppo."
            )
        self.middle, self.half = 0.5 * (self.low + self.high), 0.5 * (self.high - self.low)
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
