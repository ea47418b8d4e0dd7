"""Streams of steps to fill a replay with, and what it should give back, written the slow way."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from tensordict import TensorDict


@dataclass
class Step:
    observation: float
    action: int
    reward: float
    next_observation: float
    terminated: bool = False
    truncated: bool = False


class Streams:
    """Steps of several environments; every observation is a number that comes only once."""

    def __init__(
        self, num_envs: int, seed: int = 0, terminates: float = 0.2, truncates: float = 0.2
    ):
        self.rng = np.random.default_rng(seed)
        self.chances = (terminates, terminates + truncates)
        self.past: list[list[Step]] = [[] for _ in range(num_envs)]
        self.now = [1000.0 * i for i in range(num_envs)]

    def fragment(self, steps: int) -> TensorDict:
        new = [[self.step(env) for _ in range(steps)] for env in range(len(self.past))]
        return fragment(new)

    def step(self, env: int) -> Step:
        draw = self.rng.random()
        terminated = draw < self.chances[0]
        truncated = not terminated and draw < self.chances[1]
        following = self.now[env] + 1
        action, reward = int(self.rng.integers(9)), float(np.float32(self.rng.standard_normal()))
        step = Step(self.now[env], action, reward, following, terminated, truncated)
        self.now[env] = following + (terminated or truncated)  # a reset shows another observation
        self.past[env].append(step)
        return step


def fragment(rows: list[list[Step]]) -> TensorDict:
    """[N, T] as GymnasiumRollout gives it; observations are (number, 7), [N, T, 2]."""

    def leaf(name: str, dtype: torch.dtype) -> torch.Tensor:
        return torch.tensor([[getattr(step, name) for step in row] for row in rows], dtype=dtype)

    def observation(name: str) -> torch.Tensor:
        number = leaf(name, torch.float32)
        return torch.stack([number, torch.full_like(number, 7.0)], -1)

    leaves = {
        "observation": observation("observation"),
        "next_observation": observation("next_observation"),
        "action": leaf("action", torch.int64),
        "reward": leaf("reward", torch.float32),
        "terminated": leaf("terminated", torch.bool),
        "truncated": leaf("truncated", torch.bool),
    }
    leaves["mask"] = torch.ones_like(leaves["terminated"])
    return TensorDict(leaves, batch_size=[len(rows)])


def expected(
    past: list[list[Step]], kept: int, n: int, gamma: float
) -> list[tuple[float, int, float, float, float]]:
    """Observation, action, reward, discount, next observation from every start, oldest first."""
    found = []
    for age in range(min(kept, len(past[0]))):
        for steps in past:
            rest = steps[-kept:][age:]
            total, discount = 0.0, 1.0
            for step in rest[:n]:
                total += discount * step.reward
                discount *= gamma
                if step.terminated:
                    discount = 0.0
                if step.terminated or step.truncated:
                    break
            start = rest[0]
            found.append((start.observation, start.action, total, discount, step.next_observation))
    return found
