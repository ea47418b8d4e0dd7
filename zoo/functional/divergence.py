"""Entropies and Kullback-Leibler divergences in nats, exact and estimated from samples.

The estimators (Schulman 2020, "Approximating KL divergence") see one sampled action a ~ π, with
d = log ref(a) − log π(a)::

    k1 = −d        k2 = d²/2        k3 = e^d − 1 − d

E[k1] = E[k3] = KL(π‖ref); E[k2] only nearly. Which of them is right depends on where it is put,
because a sampled action is a constant for automatic differentiation. With
∇KL(π‖ref) = E[∇log π·k1]:

=========  ==================================  ==============================================
estimator  in the loss: E[∇k]                  in the reward: E[∇log π·k]
=========  ==================================  ==============================================
k1         0, no penalty at all                ∇KL(π‖ref)
k2         ∇KL(π‖ref)                          vanishes near the reference
k3         ∇KL(ref‖π)                          ∇KL(π‖ref) − ∇KL(ref‖π), vanishes near it
=========  ==================================  ==============================================

A test enumerates a three-token policy and holds every entry.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = [
    "categorical",
    "categorical_entropy",
    "gaussian",
    "gaussian_entropy",
    "k1",
    "k2",
    "k3",
]

_LARGEST_EXPONENT = 20.0


def k1(log_prob: Tensor, ref_log_prob: Tensor) -> Tensor:
    """Return log π − log ref, [B, T]: unbiased for KL(π‖ref), can be negative, high variance."""
    return log_prob - ref_log_prob


def k2(log_prob: Tensor, ref_log_prob: Tensor) -> Tensor:
    """Return (log π − log ref)²/2, [B, T]: never negative; its in-loss gradient is ∇KL(π‖ref)."""
    return 0.5 * (log_prob - ref_log_prob).square()


def k3(log_prob: Tensor, ref_log_prob: Tensor) -> Tensor:
    """Return ref/π − 1 − log(ref/π), [B, T]: unbiased for KL(π‖ref), never negative, low variance.

    The exponent is held below 20; the linear part goes on, so the gradient does not stop there.
    """
    d = ref_log_prob - log_prob
    return torch.expm1(d.clamp(max=_LARGEST_EXPONENT)) - d


def categorical(logits: Tensor, ref_logits: Tensor) -> Tensor:
    """KL(π‖ref) = Σ_a π(a)·(log π(a) − log ref(a)) of two categorical distributions.

    Parameters
    ----------
    logits, ref_logits : Tensor
        [..., n] float32, not necessarily normalised; −inf forbids an action. An action that only
        the reference forbids makes the divergence infinite, as it is.

    Returns
    -------
    Tensor
        [...] float32.
    """
    if logits.shape != ref_logits.shape:
        raise ValueError(f"logits {tuple(logits.shape)} and {tuple(ref_logits.shape)} differ")
    log_p, log_q = logits.log_softmax(-1), ref_logits.log_softmax(-1)
    possible = logits > -torch.inf
    gap = torch.where(possible, log_p, 0.0) - torch.where(possible, log_q, 0.0)
    return (log_p.exp() * gap).sum(-1)


def categorical_entropy(logits: Tensor) -> Tensor:
    """H = −Σ_a π(a)·log π(a).

    Parameters
    ----------
    logits : Tensor
        [..., n] float32, not necessarily normalised; −inf forbids an action.

    Returns
    -------
    Tensor
        [...] float32, within [0, log n].
    """
    log_p = logits.log_softmax(-1)
    return -(log_p.exp() * torch.where(logits > -torch.inf, log_p, 0.0)).sum(-1)


def gaussian(mean: Tensor, log_std: Tensor, ref_mean: Tensor, ref_log_std: Tensor) -> Tensor:
    """KL(π‖ref) of two diagonal Gaussians, summed over the last dimension.

    ::

        Σ_i log σ'_i − log σ_i + (σ_i² + (μ_i − μ'_i)²) / (2σ'_i²) − 1/2

    A bijection applied to both, such as tanh, leaves it as it is.

    Parameters
    ----------
    mean, log_std, ref_mean, ref_log_std : Tensor
        [..., dim] float32, broadcastable.

    Returns
    -------
    Tensor
        [...] float32.
    """
    gap = log_std - ref_log_std
    square = ((mean - ref_mean) * (-ref_log_std).exp()).square()
    return (0.5 * ((2 * gap).exp() + square - 1) - gap).sum(-1)


def gaussian_entropy(log_std: Tensor) -> Tensor:
    """H = Σ_i log σ_i + (1 + log 2π)/2 of a diagonal Gaussian, summed over the last dimension.

    Parameters
    ----------
    log_std : Tensor
        [..., dim] float32.

    Returns
    -------
    Tensor
        [...] float32; negative where the distribution is narrow.
    """
    return (log_std + 0.5 * (1 + math.log(2 * math.pi))).sum(-1)
