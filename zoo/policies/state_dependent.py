"""Generalised state-dependent exploration, gSDE (Raffin et al. 2021, arXiv:2005.05719).

The noise is a function of the state, drawn seldom instead of at every step::

    a = μ(s) + θᵀ·h(s),   θ ~ N(0, σ²) per weight,   h(s) the actor's last hidden features
    π(a|s) = N(μ(s), Σ_l h_l(s)²·σ_l² + 1e-6)        per dimension, θ integrated out

so that between two draws the same state gets the same action, which explores smoothly, and yet a
single action has a Gaussian density, by which it is learned from. Every environment has a matrix θ
of its own. The matrices are kept as standard normal numbers and scaled by the present σ, so they
stay valid when σ moves between two draws.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from zoo.policies.acting import Network

__all__ = ["MatrixNoise", "StateDependentActor", "StateDependentNetwork", "marginal_log_std"]

#: added to the variance, as in Stable-Baselines3: features may all be 0
EPSILON = 1e-6


def marginal_log_std(features: Tensor, log_std: Tensor) -> Tensor:
    """Return log σ of the action: ½·log(h²·exp(log σ)² + 1e-6).

    Parameters
    ----------
    features : Tensor
        [M, L] float32.
    log_std : Tensor
        [L, dim] float32, of the matrices' entries.

    Returns
    -------
    Tensor
        [M, dim] float32.
    """
    return 0.5 * torch.log(features.square() @ (2 * log_std).exp() + EPSILON)


class MatrixNoise(nn.Module):
    """The matrices, one per environment, and when they are drawn again.

    A module without parameters: its state travels with the policy's.

    Parameters
    ----------
    features, size : int
        L and dim.
    every : int or "rollout" or "episode"
        Steps between two draws, counted over rollouts; or at the start of each rollout; or at the
        start of each episode, for that environment.
    """

    def __init__(
        self, features: int, size: int, every: int | Literal["rollout", "episode"]
    ) -> None:
        super().__init__()
        self.every = every
        self._standard = np.zeros((0, features, size), np.float32)
        self._age = 0

    @property
    def follows_episodes(self) -> bool:
        """Whether :meth:`ended` has to be called after every step."""
        return self.every == "episode"

    def begin(self, num_envs: int, log_std: np.ndarray, rng: np.random.Generator) -> None:
        """Begin a fragment with the present log σ [L, dim]."""
        self._std, self._rng = np.exp(log_std), rng
        if self.every == "rollout" or len(self._standard) != num_envs:
            self._draw(num_envs)
        self._matrices = self._standard * self._std

    def _draw(self, num_envs: int) -> None:
        shape = (num_envs, *self._standard.shape[1:])
        self._standard = self._rng.standard_normal(shape, dtype=np.float32)
        self._matrices, self._age = self._standard * self._std, 0

    def forward(self, features: np.ndarray) -> np.ndarray:
        """Return the noise [N, dim] of the next step, whose features are [N, L]."""
        if self._age == self.every:
            self._draw(len(features))
        self._age += 1
        noise: np.ndarray = np.matmul(features[:, None], self._matrices)[:, 0]
        return noise

    def ended(self, flags: np.ndarray) -> None:
        """Draw anew for the environments whose episodes ended, flags [N] bool."""
        if self.follows_episodes and flags.any():
            shape = (int(flags.sum()), *self._standard.shape[1:])
            self._standard[flags] = self._rng.standard_normal(shape, dtype=np.float32)
            self._matrices[flags] = self._standard[flags] * self._std

    def get_extra_state(self) -> dict[str, Any]:
        """Return the matrices and their age in steps."""
        return {"standard": torch.tensor(self._standard), "age": self._age}

    def set_extra_state(self, state: Mapping[str, Any]) -> None:
        """Continue from :meth:`get_extra_state`."""
        self._standard, self._age = state["standard"].numpy().copy(), state["age"]


class StateDependentNetwork:
    """The actor's forward with gSDE for one fragment: μ and log σ, and the noise in units of σ.

    Parameters
    ----------
    features : Network
        Writes the last hidden features [N, L].
    head : (ndarray, ndarray)
        Weight [dim, L] and bias [dim] of μ.
    log_std : ndarray
        [L, dim].
    num_envs : int
        N.
    noise : MatrixNoise
        The matrices; they move only while ``explores``.
    rng : numpy.random.Generator or None
        Source of the noise.
    explores : bool
        Otherwise every action is drawn by itself, from the same distribution: an evaluation that
        samples must not move what exploration remembers.
    """

    def __init__(
        self,
        features: Network,
        head: tuple[np.ndarray, np.ndarray],
        log_std: np.ndarray,
        num_envs: int,
        noise: MatrixNoise,
        rng: np.random.Generator | None,
        explores: bool,
    ) -> None:
        self._network, (weight, self._bias) = features, head
        self._weight, self._variance = weight.T, np.exp(2 * log_std)
        self._features = np.empty((num_envs, len(log_std)), np.float32)
        self._size, self._rng = log_std.shape[1], rng
        self._noise = noise if rng is not None and explores else None
        self.follows_episodes = self._noise is not None and noise.follows_episodes
        if self._noise is not None and rng is not None:
            noise.begin(num_envs, log_std, rng)

    def __call__(self, observation: np.ndarray, outputs: np.ndarray) -> None:
        """Write μ and, beside it, log σ for observations [N, *obs] into [N, 2·dim]."""
        h = self._features
        self._network(observation, h)
        outputs[:, : self._size] = np.dot(h, self._weight) + self._bias
        self._std = np.sqrt(np.dot(h * h, self._variance) + EPSILON)
        outputs[:, self._size :] = np.log(self._std)

    def sample(self) -> np.ndarray:
        """Return the noise of the step last computed, [N, dim] in units of its σ."""
        if self._noise is None:
            assert self._rng is not None
            return self._rng.standard_normal(self._std.shape, dtype=np.float32)
        scaled: np.ndarray = self._noise(self._features) / self._std
        return scaled

    def ended(self, flags: np.ndarray) -> None:
        """Draw anew where an episode ended, flags [N] bool."""
        if self._noise is not None:
            self._noise.ended(flags)


class StateDependentActor:
    """Choose continuous actions by a :class:`StateDependentNetwork`, not clipped to the Box.

    It is good for one fragment: weights must not be updated, moved or loaded in between.

    Parameters
    ----------
    network : StateDependentNetwork
        Mean, deviation and noise.
    shape : tuple of int
        T, N and the shape of one action.
    deterministic : bool
        Act on the mean.
    """

    def __init__(
        self, network: StateDependentNetwork, shape: tuple[int, ...], deterministic: bool
    ) -> None:
        self._network, self.follows_episodes = network, network.follows_episodes
        self.action = np.zeros(shape, np.float32)
        self._flat = self.action.reshape(*shape[:2], -1)
        size = self._size = self._flat.shape[2]
        self._outputs = np.zeros((*shape[:2], 2 * size), np.float32)
        self._sampled = None if deterministic else np.zeros_like(self._flat)

    def __call__(self, observation: np.ndarray, step: int) -> np.ndarray:
        """Act on [N, *obs], already normalised, at one step; return a view of ``action[step]``."""
        outputs = self._outputs[step]
        self._network(observation, outputs)
        mean, log_std = outputs[:, : self._size], outputs[:, self._size :]
        self._flat[step] = mean
        if self._sampled is not None:
            self._sampled[step] = self._network.sample()
            self._flat[step] += np.exp(log_std) * self._sampled[step]
        action: np.ndarray = self.action[step]
        return action

    def ended(self, flags: np.ndarray) -> None:
        """Draw anew where an episode ended."""
        self._network.ended(flags)

    def log_prob(self, steps: int) -> np.ndarray:
        """Return log π of the first ``steps`` actions, [steps, N] float32."""
        terms = -self._outputs[:steps, :, self._size :] - 0.5 * math.log(2 * math.pi)
        if self._sampled is not None:
            terms = terms - 0.5 * np.square(self._sampled[:steps])
        return terms.sum(-1).astype(np.float32)
