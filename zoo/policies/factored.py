"""Actions of several choices at once: MultiDiscrete and MultiBinary, each choice for itself.

    π(a|s) = Π_k π_k(a_k|s),    log π = Σ_k log π_k,    H = Σ_k H_k,    KL = Σ_k KL_k

with one categorical distribution per choice; a binary one is a choice of two. The logits of all
choices lie side by side and are padded to the widest choice with −∞.
"""

from __future__ import annotations

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from zoo.functional import divergence
from zoo.policies.acting import Network

__all__ = ["FactoredActor", "Factors"]


class Factors:
    """The K choices of an action space, of n_k values each.

    Parameters
    ----------
    space : MultiDiscrete or MultiBinary
        Of one action.

    Attributes
    ----------
    shape : tuple of int
        Of one action.
    outputs : int
        Σ n_k, how many logits there are.
    possible : ndarray
        [K, max n_k] bool: which values each choice has.
    start : ndarray
        [K] int64: the first value of each.
    """

    def __init__(self, space: spaces.MultiDiscrete | spaces.MultiBinary) -> None:
        self.shape: tuple[int, ...] = tuple(space.shape)
        if isinstance(space, spaces.MultiDiscrete):
            counts, start = space.nvec.reshape(-1), space.start.reshape(-1)
        else:
            counts = np.full(int(np.prod(self.shape, dtype=int)), 2)
            start = np.zeros_like(counts)
        self.outputs, self.start = int(counts.sum()), start.astype(np.int64)
        self.possible = np.arange(int(counts.max())) < counts[:, None]

    def padded(self, logits: Tensor) -> Tensor:
        """Return logits [M, Σ n_k] as [M, K, max n_k], −∞ where a choice has no such value."""
        possible = torch.from_numpy(self.possible).to(logits.device)
        if self.possible.all():
            return logits.reshape(-1, *possible.shape)
        padded = logits.new_full((len(logits), *possible.shape), -torch.inf)
        return padded.masked_scatter(possible, logits)

    def evaluate(self, logits: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Return log π of actions [..., *shape] and the entropy, [M, 1] each, with gradients."""
        padded = self.padded(logits)
        start = torch.from_numpy(self.start).to(action.device)
        index = action.reshape(-1, len(self.start)).long() - start
        chosen = padded.log_softmax(-1).gather(-1, index[..., None]).squeeze(-1)
        entropy = divergence.categorical_entropy(padded)
        return chosen.sum(-1, keepdim=True), entropy.sum(-1, keepdim=True)

    def kl(self, logits: Tensor, other: Tensor) -> Tensor:
        """Return KL(π‖other) of logits [M, Σ n_k], [M, 1]."""
        kl = divergence.categorical(self.padded(logits), self.padded(other))
        return kl.sum(-1, keepdim=True)


class FactoredActor:
    """Make every choice by the softmax of its logits.

    It is good for one fragment: weights must not be updated, moved or loaded in between.

    Parameters
    ----------
    network : Network
        Writes the logits.
    factors : Factors
        The choices.
    steps, num_envs : int
        T and N.
    rng : numpy.random.Generator or None
        Source of the noise; None acts deterministically, on the mode.
    """

    follows_episodes = False

    def __init__(
        self,
        network: Network,
        factors: Factors,
        steps: int,
        num_envs: int,
        rng: np.random.Generator | None,
    ) -> None:
        self._network, self._factors = network, factors
        self._outputs = np.zeros((num_envs, factors.outputs), np.float32)
        shape = (steps, num_envs, *factors.possible.shape)
        self._logits = np.full(shape, -np.inf, np.float32)
        self.action = np.zeros((steps, num_envs, *factors.shape), np.int64)
        self._flat = self.action.reshape(shape[:-1])
        # the largest of logit + Gumbel noise is a sample of the softmax
        self._noise = None if rng is None else rng.gumbel(size=shape).astype(np.float32)

    def __call__(self, observation: np.ndarray, step: int) -> np.ndarray:
        """Act on [N, *obs], already normalised, at one step; return a view of ``action[step]``."""
        self._network(observation, self._outputs)
        logits = self._logits[step]
        logits[:, self._factors.possible] = self._outputs
        scores = logits if self._noise is None else logits + self._noise[step]
        np.add(scores.argmax(-1), self._factors.start, out=self._flat[step])
        action: np.ndarray = self.action[step]
        return action

    def ended(self, flags: np.ndarray) -> None:
        """Nothing is remembered of an episode."""

    def log_prob(self, steps: int) -> np.ndarray:
        """Return log π of the first ``steps`` actions, [steps, N] float32."""
        logits = self._logits[:steps]
        chosen = (self._flat[:steps] - self._factors.start)[..., None]
        shifted = logits - logits.max(-1, keepdims=True)
        picked = np.take_along_axis(shifted, chosen, -1)[..., 0]
        log_prob: np.ndarray = (picked - np.log(np.exp(shifted).sum(-1))).sum(-1)
        return log_prob.astype(np.float32)
