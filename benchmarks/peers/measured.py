"""Measure another library's policy on the very starts that this library's evaluation uses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium

from zoo.rollouts.gymnasium_evaluation import evaluation_starts

__all__ = ["mean_return"]

_SEED = 10_000  # of conf/world/control.yaml


def mean_return(env_id: str, act: Callable[[Any], Any], episodes: int = 20) -> float:
    """Play episodes and return their mean raw return.

    Parameters
    ----------
    env_id : str
        A Gymnasium id.
    act : callable
        Takes an observation and returns the action that the environment is given.
    """
    env, starts, total = gymnasium.make(env_id), evaluation_starts(_SEED), 0.0
    for episode in range(episodes):
        observation, _ = env.reset(seed=starts(0, episode))
        over = False
        while not over:
            observation, reward, terminated, truncated, _ = env.step(act(observation))
            total, over = total + float(reward), terminated or truncated
    env.close()
    return total / episodes
