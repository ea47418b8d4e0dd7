"""Rewards of text environments: named items with weights, each logged by itself.

    from zoo.envs.rewards import RewardItem, accuracy, format, length, overlong, repetition

A user's function is a reward as it stands; it runs in a process of its own under a time limit.
"""

from __future__ import annotations

from zoo.envs.rewards.builtin import accuracy, format, length, overlong, repetition, score
from zoo.envs.rewards.item import RewardItem
from zoo.envs.rewards.model import RewardModel

__all__ = [
    "RewardItem",
    "RewardModel",
    "accuracy",
    "format",
    "length",
    "overlong",
    "repetition",
    "score",
]
