"""Critic losses, elementwise [B, T]."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["explained_variance", "value_loss"]


def value_loss(
    value: Tensor,
    old_value: Tensor | None,
    target: Tensor,
    clip: float | Tensor | None = None,
    kind: Literal["mse", "huber"] = "mse",
    delta: float = 1.0,
) -> Tensor:
    """Squared or Huber error of a critic, optionally clipped around its old prediction.

    ::

        ℓ(v) = ½(v − R)²                                     kind="mse"
        ℓ(v) = ½(v − R)² if |v − R| ≤ δ, else δ(|v − R| − δ/2)   kind="huber"
        L    = max(ℓ(v), ℓ(v_old + clip(v − v_old, −ε, ε)))   where ε is given

    The ½ belongs to the loss, so a value coefficient of 0.5 on top gives ¼(v − R)². The maximum
    matters: where clipping makes the loss smaller the unclipped one counts, and its gradient stays.

    Parameters
    ----------
    value, target : Tensor
        [B, T] float32, prediction v and return R.
    old_value : Tensor or None
        [B, T] float32, the prediction at the rollout; needed where ``clip`` is given.
    clip : float or Tensor, optional
        ε > 0 in units of the return.
    kind : {"mse", "huber"}
        Which ℓ.
    delta : float
        δ > 0 of the Huber loss, in units of the return.

    Returns
    -------
    Tensor
        L, [B, T] float32.
    """
    if value.shape != target.shape or (old_value is not None and old_value.shape != value.shape):
        # Broadcasting [B] against [B, 1] would silently give [B, B].
        raise ValueError(f"value {tuple(value.shape)} and target {tuple(target.shape)} differ")
    if kind not in ("mse", "huber"):
        raise ValueError(f"kind is mse or huber, got {kind!r}")

    def error(prediction: Tensor) -> Tensor:
        if kind == "huber":
            return F.huber_loss(prediction, target, reduction="none", delta=delta)
        return 0.5 * F.mse_loss(prediction, target, reduction="none")

    if clip is None:
        return error(value)
    if old_value is None:
        raise ValueError("clip needs old_value, the prediction to stay near")
    limit = torch.as_tensor(clip, device=value.device)
    near = old_value + (value - old_value).clamp(-limit, limit)
    return torch.maximum(error(value), error(near))


def explained_variance(value: Tensor, target: Tensor, mask: Tensor | None = None) -> Tensor:
    """1 − Var[R − v] / Var[R] over the live steps: 1 perfect, 0 as good as the mean, below 0 worse.

    Parameters
    ----------
    value, target : Tensor
        Same shape, float32.
    mask : Tensor, optional
        Same shape, bool.

    Returns
    -------
    Tensor
        Scalar float32; NaN where the targets do not vary.
    """
    if mask is not None:
        value, target = value[mask], target[mask]
    spread = target.var(correction=0)
    return torch.where(spread > 0, 1 - (target - value).var(correction=0) / spread, torch.nan)
