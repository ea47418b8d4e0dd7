"""Entropy plugin: sign, schedule, learned temperature, resume, refusals."""

from __future__ import annotations

import math

import pytest
import torch
from gymnasium import spaces

from zoo.core.protocols import Evaluation, Update
from zoo.errors import UserError
from zoo.plugins import Entropy, EntropyKnobs, Facts


def evaluation(entropy: list[list[float]]) -> Evaluation:
    values = torch.tensor(entropy, requires_grad=True)
    return Evaluation(log_prob=torch.zeros_like(values), entropy=values)


def control(space: spaces.Space, **facts) -> Facts:
    return Facts("sac", "control", space, **facts)


def test_the_bonus_rewards_entropy():
    out = evaluation([[1.0, 2.0]])
    terms = Entropy(EntropyKnobs(coefficient=0.5)).terms(out, None, Update())
    assert list(terms) == ["entropy"]
    assert terms["entropy"].tolist() == [[-0.5, -1.0]]
    terms["entropy"].sum().backward()
    assert out.entropy.grad.tolist() == [[-0.5, -0.5]]


def test_at_coefficient_zero_there_is_no_term():
    plugin = Entropy(EntropyKnobs())
    assert plugin.terms(evaluation([[1.0]]), None, Update()) == {}
    assert plugin.parameters() == [] and plugin.on_rollout(None, None) == {}


@pytest.mark.parametrize(
    ("kind", "quarter", "half"),
    [("linear", 0.325, 0.25), ("cosine", 0.25 + 0.15 * math.sqrt(0.5), 0.25)],
)
def test_the_schedule_runs_from_coefficient_to_final(kind, quarter, half):
    plugin = Entropy(EntropyKnobs("scheduled", coefficient=0.4, final=0.1, schedule=kind))
    for progress, expected in ((0.0, 0.4), (0.25, quarter), (0.5, half), (1.0, 0.1)):
        terms = plugin.terms(evaluation([[1.0]]), None, Update(progress=progress))
        assert terms["entropy"].item() == pytest.approx(-expected)
        assert plugin.coefficient == pytest.approx(expected)
    resumed = Entropy(plugin.knobs)
    resumed.load_state_dict(plugin.state_dict())
    assert resumed.coefficient == plugin.coefficient


def test_a_schedule_may_start_at_zero():
    plugin = Entropy(EntropyKnobs("scheduled", coefficient=0.0, final=1.0))
    terms = plugin.terms(evaluation([[2.0]]), None, Update(progress=0.5))
    assert terms["entropy"].item() == pytest.approx(-1.0)


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        (spaces.Box(-1, 1, (6,)), -6.0),
        (spaces.Box(-1, 1, (2, 3)), -6.0),
        (spaces.Discrete(4), 0.89 * math.log(4)),
        (spaces.MultiDiscrete([2, 3]), 0.89 * math.log(6)),
        (spaces.MultiBinary([2, 3]), 0.89 * 6 * math.log(2)),
    ],
)
def test_golden_11_target_entropy_auto(space, expected):
    plugin = Entropy.build(EntropyKnobs("auto", coefficient=1.0), control(space))
    assert plugin.target == pytest.approx(expected)


def test_the_temperature_falls_above_the_target_and_rises_below():
    for entropy, direction in ((3.0, -1), (1.0, +1)):
        plugin = Entropy(EntropyKnobs("auto", coefficient=0.2, target=2.0))
        out = evaluation([[entropy]])
        terms = plugin.terms(out, None, Update())
        assert terms["temperature"].item() == pytest.approx(math.log(0.2) * (entropy - 2))
        optimizer = torch.optim.SGD(plugin.parameters(), lr=0.1)
        sum(terms.values()).sum().backward()
        # α is a constant in the bonus, the entropy a constant in the temperature's loss
        assert out.entropy.grad.item() == pytest.approx(-0.2)
        assert plugin.log_alpha.grad.item() == pytest.approx(entropy - 2)
        optimizer.step()
        expected = 0.2 * math.exp(0.1 * direction)
        assert plugin.coefficient.item() == pytest.approx(expected)


def test_a_learned_temperature_holds_its_target():
    """A three-way choice with unequal rewards settles at the asked-for entropy."""
    plugin = Entropy(EntropyKnobs("auto", coefficient=1.0, target=0.7, lr=0.02))
    logits = torch.zeros(3, requires_grad=True)
    optimizer = torch.optim.Adam([{"params": [logits]}, {"params": plugin.parameters()}], lr=0.02)
    reward = torch.tensor([1.0, 0.5, 0.0])
    for _ in range(800):
        p = logits.softmax(-1)
        entropy = -(p * p.log()).sum().view(1, 1)
        terms = plugin.terms(Evaluation(torch.zeros(1, 1), entropy), None, Update())
        optimizer.zero_grad()
        (sum(terms.values()).sum() - (p * reward).sum()).backward()
        optimizer.step()
    assert entropy.item() == pytest.approx(0.7, abs=0.02)


