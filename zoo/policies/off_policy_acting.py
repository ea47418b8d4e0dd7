"""Acting of off-policy algorithms: squashed actions with noise, values explored, random warm-up.

As in :mod:`zoo.policies.acting` everything is NumPy, and all noise of a fragment is drawn before
its first step. A policy explores only while it is in training mode (``policy.training``) and given
a generator: an evaluation that samples must neither explore nor move what exploration remembers.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from zoo.policies.acting import ControlActor
from zoo.policies.exploration import warmup_steps
from zoo.policies.squashing import LOG_STD_RANGE, ActionBounds

if TYPE_CHECKING:
    from zoo.policies.categorical_q import CategoricalQPolicy
    from zoo.policies.deterministic import DeterministicPolicy
    from zoo.policies.q_network import QNetworkPolicy
    from zoo.policies.squashed import SquashedGaussianPolicy

__all__ = ["BoxActor", "ValueActor", "warming_up"]


def warming_up(
    actor: ControlActor,
    policy: SquashedGaussianPolicy | DeterministicPolicy | CategoricalQPolicy | QNetworkPolicy,
    shape: tuple[int, int],
    rng: np.random.Generator | None,
) -> ControlActor:
    """Let uniformly random actions take the place of an actor's while the warm-up lasts.

    Parameters
    ----------
    actor : ControlActor
        Takes over in the first step that begins after ``policy.warmup`` environment steps.
    policy : policy
        Says how long, and how to draw: ``uniform(rng, shape)`` gives actions and log-probability.
    shape : (int, int)
        T and N.
    rng : numpy.random.Generator or None
        Source of the actions; None is deterministic, without a warm-up.
    """
    if rng is None or not policy.training or policy.done >= policy.warmup:
        return actor
    steps = warmup_steps(policy.warmup, policy.done, shape[1], shape[0])
    return _WarmUp(actor, *policy.uniform(rng, (steps, shape[1])))


class BoxActor:
    """Choose squashed actions in the environment's units, as SAC (μ and log σ) or TD3 (μ) do.

    With ``rng``, a stochastic policy samples; while it trains, its exploration noise is added to
    the action scaled to [−1, 1] and cut off there.

    Parameters
    ----------
    policy : SquashedGaussianPolicy or DeterministicPolicy
        Whose network acts.
    num_envs, steps : int
        N and T.
    rng : numpy.random.Generator or None
        Source of the noise; None acts deterministically.
    """

    def __init__(
        self,
        policy: SquashedGaussianPolicy | DeterministicPolicy,
        num_envs: int,
        steps: int,
        rng: np.random.Generator | None,
    ) -> None:
        self._correlated = policy.state_dependent(num_envs, rng)
        self._network = self._correlated or policy.numpy_network(num_envs)
        self._bounds: ActionBounds = policy.bounds
        size = self._size = policy.bounds.size
        self._outputs = np.zeros((steps, num_envs, policy.outputs), np.float32)
        self.action = np.zeros((steps, num_envs, *policy.bounds.shape), np.float32)
        self._flat = self.action.reshape(steps, num_envs, size)
        self._sampled: np.ndarray | None = None
        if policy.outputs > size and rng is not None:
            self._sampled = np.zeros((steps, num_envs, size), np.float32)
            if self._correlated is None:
                rng.standard_normal(dtype=np.float32, out=self._sampled)
        self._stochastic = policy.outputs > size
        self._added = policy.noise if rng is not None and policy.training else None
        noises = (self._added, self._correlated)
        self.follows_episodes = any(n is not None and n.follows_episodes for n in noises)
        if self._added is not None and rng is not None:
            self._added.begin(steps, num_envs, rng)

    def __call__(self, observation: np.ndarray, step: int) -> np.ndarray:
        """Act on [N, *obs], already normalised, at one step; return a view of ``action[step]``."""
        outputs = self._outputs[step]
        self._network(observation, outputs)
        part = slice(step, step + 1)
        if self._correlated is not None and self._sampled is not None:
            self._sampled[step] = self._correlated.sample()
        y = np.tanh(self._unsquashed(part)[0])
        if self._added is not None:
            y = np.clip(y + self._added(step), -1.0, 1.0)
        np.multiply(y, self._bounds.half, out=self._flat[step])
        self._flat[step] += self._bounds.middle
        action: np.ndarray = self.action[step]
        return action

    def _unsquashed(self, steps: slice) -> np.ndarray:
        mean = self._outputs[steps, :, : self._size]
        if self._sampled is None:
            return mean
        return mean + np.exp(self._log_std(steps)) * self._sampled[steps]

    def _log_std(self, steps: slice) -> np.ndarray:
        return np.clip(self._outputs[steps, :, self._size :], *LOG_STD_RANGE)

    def ended(self, flags: np.ndarray) -> None:
        """Start the noise of those environments again."""
        for noise in (self._added, self._correlated):
            if noise is not None:
                noise.ended(flags)

    def log_prob(self, steps: int) -> np.ndarray:
        """Return log π of the first ``steps`` actions, scaled to [−1, 1]; [steps, N] float32.

        NaN for actions without a density of their own: deterministic ones and those with noise
        that is cut off at the bounds.
        """
        if not self._stochastic or self._added is not None:
            return np.full((steps, self.action.shape[1]), np.nan, np.float32)
        part = slice(0, steps)
        u = self._unsquashed(part)
        slope = 2 * (math.log(2) - u - np.logaddexp(0, -2 * u))
        terms = self._log_std(part) + 0.5 * math.log(2 * math.pi) + slope
        if self._sampled is not None:
            terms = terms + 0.5 * np.square(self._sampled[part])
        return -terms.sum(-1).astype(np.float32)


class ValueActor:
    """Choose discrete actions by their values, as DQN does.

    With ``rng`` it explores while the policy trains; otherwise a Boltzmann policy samples and every
    other takes the largest value, as all do without ``rng``.

    Parameters
    ----------
    policy : QNetworkPolicy
        Whose network values the actions.
    num_envs, steps : int
        N and T.
    rng : numpy.random.Generator or None
        Source of the noise; None acts deterministically.
    """

    follows_episodes = False

    def __init__(
        self, policy: QNetworkPolicy, num_envs: int, steps: int, rng: np.random.Generator | None
    ) -> None:
        self._network, self._start = policy.numpy_network(num_envs), policy.action_start
        self._value = np.zeros((steps, num_envs, policy.actions), np.float32)
        self.action = np.zeros((steps, num_envs), np.int64)
        self._choice = None
        if rng is not None and (policy.training or policy.stochastic):
            shape = (steps, num_envs, policy.actions)
            self._choice = policy.exploration.begin(shape, rng, policy.done, policy.total)

    def __call__(self, observation: np.ndarray, step: int) -> np.ndarray:
        """Act on [N, *obs], already normalised, at one step; return a view of ``action[step]``."""
        value, action = self._value[step], self.action[step]
        self._network(observation, value)
        if self._choice is None:
            value.argmax(1, out=action)
        else:
            self._choice(value, observation, step, action)
        if self._start:
            action += self._start
        return action

    def ended(self, flags: np.ndarray) -> None:
        """Nothing is remembered of an episode."""

    def log_prob(self, steps: int) -> np.ndarray:
        """Return the log-probability of the first ``steps`` choices, [steps, N] float32."""
        action = self.action[:steps] - self._start
        if self._choice is None:
            return np.zeros(action.shape, np.float32)
        return self._choice.log_prob(self._value[:steps], action).astype(np.float32)


class _WarmUp:
    """Uniformly random actions in a fragment's first steps, another actor's in the rest."""

    def __init__(self, actor: ControlActor, random: np.ndarray, log_prob: float) -> None:
        self._actor, self._random, self._log_prob = actor, random, log_prob
        self.action, self.follows_episodes = actor.action, actor.follows_episodes

    def __call__(self, observation: np.ndarray, step: int) -> np.ndarray:
        if step >= len(self._random):
            return self._actor(observation, step)
        self.action[step] = self._random[step]
        action: np.ndarray = self.action[step]
        return action

    def ended(self, flags: np.ndarray) -> None:
        self._actor.ended(flags)

    def log_prob(self, steps: int) -> np.ndarray:
        log_prob = self._actor.log_prob(steps)
        log_prob[: len(self._random)] = self._log_prob
        return log_prob
