"""Importance plugin: whose steps it weighs, by how much, and what it reports."""

from __future__ import annotations

import math

import pytest
import torch
from tensordict import TensorDict

from zoo.algorithms import GRPO
from zoo.errors import UserError
from zoo.plugins import KL, Facts, Importance, ImportanceKnobs, KLKnobs


class Fixed:
    """Gives the same log-probability to every action."""

    version, sampler_is_exact = 3, True

    def __init__(self, log_prob: float) -> None:
        self.value = log_prob

    def log_prob(self, batch: TensorDict) -> torch.Tensor:
        return torch.full_like(batch["log_prob"], self.value)

    def reference_copy(self) -> Fixed:
        return self

    def eval(self) -> None:
        pass


def rollout(ratios: list[float], live: int, version: int = -1) -> TensorDict:
    """Steps whose present probability ½ is that many times the behaviour's."""
    log_prob = math.log(0.5) - torch.tensor([ratios]).log()
    return TensorDict(
        {
            "log_prob": log_prob,
            "reward": torch.zeros_like(log_prob),
            "mask": (torch.arange(len(ratios)) < live)[None],
            "version": torch.tensor([version]),
        },
        batch_size=[1],
    )


def seen(batch: TensorDict, truncation: float = 1.0) -> dict[str, float]:
    plugin = Importance.build(ImportanceKnobs(truncation), Facts("ppo", "control"))
    return plugin.on_rollout(batch, Fixed(math.log(0.5)))


@pytest.mark.parametrize(
    ("truncation", "weights"), [(1.0, [0.5, 1.0, 1.0]), (3.0, [0.5, 2.0, 3.0])]
)
def test_weights_are_truncated_ratios(truncation: float, weights: list[float]) -> None:
    batch = rollout([0.5, 2.0, 4.0], live=3)
    seen(batch, truncation)
    torch.testing.assert_close(batch["importance"], torch.tensor([weights]))
    torch.testing.assert_close(batch["old_log_prob"], torch.full((1, 3), math.log(0.5)))


@pytest.mark.parametrize(
    ("given", "ahead", "weights"),
    [(None, False, [0.5, 1.0, 1.0]), (None, True, [0.5, 1.5, 2.0]), (1.2, True, [0.5, 1.2, 1.2])],
)
def test_samples_of_a_round_before_are_cut_off_at_two(
    given: float | None, ahead: bool, weights: list[float]
) -> None:
    """V-trace's 1 would weigh half of the steps too little where all ratios are near 1."""
    batch = rollout([0.5, 1.5, 4.0], live=3, version=2)
    facts = Facts("grpo", "text", sampled_ahead=ahead)
    Importance.build(ImportanceKnobs(given), facts).on_rollout(batch, Fixed(math.log(0.5)))
    torch.testing.assert_close(batch["importance"], torch.tensor([weights]))


def test_the_figures_are_those_of_the_untruncated_ratios() -> None:
    figures = seen(rollout([0.5, 2.0, 4.0], live=3))
    assert figures == pytest.approx(
        {
            "importance/effective": 6.5**2 / 20.25 / 3,
            "importance/ratio_mean": 6.5 / 3,
            "importance/ratio_max": 4.0,
            "importance/truncated": 2 / 3,
        },
        rel=1e-5,
    )


def test_dead_steps_count_nowhere() -> None:
    batch = rollout([0.5, 2.0, 4.0], live=2)
    batch["log_prob"][0, 2] = torch.nan
    assert seen(batch)["importance/ratio_max"] == pytest.approx(2.0)
    assert bool(batch["importance"].isfinite().all())


def test_the_policys_own_rollout_is_left_alone() -> None:
    batch = rollout([0.5, 2.0], live=2, version=3)
    assert seen(batch) == {}
    assert "importance" not in batch.keys()  # noqa: SIM118
    assert "old_log_prob" not in batch.keys()  # noqa: SIM118


def test_one_row_of_another_version_is_enough() -> None:
    batch = torch.cat([rollout([1.0], live=1, version=3), rollout([0.5], live=1)])
    assert seen(batch)["importance/ratio_mean"] == pytest.approx(0.5)  # of that row alone
    torch.testing.assert_close(batch["importance"], torch.tensor([[1.0], [0.5]]))


def mixed() -> TensorDict:
    return torch.cat([rollout([0.5, 4.0], live=2, version=1), rollout([0.8, 1.1], 2, version=3)])


