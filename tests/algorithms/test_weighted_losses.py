"""What PPO and GRPO do with steps that another policy took."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from test_losses import TablePolicy, make_batch

from zoo.algorithms import GRPO, PPO
from zoo.core.learner import Learner
from zoo.core.protocols import Update
from zoo.functional.vtrace import vtrace

WEIGHTS = torch.tensor([[0.5, 0.25]])


def ppo(**knobs: Any) -> PPO:
    settings = {"gamma": 0.5, "gae_lambda": 0.5, "normalize_advantage": False, **knobs}
    return PPO.bind(PPO.Knobs(**settings), TablePolicy(2, stepwise=True))


def another_policys(weights: torch.Tensor) -> TensorDict:
    batch = make_batch([[1, 0]], [[4.0, 3.0]])
    batch["version"] -= 1
    batch["old_log_prob"] = torch.full((1, 2), math.log(0.5))
    batch["importance"] = weights
    return batch


def test_ppo_estimates_by_vtrace_and_weighs_the_policys_loss_alone() -> None:
    # V = [1, 2]; δ₁ = 1, δ₀ = 4; D₁ = ¼; A₀ = 4 + ¼·¼ = 4.0625; D₀ = ½·4 + ¼·½·¼ = 2.03125
    algorithm = ppo()
    batch = algorithm.prepare(another_policys(WEIGHTS))
    assert batch["advantage"].tolist() == [[4.0625], [1.0]]
    assert batch["return"].tolist() == [[3.03125], [2.25]]
    (loss,) = algorithm.losses(batch, Update())
    assert loss.terms["policy"].tolist() == [[-0.5 * 4.0625], [-0.25]]
    assert loss.terms["value"].tolist() == [[0.25 * 2.03125**2], [0.25 * 0.25**2]]


def test_ppo_clips_against_the_policy_of_the_rounds_start() -> None:
    algorithm = ppo(clip_low=0.2, clip_high=0.2)
    batch = another_policys(WEIGHTS)
    batch["log_prob"] = torch.full((1, 2), math.log(0.01))  # a ratio of 50 to the behaviour's
    batch = algorithm.prepare(batch)
    (loss,) = algorithm.losses(batch, Update())
    assert loss.metrics["policy/clip_fraction_high"].sum() == 0
    (gradient,) = torch.autograd.grad(loss.terms["policy"].sum(), algorithm.policy.logit)
    assert (gradient != 0).all()


@pytest.mark.parametrize("epochs", [1, 4])
def test_where_the_other_policy_is_the_same_one_an_update_is_plain_ppos(epochs: int) -> None:
    own, other = make_batch([[1, 0]], [[4.0, 3.0]]), another_policys(torch.ones(1, 2))
    moved = []
    for batch in (own, other):
        algorithm = ppo(epochs=epochs, lr=0.1)
        learner, batch = Learner(algorithm, [], algorithm.knobs), algorithm.prepare(batch)
        for _ in range(epochs):
            learner.update(batch)
        moved.append(torch.cat([p.detach() for p in algorithm.policy.parameters()]))
    torch.testing.assert_close(*moved, atol=1e-6, rtol=1e-6)


def test_the_weighted_gradient_is_the_present_policys_expected_one() -> None:
    """Σ_a μ(a)·w(a)·∇log π(a)·A(a) = Σ_a π(a)·∇log π(a)·A(a), each action once."""
    policy = TablePolicy(1, stepwise=False)
    with torch.no_grad():
        policy.logit.fill_(0.4)
    behaviour, reward = torch.tensor([0.8, 0.2]), torch.tensor([[1.0], [3.0]])
    pi = torch.stack([torch.sigmoid(-policy.logit), torch.sigmoid(policy.logit)]).squeeze(1)
    batch = make_batch([[0], [1]], reward.tolist())
    batch["old_log_prob"] = pi.detach().log()[:, None]
    batch["importance"] = (pi.detach() / behaviour)[:, None]
    batch["advantage"] = reward
    algorithm = GRPO.bind(GRPO.Knobs(), policy)
    (loss,) = algorithm.losses(batch, Update())
    expected = (behaviour[:, None] * loss.terms["policy"]).sum()
    (ours,) = torch.autograd.grad(expected, policy.logit)
    (true,) = torch.autograd.grad(-(pi * reward.squeeze(1)).sum(), policy.logit)
    assert true.item() != 0
    torch.testing.assert_close(ours, true)


def test_vtrace_is_what_prepare_uses_on_a_longer_row() -> None:
    algorithm = PPO.bind(PPO.Knobs(normalize_advantage=False), TablePolicy(6, stepwise=True))
    batch = make_batch([[1, 0, 1, 1, 0, 1]] * 2, torch.randn(2, 6).tolist())
    weight = torch.rand(2, 6)
    batch["importance"], batch["old_log_prob"] = weight, batch["log_prob"]
    value, following = algorithm.policy.values(batch)
    ends = batch["terminated"], batch["truncated"]
    advantage, target = vtrace(
        batch["reward"], value, following, *ends, weight, batch["mask"], 0.99, 0.95
    )
    flat = algorithm.prepare(batch)
    assert torch.equal(flat["advantage"], advantage.reshape(-1, 1))
    assert torch.equal(flat["return"], target.reshape(-1, 1))
