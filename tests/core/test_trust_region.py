"""A loss may say how far the policy has moved; beyond its limit the round ends before the step."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import nn

from zoo.algorithms import PPO
from zoo.core.algorithm import Algorithm
from zoo.core.buffer import RolloutBuffer
from zoo.core.learner import Learner, OptimizerKnobs
from zoo.core.protocols import Loss, Update
from zoo.errors import UserError


class Weight(nn.Module):
    """One number."""

    stepwise = False
    version = 0

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(1.0))

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        return {"policy": [self.w]}

    def micro_batches(self, minibatch: TensorDict, size: int | None) -> list[TensorDict]:
        return [minibatch] if size is None else list(minibatch.split(size))


class Moves(Algorithm):
    """Minimises w; how far it has moved is written in the batch."""

    name = "moves"
    Knobs = OptimizerKnobs

    def losses(self, batch: TensorDict, update: Update) -> Iterator[Loss]:
        terms = {"policy": self.policy.w.expand(batch["mask"].shape)}
        loss = Loss("moves", terms, batch["mask"], ("policy",))
        loss.divergence, loss.limit = batch["moved"], 0.5
        yield loss


def learner(**knobs: Any) -> Learner:
    settings = OptimizerKnobs(lr=0.1, **knobs)
    return Learner(Moves.bind(settings, Weight()), [], settings)


def batch_of(moved: list[list[float]], lengths: list[int]) -> TensorDict:
    mask = torch.arange(len(moved[0]))[None] < torch.tensor(lengths)[:, None]
    return TensorDict({"moved": torch.tensor(moved), "mask": mask}, [len(moved)])


class Parts(list[TensorDict]):
    """A buffer of given mini-batches."""

    diagnosed_every = 1

    def minibatches(self, progress: float = 0.0) -> Iterator[TensorDict]:
        yield from self


def test_golden_18_the_offending_step_is_not_applied_and_the_rest_is_left() -> None:
    near, far = batch_of([[0.5]], [1]), batch_of([[0.51]], [1])
    trained, other = learner(), learner()
    other.learn(Parts([near, near]))
    metrics = trained.learn(Parts([near, near, far, near]))
    assert torch.equal(trained.algorithm.policy.w, other.algorithm.policy.w)
    assert trained.algorithm.policy.w.grad is None
    moments = [[*x.optimizer.state_dict()["state"][0].values()] for x in (trained, other)]
    assert all(torch.equal(a, b) for a, b in zip(*moments, strict=True))
    assert (trained.steps, trained.updates, trained.halts) == (2, 2, 1)
    assert metrics["update/steps"] == 2.0 and metrics["update/halts"] == 1.0
    assert trained.learn(Parts([near]))["update/steps"] == 3.0  # the next round learns again


@pytest.mark.parametrize("size", [None, 1])
def test_the_mean_is_over_the_live_steps_of_the_whole_mini_batch(size: int | None) -> None:
    """(1.5 + 3·.1)/4 = .45 stays within .5, whichever micro-batch is looked at alone."""
    trained = learner(micro_batch_size=size)
    trained.learn(Parts([batch_of([[1.5, 9.0, 9.0], [0.1, 0.1, 0.1]], [1, 3])]))
    assert (trained.steps, trained.halts) == (1, 0)
    trained.learn(Parts([batch_of([[1.8, 0.0, 0.0], [0.1, 0.1, 0.1]], [1, 3])]))
    assert (trained.steps, trained.halts) == (1, 1)  # .525


def test_counts_survive_a_save() -> None:
    trained, other = learner(), learner()
    trained.learn(Parts([batch_of([[0.1]], [1]), batch_of([[0.6]], [1])]))
    other.load_state_dict(copy.deepcopy(trained.state_dict()))
    assert (other.steps, other.updates, other.halts) == (1, 1, 1)


def test_a_halted_round_leaves_nothing_waiting() -> None:
    buffer = RolloutBuffer(epochs=3, minibatch_size=1)
    buffer.extend(batch_of([[0.6], [0.6]], [1, 1]))
    trained = learner()
    trained.learn(buffer)
    assert (trained.steps, trained.halts, len(buffer)) == (0, 1, 0)


def test_golden_18_ppo_takes_one_step_where_any_move_is_too_far() -> None:
    """Before the first step the ratio is 1 and the divergence 0; after it, it isn't."""
    overrides = ["rollout.num_envs=2", "rollout.steps=32"]
    knobs = {"epochs": 4, "minibatch_size": 16}
    bounded = PPO("CartPole-v1", target_kl=1e-9, overrides=overrides, **knobs).train(128)
    assert bounded.trainer.learner.steps == 2 == bounded.trainer.learner.halts  # rounds
    free = PPO("CartPole-v1", target_kl=1e9, overrides=overrides, **knobs).train(128)
    assert (free.trainer.learner.steps, free.trainer.learner.halts) == (32, 0)


def test_ppos_limit_is_one_and_a_half_times_the_target() -> None:
    agent = PPO("CartPole-v1", target_kl=0.02, overrides=["rollout.num_envs=2"])
    batch = agent.prepare(agent.trainer.rollout.collect(agent.policy, budget=16))
    batch["log_prob"] -= 0.3
    batch["old_log_prob"] = batch["log_prob"]
    (loss,) = agent.losses(batch, Update())
    assert loss.limit == pytest.approx(0.03)
    # π/π_old = e^.3: 1.34986 − 1 − .3 at every step
    assert loss.divergence is not None and not loss.divergence.requires_grad
    assert loss.divergence.tolist() == [[pytest.approx(0.04986, abs=1e-4)]] * 16
    with pytest.raises(UserError, match="target_kl > 0"):
        PPO("CartPole-v1", target_kl=0.0)
