"""The element-wise parts and the attention of a Llama-shaped layer, each with its own backward.

Eager autograd would walk over the activations two to three times as often. Each function says what
it computes; all follow transformers' arithmetic (norms and rotation in float32, scores in the
inputs' dtype) and are checked against it and by gradcheck.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["attend", "causal_mask", "rms_norm", "rotate", "swiglu"]


def rms_norm(x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """``x / rms(x) · weight`` over the last dimension, computed in float32, returned as ``dtype``.

    Parameters
    ----------
    x : Tensor
        [N, D].
    weight : Tensor
        [D].
    """
    return _RMSNorm.apply(x, weight, eps, dtype)


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
        x = _wide(x)
        size = x.shape[-1]
        scale = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_().div_(size)
        scale = scale.add_(eps).rsqrt_()  # 1 / rms, [N, 1]
        ctx.save_for_backward(x, weight, scale)
        return torch.mul(x, scale).mul_(weight).to(dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, scale = ctx.saved_tensors
        # y = n·w with n = x·s: ∂/∂x = s · (g·w − n · mean(g·w·n))
        normed = x * scale
        grad = _wide(grad)
        grad_weight = (grad * normed).sum(0) if ctx.needs_input_grad[1] else None
        grad = grad * weight
        mean = (grad * normed).mean(-1, keepdim=True)
        grad_x = grad.addcmul_(normed, mean, value=-1).mul_(scale)
        return grad_x, grad_weight, None, None


def rotate(x: Tensor, cos: Tensor, sin: Tensor, scale: float, dtype: torch.dtype) -> Tensor:
    """Rotary position embedding of ``x`` [N, H, D], times ``scale``, as ``dtype``.

    Parameters
    ----------
    cos, sin : Tensor
        [N, D / 2] of each token's position. Feature i turns with feature i + D/2, as transformers
        has it.
    scale : float
        1/√D for queries: folded in here it costs nothing.
    """
    return _Rotate.apply(x, cos, sin, scale, dtype)


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, cos: Tensor, sin: Tensor, scale: float, dtype: torch.dtype
    ) -> Tensor:
        ctx.save_for_backward(cos, sin)
        ctx.scale, ctx.dtype = scale, x.dtype
        return _turn(_wide(x), cos, sin, scale).to(dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        cos, sin = ctx.saved_tensors
        # A rotation's transpose is the rotation back.
        grad_x = _turn(_wide(grad), cos, -sin, ctx.scale).to(ctx.dtype)
        return grad_x, None, None, None, None


def _turn(x: Tensor, cos: Tensor, sin: Tensor, scale: float) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    cos, sin = (cos * scale)[:, None], (sin * scale)[:, None]
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    left, right = out.chunk(2, dim=-1)
    torch.mul(first, cos, out=left).addcmul_(second, sin, value=-1)
    torch.mul(second, cos, out=right).addcmul_(first, sin)
    return out


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """``silu(gate) · up``; keeps only its two inputs for the backward pass."""
    return _SwiGLU.apply(gate, up)


class _SwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        return F.silu(gate).mul_(up)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = ctx.saved_tensors
        grad_up = F.silu(gate).mul_(grad)
        grad_gate = torch.ops.aten.silu_backward(grad * up, gate)
        return grad_gate, grad_up


def causal_mask(length: int, dtype: torch.dtype, device: torch.device | None = None) -> Tensor:
    """[T, T] additive: 0 where key ≤ query, −inf elsewhere."""
    mask = torch.full((length, length), float("-inf"), dtype=dtype, device=device)
    return mask.triu_(1)


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    shared_key: Tensor | None = None,
    shared_value: Tensor | None = None,
    shared_mask: Tensor | None = None,
) -> Tensor:
    """Causal attention of rows to themselves and to keys that all rows of their group share.

    Parameters
    ----------
    query : Tensor
        [G, K, C, R, T, D]: groups, key heads, rows of a group, query heads per key head, tokens,
        features; already scaled by 1/√D.
    key, value : Tensor
        [G, K, C, T, D].
    shared_key, shared_value : Tensor, optional
        [G, K, P, D]: what the rows of a group have in common, their prompt.
    shared_mask : Tensor, optional
        [G, P] additive, −inf where the group's prompt has no token.

    Returns
    -------
    Tensor
        [G, K, C, R, T, D]. One softmax runs over both kinds of key.
    """
    return _Attend.apply(query, key, value, shared_key, shared_value, shared_mask)


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        shared_key: Tensor | None,
        shared_value: Tensor | None,
        shared_mask: Tensor | None,
    ) -> Tensor:
        groups, heads, rows, repeats, length, size = query.shape
        own = query.reshape(groups * heads * rows, repeats * length, size)
        key, value = key.flatten(0, 2), value.flatten(0, 2)  # [G·K·C, T, D]
        width = 0 if shared_key is None else shared_key.shape[2]
        scores = query.new_empty(groups, heads, rows, repeats, length, width + length)
        torch.add(
            torch.bmm(own, key.transpose(1, 2)).view(groups, heads, rows, repeats, length, length),
            causal_mask(length, query.dtype, query.device),
            out=scores[..., width:],
        )
        if shared_key is not None and shared_mask is not None:
            together = query.reshape(groups * heads, rows * repeats * length, size)
            shared = torch.bmm(together, shared_key.flatten(0, 1).transpose(1, 2))
            torch.add(
                shared.view(groups, heads, rows, repeats, length, width),
                shared_mask[:, None, None, None, None],
                out=scores[..., :width],
            )
        probs = torch.softmax(scores, -1)
        out = torch.bmm(
            probs[..., width:].reshape(groups * heads * rows, repeats * length, length), value
        )
        if shared_value is not None:
            part = probs[..., :width].reshape(groups * heads, rows * repeats * length, width)
            out = out.view(groups * heads, rows * repeats * length, size)
            out = out.baddbmm_(part, shared_value.flatten(0, 1))
        ctx.save_for_backward(query, key, value, shared_key, shared_value, probs)
        return out.view(query.shape)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, shared_key, shared_value, probs = ctx.saved_tensors
        groups, heads, rows, repeats, length, size = query.shape
        width = probs.shape[-1] - length
        each = (groups * heads * rows, repeats * length)
        both = (groups * heads, rows * repeats * length)
        grad = grad.contiguous()

        grad_own = grad.view(*each, size)
        grad_probs = torch.empty_like(probs)
        grad_probs[..., width:] = torch.bmm(grad_own, value.transpose(1, 2)).view(
            *query.shape[:-1], length
        )
        grad_value = torch.bmm(probs[..., width:].reshape(*each, length).transpose(1, 2), grad_own)
        grad_shared_key = grad_shared_value = None
        if shared_key is not None:
            grad_both = grad.view(*both, size)
            grad_probs[..., :width] = torch.bmm(
                grad_both, shared_value.flatten(0, 1).transpose(1, 2)
            ).view(*query.shape[:-1], width)
            grad_shared_value = torch.bmm(
                probs[..., :width].reshape(*both, width).transpose(1, 2), grad_both
            ).view(shared_value.shape)
        grad_scores = torch._softmax_backward_data(grad_probs, probs, -1, probs.dtype)

        part = grad_scores[..., width:].reshape(*each, length)
        grad_query = torch.bmm(part, key)
        grad_key = torch.bmm(part.transpose(1, 2), query.reshape(*each, size))
        if shared_key is not None:
            part = grad_scores[..., :width].reshape(*both, width)
            grad_query = grad_query.view(*both, size).baddbmm_(part, shared_key.flatten(0, 1))
            grad_shared_key = torch.bmm(part.transpose(1, 2), query.reshape(*both, size)).view(
                shared_key.shape
            )
        shape = (groups, heads, rows, length, size)
        return (
            grad_query.view(query.shape),
            grad_key.view(shape),
            grad_value.view(shape),
            grad_shared_key,
            grad_shared_value,
            None,
        )


def _wide(x: Tensor) -> Tensor:
    """Float32 where the input is narrower."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
