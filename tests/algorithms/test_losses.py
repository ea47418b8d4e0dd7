"""PPO's and GRPO's own lines, by hand: what they write into the batch and what they minimise."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import nn

from zoo.algorithms import GRPO, PPO
from zoo.core.learner import Learner
from zoo.core.protocols import Evaluation, Update


class TablePolicy(nn.Module):
    """Two actions; one logit per step index decides, and a value per step index."""

    has_critic = True
    version = 0

    def __init__(self, steps: int, stepwise: bool) -> None:
        super().__init__()
        self.stepwise, self.sampler_is_exact = stepwise, True
        self.logit = nn.Parameter(torch.zeros(steps))
        self.table = nn.Parameter(torch.arange(1.0, steps + 1))

    def evaluate(self, batch: TensorDict, reference: Any = None) -> Evaluation:
        place = batch["observation"]
        sign = batch["action"].float() * 2 - 1
        log_prob = nn.functional.logsigmoid(sign * self.logit[place])
        p = torch.sigmoid(self.logit[place])
        entropy = -(p * p.log() + (1 - p) * (1 - p).log())
        return Evaluation(log_prob, entropy, self.table[place])

    def values(self, batch: TensorDict) -> tuple[torch.Tensor, torch.Tensor]:
        table = torch.cat([self.table.detach(), torch.zeros(1)])
        return table[batch["observation"]], table[batch["observation"] + 1]

    def log_prob(self, batch: TensorDict) -> torch.Tensor:
        return self.evaluate(batch).log_prob.detach()

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        return {"policy": [self.logit], "critic": [self.table]}

    def micro_batches(self, minibatch: TensorDict, size: int | None) -> list[TensorDict]:
        return [minibatch]


def make_batch(action: list[list[int]], reward: list[list[float]]) -> TensorDict:
    rows, steps = len(action), len(action[0])
    place = torch.arange(steps).expand(rows, steps).clone()
    ended = torch.zeros(rows, steps, dtype=torch.bool)
    ended[:, -1] = True
    return TensorDict(
        {
            "observation": place,
            "next_observation": place,
            "action": torch.tensor(action),
            "log_prob": torch.full((rows, steps), math.log(0.5)),
            "reward": torch.tensor(reward),
            "terminated": ended,
            "truncated": torch.zeros_like(ended),
            "mask": torch.ones_like(ended),
            "group": torch.zeros(rows, dtype=torch.long),
            "version": torch.zeros(rows, dtype=torch.long),
        },
        batch_size=[rows],
    )


ACTIONS = [[1, 1], [0, 0], [0, 0], [0, 0]]
REWARDS = [[0.0, 1.0], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]]


def test_grpo_gives_every_live_step_its_rows_group_advantage() -> None:
    algorithm = GRPO.bind(GRPO.Knobs(), TablePolicy(2, stepwise=False))
    batch = make_batch(ACTIONS, REWARDS)
    batch["mask"][3, 1] = False
    batch = algorithm.prepare(batch)
    expected = [[1.4997, 1.4997], [-0.4999, -0.4999], [-0.4999, -0.4999], [-0.4999, 0.0]]
    torch.testing.assert_close(batch["advantage"], torch.tensor(expected), atol=1e-4, rtol=0)
    assert "old_log_prob" not in batch.keys()  # noqa: SIM118 - one update: the ratio is 1


def test_grpo_minimises_minus_the_advantage_and_so_raises_what_was_rewarded() -> None:
    policy = TablePolicy(2, stepwise=False)
    knobs = GRPO.Knobs(lr=0.1)
    algorithm = GRPO.bind(knobs, policy)
    batch = algorithm.prepare(make_batch(ACTIONS, REWARDS))
    (loss,) = algorithm.losses(batch, Update())
    torch.testing.assert_close(loss.terms["policy"], -batch["advantage"])
    assert loss.groups == ("policy",)
    table = policy.table.detach().clone()
    Learner(algorithm, [], knobs).update(batch)
    assert (policy.logit > 0).all()  # action 1 was the rewarded one
    assert torch.equal(policy.table, table)  # no critic moves


def test_grpo_with_several_updates_keeps_the_old_log_prob() -> None:
    algorithm = GRPO.bind(GRPO.Knobs(epochs=2), TablePolicy(2, stepwise=False))
    batch = algorithm.prepare(make_batch(ACTIONS, REWARDS))
    assert torch.equal(batch["old_log_prob"], batch["log_prob"])
    batch["old_log_prob"] = batch["log_prob"] - math.log(1.1)  # ratio 1.1, within the clip range
    (loss,) = algorithm.losses(batch, Update())
    torch.testing.assert_close(loss.terms["policy"], -1.1 * batch["advantage"])
    assert loss.metrics["policy/ratio_deviation"].mean() == pytest.approx(0.1, rel=1e-5)


def ppo_batch(**knobs: Any) -> tuple[PPO, TensorDict]:
    settings = {"gamma": 0.5, "gae_lambda": 0.5, "normalize_advantage": False, **knobs}
    algorithm = PPO.bind(PPO.Knobs(**settings), TablePolicy(2, stepwise=True))
    return algorithm, algorithm.prepare(make_batch([[1, 0]], [[4.0, 3.0]]))


def test_ppo_writes_gae_and_cuts_the_fragment_into_steps() -> None:
    # V = [1, 2]; δ₁ = 3 − 2 = 1; δ₀ = 4 + ½·2 − 1 = 4; A₀ = 4 + ½·½·1 = 4.25
    _, batch = ppo_batch()
    assert batch.batch_size == torch.Size([2])
    assert batch["advantage"].tolist() == [[4.25], [1.0]]
    assert batch["return"].tolist() == [[5.25], [3.0]]


def test_ppo_minimises_the_surrogate_and_half_the_squared_error_times_its_coefficient() -> None:
    algorithm, batch = ppo_batch(value_coefficient=0.5)
    (loss,) = algorithm.losses(batch, Update())
    assert loss.terms["policy"].tolist() == [[-4.25], [-1.0]]
    assert loss.terms["value"].tolist() == [[0.25 * 4.25**2], [0.25]]
    assert set(loss.groups) == {"policy", "critic"}


def test_ppo_raises_good_actions_and_moves_values_towards_returns() -> None:
    algorithm, batch = ppo_batch(lr=0.01)
    Learner(algorithm, [], algorithm.knobs).update(batch)
    logit, table = algorithm.policy.logit, algorithm.policy.table
    assert logit[0] > 0  # action 1 was taken at step 0 with a positive advantage
    assert logit[1] < 0  # action 0 at step 1
    assert (table > torch.tensor([1.0, 2.0])).all()  # returns 5.25 and 3 lie above


def test_ppos_clip_range_follows_its_schedule() -> None:
    algorithm, batch = ppo_batch(clip_low=0.2, clip_high=0.2, clip_schedule="linear", epochs=2)
    batch["old_log_prob"] = batch["log_prob"] - math.log(1.15)  # ratio 1.15
    inside, outside = (
        next(algorithm.losses(batch, Update(progress=p))).terms["policy"][0, 0] for p in (0.0, 0.5)
    )
    assert float(inside.detach()) == pytest.approx(-1.15 * 4.25, rel=1e-5)
    assert float(outside.detach()) == pytest.approx(-1.10 * 4.25, rel=1e-5)


def test_ppos_lower_clip_range_follows_it_too() -> None:
    algorithm, batch = ppo_batch(clip_low=0.2, clip_high=0.2, clip_schedule="linear")
    batch["old_log_prob"] = batch["log_prob"] - math.log(0.85)  # ratio 0.85
    batch["advantage"] = -batch["advantage"]
    inside, outside = (
        next(algorithm.losses(batch, Update(progress=p))).terms["policy"][0, 0] for p in (0.0, 0.5)
    )
    assert float(inside.detach()) == pytest.approx(0.85 * 4.25, rel=1e-5)
    assert float(outside.detach()) == pytest.approx(0.90 * 4.25, rel=1e-5)


def test_ppos_limit_is_one_and_a_half_of_the_kl_and_has_no_gradient() -> None:
    algorithm, batch = ppo_batch(target_kl=0.02)
    batch["old_log_prob"] = batch["log_prob"] - math.log(2.0)
    (loss,) = algorithm.losses(batch, Update())
    assert loss.limit == pytest.approx(0.03)
    assert loss.divergence is not None and not loss.divergence.requires_grad
    assert not next(ppo_batch()[0].losses(batch, Update())).limit < math.inf
