"""Objective terms that every algorithm can carry: entropy, KL, reward scaling."""

from zoo.plugins.entropy import Entropy, EntropyKnobs
from zoo.plugins.facts import Facts
from zoo.plugins.kl import KL, KLKnobs
from zoo.plugins.reward_scale import RewardScale, RewardScaleKnobs

__all__ = [
    "KL",
    "Entropy",
    "EntropyKnobs",
    "Facts",
    "KLKnobs",
    "RewardScale",
    "RewardScaleKnobs",
]
