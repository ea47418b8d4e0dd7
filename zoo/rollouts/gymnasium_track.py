"""The arrays that one collect writes, and the normalisation of what the policy sees."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from zoo.policies.mlp import MLPPolicy
    from zoo.rollouts.gymnasium import GymnasiumRollout

__all__ = ["Track"]


class Track:
    """Arrays [T, N, …] that one collect writes, and the normalisation of what the policy sees."""

    def __init__(self, rollout: GymnasiumRollout, policy: MLPPolicy, steps: int) -> None:
        self._rollout, self._normalizer = rollout, policy.normalizer
        self.steps = 0
        self.cut: np.ndarray | None = None
        self._finals: list[tuple[int, int, np.ndarray]] = []
        self._raw_finals: list[tuple[int, int, np.ndarray]] = []  # where they are normalised
        n, shape, encoder = rollout.num_envs, rollout._encoder.shape, rollout._encoder
        self.raw = np.zeros((1, n, *shape), encoder.dtype)
        self.raw[0] = rollout._observation
        self.observation = self.raw
        if self._normalizer is not None:
            self.observation = self._normalizer(self.raw)
        self.reward = np.zeros((0, n), np.float32)
        self.terminated, self.truncated = np.zeros((0, n), bool), np.zeros((0, n), bool)
        self._actions: list[np.ndarray] = []
        self.reserve(steps)

    def reserve(self, steps: int) -> None:
        """Make room for so many steps in all."""
        if steps <= self.steps:
            return
        more = max(steps, 2 * self.steps) - self.steps
        self.steps += more

        def grown(array: np.ndarray) -> np.ndarray:
            return np.concatenate([array, np.zeros((more, *array.shape[1:]), array.dtype)])

        same = self.observation is self.raw
        self.raw = grown(self.raw)
        self.observation = self.raw if same else grown(self.observation)
        self.reward = grown(self.reward)
        self.terminated, self.truncated = grown(self.terminated), grown(self.truncated)

    def step(self, action: np.ndarray, t: int, alive: np.ndarray | None = None) -> None:
        """Step the environments with the policy's actions, those that are alive."""
        rollout = self._rollout
        self._actions.append(action)
        actions = rollout.env_actions(action)
        seen = self.raw[t + 1]
        if alive is not None and not alive.all():
            actions = [a if live else None for a, live in zip(actions, alive, strict=True)]
            seen[...] = self.raw[t]
        finals = rollout.envs.step(
            actions, seen, self.reward[t], self.terminated[t], self.truncated[t]
        )
        if self._normalizer is not None:
            self._normalise(t, finals, alive)
        elif finals:
            self._finals.extend((t, i, final) for i, final in finals)

    def _normalise(
        self, t: int, finals: list[tuple[int, np.ndarray]], alive: np.ndarray | None
    ) -> None:
        """Count every real observation once: true next ones, and those of resets."""
        assert self._normalizer is not None
        seen = self.raw[t + 1]
        # parked environments show their final observation already
        self._count(seen if alive is None else seen[alive], finals if alive is None else [])
        self.observation[t + 1] = self._normalizer(seen)
        self._raw_finals.extend((t, i, final) for i, final in finals)
        self._finals.extend((t, i, self._normalised(i, final)) for i, final in finals)

    def _normalised(self, environment: int, observation: np.ndarray) -> np.ndarray:
        """Return one environment's observation as the policy sees it."""
        assert self._normalizer is not None
        return self._normalizer(observation)

    def _count(self, seen: np.ndarray, finals: list[tuple[int, np.ndarray]]) -> None:
        """Show observations to the normaliser, with those of environments that ended."""
        assert self._normalizer is not None
        new = np.concatenate([seen, np.stack([f for _, f in finals])]) if finals else seen
        self._normalizer.update(new)

    def batch(self, steps: int) -> dict[str, np.ndarray]:
        """Return [N, T, …] arrays of the first ``steps`` steps, each in memory of its own."""
        following = _rows(self.observation[1:], steps)
        for t, i, final in self._finals:
            following[i, t] = final
        leaves = {
            "observation": _rows(self.observation, steps),
            "next_observation": following,
            "action": _rows(np.stack(self._actions), steps),
            "reward": _rows(self.reward, steps),
            "terminated": _rows(self.terminated, steps),
            "truncated": _rows(self.truncated, steps),
        }
        if self._rollout.keep_raw and self._normalizer is not None:
            following = leaves["raw_next_observation"] = _rows(self.raw[1:], steps)
            for t, i, final in self._raw_finals:
                following[i, t] = final
            leaves["raw_observation"] = _rows(self.raw, steps)
        return leaves


def _rows(array: np.ndarray, steps: int) -> np.ndarray:
    return array[:steps].swapaxes(0, 1).copy()
