"""K dense networks of one shape, their weights stacked: twin critics, wide actors and Q-networks.

For layers of hundreds of units the matrix products are the time, and on the CPU torch's fp32
products (MKL) reach half of what oneDNN's kernels do on AMD's AVX-512 cores: 340 against 165 µs for
256 × 256 × 256, and there the bias and the activation come with the product. So on the CPU forward
and backward are one autograd node on oneDNN's kernels; elsewhere, and under autocast, the same
layers run as batched matrix products.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["Stacked"]

_ONEDNN = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
#: below this many rows, columns or terms a product is bound by memory, and MKL copies nothing
_NARROW = 16


class Stacked(nn.Module):
    """K multilayer perceptrons, each with weights of its own, applied to the same input.

    Parameters
    ----------
    count : int
        K.
    sizes : sequence of int
        Units from the input's to the output's: [in, hidden, …, out].
    activation : "tanh" or "relu"
        Between layers.
    orthogonal : bool
        Orthogonal weights of gain √2 and zero biases; else torch's own initialisation of
        ``nn.Linear``, uniform within ±1/√in for both. Every network is drawn by itself.
    head_gain : float, optional
        Gain of the last layer instead (orthogonal only).
    activate_last : bool
        After the last layer too (a trunk).
    """

    def __init__(
        self,
        count: int,
        sizes: Sequence[int],
        activation: str,
        orthogonal: bool,
        head_gain: float | None = None,
        activate_last: bool = False,
    ) -> None:
        super().__init__()
        self.count, self.activation, self.activate_last = count, activation, activate_last
        pairs = list(itertools.pairwise(sizes))
        self.weights = nn.ParameterList([torch.empty(count, b, a) for a, b in pairs])
        self.biases = nn.ParameterList([torch.empty(count, b) for _, b in pairs])
        for i, (inputs, _) in enumerate(pairs):
            gain = head_gain if head_gain is not None and i == len(pairs) - 1 else math.sqrt(2)
            for weight, bias in zip(self.weights[i], self.biases[i], strict=True):
                if orthogonal:
                    nn.init.orthogonal_(weight, gain)
                    nn.init.zeros_(bias)
                else:
                    nn.init.uniform_(weight, -(inputs**-0.5), inputs**-0.5)
                    nn.init.uniform_(bias, -(inputs**-0.5), inputs**-0.5)
        # the same parameters again, where finding them costs nothing
        self._layers = list(zip(self.weights, self.biases, strict=True))

    def forward(self, x: Tensor, frozen: bool = False, count: int | None = None) -> Tensor:
        """Apply the networks.

        Parameters
        ----------
        x : Tensor
            [M, in] float32.
        frozen : bool
            Treat the weights as constants: a backward pass through them computes the gradient of
            ``x`` and no other.
        count : int, optional
            Only the first so many networks.

        Returns
        -------
        Tensor
            [K, M, out], or [count, M, out].
        """
        layers = self._layers
        if frozen:
            layers = [(weight.detach(), bias.detach()) for weight, bias in layers]
        if count is not None and count < self.count:
            layers = [(weight[:count], bias[:count]) for weight, bias in layers]
        special = x.device.type != "cpu" or x.dtype != torch.float32
        if special or torch.is_autocast_enabled("cpu"):
            return self._plain(x, layers)
        flat = [tensor for pair in layers for tensor in pair]
        out: Tensor = _Stacked.apply(x, self.activation, self.activate_last, *flat)
        return out

    def layers(self) -> list[tuple[Tensor, Tensor]]:
        """Weights [out, in] and biases [out] of the first network, for acting in NumPy."""
        return [(weight[0], bias[0]) for weight, bias in self._layers]

    def _plain(self, x: Tensor, layers: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
        h = x.expand(len(layers[0][0]), *x.shape)
        for i, (weight, bias) in enumerate(layers):
            h = torch.baddbmm(bias.unsqueeze(1), h, weight.transpose(1, 2))
            if i < len(layers) - 1 or self.activate_last:
                h = torch.relu(h) if self.activation == "relu" else torch.tanh(h)
        return h


class _Stacked(torch.autograd.Function):
    """y = W·a(… a(W·x + b) …) + b for K networks, and its gradients by hand."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, activation: str, activate_last: bool, *parameters: Tensor
    ) -> Tensor:
        weights = [weight.unbind() for weight in parameters[::2]]
        biases = [bias.unbind() for bias in parameters[1::2]]
        depth, inputs, outputs = len(weights), [], []
        for k in range(len(weights[0])):
            h = x
            for i in range(depth):
                inputs.append(h)
                after = activation if i < depth - 1 or activate_last else "none"
                h = _linear(h, weights[i][k], biases[i][k], after)
            outputs.append(h)
        ctx.save_for_backward(*parameters[::2], *inputs, *(outputs if activate_last else ()))
        ctx.depth, ctx.count, ctx.activate_last = depth, len(outputs), activate_last
        ctx.relu = activation == "relu"
        return torch.stack(outputs) if len(outputs) > 1 else outputs[0].unsqueeze(0)

    @staticmethod
    def backward(ctx: Any, gradients: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # torch's own decorator for this costs 8 µs
            raise RuntimeError("stacked networks are differentiable once")
        depth, count, saved = ctx.depth, ctx.count, ctx.saved_tensors
        weights = [weight.unbind() for weight in saved[:depth]]
        inputs, outputs = saved[depth : depth + depth * count], saved[depth + depth * count :]
        wanted_x, wanted = ctx.needs_input_grad[0], ctx.needs_input_grad[3]
        grad_x: Tensor | None = None
        own: list[list[Tensor]] = [[] for _ in range(2 * depth)]
        for k, gradient in enumerate(gradients.unbind()):
            if ctx.activate_last:
                gradient = _slope(gradient, outputs[k], ctx.relu)
            for i in range(depth - 1, -1, -1):
                h = inputs[k * depth + i]
                if wanted:
                    own[2 * i].append(_outer(gradient, h))
                    own[2 * i + 1].append(gradient.sum(0))
                if i:
                    gradient = _slope(_through(gradient, weights[i][k]), h, ctx.relu)
                elif wanted_x:
                    passed = _through(gradient, weights[i][k])
                    grad_x = passed if grad_x is None else grad_x + passed
        stacked = [torch.stack(parts) if parts else None for parts in own]
        return (grad_x, None, None, *stacked)


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    """Return activation(x·weightᵀ + bias)."""
    if _ONEDNN:
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, activation, [], "")
        return out
    out = torch.nn.functional.linear(x, weight, bias)
    if activation == "relu":
        return out.relu_()
    return out.tanh_() if activation == "tanh" else out


def _through(gradient: Tensor, weight: Tensor) -> Tensor:
    """Return gradient·weight: the gradient of a layer's input."""
    if len(weight) < _NARROW:
        return gradient.mm(weight)
    return _linear(gradient, weight.t(), None, "none")


def _outer(gradient: Tensor, x: Tensor) -> Tensor:
    """Return gradientᵀ·x: the gradient of a layer's weight."""
    if gradient.shape[1] < _NARROW:
        return gradient.t().mm(x)
    if x.shape[1] < gradient.shape[1]:
        return _linear(x.t(), gradient.t(), None, "none").t()
    return _linear(gradient.t(), x.t(), None, "none")


def _slope(gradient: Tensor, output: Tensor, relu: bool) -> Tensor:
    """Return the gradient before an activation, from what came out of it."""
    if relu:
        return torch.ops.aten.threshold_backward(gradient, output, 0)
    return torch.ops.aten.tanh_backward(gradient, output)
