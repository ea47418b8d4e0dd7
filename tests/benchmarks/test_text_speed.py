"""The comparison with transformers runs and counts what it says."""

from __future__ import annotations

import pytest

pytest.importorskip("transformers")

from zoo.benchmarks.peers.transformers_speed import SETTINGS, _batch, _in_turn, sampling, training
from zoo.policies.language import LanguageKnobs, LanguagePolicy


def test_sides_take_turns_after_a_warm_up_that_is_not_counted() -> None:
    order: list[tuple[str, int]] = []

    def side(name: str):
        return lambda run: order.append((name, run)) or 10

    speeds = _in_turn({"ours": side("a"), "theirs": side("b")}, 2)
    assert order == [(n, r) for r in (0, 1, 2) for n in "ab"]
    assert [len(of) for of in speeds.values()] == [2, 2]


def test_both_sides_sample_and_train_the_tiny_model() -> None:
    policy = LanguagePolicy.load(LanguageKnobs(path="tiny", sampling_dtype="bfloat16"))
    prompts = [policy.codec.encode([{"role": "user", "content": f"{i} + 1?"}]) for i in (1, 20)]
    assert list(sampling(policy, prompts, 4, 1)) == ["ours", *SETTINGS]
    batch = _batch(policy, prompts, 2, 4)
    assert batch["group"].tolist() == [0, 0, 1, 1]
    speeds = training(policy, batch, 1)
    assert all(wall > 0 and cpu > 0 for of in speeds.values() for wall, cpu in of)
