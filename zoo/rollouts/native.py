"""Environments whose own code steps all copies at once, with a seed for every episode of each.

Gymnasium's vectorised CartPole draws the starts of all its copies from one generator and takes a
step of its own to begin an episode. Here it only ever steps: an episode's start is drawn from that
episode's seed as the scalar environment draws it, and written into the state the moment the episode
before has ended. So the transitions are those of :class:`~zoo.rollouts.gymnasium_envs.LocalEnvs`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleEnv, CartPoleVectorEnv
from gymnasium.utils import seeding
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

from zoo.errors import UserError
from zoo.rollouts.gymnasium_envs import EnvFactory, SeedOf

__all__ = ["NativeEnvs", "has_native"]

#: wrappers that a vectorised environment makes superfluous: the time limit is its own
_KNOWN = (TimeLimit, OrderEnforcing, PassiveEnvChecker)
#: half the width of the box in which a CartPole starts, as ``CartPoleEnv.reset`` has it
_START = 0.05


def has_native(env: gymnasium.Env[Any, Any]) -> bool:
    """Return whether all copies of an environment, as it is wrapped, can be stepped at once."""
    spec = env.spec  # the outermost one's: a time limit changes it
    while isinstance(env, gymnasium.Wrapper):
        if type(env) not in _KNOWN:
            return False
        env = env.env
    return type(env) is CartPoleEnv and spec is not None and spec.max_episode_steps is not None


class NativeEnvs:
    """Gymnasium's vectorised CartPole as N environments with episodes of their own seeds.

    Parameters
    ----------
    make : callable
        Makes one scalar environment, which says what is stepped.
    num_envs : int
        N.
    seeds : callable
        (environment, episode) → the episode's seed.
    park : bool
        Stay at the end of an episode until the next ``reset`` with seeds.

    Raises
    ------
    UserError
        Where the environment has no vectorised form, or is wrapped in something that has none.
    """

    def __init__(
        self,
        make: EnvFactory,
        num_envs: int,
        seeds: SeedOf,
        park: bool = False,
    ) -> None:
        one = make()
        if not has_native(one):
            one.close()
            raise UserError(
                "rollout.vector=native is for environments that Gymnasium itself steps all at once,"
                f" which is CartPole (got {one}): use rollout.vector=sync."
            )
        spec = one.spec
        assert spec is not None and spec.max_episode_steps is not None
        options = {k: v for k, v in spec.kwargs.items() if k != "render_mode"}
        self.vector: Any = CartPoleVectorEnv(num_envs, spec.max_episode_steps, **options)
        self.vector.reset(seed=0)  # makes its arrays; every start is overwritten
        self.num_envs, self.park, self._seeds = num_envs, park, seeds
        self._episode = [-1] * num_envs
        self.observation_space, self.action_space = one.observation_space, one.action_space
        one.close()

    def reset(self, observation: np.ndarray, seeds: Sequence[int] | None = None) -> None:
        """Begin an episode everywhere."""
        for i in range(self.num_envs):
            observation[i] = self.restart(i, None if seeds is None else seeds[i])

    def restart(self, index: int, seed: int | None = None) -> np.ndarray:
        """Begin an episode in one environment: the one of a seed, or its next."""
        if seed is None:
            self._episode[index] += 1
            seed = self._seeds(index, self._episode[index])
        start = seeding.np_random(seed)[0].uniform(low=-_START, high=_START, size=4)
        self.vector.state[:, index], self.vector.steps[index] = start, 0
        return start.astype(np.float32)

    def replay(
        self, observation: np.ndarray, episodes: Sequence[int], actions: Sequence[list[Any]]
    ) -> list[bool]:
        """Repeat interrupted episodes, all of them step by step together."""
        for i, episode in enumerate(episodes):
            self._episode[i] = episode
            observation[i] = self.restart(i, self._seeds(i, episode))
        followed = [True] * self.num_envs
        reward, flags = np.zeros(self.num_envs), np.zeros((2, self.num_envs), bool)
        for t in range(max(map(len, actions))):
            pairs = zip(actions, followed, strict=True)
            listed = [own[t] if on and t < len(own) else None for own, on in pairs]
            for i, _ in self._step(listed, observation, reward, *flags):
                followed[i], observation[i] = False, self.restart(i)
        return followed

    def step(
        self,
        actions: Sequence[Any],
        observation: np.ndarray,
        reward: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
    ) -> list[tuple[int, np.ndarray]]:
        """Step every environment whose action is not None."""
        finals = self._step(actions, observation, reward, terminated, truncated)
        if not self.park:
            for i, _ in finals:
                observation[i] = self.restart(i)
        return finals

    def _step(
        self,
        actions: Sequence[Any],
        observation: np.ndarray,
        reward: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
    ) -> list[tuple[int, np.ndarray]]:
        vector, held = self.vector, None
        if None in actions:
            held = np.array([action is None for action in actions])
            actions = [0 if action is None else action for action in actions]
            state, steps = vector.state[:, held], vector.steps[held]  # copies
        seen, paid, ended, cut, _ = vector.step(np.asarray(actions, np.int64))
        over = ended | cut
        if held is not None:
            vector.state[:, held], vector.steps[held] = state, steps
            live = ~held
            over &= live
            observation[live], reward[live] = seen[live], paid[live]
        else:
            observation[...], reward[...] = seen, paid
        vector.prev_done[...] = False  # or it would begin episodes from its own generator
        if not over.any():
            return []
        terminated[over], truncated[over] = ended[over], (cut & ~ended)[over]
        return [(int(i), seen[i].copy()) for i in np.flatnonzero(over)]

    def episodes(self) -> list[int]:
        """Number of the episode that each environment is in."""
        return list(self._episode)

    def close(self) -> None:
        """Release nothing: there are arrays only."""
        self.vector.close()
