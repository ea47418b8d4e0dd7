"""Critic losses by hand."""

from __future__ import annotations

import math

import pytest
import torch

from zoo.functional.value import explained_variance, value_loss


def test_half_of_the_square():
    value, target = torch.tensor([[1.0, -2.0]]), torch.tensor([[4.0, -2.0]])
    assert value_loss(value, None, target).tolist() == [[4.5, 0.0]]


def test_huber_is_linear_beyond_delta():
    value, target = torch.tensor([[0.0, 0.0, 0.0]]), torch.tensor([[1.0, 2.0, -5.0]])
    loss = value_loss(value, None, target, kind="huber", delta=2.0)
    assert loss.tolist() == [[0.5, 2.0, 8.0]]


def test_golden_21_where_the_clipped_loss_is_smaller_the_unclipped_one_counts():
    # The old value 0, the target 1. From left: moved away (clipped is smaller: keep the gradient);
    # inside the range; moved past ε towards the target (clipped is larger: no gradient).
    value = torch.tensor([[-2.0, 0.1, 0.9]], requires_grad=True)
    old, target = torch.zeros(1, 3), torch.ones(1, 3)
    loss = value_loss(value, old, target, clip=0.2)
    torch.testing.assert_close(loss, torch.tensor([[4.5, 0.405, 0.32]]))
    loss.sum().backward()
    torch.testing.assert_close(value.grad, torch.tensor([[-3.0, -0.9, 0.0]]))


def test_what_would_broadcast_or_lacks_its_old_value_is_refused():
    with pytest.raises(ValueError, match="differ"):
        value_loss(torch.zeros(3), None, torch.zeros(3, 1))
    with pytest.raises(ValueError, match="old_value"):
        value_loss(torch.zeros(1, 2), None, torch.zeros(1, 2), clip=0.2)
    with pytest.raises(ValueError, match="mse or huber"):
        value_loss(torch.zeros(1, 2), None, torch.zeros(1, 2), kind="l1")


def test_explained_variance_is_one_for_right_zero_for_the_mean_and_below_for_worse():
    target = torch.tensor([[1.0, 2.0, 3.0, 99.0]])
    mask = torch.tensor([[True, True, True, False]])
    assert explained_variance(target, target, mask).item() == 1.0
    assert explained_variance(torch.full((1, 4), 7.0), target, mask).item() == 0.0
    assert explained_variance(-target, target, mask).item() == pytest.approx(-3.0)
    assert math.isnan(explained_variance(target, torch.ones(1, 4)).item())


def test_explained_variance_is_of_the_live_steps_alone():
    value, target = torch.tensor([[1.0, 2.0, 9.0]]), torch.tensor([[1.0, 2.0, -9.0]])
    live = torch.tensor([[True, True, False]])
    assert explained_variance(value, target, live).item() == 1.0
    assert explained_variance(value, target).item() < 0


def test_a_value_that_fell_is_held_near_the_old_one():
    value, old, target = torch.tensor([0.0]), torch.tensor([1.0]), torch.tensor([0.0])
    # held at .8, which is worse than the value itself: the larger error counts
    loss = value_loss(value, old, target, clip=0.2)
    torch.testing.assert_close(loss, torch.tensor([0.5 * 0.8**2]))
