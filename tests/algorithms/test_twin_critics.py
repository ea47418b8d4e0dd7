"""PPO with ``double_q``: two critics, the smaller value in GAE, both trained."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from tensordict import TensorDict
from torch import nn

from zoo.algorithms import PPO
from zoo.core.protocols import Evaluation, Update
from zoo.errors import UserError
from zoo.policies.mlp import MLPKnobs, MLPPolicy


class TwinTable(nn.Module):
    """Values per step index of two critics, and of nothing after the last step."""

    has_critic = stepwise = sampler_is_exact = True

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.tensor([[1.0, 3.0], [2.0, 1.0]]))

    def evaluate(self, batch: TensorDict, reference: Any = None) -> Evaluation:
        place = batch["observation"]
        zeros = torch.zeros(place.shape)
        return Evaluation(zeros, zeros, self.table[place])

    def values(self, batch: TensorDict) -> tuple[torch.Tensor, torch.Tensor]:
        table = torch.cat([self.table.detach(), torch.zeros(1, 2)])
        return table[batch["observation"]], table[batch["observation"] + 1]


def prepared(**knobs: Any) -> tuple[PPO, TensorDict]:
    settings = {"gamma": 0.5, "gae_lambda": 0.5, "normalize_advantage": False, "double_q": True}
    algorithm = PPO.bind(PPO.Knobs(**{**settings, **knobs}), TwinTable())
    ended = torch.tensor([[False, True]])
    batch = {
        "observation": torch.tensor([[0, 1]]),
        "next_observation": torch.tensor([[1, 1]]),
        "action": torch.zeros(1, 2),
        "log_prob": torch.zeros(1, 2),
        "reward": torch.tensor([[4.0, 3.0]]),
        "terminated": ended,
        "truncated": torch.zeros_like(ended),
        "mask": torch.ones_like(ended),
    }
    return algorithm, algorithm.prepare(TensorDict(batch, [1]))


def test_advantages_are_made_from_the_smaller_value() -> None:
    # V = min(1, 3), min(2, 1) = 1, 1; δ₁ = 3 − 1 = 2; δ₀ = 4 + ½·1 − 1 = 3.5; A₀ = 3.5 + ¼·2 = 4
    _, batch = prepared()
    assert batch["advantage"].tolist() == [[4.0], [2.0]]
    assert batch["return"].tolist() == [[5.0], [3.0]]
    assert batch["value"].tolist() == [[[1.0, 3.0]], [[2.0, 1.0]]]


def test_both_critics_learn_the_return_each_by_its_own_error() -> None:
    algorithm, batch = prepared(value_coefficient=0.5)
    (loss,) = algorithm.losses(batch, Update())
    # ¼·((1 − 5)² + (3 − 5)²) and ¼·((2 − 3)² + (1 − 3)²)
    assert loss.terms["value"].tolist() == [[5.0], [1.25]]
    loss.terms["value"].sum().backward()
    assert algorithm.policy.table.grad.tolist() == [[-2.0, -1.0], [-0.5, -1.0]]


def test_each_value_is_clipped_around_its_own_old_one() -> None:
    algorithm, batch = prepared(value_coefficient=2.0, value_clip=0.5)
    with torch.no_grad():
        algorithm.policy.table += torch.tensor([[1.0, 1.0], [0.0, 0.0]])
    (loss,) = algorithm.losses(batch, Update())
    # V: 1 → 2, clipped to 1.5, and 3 → 4, clipped to 3.5; the larger of both errors counts
    assert loss.terms["value"][0].item() == pytest.approx(3.5**2 + 1.5**2)


@pytest.mark.parametrize("knobs", [{}, {"shared": True}], ids=str)
def test_the_networks_of_twin_critics_are_separate(knobs: dict[str, Any]) -> None:
    box = spaces.Box(-1, 1, (3,), np.float32)
    policy = MLPPolicy(box, spaces.Discrete(2), MLPKnobs(**knobs), critic=2)
    observation = torch.randn(2, 4, 3)
    following = torch.cat([observation[:, 1:], torch.randn(2, 1, 3)], 1)
    leaves = {"observation": observation, "next_observation": following}
    leaves["action"] = torch.zeros(2, 4, dtype=torch.long)
    batch = TensorDict(leaves, [2])
    out = policy.evaluate(batch).value
    value, next_value = policy.values(batch)
    assert out is not None and out.shape == value.shape == (2, 4, 2)
    torch.testing.assert_close(value, out.detach())
    torch.testing.assert_close(next_value[:, :-1], value[:, 1:])
    ended = TensorDict({**leaves, "observation": following}, [2])
    torch.testing.assert_close(next_value, policy.values(ended)[0])
    assert (value[..., 0] - value[..., 1]).abs().min() > 0
    groups = policy.parameter_groups()
    assert len(groups["critic"]) == 2 * len(list(policy.value_layers.parameters()))
    assert sum(map(len, groups.values())) == len(list(policy.parameters()))


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
def test_a_run_moves_both_critics(env: str) -> None:
    agent = PPO(env, double_q=True, epochs=1, overrides=["rollout.num_envs=2", "rollout.steps=16"])
    before = {k: v.clone() for k, v in agent.policy.state_dict().items()}
    agent.train(32)
    for name in ("value_layers", "second_value_layers"):
        key = f"{name}.0.weight"
        assert not torch.equal(before[key], agent.policy.state_dict()[key])
    assert all(torch.isfinite(p).all() for p in agent.policy.parameters())


def test_text_refuses_twin_critics() -> None:
    with pytest.raises(UserError, match="double_q=true"):
        PPO("gsm8k", model="tiny", double_q=True)


def test_there_are_two_critics_only_where_they_were_asked_for() -> None:
    assert [PPO.critics(PPO.Knobs(double_q=twin)) for twin in (True, False)] == [2, 1]
