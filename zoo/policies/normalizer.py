"""Running normalisation of observations, part of the policy's state."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

__all__ = ["Normalizer"]


class Normalizer(nn.Module):
    """Subtract the running mean, divide by the running standard deviation, clip.

    The rollout updates it with every observation that an environment really gave, once each (the
    one of a reset, and the true next one of every step), and applies it before the policy sees
    anything. Evaluation applies it and never updates it. Mean and variance are merged as in
    Chan, Golub and LeVeque (1979), in float64 on the CPU wherever the policy is.

    Parameters
    ----------
    shape : tuple of int
        Shape of one observation.
    clip : float
        Bound on the normalised values.
    epsilon : float
        Added to the variance.
    """

    mean: Tensor
    var: Tensor
    count: Tensor

    def __init__(self, shape: tuple[int, ...], clip: float = 10.0, epsilon: float = 1e-8) -> None:
        super().__init__()
        self.clip, self.epsilon = clip, epsilon
        self.register_buffer("mean", torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("var", torch.ones(shape, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))

    def _apply(self, fn: Any, recurse: bool = True) -> Normalizer:
        """Stay float64 on the CPU when the policy is cast or moved: environments live there."""
        return self

    def update(self, observation: np.ndarray) -> None:
        """Merge [M, *shape] observations into the statistics."""
        number = len(observation)
        if not number:
            return
        values = observation.astype(np.float64)
        batch_mean = values.mean(0)
        batch_var = np.square(values - batch_mean).mean(0)
        mean, var, old = self.mean.numpy(), self.var.numpy(), float(self.count)
        if not old:  # the initial unit variance is no observation
            mean[...], var[...] = batch_mean, batch_var
        else:
            share = number / (old + number)
            shift = batch_mean - mean
            mean += share * shift
            var += share * (batch_var - var) + share * (1 - share) * np.square(shift)
        self.count += number

    def __call__(self, observation: np.ndarray) -> np.ndarray:
        """Return [..., *shape] normalised, as float32; unchanged before the first update."""
        if not float(self.count):
            return observation.astype(np.float32)
        scaled = (observation - self.mean.numpy()) / np.sqrt(self.var.numpy() + self.epsilon)
        return np.clip(scaled, -self.clip, self.clip).astype(np.float32)
