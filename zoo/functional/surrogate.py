"""Policy-gradient surrogates, elementwise [B, T] and to be minimised.

All of them take the log of the importance ratio, log π(a)/π_old(a). The exponent is held within
±20: beyond it the ratio is a number no clip range cares about, and float32 would overflow at 88.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["cispo", "clip_fractions", "clipped", "ratio", "sequence_log_ratio"]

_LARGEST_EXPONENT = 20.0


def ratio(log_ratio: Tensor) -> Tensor:
    """Importance ratio exp(log_ratio) with the exponent held within ±20; any shape."""
    return log_ratio.clamp(-_LARGEST_EXPONENT, _LARGEST_EXPONENT).exp()


def clipped(
    log_ratio: Tensor,
    advantage: Tensor,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
) -> Tensor:
    """Clipped surrogate (PPO, Schulman et al. 2017, eq. 7) with a decoupled range and dual clip.

    ::

        L = −min(ρ·A, clip(ρ, 1 − ε_low, 1 + ε_high)·A),   ρ = exp(log_ratio)
        L = min(L, −c·A) where A < 0                        (dual clip, Ye et al. 2020, eq. 5)

    ε_low = ε_high is PPO; a higher ε_high is DAPO's clip-higher (Yu et al. 2025, §3.1).

    Parameters
    ----------
    log_ratio, advantage : Tensor
        [B, T] float32.
    clip_low, clip_high : float
        ε, not negative.
    dual_clip : float, optional
        c > 1, the bound on ρ where the advantage is negative.

    Returns
    -------
    Tensor
        L, [B, T] float32.
    """
    if log_ratio.shape != advantage.shape:
        raise ValueError(
            f"log_ratio {tuple(log_ratio.shape)} and advantage {tuple(advantage.shape)} differ"
        )
    if dual_clip is not None and dual_clip <= 1:
        raise ValueError(f"dual_clip must be above 1, got {dual_clip}")
    loss: Tensor = _Clipped.apply(log_ratio, advantage, clip_low, clip_high, dual_clip)
    return loss


class _Clipped(torch.autograd.Function):
    """The loss of :func:`clipped` with ∂L/∂log ρ = −ρ·A where neither clip counts, else 0.

    Written out because a dozen autograd nodes on a few hundred numbers cost more than a small
    network's whole backward. The advantage is a constant.
    """

    @staticmethod
    def forward(
        ctx: Any,
        log_ratio: Tensor,
        advantage: Tensor,
        clip_low: float,
        clip_high: float,
        dual_clip: float | None,
    ) -> Tensor:
        held = log_ratio.clamp(-_LARGEST_EXPONENT, _LARGEST_EXPONENT)
        rho = held.exp()
        gain = rho * advantage
        limited = rho.clamp(1 - clip_low, 1 + clip_high) * advantage
        loss = torch.minimum(gain, limited).neg_()
        constant = (gain > limited).logical_or_(held != log_ratio)
        if dual_clip is not None:
            bound = -dual_clip * advantage
            bounded = (advantage < 0) & (bound < loss)
            loss, constant = torch.where(bounded, bound, loss), constant | bounded
        # filled, not multiplied: dead steps may hold NaN, and 0·NaN would reach the weights
        ctx.save_for_backward(gain.masked_fill_(constant, 0.0).neg_())
        return loss

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError("the clipped surrogate is differentiable once")
        (slope,) = ctx.saved_tensors
        return slope * gradient, None, None, None, None


def sequence_log_ratio(log_ratio: Tensor, mask: Tensor) -> Tensor:
    """Length-normalised log ratio of whole sequences (GSPO, Zheng et al. 2025, eq. 7).

    ::

        log s_i = 1/|y_i| · Σ_{t live} log_ratio_{i,t}      at every live step of row i, 0 elsewhere

    Put into :func:`clipped` and reduced by ``sequence-mean`` it is GSPO's objective: the gradient
    of s_i reaches every token of the row with weight 1/|y_i|.

    Parameters
    ----------
    log_ratio : Tensor
        [B, T] float32; rows must be whole sequences.
    mask : Tensor
        [B, T] bool.

    Returns
    -------
    Tensor
        [B, T] float32.
    """
    if log_ratio.shape != mask.shape or mask.ndim != 2:
        raise ValueError(
            f"log_ratio {tuple(log_ratio.shape)} and mask {tuple(mask.shape)} must be one [B, T]"
        )
    length = mask.sum(1, keepdim=True).clamp(min=1)
    mean = log_ratio.masked_fill(~mask, 0.0).sum(1, keepdim=True) / length
    return mean.expand_as(log_ratio).masked_fill(~mask, 0.0)


def cispo(
    log_ratio: Tensor,
    log_prob: Tensor,
    advantage: Tensor,
    clip_low: float = 1.0,
    clip_high: float = 0.28,
) -> Tensor:
    """Clipped importance weight, unclipped gradient (CISPO, MiniMax-M1 2025, eq. 4).

    ::

        L = −sg[clip(ρ, 1 − ε_low, 1 + ε_high)]·A·log π(a)      sg: constant for the gradient

    Every token keeps a gradient; only its weight is bounded. ε_low = 1 means no lower bound, the
    paper's choice.

    Parameters
    ----------
    log_ratio, log_prob, advantage : Tensor
        [B, T] float32.
    clip_low, clip_high : float
        ε, not negative.

    Returns
    -------
    Tensor
        L, [B, T] float32.
    """
    if not log_ratio.shape == log_prob.shape == advantage.shape:
        raise ValueError(
            f"log_ratio {tuple(log_ratio.shape)}, log_prob {tuple(log_prob.shape)} and "
            f"advantage {tuple(advantage.shape)} differ"
        )
    weight = ratio(log_ratio.detach()).clamp(1 - clip_low, 1 + clip_high)
    return -weight * advantage * log_prob


def clip_fractions(
    log_ratio: Tensor,
    advantage: Tensor,
    clip_low: float,
    clip_high: float,
) -> tuple[Tensor, Tensor]:
    """Where clipping takes the gradient away: 1 or 0 per step, to be averaged over live steps.

    Below 1 − ε_low it does so only for a negative advantage, above 1 + ε_high only for a positive
    one; the other two corners of the range are not clipped, whatever the ratio.

    Parameters
    ----------
    log_ratio, advantage : Tensor
        [B, T] float32.
    clip_low, clip_high : float
        ε, not negative.

    Returns
    -------
    low, high : Tensor
        [B, T] float32, detached.
    """
    rho = ratio(log_ratio.detach())
    low = (rho < 1 - clip_low) & (advantage < 0)
    high = (rho > 1 + clip_high) & (advantage > 0)
    return low.float(), high.float()
