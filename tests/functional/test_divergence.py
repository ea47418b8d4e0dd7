"""Divergences against torch.distributions; estimators by enumerating a 3-token policy."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributions import Categorical, Normal, kl_divergence

from zoo.functional import divergence

POLICY = torch.tensor([0.3, -1.0, 0.8], dtype=torch.float64)
REFERENCE = torch.tensor([0.0, 0.5, -0.4], dtype=torch.float64)
ESTIMATORS = {"k1": divergence.k1, "k2": divergence.k2, "k3": divergence.k3}


def expected_in_loss(estimator) -> torch.Tensor:
    """E_a[∇ estimator(a)], the sampled action being a constant."""
    logits = POLICY.clone().requires_grad_()
    log_p = logits.log_softmax(-1)
    values = estimator(log_p, REFERENCE.log_softmax(-1))
    (log_p.exp().detach() * values).sum().backward()
    return logits.grad


def expected_in_reward(estimator) -> torch.Tensor:
    """E_a[∇log π(a) · estimator(a)], what a policy gradient makes of it as a penalty."""
    logits = POLICY.clone().requires_grad_()
    log_p = logits.log_softmax(-1)
    values = estimator(log_p, REFERENCE.log_softmax(-1)).detach()
    (log_p.exp().detach() * values * log_p).sum().backward()
    return logits.grad


def gradient(first: torch.Tensor, second: torch.Tensor, reverse: bool = False) -> torch.Tensor:
    """∇ KL(first ‖ second), or of KL(second ‖ first), by the logits of ``first``."""
    logits = first.clone().requires_grad_()
    pair = (second, logits) if reverse else (logits, second)
    divergence.categorical(*pair).backward()
    return logits.grad


def test_golden_32_k1_and_k3_are_unbiased():
    p, log_p = POLICY.softmax(-1), POLICY.log_softmax(-1)
    log_q = REFERENCE.log_softmax(-1)
    exact = divergence.categorical(POLICY, REFERENCE)
    assert exact.item() == pytest.approx((p * (log_p - log_q)).sum().item(), abs=1e-12)
    for name in ("k1", "k3"):
        torch.testing.assert_close((p * ESTIMATORS[name](log_p, log_q)).sum(), exact)
    biased = (p * divergence.k2(log_p, log_q)).sum()
    assert abs(biased - exact) > 0.01


def test_golden_32_expected_gradients_in_the_loss():
    forward = gradient(POLICY, REFERENCE)
    backward = gradient(POLICY, REFERENCE, reverse=True)
    assert (forward - backward).abs().max() > 0.05
    torch.testing.assert_close(expected_in_loss(divergence.k1), torch.zeros(3).double())
    torch.testing.assert_close(expected_in_loss(divergence.k2), forward)
    torch.testing.assert_close(expected_in_loss(divergence.k3), backward)


def test_golden_32_expected_gradients_in_the_reward():
    forward = gradient(POLICY, REFERENCE)
    backward = gradient(POLICY, REFERENCE, reverse=True)
    torch.testing.assert_close(expected_in_reward(divergence.k1), forward)
    torch.testing.assert_close(expected_in_reward(divergence.k3), forward - backward)


def test_values_of_the_estimators():
    log_prob, ref = torch.log(torch.tensor([[0.5]])), torch.log(torch.tensor([[0.25]]))
    assert divergence.k1(log_prob, ref).item() == pytest.approx(0.693147, abs=1e-6)
    assert divergence.k2(log_prob, ref).item() == pytest.approx(0.240227, abs=1e-6)
    assert divergence.k3(log_prob, ref).item() == pytest.approx(0.5 - 1 + 0.693147, abs=1e-6)


@settings(max_examples=60, deadline=None)
@given(log_prob=st.floats(-200, 0), ref=st.floats(-200, 0))
def test_k2_and_k3_are_never_negative_and_always_finite(log_prob, ref):
    x = torch.tensor([log_prob], requires_grad=True)
    for estimator in (divergence.k2, divergence.k3):
        value = estimator(x, torch.tensor([ref]))
        assert torch.isfinite(value).all() and value.item() >= -1e-6
    divergence.k3(x, torch.tensor([ref])).backward()
    assert torch.isfinite(x.grad).all()


def test_equal_policies_have_no_divergence():
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    for estimator in ESTIMATORS.values():
        assert estimator(x, x).eq(0).all()
    assert divergence.categorical(x, x).eq(0).all()
    assert divergence.gaussian(x, x, x, x).abs().max() < 1e-6


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), n=st.integers(1, 7))
def test_exact_forms_agree_with_torch_distributions(seed, n):
    generator = torch.Generator().manual_seed(seed)
    a, b, c, d = torch.randn(4, 3, n, generator=generator)
    one, other = Categorical(logits=a), Categorical(logits=b)
    torch.testing.assert_close(divergence.categorical(a, b), kl_divergence(one, other))
    torch.testing.assert_close(divergence.categorical_entropy(a), one.entropy())
    one, other = Normal(a, b.exp()), Normal(c, d.exp())
    expected = kl_divergence(one, other).sum(-1)
    torch.testing.assert_close(divergence.gaussian(a, b, c, d), expected, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(divergence.gaussian_entropy(b), one.entropy().sum(-1))


def test_gaussians_sum_over_the_last_dimension_alone():
    shape = 2, 3, 4
    mean, wide = torch.ones(shape), torch.full(shape, math.log(2.0))
    # log 2 + (1² + 1²)/(2·2²) − 1/2 in each of four dimensions
    found = divergence.gaussian(mean, torch.zeros(shape), torch.zeros(shape), wide)
    assert found.shape == (2, 3) and found.tolist() == [[pytest.approx(1.772589, abs=1e-5)] * 3] * 2
    entropy = divergence.gaussian_entropy(torch.zeros(shape))  # 4·(1 + log 2π)/2
    assert entropy.tolist() == [[pytest.approx(5.675754, abs=1e-5)] * 3] * 2


def test_forbidden_actions_leave_values_and_gradients_finite():
    logits = torch.tensor([0.0, 0.0, -torch.inf], requires_grad=True)
    value = divergence.categorical_entropy(logits)
    assert value.item() == pytest.approx(0.693147, abs=1e-6)
    (value + divergence.categorical(logits, torch.tensor([1.0, 0.0, -torch.inf]))).backward()
    assert torch.isfinite(logits.grad).all()
    only_reference_forbids = divergence.categorical(torch.zeros(2), torch.tensor([0.0, -torch.inf]))
    assert only_reference_forbids == torch.inf
