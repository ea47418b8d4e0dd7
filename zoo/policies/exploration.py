"""How off-policy algorithms explore, drawn in NumPy for a whole fragment at once.

Discrete actions, from Q-values [N, A]:

    ε-greedy       with probability ε a uniform action, drawn for every environment by itself
    Boltzmann      a ~ softmax(Q/temperature), by one uniform number and the cumulative sum
    Gumbel-max     argmax Q/temperature + G, G ~ Gumbel(0, 1): the same distribution
    UCB            a bonus for what was seldom tried; see :mod:`zoo.policies.ucb`

Continuous actions, in units of half the action's range per dimension:

    Gaussian       n ~ N(0, σ²)
    Ornstein–Uhlenbeck    n ← n − θ·n·dt + σ·√dt·N(0, 1) from 0 at an episode's start, for each
                   environment (Lillicrap et al. 2016, arXiv:1509.02971)

A strategy lives as long as the policy and keeps what must survive (counts, noise); ``begin`` draws
what one fragment needs and returns what chooses there. All draws come from the rollout's generator,
so a run continues bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import torch
from gymnasium import spaces

from zoo.core.schema import in_range
from zoo.errors import UserError
from zoo.policies.ucb import UCB

__all__ = [
    "ActionNoise",
    "Choice",
    "EpsilonGreedy",
    "Exploration",
    "ExplorationKnobs",
    "NoiseKnobs",
    "Softmax",
    "decayed",
    "make_exploration",
    "warmup_steps",
]


@dataclass(frozen=True)
class ExplorationKnobs:
    """How discrete actions are explored from their values."""

    #: epsilon, boltzmann, gumbel (the same distribution as boltzmann) or ucb
    kind: Literal["epsilon", "boltzmann", "gumbel", "ucb"] = "epsilon"
    #: epsilon: probability of a random action at the start …
    initial: float = 1.0
    #: … and from the end of the decay on
    final: float = 0.05
    #: fraction of the run's budget over which it decays
    fraction: float = 0.1
    #: linear, or exponential (a constant factor per step)
    schedule: Literal["linear", "exponential"] = "linear"
    #: boltzmann and gumbel: in units of the values; small is greedy
    temperature: float = 1.0
    #: ucb: weight c of the bonus, in units of the values
    bonus: float = 1.0
    #: ucb: bins per dimension of a Box observation
    bins: int = 10
    #: ucb: where bins of a dimension without bounds end, on both sides of 0
    span: float = 3.0

    def __post_init__(self) -> None:
        """Refuse what can't be drawn."""
        in_range(self, "initial", "final", low=0, high=1)
        in_range(self, "fraction", low=0, high=1)
        in_range(self, "temperature", "span", low=0, above=True)
        in_range(self, "bonus", low=0)
        in_range(self, "bins", low=1)
        if self.schedule == "exponential" and not (self.initial > 0 and self.final > 0):
            raise UserError(
                "exploration.schedule=exponential multiplies, so it never leaves or reaches 0:"
                f" initial and final must be positive (got {self.initial}, {self.final})."
            )


@dataclass(frozen=True)
class NoiseKnobs:
    """Noise on continuous actions, in units of half the action's range per dimension."""

    #: gaussian, or ou: Ornstein–Uhlenbeck, correlated over time
    kind: Literal["gaussian", "ou"] = "gaussian"
    #: standard deviation σ; of ou it settles at σ/√(2θ)
    std: float = 0.1
    #: ou: how fast it returns to 0
    theta: float = 0.15
    #: ou: time that passes in one step
    dt: float = 0.01

    def __post_init__(self) -> None:
        """Refuse what can't be drawn."""
        in_range(self, "std", "theta", low=0)
        in_range(self, "dt", low=0, above=True)


def decayed(initial: float, final: float, kind: str, share: np.ndarray) -> np.ndarray:
    """Return the value at fractions p ≥ 0 of its decay; from 1 on it is ``final``.

    ``linear``: initial + (final − initial)·p. ``exponential``: initial·(final/initial)^p.
    """
    p = np.minimum(share, 1.0)
    if kind == "exponential":
        return initial * (final / initial) ** p
    return initial + (final - initial) * p


