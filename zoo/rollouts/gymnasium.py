"""Gymnasium environments to batches: fragments for PPO, groups of whole episodes for GRPO.

Everything in the step loop is NumPy on arrays made beforehand; one TensorDict is built at the end.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import gymnasium
import numpy as np
import torch
from einops import rearrange
from gymnasium.vector import AutoresetMode
from tensordict import TensorDict

from zoo.core.protocols import Report
from zoo.core.schema import in_range
from zoo.errors import UserError
from zoo.policies.spaces import ObservationEncoder, require_supported
from zoo.rollouts import gymnasium_evaluation as evaluation
from zoo.rollouts.env_pool import EnvPoolEnvs
from zoo.rollouts.gymnasium_envs import (
    EnvFactory,
    Envs,
    EpisodeSeeds,
    LocalEnvs,
    ParkedEnvs,
    RolloutError,
    VectorEnvs,
)
from zoo.rollouts.gymnasium_track import Track
from zoo.rollouts.native import NativeEnvs

if TYPE_CHECKING:
    from zoo.policies.mlp import MLPPolicy
    from zoo.rollouts.side_by_side import SideBySide

__all__ = ["GymnasiumKnobs", "GymnasiumRollout", "RolloutError"]

#: streams of random numbers that a run's seed is spread over; evaluation has its own (see there)
_EPISODES, _GROUPS, _ACTIONS = 0, 1, 2
_CHUNK = 128
_MOST_ENVS = 2**16


@dataclass(frozen=True)
class GymnasiumKnobs:
    """How control environments are stepped."""

    #: environments stepped together; with groups (GRPO) a multiple of algo.group_size
    num_envs: int = 8
    #: steps per environment and round; without effect for groups, which are whole episodes
    steps: int = 128
    #: sync; async: a process per environment, worth it from about 1 ms per step; native: the
    #: environment's own code for all copies at once (CartPole), worth it from 8 of them; envpool:
    #: EnvPool's environments in C++, whose episodes resume can't follow
    vector: Literal["sync", "async", "native", "envpool"] = "sync"
    #: run Gymnasium's vector environment in that mode; None is fastest, the data are the same
    autoreset: Literal["next_step", "same_step", "disabled"] | None = None

    def __post_init__(self) -> None:
        """Refuse what steps nothing."""
        in_range(self, "num_envs", low=1, high=_MOST_ENVS)  # each is an object of its own
        in_range(self, "steps", low=1)


class GymnasiumRollout:
    """Step ``num_envs`` environments and gather what happened.

    Parameters
    ----------
    env : str or callable
        A Gymnasium id, or a function that makes one environment.
    num_envs : int
        Environments stepped together, N.
    steps : int
        T: steps of a fragment. With ``group_size``, unused.
    group_size : int, optional
        G: gather whole episodes instead, N of them in N/G groups; a group's episodes begin from one
        seeded reset (and so share the environment's own random numbers as well).
    vector : "sync", "async", "native" or "envpool"
        One loop in this process, a process per environment (worth it from about 1 ms per step),
        Gymnasium's own code for all copies at once, where an environment has it, or EnvPool.
    autoreset : str, optional
        ``next_step``, ``same_step`` or ``disabled`` runs Gymnasium's vector environment in that
        mode. The data are the same under all of them; None takes the fastest.
    seed : int
        Seed of the episodes and of the actions, which are streams of their own.

    Raises
    ------
    UserError
        For spaces that are not supported and numbers that don't fit together.

    Notes
    -----
    Budgets are environment steps. A fragment of N environments gives a multiple of N, so a budget
    is met exactly when N divides it and overrun to the next multiple of N otherwise; what was done
    is in the batch's mask. Groups stop in the tick in which the budget is reached, which cuts
    running episodes (``truncated``).
    """

    Knobs = GymnasiumKnobs
    world: Literal["control"] = "control"
    record_file = "episodes.jsonl"

    def __init__(
        self,
        env: str | EnvFactory,
        num_envs: int = 8,
        steps: int = 128,
        group_size: int | None = None,
        vector: Literal["sync", "async", "native", "envpool"] = "sync",
        autoreset: str | None = None,
        seed: int = 0,
    ) -> None:
        GymnasiumKnobs(num_envs, steps)
        if group_size is not None and group_size < 1:
            raise UserError(f"group_size must be at least 1 (got {group_size}).")
        if group_size is not None and num_envs % group_size:
            fitting = -(-num_envs // group_size) * group_size
            raise UserError(
                f"rollout.num_envs={num_envs} is no multiple of group_size={group_size}: a group is"
                f" played by environments of its own. Use rollout.num_envs={fitting}."
            )
        self.num_envs, self.steps, self.group_size, self.seed = num_envs, steps, group_size, seed
        self.make: EnvFactory = _from_id(env) if isinstance(env, str) else env
        self.episode_seeds = EpisodeSeeds(seed, _EPISODES)
        self.envs = self._make_envs(vector, autoreset)
        self.observation_space = self.envs.observation_space
        self.action_space = self.envs.action_space
        try:
            require_supported(self.observation_space, self.action_space)
        except UserError:
            self.envs.close()
            raise
        self._encoder = ObservationEncoder(self.observation_space)  # type: ignore[arg-type]
        self._group_seeds = EpisodeSeeds(seed, _GROUPS)
        self._rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(_ACTIONS,)))
        #: whether batches also hold observations as they were before normalisation
        self.keep_raw = False
        self.env_steps = 0
        self._groups_begun = 0
        self._begun = False
        self._observation = np.zeros((num_envs, *self._encoder.shape), self._encoder.dtype)
        self._return = np.zeros(num_envs)
        self._length = np.zeros(num_envs, np.int64)
        self._history: list[list[np.ndarray]] = [[] for _ in range(num_envs)]
        self._report = Report()
        #: what steps these environments, where those of several seeds are stepped as one
        self.together: SideBySide | None = None

    def _make_envs(self, vector: str, autoreset: str | None) -> Envs:
        if vector not in ("sync", "async", "native", "envpool"):
            raise UserError(
                f"rollout.vector must be sync, async, native or envpool (got {vector!r})."
            )
        modes = {m.name.lower(): m for m in AutoresetMode}
        if autoreset is not None and autoreset not in modes:
            raise UserError(
                f"rollout.autoreset must be one of {sorted(modes)} (got {autoreset!r})."
            )
        seeds, park = self.episode_seeds, self.group_size is not None
        if vector in ("native", "envpool") and autoreset is not None:
            raise UserError(f"rollout.autoreset is Gymnasium's: leave it out with {vector}.")
        if vector == "envpool":
            return EnvPoolEnvs(self.make, self.num_envs, seeds)
        if vector == "native":
            return NativeEnvs(self.make, self.num_envs, seeds, park)
        if vector == "sync" and autoreset is None:
            return LocalEnvs(self.make, self.num_envs, seeds, park)
        mode = modes[autoreset or "same_step"]
        return VectorEnvs(self.make, self.num_envs, seeds, park, mode, vector == "async")

    def env_actions(self, action: np.ndarray) -> list[Any]:
        """Turn a policy's actions [N, …] into what the environments take: clipped to the Box."""
        space = self.action_space
        if isinstance(space, gymnasium.spaces.Discrete):
            listed: list[Any] = action.tolist()
            return listed
        if isinstance(space, gymnasium.spaces.Box):
            action = np.clip(action, space.low, space.high)
        return list(action.astype(space.dtype, copy=False))

    # Gathering.

    def collect(self, policy: MLPPolicy, budget: int | None = None) -> TensorDict:
        """Gather one batch.

        Parameters
        ----------
        policy : MLPPolicy
            Acts, and owns the observation normaliser.
        budget : int, optional
            Environment steps that are left.

        Returns
        -------
        TensorDict
            ``batch_size [N]``, leaves [N, T, …]; see docs/architecture.md.

        Raises
        ------
        RolloutError
            Where an environment raised or gave numbers that are not finite.
        """
        if self.group_size is not None:
            return self._collect_groups(policy, budget)
        # nothing is learned before the warm-up's end, so it isn't cut into an update's short rounds
        warming = -(-(getattr(policy, "warmup", 0) - policy.done) // self.num_envs)
        steps = max(self.steps, min(warming, _CHUNK))
        steps = steps if budget is None else min(steps, -(-budget // self.num_envs))
        if not self._begun:
            self._begin(policy)
        track = self._track(policy, max(1, steps))
        actor = policy.actor(self.num_envs, track.steps, self._rng)
        for t in range(track.steps):
            track.step(actor(track.observation[t], t), t)
            if actor.follows_episodes:
                actor.ended(track.terminated[t] | track.truncated[t])
        batch = track.batch(track.steps)
        log_prob = rearrange(actor.log_prob(track.steps), "time env -> env time")
        mask = np.ones(log_prob.shape, bool)
        self._account(track, batch, mask)
        self._observation = track.raw[track.steps].copy()
        return self._tensordict(batch, log_prob, mask, np.arange(self.num_envs), policy)

    def _track(self, policy: MLPPolicy, steps: int) -> Track:
        return Track(self, policy, steps)

    def _begin(self, policy: MLPPolicy) -> None:
        self.envs.reset(self._observation)
        self._begun = True
        if policy.normalizer is not None:
            policy.normalizer.update(self._observation)

    def _collect_groups(self, policy: MLPPolicy, budget: int | None) -> TensorDict:
        groups, size = self.num_envs // int(self.group_size or 1), int(self.group_size or 1)
        first = self._groups_begun
        seeds = [self._group_seeds(0, first + g) for g in range(groups) for _ in range(size)]
        self._groups_begun += groups
        self.envs.reset(self._observation, seeds)
        if policy.normalizer is not None:
            policy.normalizer.update(self._observation)
        self._return[:], self._length[:] = 0.0, 0
        alive = np.ones(self.num_envs, bool)
        done, log_probs = 0, []
        track = Track(self, policy, _CHUNK)
        t = 0
        while alive.any():
            actor = policy.actor(self.num_envs, _CHUNK, self._rng)
            track.reserve(t + _CHUNK)
            for k in range(_CHUNK):
                track.step(actor(track.observation[t], k), t, alive)
                done += int(alive.sum())
                ended = track.terminated[t] | track.truncated[t]
                if actor.follows_episodes:
                    actor.ended(ended & alive)
                alive &= ~ended
                t += 1
                if budget is not None and done >= budget:
                    track.truncated[t - 1] |= alive
                    track.cut = alive.copy()
                    alive[:] = False
                if not alive.any():
                    break
            log_probs.append(actor.log_prob(k + 1))
        batch = track.batch(t)
        last = (batch["terminated"] | batch["truncated"]).argmax(1)
        mask = np.arange(t) <= last[:, None]
        log_prob = rearrange(np.concatenate(log_probs), "time env -> env time") * mask
        self._account(track, batch, mask)
        return self._tensordict(
            batch, log_prob, mask, first + np.arange(self.num_envs) // size, policy
        )

    def _tensordict(
        self,
        batch: dict[str, np.ndarray],
        log_prob: np.ndarray,
        mask: np.ndarray,
        group: np.ndarray,
        policy: MLPPolicy,
    ) -> TensorDict:
        leaves = {
            **batch,
            "log_prob": np.ascontiguousarray(log_prob),
            "mask": mask,
            "group": group.astype(np.int64),
            "version": np.full(self.num_envs, policy.version, np.int64),
        }
        tensors = {key: torch.from_numpy(leaf) for key, leaf in leaves.items()}
        gathered = TensorDict(tensors, batch_size=[self.num_envs])
        return gathered if policy.device.type == "cpu" else gathered.to(policy.device)

    def _account(self, track: Track, batch: dict[str, np.ndarray], mask: np.ndarray) -> None:
        """Find finished episodes, count steps, and remember the actions of the running ones."""
        reward = batch["reward"].astype(np.float64)
        live = [batch["observation"], batch["next_observation"], reward]
        if not all(np.isfinite(x).all() for x in live if x.dtype.kind == "f"):
            raise _not_finite(live)
        ended = (batch["terminated"] | batch["truncated"]) & mask
        if track.cut is not None:
            ended[track.cut] = False
        done = self.env_steps + np.cumsum(mask.sum(0))
        self.env_steps = int(done[-1])
        records = []
        for i in range(self.num_envs):
            start = 0
            for t in np.flatnonzero(ended[i]):
                stop = int(t) + 1
                records.append(
                    {
                        "return": float(self._return[i] + reward[i, start:stop].sum()),
                        "length": int(self._length[i]) + stop - start,
                        "env": i,
                        "truncated": bool(batch["truncated"][i, t]),
                        "step": int(done[t]),
                    }
                )
                self._return[i], self._length[i], start = 0.0, 0, stop
                self._history[i].clear()
            if self.group_size is None:
                self._return[i] += reward[i, start:].sum()
                self._length[i] += reward.shape[1] - start
                self._history[i].append(batch["action"][i, start:].copy())
        self._report = _report(records)

    def report(self) -> Report:
        """Raw returns and lengths of the episodes that ended in the last batch."""
        return self._report

    # Measuring.

    def evaluate(
        self,
        policy: MLPPolicy,
        *,
        episodes: int = 20,
        seed: int = 0,
        deterministic: bool = True,
        num_envs: int = 8,
    ) -> dict[str, float]:
        """Play whole episodes from fixed starts in environments of its own.

        Episode k starts from a seed that only ``seed`` and k determine, so any two policies are
        measured on the same starts. The normaliser is applied and not updated; rewards are raw.

        Returns
        -------
        dict
            ``return_mean``, ``return_std`` (n − 1), ``return_ci95`` (half the width of the 95 %
            Student-t interval; NaN for one episode), ``episodes``, ``length_mean``.
        """
        if self.together is not None:
            return self.together.measured(self, episodes, seed, deterministic, num_envs)
        played = evaluation.play(self, policy, episodes, seed, deterministic, num_envs)
        return evaluation.summary(played)

    def enjoy(
        self,
        policy: MLPPolicy,
        episodes: int = 3,
        render_mode: str | None = "human",
        seed: int = 0,
        deterministic: bool = True,
        show: evaluation.Show | None = None,
    ) -> Iterator[dict[str, Any]]:
        """Play one episode after the other; yield return, length and rendered frames of each.

        ``show(frame, frames per second)`` takes the frames as they are drawn instead.
        """
        return evaluation.enjoy(self, policy, episodes, render_mode, seed, deterministic, show)

    def parked_envs(self, num_envs: int, seeds: EpisodeSeeds) -> ParkedEnvs:
        """Make environments in which episodes are played that are begun one by one."""
        return LocalEnvs(self.make, num_envs, seeds, park=True)

    # State.

    def state_dict(self) -> dict[str, Any]:
        """Counters, generators, and each running episode as its number and its actions so far."""
        history = [
            torch.from_numpy(np.concatenate(parts)) if parts else torch.zeros(0)
            for parts in self._history
        ]
        return {
            "env_steps": self.env_steps,
            "groups_begun": self._groups_begun,
            "begun": self._begun,
            "episodes": self.episodes() if self._begun else [],
            "history": history,
            "observation": torch.from_numpy(self._observation.copy()),
            "return": self._return.tolist(),
            "length": self._length.tolist(),
            "rng": _plain(self._rng.bit_generator.state),
        }

    def episodes(self) -> list[int]:
        """Number of the episode that each environment is in."""
        return self.envs.episodes() if self.together is None else self.together.episodes_of(self)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue: every running episode is begun again from its seed and its actions repeated.

        Warns where the environment could not be followed to the very observation it was left at
        (one that draws random numbers from elsewhere than its seed); training then goes on from
        where the repetition led, but not bit for bit.
        """
        self.env_steps, self._groups_begun = state["env_steps"], state["groups_begun"]
        self._rng.bit_generator.state = state["rng"]
        self._return[:], self._length[:] = state["return"], state["length"]
        self._begun = state["begun"]
        if not self._begun:
            return
        actions = [part.numpy() for part in state["history"]]
        self._history = [[part] if len(part) else [] for part in actions]
        followed = self.envs.replay(self._observation, state["episodes"], self.actions_so_far())
        recorded = state["observation"].numpy()
        for i in range(self.num_envs):
            if followed[i] and np.array_equal(self._observation[i], recorded[i]):
                continue
            warnings.warn(
                f"environment {i} could not be brought back to where the run was interrupted:"
                " this resume is not bitwise. It draws random numbers from elsewhere than the seed"
                " of its reset.",
                stacklevel=2,
            )
            if not followed[i]:
                self._return[i], self._length[i], self._history[i] = 0.0, 0, []

    def actions_so_far(self) -> list[list[Any]]:
        """Return what each environment was given in the episode that it is in."""
        history = (np.concatenate(parts) if parts else None for parts in self._history)
        return [[] if part is None else self.env_actions(part) for part in history]

    def close(self) -> None:
        """Close the environments."""
        self.envs.close()


def _from_id(name: str) -> EnvFactory:
    def make(**options: Any) -> gymnasium.Env[Any, Any]:
        return gymnasium.make(name, **options)

    return make


def _report(records: list[dict[str, Any]]) -> Report:
    metrics = {"episode/count": float(len(records))}
    if records:
        returns = np.array([r["return"] for r in records])
        metrics["return/mean"] = float(returns.mean())
        metrics["return/std"] = float(returns.std())
        metrics["episode/length"] = float(np.mean([r["length"] for r in records]))
    return Report(metrics, records)


def _not_finite(arrays: list[np.ndarray]) -> RolloutError:
    kinds = ("observation", "next observation", "reward")
    found = [(np.argwhere(~np.isfinite(a)), kind) for a, kind in zip(arrays, kinds, strict=True)]
    where, kind = next((where[0], kind) for where, kind in found if len(where))
    return RolloutError(
        f"Environment {where[0]} gave a {kind} that is not finite at step {where[1]} of this"
        " rollout.",
        int(where[0]),
    )


def _plain(state: Mapping[str, Any]) -> dict[str, Any]:
    """Copy a bit generator's state as plain numbers, texts and dicts."""
    return {k: _plain(v) if isinstance(v, Mapping) else v for k, v in state.items()}
