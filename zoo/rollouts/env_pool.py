"""EnvPool (Weng et al. 2022, arXiv:2206.10558): environments in C++ that step in threads.

By itself EnvPool begins an episode in the step after the last one, whose action is ignored and
which must not be learned from. Here the environments that ended are reset at once, apart from the
others, so that no transition leads from an episode into the next.

Its generators can be seeded when the pool is made and not for an episode: a run's streams are its
own and the same run gives the same data, but an interrupted episode can't be followed again, and
resume begins new ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from zoo.errors import UserError
from zoo.rollouts.gymnasium_envs import EnvFactory, SeedOf

__all__ = ["EnvPoolEnvs"]


class EnvPoolEnvs:
    """N environments of EnvPool under the interface of all rollouts.

    Parameters
    ----------
    make : callable
        Makes Gymnasium's environment of the same name, which says what is stepped.
    num_envs : int
        N.
    seeds : callable
        (environment, episode) → a seed; that of the first episode seeds an environment.

    Raises
    ------
    UserError
        Where EnvPool is not installed, or has no such environment.
    """

    def __init__(self, make: EnvFactory, num_envs: int, seeds: SeedOf) -> None:
        try:
            import envpool
        except ImportError as error:
            raise UserError(
                "rollout.vector=envpool needs the package envpool, which is not installed:"
                " pip install 'algorithm-zoo[envpool]', or use rollout.vector=sync."
            ) from error
        one = make()
        spec = one.spec
        self.observation_space, self.action_space = one.observation_space, one.action_space
        one.close()
        if spec is None or spec.id not in envpool.list_all_envs() or spec.kwargs:
            raise UserError(
                f"EnvPool has no environment {one}, with its options: use rollout.vector=sync."
            )
        limit = spec.max_episode_steps
        self._made = spec.id, {} if limit is None else {"max_episode_steps": limit}
        self._module: Any = envpool
        self.num_envs, self._seeds = num_envs, seeds
        self._episode = [0] * num_envs
        self._pool = self._seeded()
        if self._pool.observation_space.shape != self.observation_space.shape:
            raise UserError(
                f"EnvPool's {spec.id} gives observations {self._pool.observation_space}, and not"
                f" Gymnasium's {self.observation_space}: use rollout.vector=sync."
            )

    def _seeded(self) -> Any:
        """Make the pool, whose next episodes are those that are counted."""
        name, options = self._made
        seeds = [self._seeds(i, episode) for i, episode in enumerate(self._episode)]
        return self._module.make_gymnasium(
            name, num_envs=self.num_envs, env_seed=seeds, num_threads=1, **options
        )

    def reset(self, observation: np.ndarray, seeds: Sequence[int] | None = None) -> None:
        """Begin an episode everywhere."""
        if seeds is not None:
            raise UserError(
                "EnvPool can't begin an episode from a given seed, as groups need it: use"
                " rollout.vector=sync."
            )
        observation[...] = self._pool.reset()[0]

    def replay(
        self, observation: np.ndarray, episodes: Sequence[int], actions: Sequence[list[Any]]
    ) -> list[bool]:
        """Begin the episodes after those that were interrupted, which can't be followed."""
        self._pool.close()
        self._episode = [episode + 1 for episode in episodes]
        self._pool = self._seeded()
        observation[...] = self._pool.reset()[0]
        return [False] * self.num_envs

    def step(
        self,
        actions: Sequence[Any],
        observation: np.ndarray,
        reward: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
    ) -> list[tuple[int, np.ndarray]]:
        """Step every environment."""
        listed = np.asarray(actions)
        if listed.dtype.kind in "iu":
            listed = listed.astype(np.int32)
        seen, reward[...], ended, cut, _ = self._pool.step(listed)
        observation[...] = seen
        over = np.flatnonzero(ended | cut)
        if not len(over):
            return []
        terminated[...], truncated[...] = ended, cut & ~ended
        finals = [(int(i), observation[i].copy()) for i in over]
        observation[over] = self._pool.reset(over.astype(np.int32))[0]
        for i in over:
            self._episode[i] += 1
        return finals

    def episodes(self) -> list[int]:
        """Number of the episode that each environment is in."""
        return list(self._episode)

    def close(self) -> None:
        """End the pool and its threads."""
        self._pool.close()
