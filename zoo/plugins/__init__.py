"""Objective terms that algorithms can carry: entropy, KL, reward scaling, importance."""

from zoo.plugins.entropy import Entropy, EntropyKnobs
from zoo.plugins.facts import Facts
from zoo.plugins.importance import Importance, ImportanceKnobs
from zoo.plugins.kl import KL, KLKnobs
from zoo.plugins.reward_scale import RewardScale, RewardScaleKnobs

__all__ = [
    "KL",
    "Entropy",
    "EntropyKnobs",
    "Facts",
    "Importance",
    "ImportanceKnobs",
    "KLKnobs",
    "RewardScale",
    "RewardScaleKnobs",
]
