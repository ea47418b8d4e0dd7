"""The environments of several seeds in one array, stepped and measured as one.

Every seed keeps its own rollout, whose generators, counters and records are used and written here,
so that its checkpoint is that of a run of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from tensordict import TensorDict

from zoo.errors import UserError
from zoo.rollouts import gymnasium_evaluation as evaluation
from zoo.rollouts.generators import Generators
from zoo.rollouts.gymnasium import GymnasiumRollout
from zoo.rollouts.gymnasium_envs import (
    Envs,
    EpisodeSeeds,
    LocalEnvs,
    ParkedEnvs,
    RolloutError,
    SeedOf,
)
from zoo.rollouts.gymnasium_track import Track
from zoo.rollouts.native import NativeEnvs, has_native

if TYPE_CHECKING:
    from zoo.policies.stacked_mlp import StackedMLP

__all__ = ["SideBySide"]


class SideBySide(GymnasiumRollout):
    """Rollouts of S seeds with N environments each as one of S·N, seed after seed.

    Parameters
    ----------
    rollouts : sequence of GymnasiumRollout
        Alike but for their seeds; where they have begun, their episodes go on.
    policy : StackedMLP
        Their policies.

    Raises
    ------
    UserError
        For rollouts of groups, and environments in processes or in Gymnasium's vector environment.
    """

    def __init__(self, rollouts: Sequence[GymnasiumRollout], policy: StackedMLP) -> None:
        first = rollouts[0]
        if first.group_size is not None or not isinstance(first.envs, LocalEnvs | NativeEnvs):
            raise UserError(
                "seeds= trains on fragments of environments in this process: leave rollout.vector"
                " and rollout.autoreset alone, or run the seeds in processes with `zoo bench`."
            )
        self.rollouts, self.policy = list(rollouts), policy
        self._native = (
            has_native(first.envs.envs[0].env) if isinstance(first.envs, LocalEnvs) else True
        )
        super().__init__(first.make, len(rollouts) * first.num_envs, first.steps, seed=first.seed)
        self._rng = Generators([rollout._rng for rollout in rollouts])  # type: ignore[assignment]
        self._measured: tuple[tuple[Any, ...], dict[int, dict[str, float]]] = ((), {})
        if all(rollout._begun for rollout in rollouts):
            self._go_on()
        for rollout in rollouts:
            rollout.together = self

    def _make_envs(self, vector: str, autoreset: str | None) -> Envs:
        own = self.rollouts[0].num_envs
        streams = [rollout.episode_seeds for rollout in self.rollouts]

        def seeds(index: int, episode: int) -> int:
            return streams[index // own](index % own, episode)

        return self._envs(self.num_envs, seeds, park=False)

    def _envs(self, num_envs: int, seeds: SeedOf, park: bool) -> ParkedEnvs:
        return (NativeEnvs if self._native else LocalEnvs)(self.make, num_envs, seeds, park)

    def parked_envs(self, num_envs: int, seeds: EpisodeSeeds) -> ParkedEnvs:
        """Make environments for measuring, in which episodes are begun one by one."""
        own = num_envs // len(self.rollouts)
        return self._envs(num_envs, lambda i, episode: seeds(i % own, episode), park=True)

    def _go_on(self) -> None:
        """Bring the environments to where each rollout's own are."""
        episodes = [e for rollout in self.rollouts for e in rollout.envs.episodes()]
        actions = [own for rollout in self.rollouts for own in rollout.actions_so_far()]
        self.envs.replay(self._observation, episodes, actions)
        self._begun = True

    def release(self) -> None:
        """Bring every rollout's own environments to where they are here."""
        for rollout in self.rollouts:
            episodes, rollout.together = rollout.episodes(), None
            if rollout._begun:
                rollout.envs.replay(rollout._observation, episodes, rollout.actions_so_far())

    def part(self, rollout: GymnasiumRollout) -> slice:
        """Return which of the environments are a seed's."""
        start = self.rollouts.index(rollout) * rollout.num_envs
        return slice(start, start + rollout.num_envs)

    def episodes_of(self, rollout: GymnasiumRollout) -> list[int]:
        """Number of the episode that each of a seed's environments is in."""
        return self.envs.episodes()[self.part(rollout)]

    # Gathering.

    def gather(self, budget: int, versions: Sequence[int]) -> list[TensorDict]:
        """Gather one batch for each seed, of at most ``budget`` steps by weights of its version."""
        self._measured = ((), {})
        batch = self.collect(self.policy, budget * len(self.rollouts))
        own = torch.arange(self.rollouts[0].num_envs)
        batches = []
        for rollout, version in zip(self.rollouts, versions, strict=True):
            part = self.part(rollout)
            rollout._observation, rollout._begun = self._observation[part], True
            batches.append(batch[part])
            batches[-1]["group"], batches[-1]["version"] = own, torch.full_like(own, version)
        return batches

    def _track(self, policy: Any, steps: int) -> Track:
        return _Track(self, policy, steps)

    def _begin(self, policy: Any) -> None:
        normalizer, policy.normalizer = policy.normalizer, None
        super()._begin(policy)
        policy.normalizer = normalizer
        if normalizer is not None:
            normalizer.update(np.split(self._observation, len(self.rollouts)))

    def _account(self, track: Track, batch: dict[str, np.ndarray], mask: np.ndarray) -> None:
        for rollout in self.rollouts:
            part = self.part(rollout)
            try:
                rollout._account(track, {k: v[part] for k, v in batch.items()}, mask[part])
            except RolloutError as error:
                raise RolloutError(f"Seed {rollout.seed}: {error}", error.index) from error

    # Measuring.

    def measured(
        self,
        rollout: GymnasiumRollout,
        episodes: int,
        seed: int,
        deterministic: bool,
        num_envs: int,
    ) -> dict[str, float]:
        """Measure a seed's policy; the others' are measured with it, for when they are asked."""
        asked = (episodes, seed, deterministic, num_envs)
        index, (known, results) = self.rollouts.index(rollout), self._measured
        if known != asked or index not in results:
            number = len(self.rollouts)
            played = evaluation.play_side_by_side(self, self.policy, *asked, number)
            results = dict(enumerate(map(evaluation.summary, played)))
            self._measured = asked, results
        return results.pop(index)


class _Track(Track):
    """Shows every seed's observations to that seed's normaliser."""

    def _normalised(self, environment: int, observation: np.ndarray) -> np.ndarray:
        normalizers = self._rollout.policy.normalizer  # type: ignore[attr-defined]
        own: np.ndarray = normalizers.of(environment, self._rollout.num_envs)(observation)
        return own

    def _count(self, seen: np.ndarray, finals: list[tuple[int, np.ndarray]]) -> None:
        assert isinstance(self._rollout, SideBySide)
        number = len(self._rollout.rollouts)
        parts: list[list[np.ndarray]] = [[part] for part in np.split(seen, number)]
        for i, final in finals:
            parts[i * number // len(seen)].append(final[None])
        self._normalizer.update([np.concatenate(own) for own in parts])  # type: ignore[union-attr,arg-type]
