"""V-trace: values and advantages of the present policy from steps that another one took.

Espeholt et al. 2018 (IMPALA, arXiv:1802.01561, §4.1), with GAE's λ. ``weight`` is the truncated
importance ratio w_t = min(w̄, π(a_t|s_t)/μ(a_t|s_t)) of the policy π to be valued and the behaviour
policy μ::

    δ_t = r_t + γ·(1 − terminated_t)·V(s_{t+1}) − V(s_t)
    D_t = w_t·δ_t + γλ·(1 − terminated_t)·(1 − truncated_t)·min(1, w_t)·D_{t+1}
    R_t = V(s_t) + D_t                                             what V is moved to
    A_t = δ_t + γλ·(1 − terminated_t)·(1 − truncated_t)·D_{t+1}     of the action that was taken

A_t has no weight of its own step: it is conditional on a_t, and the policy's loss multiplies it by
w_t. Where π = μ every w_t is 1 and A and R are those of :func:`zoo.functional.returns.gae`. A large
w̄ estimates V of π; at w̄ = 1 the values are of a policy between μ and π, with less variance.
"""

from __future__ import annotations

import torch
from torch import Tensor

from zoo.functional.returns import live_only, reverse_scan, td_errors

__all__ = ["vtrace", "vtrace_loop"]


def vtrace(
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    weight: Tensor,
    mask: Tensor | None = None,
    gamma: float = 0.99,
    lam: float = 0.95,
) -> tuple[Tensor, Tensor]:
    """Return advantages and value targets, importance-corrected as this module's equations say.

    Parameters
    ----------
    reward, value : Tensor
        [B, T] float32.
    next_value : Tensor
        [B, T] float32, V of the *true* next state; see :func:`zoo.functional.returns.gae`.
    terminated, truncated : Tensor
        [B, T] bool.
    weight : Tensor
        [B, T] float32, w, not negative, truncated by the caller.
    mask : Tensor, optional
        [B, T] bool, True at live steps; elsewhere both results are 0, whatever stands there.
    gamma, lam : float
        γ and λ, both within [0, 1].

    Returns
    -------
    advantage, target : Tensor
        [B, T] float32 each.
    """
    delta, decay, live = _parts(
        reward, value, next_value, terminated, truncated, weight, mask, gamma, lam
    )
    correction = reverse_scan(live * delta, decay * live.clamp(max=1.0))
    following = torch.nn.functional.pad(correction[:, 1:], (0, 1))
    return live_only(delta + decay * following, value + correction, mask)


def vtrace_loop(
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    weight: Tensor,
    mask: Tensor | None = None,
    gamma: float = 0.99,
    lam: float = 0.95,
) -> tuple[Tensor, Tensor]:
    """Compute what :func:`vtrace` computes, step by step; the form that it is tested against."""
    delta, decay, live = _parts(
        reward, value, next_value, terminated, truncated, weight, mask, gamma, lam
    )
    advantage, target = torch.zeros_like(delta), torch.zeros_like(delta)
    following = torch.zeros_like(delta[:, 0])
    for t in reversed(range(delta.shape[1])):
        advantage[:, t] = delta[:, t] + decay[:, t] * following
        trace = decay[:, t] * live[:, t].clamp(max=1.0)
        following = live[:, t] * delta[:, t] + trace * following
        target[:, t] = value[:, t] + following
    return live_only(advantage, target, mask)


def _parts(
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    weight: Tensor,
    mask: Tensor | None,
    gamma: float,
    lam: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return δ, γλ where the episode goes on, and w; 0, 1 and 1 where ``mask`` is False."""
    if weight.shape != reward.shape:
        raise ValueError(f"weight {tuple(weight.shape)} and reward {tuple(reward.shape)} differ")
    delta, decay = td_errors(reward, value, next_value, terminated, truncated, mask, gamma, lam)
    return delta, decay, weight if mask is None else weight.masked_fill(~mask, 1.0)