def test_golden_09_log_alpha_still_moves_after_load():
    def step(plugin, optimizer):
        optimizer.zero_grad()
        terms = plugin.terms(evaluation([[5.0]]), None, Update())
        terms["temperature"].sum().backward()
        optimizer.step()

    knobs = EntropyKnobs("auto", coefficient=1.0, target=-1.0)
    first, second = Entropy(knobs), Entropy(knobs)
    optimizers = [torch.optim.Adam(p.parameters(), lr=p.lr) for p in (first, second)]
    for _ in range(3):
        step(first, optimizers[0])
    # the optimizer exists before the state comes back, as on resume
    second.load_state_dict(first.state_dict())
    optimizers[1].load_state_dict(optimizers[0].state_dict())
    assert second.coefficient == first.coefficient
    for _ in range(2):
        step(first, optimizers[0])
        step(second, optimizers[1])
    assert second.coefficient < 0.9999
    assert torch.equal(second.coefficient, first.coefficient)


def test_a_saved_state_does_not_follow_the_plugin():
    plugin = Entropy(EntropyKnobs("auto", coefficient=1.0, target=-1.0))
    state = plugin.state_dict()
    with torch.no_grad():
        plugin.log_alpha.add_(1)
    assert state["log_alpha"].item() == 0.0


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"coefficient": -0.1}, "collapses"),
        ({"mode": "auto"}, "> 0 to start from"),
    ],
)
def test_settings_that_cannot_work_are_refused(knobs, message):
    with pytest.raises(UserError, match=message):
        EntropyKnobs(**knobs)


def test_runs_that_make_no_sense_are_refused():
    box = spaces.Box(-1, 1, (1,))
    deterministic = Facts("td3", "control", box, stochastic=False)
    assert Entropy.build(EntropyKnobs(), deterministic).coefficient == 0
    with pytest.raises(UserError, match="td3 acts without an action distribution"):
        Entropy.build(EntropyKnobs(coefficient=0.1), deterministic)
    text = Facts("grpo", "text")
    with pytest.raises(UserError, match="number of nats"):
        Entropy.build(EntropyKnobs("auto", coefficient=0.1), text)
    assert Entropy.build(EntropyKnobs("auto", coefficient=0.1, target=0.3), text).target == 0.3
    with pytest.raises(UserError, match="no convention"):
        Entropy.build(EntropyKnobs("auto", coefficient=1.0), control(spaces.Text(3)))


def seen(plugin: Entropy, *rounds: tuple[float, float]) -> list[bool]:
    """Whether the plugin warned, after each (progress, entropy)."""
    said = []
    for progress, entropy in rounds:
        plugin.terms(evaluation([[1.0]]), None, Update(progress=progress))
        said.append(plugin.after_update({"policy/entropy": entropy}) is not None)
    return said


def test_an_early_collapse_of_a_discrete_policy_is_said_once():
    plugin = Entropy.build(EntropyKnobs(), control(spaces.Discrete(4)))
    assert seen(plugin, (0.0, 1.2), (0.05, 0.13), (0.1, 0.11), (0.1, 0.01)) == [
        *(False, False, True, False)
    ]
    late = Entropy.build(EntropyKnobs(), control(spaces.Discrete(4)))
    assert seen(late, (0.0, 1.2), (0.11, 0.01)) == [False, False]
    assert late.after_update({}) is None  # a round without an update


def test_a_box_collapses_when_its_deviations_are_a_twentieth():
    plugin = Entropy.build(EntropyKnobs(), control(spaces.Box(-1, 1, (2,))))
    assert seen(plugin, (0.0, 1.0), (0.02, -4.9), (0.03, -5.1)) == [False, False, True]


def test_a_temperature_that_holds_its_target_is_no_collapse():
    knobs = EntropyKnobs("auto", coefficient=1.0, target=-9.0)
    plugin = Entropy.build(knobs, control(spaces.Box(-1, 1, (2,))))
    assert seen(plugin, (0.0, 1.0), (0.02, -8.9), (0.03, -9.1)) == [False, False, True]


def test_a_resumed_run_neither_forgets_the_first_entropy_nor_warns_again():
    plugin = Entropy(EntropyKnobs())
    seen(plugin, (0.0, 1.0))
    other = Entropy(EntropyKnobs())
    other.load_state_dict(plugin.state_dict())
    assert seen(other, (0.02, 0.09)) == [True]
    plugin.load_state_dict(other.state_dict())
    assert seen(plugin, (0.03, 0.01)) == [False]
