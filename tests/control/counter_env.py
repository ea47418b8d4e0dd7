"""An environment whose every transition is known in advance."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Counter(gymnasium.Env[np.ndarray, int]):
    """Observe 0, 1, 2, … ; terminates at ``end``, which ``stagger`` varies with the seed."""

    observation_space = spaces.Box(0.0, 100.0, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, end: int = 3, stagger: int = 0, truncate: bool = False) -> None:
        self.end, self.stagger, self.truncate = end, stagger, truncate
        self.seeds: list[int | None] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.seeds.append(seed)
        self.count = 0
        self.last = self.end + (int(self.np_random.integers(self.stagger)) if self.stagger else 0)
        return np.array([0.0], np.float32), {"start": self.last}

    def step(self, action: int) -> Any:
        self.count += 1
        over = self.count >= self.last
        observation = np.array([self.count], np.float32)
        return (
            observation,
            float(self.count),
            over and not self.truncate,
            over and self.truncate,
            {},
        )
