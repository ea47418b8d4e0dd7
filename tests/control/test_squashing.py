"""tanh and its density: hand-worked values, torch.distributions, extremes, bounds."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch.distributions import Normal, TransformedDistribution
from torch.distributions.transforms import TanhTransform

from zoo.policies.squashing import ActionBounds, squashed_log_prob, squashed_sample


def test_golden_11_the_log_density_of_extreme_actions_is_finite_with_its_gradient() -> None:
    for value in (-20.0, 20.0):
        mean = torch.full((1, 1), value, requires_grad=True)
        log_std = torch.full((1, 1), -19.0, requires_grad=True)
        y, log_prob = squashed_sample(mean, log_std)
        assert y.abs().item() == 1.0
        # −ε²/2 is at most 0; log 1/σ = 19, −log √2π, −log(1 − tanh² 20) = 2·(20 − log 2)
        assert log_prob.item() <= 19.0 - 0.918939 + 2 * (20 - math.log(2)) + 1e-4
        log_prob.sum().backward()
        assert mean.grad is not None and log_std.grad is not None
        assert mean.grad.item() == pytest.approx(2.0 if value > 0 else -2.0)  # d/du = 2·tanh u
        assert torch.isfinite(log_std.grad).all()
    mean, log_std = torch.zeros(2, 1, requires_grad=True), torch.zeros(2, 1, requires_grad=True)
    log_prob = squashed_log_prob(torch.tensor([[1.0], [-1.0]]), mean, log_std)
    # the float32 next to 1 is tanh of 8.6643: −8.6643²/2 − log √2π + 2·(8.6643 − log 2)
    assert log_prob.tolist() == pytest.approx([-22.5121, -22.5121], abs=2e-3)
    log_prob.sum().backward()
    assert mean.grad is not None and mean.grad[:, 0].tolist() == pytest.approx(
        [8.6643, -8.6643], abs=1e-3
    )


def test_log_density_of_a_stored_action_by_hand() -> None:
    # atanh .5 = .549306: −.549306²/2 − .918939 − log(1 − .25) = −.150869 − .918939 + .287682
    zero = torch.zeros(1, 1)
    log_prob = squashed_log_prob(torch.tensor([[0.5]]), zero, zero)
    assert log_prob.item() == pytest.approx(-0.782125, abs=1e-6)
    # σ = 2, μ = 1: −((.549306 − 1)/2)²/2 − log 2 − .918939 + .287682 = −.025391 − 1.324403
    log_prob = squashed_log_prob(torch.tensor([[0.5]]), zero + 1, zero + math.log(2))
    assert log_prob.item() == pytest.approx(-1.349794, abs=1e-6)


def test_log_densities_and_gradients_equal_those_of_a_transformed_distribution() -> None:
    mean = torch.randn(50, 3, dtype=torch.float64, requires_grad=True)
    log_std = (0.5 * torch.randn(50, 3, dtype=torch.float64)).requires_grad_()
    y = torch.rand(50, 3, dtype=torch.float64) * 1.9 - 0.95
    law = TransformedDistribution(Normal(mean, log_std.exp()), TanhTransform())
    torch.testing.assert_close(squashed_log_prob(y, mean, log_std), law.log_prob(y).sum(-1))
    torch.manual_seed(3)
    sample, log_prob = squashed_sample(mean, log_std)
    torch.manual_seed(3)
    u = mean + log_std.exp() * torch.randn_like(mean)
    expected = Normal(mean, log_std.exp()).log_prob(u) - torch.log(1 - u.tanh().square())
    torch.testing.assert_close(sample, u.tanh())
    torch.testing.assert_close(log_prob, expected.sum(-1))
    upstream = torch.randn_like(sample), torch.randn_like(log_prob)
    ours = torch.autograd.grad([sample, log_prob], [mean, log_std], upstream)
    theirs = torch.autograd.grad([u.tanh(), expected.sum(-1)], [mean, log_std], upstream)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)


def test_the_density_integrates_to_one() -> None:
    y = torch.linspace(-1, 1, 200_001, dtype=torch.float64)[1:-1, None]
    mean, log_std = torch.full_like(y, 0.3), torch.full_like(y, math.log(0.7))
    total = torch.trapezoid(squashed_log_prob(y, mean, log_std).exp(), y[:, 0])
    assert total.item() == pytest.approx(1.0, abs=1e-4)


def test_deviations_are_clamped_on_both_sides() -> None:
    mean = torch.zeros(1, 1)
    for beyond, bound in ((5.0, 2.0), (-30.0, -20.0)):
        y = torch.tensor([[1e-9]])
        ours = squashed_log_prob(y, mean, mean + beyond)
        assert ours.item() == squashed_log_prob(y, mean, mean + bound).item()
    log_std = torch.full((4, 1), 3.0, requires_grad=True)
    squashed_sample(torch.zeros(4, 1), log_std)[1].sum().backward()
    assert log_std.grad is not None and log_std.grad.abs().max() == 0


def test_bounds_of_each_dimension_scale_there_and_back() -> None:
    bounds = ActionBounds(spaces.Box(np.float32([-2, 0]), np.float32([2, 10])), "SAC")  # type: ignore[arg-type]
    y = torch.tensor([[0.5, 0.5], [-1.0, 1.0]])
    action = bounds.unscaled(y)
    assert action.tolist() == [[1.0, 7.5], [-2.0, 10.0]]
    assert torch.equal(bounds.scaled(action), y)
    unit = ActionBounds(spaces.Box(-1, 1, (2,)), "SAC")
    assert unit.unscaled(y) is y and torch.equal(unit.scaled(y), y)