def warmup_steps(warmup: int, done: int, num_envs: int, steps: int) -> int:
    """Return how many steps of a fragment begin before ``warmup`` environment steps are done."""
    return min(max(0, -(-(warmup - done) // num_envs)), steps)


class Choice(Protocol):
    """What chooses discrete actions in one fragment."""

    def __call__(
        self, value: np.ndarray, observation: np.ndarray, step: int, action: np.ndarray
    ) -> None:
        """Write the choice for values [N, A] at observations [N, *obs] into ``action`` [N]."""
        ...

    def log_prob(self, value: np.ndarray, action: np.ndarray) -> np.ndarray:
        """Return the log-probability of choosing ``action`` [T, N] at ``value`` [T, N, A]."""
        ...


class Exploration(Protocol):
    """A strategy for discrete actions; ``temperature`` where it is a softmax of the values."""

    temperature: float | None

    def begin(
        self, shape: tuple[int, int, int], rng: np.random.Generator, done: int, total: int
    ) -> Choice:
        """Draw for a fragment of (T, N, A) that begins at ``done`` of ``total`` steps."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return what must survive."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a :meth:`state_dict`."""
        ...


def make_exploration(
    knobs: ExplorationKnobs, space: spaces.Box | spaces.Discrete, actions: int
) -> Exploration:
    """Make the strategy that the knobs name, for observations of ``space`` and A actions."""
    if knobs.kind == "epsilon":
        return EpsilonGreedy(knobs)
    if knobs.kind == "ucb":
        return UCB(knobs, space, actions)
    return Softmax(knobs)


class EpsilonGreedy:
    """Uniform with probability ε, else the action of the largest value."""

    temperature: float | None = None

    def __init__(self, knobs: ExplorationKnobs) -> None:
        self.knobs = knobs

    def begin(
        self, shape: tuple[int, int, int], rng: np.random.Generator, done: int, total: int
    ) -> Choice:
        """Draw which environments explore in which step, and what they do then."""
        steps, num_envs, actions = shape
        epsilon = self.epsilon(done + num_envs * np.arange(steps), total)
        explores = rng.random((steps, num_envs)) < epsilon[:, None]
        return _EpsilonGreedy(epsilon, explores, rng.integers(actions, size=(steps, num_envs)))

    def epsilon(self, done: np.ndarray, total: int) -> np.ndarray:
        """Return ε after ``done`` of ``total`` environment steps."""
        k = self.knobs
        whole = k.fraction * total
        share = done / whole if whole > 0 else np.ones(done.shape)
        return decayed(k.initial, k.final, k.schedule, share)

    def state_dict(self) -> dict[str, Any]:
        """Nothing is remembered: ε follows from the steps done."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Nothing is remembered."""


class _EpsilonGreedy:
    def __init__(self, epsilon: np.ndarray, explores: np.ndarray, uniform: np.ndarray) -> None:
        self.epsilon, self.explores, self.uniform = epsilon, explores, uniform

    def __call__(
        self, value: np.ndarray, observation: np.ndarray, step: int, action: np.ndarray
    ) -> None:
        value.argmax(1, out=action)
        np.copyto(action, self.uniform[step], where=self.explores[step])

    def log_prob(self, value: np.ndarray, action: np.ndarray) -> np.ndarray:
        epsilon = self.epsilon[: len(action), None]
        with np.errstate(divide="ignore"):  # ε = 0 never does otherwise
            greedy = (1 - epsilon) * (value.argmax(-1) == action)
            return np.log(epsilon / value.shape[-1] + greedy)


class Softmax:
    """a ~ softmax(Q/temperature), by inverting the distribution function or by Gumbel noise."""

    def __init__(self, knobs: ExplorationKnobs) -> None:
        self.temperature: float | None = knobs.temperature
        self._scale, self._gumbel = knobs.temperature, knobs.kind == "gumbel"

    def begin(
        self, shape: tuple[int, int, int], rng: np.random.Generator, done: int, total: int
    ) -> Choice:
        """Draw a number per environment and step, or one per action."""
        noise = rng.gumbel(size=shape) if self._gumbel else rng.random(shape[:2])
        return _Softmax(noise, self._scale)

    def state_dict(self) -> dict[str, Any]:
        """Nothing is remembered."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Nothing is remembered."""


class _Softmax:
    def __init__(self, noise: np.ndarray, temperature: float) -> None:
        self.noise, self.temperature = noise, temperature

    def __call__(
        self, value: np.ndarray, observation: np.ndarray, step: int, action: np.ndarray
    ) -> None:
        noise = self.noise[step]
        if noise.ndim == 2:
            np.argmax(value / self.temperature + noise, 1, out=action)
            return
        below = np.exp(self._log_softmax(value)).cumsum(1)
        # the last sum may round to less than 1, so it is scaled to the very total
        action[...] = (below <= noise[:, None] * below[:, -1:]).sum(1)

    def log_prob(self, value: np.ndarray, action: np.ndarray) -> np.ndarray:
        return np.take_along_axis(self._log_softmax(value), action[..., None], -1)[..., 0]

    def _log_softmax(self, value: np.ndarray) -> np.ndarray:
        shifted = (value - value.max(-1, keepdims=True)) / self.temperature
        log_prob: np.ndarray = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
        return log_prob


class ActionNoise:
    """n ← (1 − θ·dt)·n + σ·√dt·ε per environment; Gaussian noise forgets all: n ← σ·ε."""

    def __init__(self, knobs: NoiseKnobs, size: int) -> None:
        ou = knobs.kind == "ou"
        self._kept = 1 - knobs.theta * knobs.dt if ou else 0.0
        self._std = knobs.std * math.sqrt(knobs.dt) if ou else knobs.std
        self.follows_episodes = ou
        self._size = size
        self._state = np.zeros((0, size), np.float32)
        self._draws = np.zeros((0, 0, size), np.float32)

    def begin(self, steps: int, num_envs: int, rng: np.random.Generator) -> None:
        """Draw for a fragment; other environments than before start from 0."""
        if len(self._state) != num_envs:
            self._state = np.zeros((num_envs, self._size), np.float32)
        shape = (steps, num_envs, self._size)
        self._draws = rng.standard_normal(shape, dtype=np.float32) * np.float32(self._std)

    def __call__(self, step: int) -> np.ndarray:
        """Return the noise [N, dim] of the fragment's next step."""
        if not self.follows_episodes:
            return self._draws[step]
        self._state = np.float32(self._kept) * self._state + self._draws[step]
        return self._state

    def ended(self, flags: np.ndarray) -> None:
        """Start from 0 again where an episode ended, flags [N] bool."""
        if self.follows_episodes and flags.any():
            self._state = np.where(flags[:, None], np.float32(0), self._state)

    def state_dict(self) -> dict[str, Any]:
        """Return the noise of each environment, [N, dim]."""
        return {"noise": torch.tensor(self._state)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a :meth:`state_dict`."""
        self._state = state["noise"].numpy().copy()