def test_in_a_mixed_rollout_only_the_rows_of_other_weights_are_weighed() -> None:
    batch = mixed()
    figures = seen(batch, truncation=2.0)
    torch.testing.assert_close(batch["importance"], torch.tensor([[0.5, 2.0], [1.0, 1.0]]))
    assert figures["importance/ratio_max"] == pytest.approx(4.0)
    assert figures["importance/effective"] == pytest.approx(4.5**2 / 16.25 / 2)


def test_the_sampler_is_corrected_for_where_that_is_asked_for() -> None:
    batch = mixed()
    plugin = Importance(ImportanceKnobs(truncation=1.05, sampler=True))
    figures = plugin.on_rollout(batch, Fixed(math.log(0.5)))
    torch.testing.assert_close(batch["importance"], torch.tensor([[0.5, 1.05], [0.8, 1.05]]))
    assert figures["importance/ratio_max"] == pytest.approx(4.0)
    fresh = rollout([0.8, 1.1], 2, version=3)
    ratios = plugin.on_rollout(fresh, Fixed(math.log(0.5)))
    assert ratios["importance/effective"] == pytest.approx(1.9**2 / (0.64 + 1.21) / 2)
    torch.testing.assert_close(fresh["importance"], torch.tensor([[0.8, 1.05]]))


def test_of_a_single_update_the_weights_are_left_to_its_own_forward_pass() -> None:
    facts = Facts("grpo", "text", one_update=True)
    plugin = Importance.build(ImportanceKnobs(truncation=2.0), facts)
    batch, log_half = mixed(), torch.full((2, 2), math.log(0.5))
    assert plugin.on_rollout(batch, Fixed(math.nan)) == {} and plugin.pending
    assert "importance" not in batch.keys() and "old_log_prob" not in batch.keys()  # noqa: SIM118
    made = [plugin.weights(part, old) for part, old in zip(batch.split(1), log_half.split(1))]
    torch.testing.assert_close(torch.cat(made), torch.tensor([[0.5, 2.0], [1.0, 1.0]]))
    figures = {"grad_norm": 1.0}
    plugin.after_update(figures)
    assert figures["importance/effective"] == pytest.approx(4.5**2 / 16.25 / 2)  # of both parts
    assert figures["importance/truncated"] == 0.5
    again: dict[str, float] = {}
    plugin.after_update(again)
    assert again == {}
    plugin.on_rollout(rollout([0.5], 1, version=3), Fixed(0.0))
    assert not plugin.pending  # the policy's own
    with pytest.raises(UserError, match="actions without a probability"):
        plugin.on_rollout(rollout([math.nan], 1), Fixed(0.0))


def test_an_algorithm_that_weighs_by_its_forward_pass_has_to_give_it() -> None:
    plugin = Importance(ImportanceKnobs(), one_update=True)
    algorithm = GRPO.__new__(GRPO)
    algorithm.plugins = [plugin]
    batch, loss = rollout([0.5], 1), torch.ones(1, 1)
    plugin.on_rollout(batch, Fixed(0.0))
    with pytest.raises(TypeError, match="needs old_log_prob"):
        algorithm.weighted(loss, batch)
    weighted = algorithm.weighted(loss, batch, torch.full((1, 1), math.log(0.5)))
    assert weighted.tolist() == [[0.5]]


def test_a_ratio_out_of_range_stays_a_number() -> None:
    batch = rollout([1.0], live=1)
    batch["log_prob"] -= 200.0
    assert seen(batch)["importance/ratio_max"] == pytest.approx(math.exp(20), rel=1e-4)
    assert batch["importance"].item() == 1.0


def test_actions_without_a_probability_are_refused() -> None:
    batch = rollout([1.0, math.nan], live=2)
    with pytest.raises(UserError, match="actions without a probability"):
        seen(batch)


def test_a_truncation_at_zero_is_refused() -> None:
    with pytest.raises(UserError, match="Importance needs truncation > 0"):
        ImportanceKnobs(truncation=0.0)


def test_a_penalty_in_the_reward_is_of_the_present_policy_and_not_of_the_behaviours() -> None:
    batch = rollout([0.5, 2.0], live=2)
    policy = Fixed(math.log(0.5))
    seen(batch)
    plugin = KL.build(
        KLKnobs(coefficient=1.0, estimator="k1", where="reward"), Facts("ppo", "control")
    )
    plugin._target = type("Frozen", (), {"module": policy})()  # log π = log ref
    plugin.on_rollout(batch, policy)
    assert batch["reward"].tolist() == [[0.0, 0.0]]
