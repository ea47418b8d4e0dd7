"""Settings that would train wrong in silence are refused in one sentence."""

from __future__ import annotations

import math
from typing import Any

import pytest

from zoo.algorithms.grpo import GRPOKnobs
from zoo.algorithms.ppo import PPOKnobs
from zoo.errors import UserError


@pytest.mark.parametrize("knobs", [PPOKnobs, GRPOKnobs])
@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("lr", -1e-3, "needs lr ≥ 0 (got -0.001)"),
        ("lr", math.nan, "needs lr ≥ 0 (got nan)"),
        ("lr", math.inf, "needs lr ≥ 0 (got inf)"),
        ("critic_lr", -1.0, "critic_lr ≥ 0"),
        ("betas", (0.9, 1.0), "needs 0 ≤ betas < 1 (got 1.0)"),
        ("betas", (-0.1, 0.9), "0 ≤ betas < 1"),
        ("adam_eps", -1e-8, "adam_eps ≥ 0"),
        ("weight_decay", -0.1, "weight_decay ≥ 0"),
        ("max_grad_norm", -1.0, "max_grad_norm ≥ 0"),
        ("warmup", 1.5, "needs 0 ≤ warmup ≤ 1 (got 1.5)"),
        ("micro_batch_size", 0, "micro_batch_size ≥ 1"),
        ("max_tokens_per_micro_batch", 0, "max_tokens_per_micro_batch ≥ 1"),
        ("minibatch_size", 0, "minibatch_size ≥ 1"),
        ("epochs", 0, "epochs ≥ 1"),
        ("clip_low", -0.2, "clip_low ≥ 0"),
        ("clip_high", math.nan, "clip_high ≥ 0"),
    ],
)
def test_numbers_outside_their_range(knobs: Any, name: str, value: Any, words: str) -> None:
    with pytest.raises(UserError) as refusal:
        knobs(**{name: value})
    assert words in str(refusal.value)
    assert str(refusal.value).startswith(knobs.__name__.removesuffix("Knobs"))


def test_numbers_outside_the_range_of_one_algorithm() -> None:
    with pytest.raises(UserError, match="PPO needs value_clip > 0 .got 0.0"):
        PPOKnobs(value_clip=0.0)
    with pytest.raises(UserError, match="PPO needs 0 ≤ gamma ≤ 1 .got 1.01"):
        PPOKnobs(gamma=1.01)
    with pytest.raises(UserError, match="GRPO needs dual_clip > 1 .got 1.0"):
        GRPOKnobs(dual_clip=1.0)


def test_an_update_is_cut_by_rows_or_by_tokens() -> None:
    with pytest.raises(UserError, match="both say how an update is cut"):
        GRPOKnobs(micro_batch_size=2, max_tokens_per_micro_batch=4096)


def test_the_bounds_themselves_and_null_pass() -> None:
    edge = {"lr": 0.0, "warmup": 1.0, "max_grad_norm": 0.0, "gamma": 1.0, "value_clip": None}
    ppo = PPOKnobs(betas=(0.0, 0.0), **edge)
    assert {name: getattr(ppo, name) for name in edge} == edge
    assert GRPOKnobs(minibatch_size=None, dual_clip=1.5, clip_low=0.0).clip_low == 0.0
