"""Surrogates against values worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from zoo.functional import surrogate
from zoo.functional.reduce import aggregate, denominators

RATIO = torch.tensor([[0.5, 0.9, 1.0, 1.25, 2.0]])


@pytest.mark.parametrize(
    ("advantage", "loss", "slope"),
    [
        # above 1.28 the loss stops falling; below it ρ·A counts, however small ρ is
        (1.0, [-0.5, -0.9, -1.0, -1.25, -1.28], [-1, -1, -1, -1, 0]),
        # a bad action's loss stops falling below .8; above, ρ·A counts without bound
        (-1.0, [0.8, 0.9, 1.0, 1.25, 2.0], [0, 1, 1, 1, 1]),
    ],
)
def test_the_clip_range_is_decoupled_and_pessimistic(advantage, loss, slope):
    log_ratio = RATIO.log().requires_grad_()
    values = surrogate.clipped(log_ratio, torch.full((1, 5), advantage), 0.2, 0.28)
    torch.testing.assert_close(values, torch.tensor([loss]))
    values.sum().backward()
    torch.testing.assert_close(log_ratio.grad, torch.tensor([slope]) * RATIO)


def test_dual_clip_bounds_only_negative_advantages():
    log_ratio = torch.tensor([[math.log(5.0), math.log(5.0), math.log(2.0)]])
    advantage = torch.tensor([[-1.0, 1.0, -1.0]])
    values = surrogate.clipped(log_ratio, advantage, 0.2, 0.2, dual_clip=3.0)
    torch.testing.assert_close(values, torch.tensor([[3.0, -1.2, 2.0]]))
    with pytest.raises(ValueError, match="above 1"):
        surrogate.clipped(log_ratio, advantage, 0.2, 0.2, dual_clip=1.0)


def test_a_schedule_may_hand_over_tensors():
    advantage = torch.ones(1, 5)
    mixed = surrogate.clipped(RATIO.log(), advantage, torch.tensor(0.2), 0.28)
    torch.testing.assert_close(mixed, surrogate.clipped(RATIO.log(), advantage, 0.2, 0.28))


@settings(max_examples=60, deadline=None)
@given(
    log_ratio=st.floats(-1e4, 1e4),
    advantage=st.floats(-10, 10),
    low=st.floats(0, 1),
    high=st.floats(0, 5),
)
def test_the_surrogate_is_finite_and_never_better_than_unclipped(log_ratio, advantage, low, high):
    x = torch.tensor([[log_ratio]], requires_grad=True)
    loss = surrogate.clipped(x, torch.tensor([[advantage]]), low, high)
    loss.sum().backward()
    assert torch.isfinite(loss).all() and torch.isfinite(x.grad).all()
    assert loss.item() >= -(surrogate.ratio(x) * advantage).item() - 1e-6


def test_at_ratio_one_the_gradient_is_the_policy_gradient():
    log_prob = torch.randn(3, 4, generator=torch.Generator().manual_seed(0), requires_grad=True)
    advantage = torch.arange(12.0).view(3, 4) - 6
    surrogate.clipped(log_prob - log_prob.detach(), advantage, 0.2, 0.2).sum().backward()
    assert torch.equal(log_prob.grad, -advantage)


def test_sequence_ratio_is_the_mean_over_live_tokens():
    log_ratio = torch.tensor([[0.3, 0.1, torch.nan], [0.5, 7.0, 7.0]])
    mask = torch.tensor([[True, True, False], [True, False, False]])
    mean = surrogate.sequence_log_ratio(log_ratio, mask)
    torch.testing.assert_close(mean, torch.tensor([[0.2, 0.2, 0.0], [0.5, 0.0, 0.0]]))


def test_gspo_reduced_by_sequence_mean_is_the_papers_objective_and_gradient():
    log_prob = torch.tensor([[0.1, -0.2, 0.4], [0.05, 0.0, 9.0]], requires_grad=True)
    mask = torch.tensor([[True, True, True], [True, True, False]])
    advantage = torch.tensor([[2.0], [-1.0]]).expand(2, 3)
    log_ratio = surrogate.sequence_log_ratio(log_prob, mask)
    values = surrogate.clipped(log_ratio, advantage, 0.5, 0.5)
    loss = aggregate(values, mask, "sequence-mean", denominators(mask))
    s = [math.exp(0.3 / 3), math.exp(0.05 / 2)]
    assert loss.item() == pytest.approx(-(2 * s[0] - s[1]) / 2, abs=1e-6)
    loss.backward()
    # ∂/∂log π_it = −A_i·s_i/(2·|y_i|)
    expected = torch.tensor([[-2 * s[0] / 6] * 3, [s[1] / 4] * 2 + [0.0]])
    torch.testing.assert_close(log_prob.grad, expected)


def test_cispo_bounds_the_weight_and_keeps_every_gradient():
    log_prob = torch.tensor([[-1.0, -2.0, -3.0]], requires_grad=True)
    old = torch.tensor([[-1.0, -2.0 - math.log(4.0), -3.0 + math.log(4.0)]])
    advantage = torch.tensor([[1.0, 2.0, -1.0]])
    loss = surrogate.cispo(log_prob - old, log_prob, advantage, clip_high=0.28)
    # ρ = [1, 4 → 1.28, .25]
    torch.testing.assert_close(loss, torch.tensor([[1.0, 1.28 * 4.0, -0.75]]))
    loss.sum().backward()
    torch.testing.assert_close(log_prob.grad, torch.tensor([[-1.0, -2.56, 0.25]]))
    bounded = surrogate.cispo(log_prob - old, log_prob, advantage, clip_low=0.2)
    torch.testing.assert_close(bounded[0, 2], torch.tensor(-0.8 * 3.0))


def test_clip_fractions_count_only_gradients_lost():
    advantage = torch.tensor([[1.0, -1.0, 1.0, 1.0, 1.0]])
    low, high = surrogate.clip_fractions(RATIO.log(), advantage, 0.2, 0.28)
    assert low.tolist() == [[0, 0, 0, 0, 0]]
    assert high.tolist() == [[0, 0, 0, 0, 1]]
    low, high = surrogate.clip_fractions(RATIO.log(), -advantage, 0.2, 0.2)
    assert low.tolist() == [[1, 0, 0, 0, 0]]
    assert high.tolist() == [[0, 0, 0, 0, 0]]


def test_shapes_that_would_broadcast_are_refused():
    with pytest.raises(ValueError, match="differ"):
        surrogate.clipped(torch.zeros(2, 3), torch.zeros(2, 1), 0.2, 0.2)
    with pytest.raises(ValueError, match="differ"):
        surrogate.cispo(torch.zeros(2, 3), torch.zeros(2, 3), torch.zeros(2, 1))
    with pytest.raises(ValueError, match="one"):
        surrogate.sequence_log_ratio(torch.zeros(2, 3), torch.ones(3, dtype=torch.bool))
    with pytest.raises(ValueError, match="one"):
        surrogate.sequence_log_ratio(torch.zeros(3), torch.ones(3, dtype=torch.bool))


def test_only_the_two_corners_that_clipping_silences_are_counted():
    log_ratio = torch.tensor([0.5, 0.5, 0.5, 2.0, 2.0, 2.0]).log()
    advantage = torch.tensor([-0.5, 0.0, 0.5, -0.5, 0.0, 0.5])
    low, high = surrogate.clip_fractions(log_ratio, advantage, 0.2, 0.2)
    assert low.tolist() == [1, 0, 0, 0, 0, 0]
    assert high.tolist() == [0, 0, 0, 0, 0, 1]
    edges = surrogate.clip_fractions(torch.zeros(2), torch.tensor([-1.0, 1.0]), 0.0, 0.0)
    assert [edge.tolist() for edge in edges] == [[0, 0], [0, 0]]
