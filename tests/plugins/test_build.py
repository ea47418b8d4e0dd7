"""Plugins from an algorithm's knobs."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field

import pytest
from gymnasium import spaces

from zoo.errors import UserError
from zoo.plugins import EntropyKnobs, KLKnobs, RewardScaleKnobs, build_plugins


@dataclass(frozen=True)
class Knobs:
    gamma: float = 0.5
    entropy: EntropyKnobs = field(default_factory=lambda: EntropyKnobs("auto", 1.0))
    kl: KLKnobs = field(default_factory=KLKnobs)
    reward_scale: RewardScaleKnobs = field(default_factory=lambda: RewardScaleKnobs("return_std"))


@dataclass(frozen=True)
class GroupKnobs:
    scale: str = "group"
    reward_scale: RewardScaleKnobs = field(default_factory=lambda: RewardScaleKnobs("return_std"))


SPACE = spaces.Box(-1, 1, (3,))


def test_every_plugin_is_made_with_the_runs_facts_and_reward_scaling_first():
    made = build_plugins(Knobs(), world="control", algorithm="ppo", action_space=SPACE)
    assert [p.name for p in made] == ["reward_scale", "kl", "entropy"]
    assert made[0].gamma == 0.5 and not made[0].at_sampling
    assert made[2].target == -3.0


def test_missing_knobs_make_no_plugin_and_senseless_ones_are_refused():
    with pytest.raises(UserError, match="grpo"):
        build_plugins(GroupKnobs(), world="control", algorithm="grpo", action_space=SPACE)
    made = build_plugins(GroupKnobs("none"), world="control", algorithm="grpo", action_space=SPACE)
    assert [p.name for p in made] == ["reward_scale"]


def test_importing_the_plugins_costs_torch_only():
    heavy = ("tensordict", "gymnasium", "transformers", "hydra", "rich", "wandb")
    code = f"import sys, zoo.plugins; print([m for m in {heavy} if m in sys.modules])"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"
