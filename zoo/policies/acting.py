"""Acting on many environments at once, in NumPy, with the random numbers drawn in one go.

A network of a few thousand weights costs less than the bookkeeping of tensors around it. So the
actor computes in NumPy on the memory of the torch parameters (no copy is kept: it sees every
update), draws the noise of a whole fragment beforehand, and computes log-probabilities once, after
the last step. Only the policy is computed; values follow in one batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

__all__ = [
    "CategoricalActor",
    "ControlActor",
    "GaussianActor",
    "Network",
    "numpy_layers",
    "torch_network",
]

#: writes the head's outputs for observations [N, *obs] into [N, outputs]
Network = Callable[[np.ndarray, np.ndarray], None]


class ControlActor(Protocol):
    """What acts for one fragment of N environments.

    Attributes
    ----------
    action : ndarray
        [T, N] int64, or [T, N, *action shape] float32: what was chosen so far.
    follows_episodes : bool
        Whether :meth:`ended` has to be called after every step.
    """

    action: np.ndarray
    follows_episodes: bool

    def __call__(self, observation: np.ndarray, step: int) -> np.ndarray:
        """Act on [N, *obs], already normalised, at one step; return a view of ``action[step]``."""
        ...

    def ended(self, flags: np.ndarray) -> None:
        """Tell which environments' episodes ended in the step just made, [N] bool."""
        ...

    def log_prob(self, steps: int) -> np.ndarray:
        """Return log π_behaviour of the first ``steps`` actions, [steps, N] float32.

        NaN where the behaviour has no density.
        """
        ...


class CategoricalActor:
    """Choose discrete actions by the softmax of a network's outputs.

    It is good for one fragment: weights must not be updated, moved or loaded in between.

    Parameters
    ----------
    network : Network
        Writes the logits.
    start : int
        The first action.
    shape : (int, int, int)
        T, N and the number of actions.
    rng : numpy.random.Generator or None
        Source of the noise; None acts deterministically, on the mode.
    """

    follows_episodes = False

    def __init__(
        self,
        network: Network,
        start: int,
        shape: tuple[int, int, int],
        rng: np.random.Generator | None,
    ) -> None:
        self._network, self._start = network, start
        self._logits = np.zeros(shape, np.float32)
        self.action = np.zeros(shape[:2], np.int64)
        # the largest of logit + Gumbel noise is a sample of the softmax
        self._noise = None if rng is None else rng.gumbel(size=shape).astype(np.float32)

    def __call__(self, observation: np.ndarray, step: int) -> np.ndarray:
        """Act on [N, *obs], already normalised, at one step; return a view of ``action[step]``."""
        logits = self._logits[step]
        self._network(observation, logits)
        action: np.ndarray = self.action[step]
        scores = logits if self._noise is None else logits + self._noise[step]
        scores.argmax(1, out=action)
        if self._start:
            action += self._start
        return action

    def ended(self, flags: np.ndarray) -> None:
        """Nothing is remembered of an episode."""

    def log_prob(self, steps: int) -> np.ndarray:
        """Return log π of the first ``steps`` actions, [steps, N] float32."""
        logits = self._logits[:steps]
        chosen = (self.action[:steps] - self._start)[..., None]
        shifted = logits - logits.max(-1, keepdims=True)
        picked = np.take_along_axis(shifted, chosen, -1)[..., 0]
        log_prob = picked - np.log(np.exp(shifted).sum(-1))
        return log_prob.astype(np.float32)


class GaussianActor:
    """Choose continuous actions around a network's outputs; they are not clipped to the Box.

    It is good for one fragment: weights must not be updated, moved or loaded in between.

    Parameters
    ----------
    network : Network
        Writes the means.
    log_std : ndarray
        [dim], or [N, dim] for environments of several policies: natural log of the deviation.
    shape : tuple of int
        T, N and the shape of one action.
    rng : numpy.random.Generator or None
        Source of the noise; None acts deterministically, on the mean.
    """

    follows_episodes = False

    def __init__(
        self,
        network: Network,
        log_std: np.ndarray,
        shape: tuple[int, ...],
        rng: np.random.Generator | None,
    ) -> None:
        self._network, self._log_std = network, log_std.copy()
        self._std = np.exp(self._log_std)
        self._mean = np.zeros((*shape[:2], log_std.shape[-1]), np.float32)
        self.action = np.zeros(shape, np.float32)
        self._flat = self.action.reshape(self._mean.shape)
        self._noise: np.ndarray | None = None
        if rng is not None:
            noise = rng.standard_normal(self._mean.shape, dtype=np.float32)
            self._noise = noise * self._std

    def __call__(self, observation: np.ndarray, step: int) -> np.ndarray:
        """Act on [N, *obs], already normalised, at one step; return a view of ``action[step]``."""
        mean = self._mean[step]
        self._network(observation, mean)
        if self._noise is None:
            self._flat[step] = mean
        else:
            np.add(mean, self._noise[step], out=self._flat[step])
        action: np.ndarray = self.action[step]
        return action

    def ended(self, flags: np.ndarray) -> None:
        """Nothing is remembered of an episode."""

    def log_prob(self, steps: int) -> np.ndarray:
        """Return log π of the first ``steps`` actions, [steps, N] float32."""
        scaled = (self._flat[:steps] - self._mean[:steps]) / self._std
        terms = -0.5 * np.square(scaled) - self._log_std - 0.5 * math.log(2 * math.pi)
        return terms.sum(-1).astype(np.float32)


def numpy_layers(
    layers: Sequence[tuple[np.ndarray, np.ndarray]],
    activation: str,
    num_envs: int,
    activate_last: bool = False,
) -> Network:
    """Return a forward through (weight [out, in], bias [out]) pairs; without any, the input.

    ``activate_last`` gives hidden features: the activation follows the last pair too.
    """
    views = [(weight.T, bias) for weight, bias in layers]
    head = None if activate_last else views.pop()
    hidden = [np.empty((num_envs, bias.size), np.float32) for _, bias in views]
    stages = [(weight, bias, out) for (weight, bias), out in zip(views, hidden, strict=True)]
    relu = activation == "relu"

    def forward(vector: np.ndarray, outputs: np.ndarray) -> None:
        for weight, bias, out in stages:
            np.dot(vector, weight, out=out)
            out += bias
            if relu:
                np.maximum(out, 0.0, out=out)
            else:
                np.tanh(out, out=out)
            vector = out
        if head is None:
            outputs[...] = vector
        else:
            np.dot(vector, head[0], out=outputs)
            outputs += head[1]

    return forward


def torch_network(forward: Callable[[Tensor], Tensor], device: torch.device) -> Network:
    """Return the same through torch, for policies that are not on the CPU."""

    def run(observation: np.ndarray, outputs: np.ndarray) -> None:
        with torch.no_grad():
            outputs[...] = forward(torch.from_numpy(observation).to(device)).cpu().numpy()

    return run
