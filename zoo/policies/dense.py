"""Dense networks side by side: one autograd node for all their layers, with a fast tanh.

For networks of a few thousand weights the bookkeeping of autograd and torch's tanh (MKL's vector
function: 80 µs for 256 × 64 on the machine this was measured on, NumPy's 3 µs) cost more than the
matrix products. So on the CPU forward and backward are written out here; elsewhere, and under
autocast, the same layers run as ordinary torch.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["dense", "linear_layers"]

#: (weight [out, in], bias [out]) of each layer
Layers = Sequence[tuple[Tensor, Tensor]]


def linear_layers(
    sizes: Sequence[int], orthogonal: bool, head_gain: float | None = None
) -> nn.ModuleList:
    """Make the layers of a network with ``sizes`` units, from the input's to the output's.

    Parameters
    ----------
    sizes : sequence of int
        [in, hidden, …, out].
    orthogonal : bool
        Orthogonal weights of gain √2 and zero biases; else torch's own initialisation, uniform
        within ±1/√in for both.
    head_gain : float, optional
        Gain of the last layer instead (orthogonal only).
    """
    layers = [nn.Linear(a, b) for a, b in itertools.pairwise(sizes)]
    gains = [math.sqrt(2)] * len(layers)
    if head_gain is not None:
        gains[-1] = head_gain
    for layer, gain in zip(layers, gains, strict=True):
        if orthogonal:
            nn.init.orthogonal_(layer.weight, gain)
            nn.init.zeros_(layer.bias)
    return nn.ModuleList(layers)


def dense(
    x: Tensor, networks: Sequence[Layers], activation: str, activate_last: bool = False
) -> tuple[Tensor, ...]:
    """Apply networks of equal depth to the same input.

    Parameters
    ----------
    x : Tensor
        [M, in] float32.
    networks : sequence of layers
        At least one, with the same number of layers each.
    activation : "tanh" or "relu"
        Between layers.
    activate_last : bool
        After the last layer too (a trunk).

    Returns
    -------
    tuple of Tensor
        [M, out] of each network.
    """
    plain = x.device.type != "cpu" or x.dtype != torch.float32 or torch.is_autocast_enabled("cpu")
    if plain or not networks[0]:
        return tuple(_plain(x, layers, activation, activate_last) for layers in networks)
    flat = [tensor for layers in networks for pair in layers for tensor in pair]
    outputs: tuple[Tensor, ...] = _Dense.apply(
        x, len(networks[0]), activation == "relu", activate_last, *flat
    )
    return outputs


def _plain(x: Tensor, layers: Layers, activation: str, activate_last: bool) -> Tensor:
    for i, (weight, bias) in enumerate(layers):
        x = F.linear(x, weight, bias)
        if i < len(layers) - 1 or activate_last:
            x = torch.relu(x) if activation == "relu" else torch.tanh(x)
    return x


class _Dense(torch.autograd.Function):
    """y = W·a(… a(W·x + b) …) + b for several networks, and its gradients by hand."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, depth: int, relu: bool, activate_last: bool, *parameters: Tensor
    ) -> tuple[Tensor, ...]:
        outputs, inputs = [], []
        for start in range(0, len(parameters), 2 * depth):
            h = x
            for i in range(depth):
                inputs.append(h)
                weight, bias = parameters[start + 2 * i], parameters[start + 2 * i + 1]
                h = torch.addmm(bias, h, weight.t())
                if i < depth - 1 or activate_last:
                    array = h.numpy()
                    (np.maximum(array, 0.0, out=array) if relu else np.tanh(array, out=array))
            outputs.append(h)
        weights = parameters[::2]
        ctx.save_for_backward(*weights, *inputs, *(outputs if activate_last else ()))
        ctx.depth, ctx.relu, ctx.networks = depth, relu, len(outputs)
        ctx.activate_last = activate_last
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # torch's own decorator for this costs 8 µs
            raise RuntimeError("dense networks are differentiable once")
        saved, depth, count = ctx.saved_tensors, ctx.depth, ctx.networks
        weights, inputs = saved[: depth * count], saved[depth * count : 2 * depth * count]
        slope = _relu_slope if ctx.relu else torch.ops.aten.tanh_backward
        grad_x: Tensor | None = None
        result: list[Tensor | None] = []
        for k, gradient in enumerate(gradients):
            if ctx.activate_last:
                gradient = slope(gradient, saved[2 * depth * count + k])
            own: list[Tensor | None] = []
            for i in range(depth - 1, -1, -1):
                j = k * depth + i
                own[:0] = [_outer(gradient, inputs[j]), gradient.sum(0)]
                if i:
                    gradient = slope(gradient.mm(weights[j]), inputs[j])
                elif ctx.needs_input_grad[0]:
                    passed = gradient.mm(weights[j])
                    grad_x = passed if grad_x is None else grad_x + passed
            result += own
        return (grad_x, None, None, None, *result)


def _outer(gradient: Tensor, x: Tensor) -> Tensor:
    """Return gradientᵀ·x; MKL is four times faster with the few columns of ``x`` on the left."""
    if x.shape[1] < gradient.shape[1]:
        return x.t().mm(gradient).t()
    return gradient.t().mm(x)


def _relu_slope(gradient: Tensor, output: Tensor) -> Tensor:
    return gradient * (output > 0)
