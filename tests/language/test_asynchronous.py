"""Sampling ahead: by which weights, in which order, what a resume continues, how it ends."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import CancelledError
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from small_models import Sums, make_policy
from tensordict import TensorDict

from zoo.core.algorithm import Algorithm
from zoo.core.learner import OptimizerKnobs
from zoo.errors import UserError
from zoo.policies.language import LanguagePolicy
from zoo.rollouts.asynchronous import AsynchronousRollout
from zoo.rollouts.hf import HFSampler
from zoo.rollouts.sampling import Samples
from zoo.rollouts.text import TextRollout

KEYS = ("prompt_ids", "action", "log_prob", "reward", "group", "version", "mask")
PATIENCE_S = 60.0  # a test that waits longer than this hangs, and fails


class Gated(HFSampler):
    """Samples once the gate is open; what ``before`` does comes first."""

    def __init__(self, before: Callable[[], Any] = lambda: None) -> None:
        super().__init__()
        self.gate, self.before, self.calls = threading.Event(), before, 0
        self.gate.set()

    def generate(self, *arguments: Any) -> Samples:
        self.calls += 1
        assert self.gate.wait(PATIENCE_S)
        self.before()
        return super().generate(*arguments)


def ahead(staleness: int = 1, sampler: Any = None) -> AsynchronousRollout:
    options = {"group_size": 2, "prompts": 2, "max_new_tokens": 8, "seed": 5}
    rollout = TextRollout(Sums(), sampler or HFSampler(), staleness=staleness, **options)
    return AsynchronousRollout(rollout, rollout.knobs.staleness)


def step(policy: LanguagePolicy) -> None:
    """Move the weights in place, as the learner does."""
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.mul_(0.9)
    policy.version += 1


def equal(one: TensorDict, other: TensorDict) -> None:
    for key in KEYS:
        assert torch.equal(one[key], other[key]), key


@pytest.mark.parametrize("staleness", [1, 2, 3])
def test_each_batch_is_of_the_weights_so_many_rounds_before_and_never_older(
    staleness: int,
) -> None:
    """What is handed out equals what those weights sample when nothing runs beside them."""
    rollout, plain = ahead(staleness), ahead().rollout
    policy, behaviour = make_policy(), make_policy()
    for number in range(6):
        batch = rollout.collect(policy)
        equal(batch, plain.collect(behaviour))
        age = min(number, staleness)
        assert (policy.version - batch["version"]).unique().tolist() == [age]
        assert rollout.report().metrics["rollout/age_mean"] == age
        assert rollout.report().metrics["rollout/age_max"] == age
        step(policy)
        if number >= staleness:
            step(behaviour)
    rollout.close()


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_golden_24_sampling_does_not_see_the_weights_move_beside_it(temperature: float) -> None:
    sampler, policy = Gated(), make_policy(temperature=temperature)
    rollout = ahead(sampler=sampler)
    rollout.collect(policy)
    sampler.gate.clear()
    rollout.collect(policy)  # asks for a third batch, which has to wait
    before = make_policy(temperature=temperature)
    step(policy)  # meanwhile: were it not beside it, this would come too late
    sampler.gate.set()
    batch = rollout.collect(policy)
    torch.testing.assert_close(before.log_prob(batch), batch["log_prob"], atol=1e-4, rtol=0.0)
    assert float((policy.log_prob(batch) - batch["log_prob"]).abs().max()) > 1e-2
    rollout.close()


def test_a_copy_shares_what_is_not_trained() -> None:
    policy = make_policy()
    policy.model.get_input_embeddings().weight.requires_grad_(False)
    rollout = ahead()
    rollout.collect(policy)
    (copied,) = rollout._copies
    pairs = zip(policy.parameters(), copied.parameters(), strict=True)
    assert all((mine is its) == (not mine.requires_grad) for mine, its in pairs)
    assert copied.codec is policy.codec
    for _ in range(3):
        rollout.collect(policy)
    assert rollout._copies == [copied]  # one, whose weights are replaced
    rollout.close()


def test_nothing_is_sampled_beyond_the_budget() -> None:
    sampler, policy = Gated(), make_policy()
    rollout = ahead(2, sampler)
    for left in (3, 2, 1):
        rollout.collect(policy, budget=left)
    assert rollout.state_dict()["ahead"] == []
    assert sampler.calls == 3
    rollout.close()


@pytest.mark.parametrize("staleness", [1, 2])
def test_golden_36_a_resumed_run_sees_the_batches_of_the_uninterrupted_one(staleness: int) -> None:
    whole, policy = ahead(staleness), make_policy()
    expected, states = [], []
    for _ in range(5):
        expected.append((whole.collect(policy), whole.report().records))
        step(policy)
        states.append(whole.state_dict())
    other = make_policy()
    for _ in range(2):
        step(other)
    resumed = ahead(staleness)
    resumed.load_state_dict(states[1])
    for batch, records in expected[2:]:
        equal(resumed.collect(other), batch)
        assert resumed.report().records == records
        step(other)
    whole.close()
    resumed.close()


def test_what_fails_in_the_thread_is_raised_where_the_batch_is_asked_for() -> None:
    def fail() -> None:
        if failing:
            raise UserError("the engine is gone")

    failing, policy = False, make_policy()
    rollout = ahead(sampler=Gated(fail))
    rollout.collect(policy)
    rollout._settled()
    failing = True
    rollout.collect(policy)  # has the one before; the next one fails meanwhile
    with pytest.raises(UserError, match="the engine is gone"):
        rollout.state_dict()
    with pytest.raises(UserError, match="the engine is gone"):
        rollout.collect(policy)
    failing = False
    assert len(rollout.collect(policy)) == 4
    rollout.close()


def test_evaluation_waits_for_the_thread() -> None:
    rollout, policy = ahead(2), make_policy()
    rollout.collect(policy)
    result = rollout.evaluate(policy, prompts=2, samples=1, seed=1)
    assert all(future.done() for future in rollout._ahead)
    assert result == ahead().rollout.evaluate(policy, prompts=2, samples=1, seed=1)
    rollout.close()


def test_closing_ends_a_batch_in_its_middle() -> None:
    sampler, policy = Gated(), make_policy()
    rollout = ahead(2, sampler)
    rollout.collect(policy)
    rollout._settled()
    reached = threading.Event()

    def until_stopped() -> None:
        reached.set()
        assert sampler.stop.wait(PATIENCE_S)

    sampler.before = until_stopped
    for _ in range(2):  # the two that are done
        rollout.collect(policy)
    assert reached.wait(PATIENCE_S)
    rollout.close()  # the sampler sees it before its next token
    with pytest.raises(CancelledError):
        rollout._ahead[0].result()
    assert rollout._ahead[1].cancelled()
    assert not [t for t in threading.enumerate() if t.name.startswith("sampling-ahead")]


def test_random_state_and_threads_stay_as_they_are() -> None:
    torch.manual_seed(3)
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    seen: list[int] = []
    rollout, policy = ahead(sampler=Gated(lambda: seen.append(torch.get_num_threads()))), None
    policy = make_policy()
    torch.set_rng_state(state)
    for _ in range(3):
        rollout.collect(policy)
    rollout.close()
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads
    assert set(seen) == {threads}


def test_an_algorithm_without_importance_correction_is_refused() -> None:
    @dataclass(frozen=True)
    class Knobs(OptimizerKnobs):
        epochs: int = 1
        minibatch_size: int | None = None

    class Own(Algorithm):
        name, Knobs = "own", None

    Own.Knobs = Knobs
    with pytest.raises(UserError, match=r"no importance correction for those sampled ahead \(rol"):
        Own(Sums(), model="tiny", overrides=["rollout.staleness=1"])


def test_an_age_beyond_the_bound_is_refused() -> None:
    with pytest.raises(UserError, match=r"staleness must be from 0 to 8 \(got 9\)"):
        ahead(staleness=9)
