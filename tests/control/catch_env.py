"""Catch: a ball falls through an 8 × 8 field, drawn as 16 × 16 pixels, and a paddle goes there."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces

_FIELD = 8


class Catch(gymnasium.Env[np.ndarray, int]):
    """Left, stay or right for seven steps; the last one pays 1 if the ball is caught, else −1."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"], "render_fps": 10}
    observation_space = spaces.Box(0, 255, (16, 16, 1), np.uint8)
    action_space = spaces.Discrete(3)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.row, self.paddle = 0, _FIELD // 2
        self.column = int(self.np_random.integers(_FIELD))
        return self._draw(), {}

    def step(self, action: int) -> Any:
        self.row += 1
        self.paddle = int(np.clip(self.paddle + int(action) - 1, 0, _FIELD - 1))
        over = self.row == _FIELD - 1
        reward = (1.0 if self.paddle == self.column else -1.0) if over else 0.0
        return self._draw(), reward, over, False, {}

    def _draw(self) -> np.ndarray:
        field = np.zeros((_FIELD, _FIELD), np.uint8)
        field[self.row, self.column] = 255
        field[-1, self.paddle] = 128
        return field.repeat(2, 0).repeat(2, 1)[..., None]

    def render(self) -> np.ndarray:
        return self._draw().repeat(4, 0).repeat(4, 1).repeat(3, 2)
