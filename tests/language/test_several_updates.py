"""Several updates on one rollout of a language model: against what the ratio is taken."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from small_models import Sums, make_policy
from tensordict import TensorDict

from zoo.algorithms import CISPO, DAPO, GRPO, GSPO, PPO, RLOO, DrGRPO, ReinforcePP
from zoo.core.buffer import RolloutBuffer
from zoo.core.learner import Learner
from zoo.core.protocols import Update
from zoo.policies.language import LanguagePolicy
from zoo.rollouts.hf import HFSampler
from zoo.rollouts.text import TextRollout

ALGORITHMS = (GRPO, DAPO, DrGRPO, GSPO, CISPO, RLOO, ReinforcePP, PPO)
#: the sampler is so far off the trainer, in nats per token
OFF = 0.3


def sampled(policy: LanguagePolicy) -> TensorDict:
    rollout = TextRollout(Sums(), HFSampler(), group_size=4, prompts=3, max_new_tokens=8, seed=5)
    batch = rollout.collect(policy)
    batch["log_prob"] = batch["log_prob"] - OFF * batch["mask"]
    return batch


def prepared(cls: Any, **knobs: Any) -> tuple[Any, TensorDict]:
    policy = make_policy(critic=cls is PPO)
    settings = {"overlong_filter": False} if cls is DAPO else {}
    algorithm = cls.bind(cls.Knobs(**{**settings, **knobs}), policy)
    return algorithm, algorithm.prepare(sampled(policy))


def gradients_of(algorithm: Any, batches: list[TensorDict]) -> list[torch.Tensor]:
    """Gradient of every update on these, no step being taken."""
    learner = Learner(algorithm, [], algorithm.knobs, max_length=8)
    found: list[torch.Tensor] = []

    def keep() -> float:
        found.append(torch.cat([p.grad.flatten() for p in learner._parameters]))
        learner.optimizer.clear()
        return 0.0

    learner._step = keep  # type: ignore[method-assign]
    for batch in batches:
        learner.update(batch)
    return found


@pytest.mark.parametrize("cls", ALGORITHMS, ids=lambda cls: cls.name)
def test_the_first_mini_batchs_gradient_is_that_of_a_single_update(cls: Any) -> None:
    """Whatever the sampler's log-probabilities are: the ratio is 1 before the first step."""
    algorithm, batch = prepared(cls, epochs=2, minibatch_size=4)
    first = next(minibatches(algorithm, batch))
    (several,) = gradients_of(algorithm, [first])
    (single,) = gradients_of(algorithm, [first.exclude("old_log_prob")])
    torch.testing.assert_close(several, single, atol=1e-6, rtol=1e-4)
    assert float(several.abs().max()) > 1e-3


def minibatches(algorithm: Any, batch: TensorDict) -> Any:
    buffer = RolloutBuffer(algorithm.knobs.epochs, algorithm.knobs.minibatch_size)
    buffer.extend(batch)
    return buffer.minibatches()


@pytest.mark.parametrize("cls", ALGORITHMS, ids=lambda cls: cls.name)
def test_the_old_log_probs_are_the_trainers_taken_once(cls: Any, monkeypatch: Any) -> None:
    calls: list[int] = []
    before = LanguagePolicy.log_prob

    def counted(self: LanguagePolicy, batch: TensorDict, **options: Any) -> torch.Tensor:
        calls.append(len(batch))
        return before(self, batch, **options)

    monkeypatch.setattr(LanguagePolicy, "log_prob", counted)
    algorithm, batch = prepared(cls, epochs=3, minibatch_size=4, lr=1e-2)
    calls.remove(8)  # the check before a run's first step, of eight rows
    assert calls == [12]
    old = before(algorithm.policy, batch)
    torch.testing.assert_close(batch["old_log_prob"], old, atol=1e-6, rtol=0.0)
    learner = Learner(algorithm, [], algorithm.knobs, max_length=8)
    kept = batch["old_log_prob"].clone()
    for part in minibatches(algorithm, batch):
        learner.update(part)
    assert learner.updates == 9
    assert calls == [12]
    assert torch.equal(batch["old_log_prob"], kept)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_golden_25_every_ratio_is_one_before_the_first_step(checkpointing: bool) -> None:
    policy = make_policy(gradient_checkpointing=checkpointing, temperature=0.6)
    algorithm = GRPO.bind(GRPO.Knobs(epochs=2, micro_batch_size=3), policy)
    batch = algorithm.prepare(sampled(policy))
    for part in policy.micro_batches(batch, 3):
        (loss,) = algorithm.losses(part, Update())
        assert loss.log_ratio is not None
        assert float(loss.log_ratio[part["mask"]].expm1().abs().max()) < 1e-5


def test_later_updates_are_clipped_by_how_far_the_policy_has_moved() -> None:
    """By hand: ratio e^δ at every token, of which the good ones are clipped above 1.2."""
    algorithm, batch = prepared(GRPO, epochs=2, clip_low=0.2, clip_high=0.2)
    delta = 0.25
    batch["old_log_prob"] = batch["old_log_prob"] - delta  # the policy's has risen since
    (loss,) = algorithm.losses(batch, Update())
    advantage, live = batch["advantage"], batch["mask"]
    ratio = torch.where(advantage > 0, torch.tensor(1.2), torch.tensor(math.exp(delta)))
    torch.testing.assert_close(loss.terms["policy"][live], (-ratio * advantage)[live])
    assert loss.log_ratio is not None
    torch.testing.assert_close(loss.log_ratio[live], torch.full_like(ratio, delta)[live])


def test_one_update_takes_no_forward_pass_for_the_old_policy() -> None:
    for knobs in ({}, {"minibatch_size": 12}):
        _, batch = prepared(GRPO, **knobs)
        assert "old_log_prob" not in batch.keys()  # noqa: SIM118
