"""K dense networks of one shape, their weights stacked: twin critics, wide actors and Q-networks.

On the CPU forward and backward are one autograd node in NumPy, on the memory of the torch
parameters. Its products write where they belong, the stacked gradients included, and cost 1 µs
beside the arithmetic where torch's cost 5; and on AMD NumPy's OpenBLAS is faster than torch's MKL
(256 × 256 × 256 in fp32, one Zen 5 core: 150 against 340 µs; layers of a few columns: 4 to 30
against 30 to 150 µs). Activations and their slopes stay with torch, whose loops are the faster ones
there. Elsewhere, and under autocast, the same layers run as batched matrix products.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

__all__ = ["Stacked"]

#: (weight [out, in], bias [out]) of each layer
_Layers = list[tuple[np.ndarray, np.ndarray]]
_LAYER = ("weights", "biases")
_Array = TypeVar("_Array", Tensor, np.ndarray)


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

    Attributes
    ----------
    flat : nn.Parameter
        All weights and biases one after the other, layer by layer: to autograd, the optimizer, the
        gradient's norm and a target network they are one tensor.
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
        self._shapes = [s for a, b in pairs for s in ((count, b, a), (count, b))]
        self._ends = list(itertools.accumulate(math.prod(shape) for shape in self._shapes))
        self.flat = nn.Parameter(torch.empty(self._ends[-1]))
        parts = self.split(self.flat.detach())
        layers = zip(pairs, parts[::2], parts[1::2], strict=True)
        for i, ((inputs, _), weights, biases) in enumerate(layers):
            gain = head_gain if head_gain is not None and i == len(pairs) - 1 else math.sqrt(2)
            for weight, bias in zip(weights, biases, strict=True):
                if orthogonal:
                    nn.init.orthogonal_(weight, gain)
                    nn.init.zeros_(bias)
                else:
                    nn.init.uniform_(weight, -(inputs**-0.5), inputs**-0.5)
                    nn.init.uniform_(bias, -(inputs**-0.5), inputs**-0.5)
        self._views: list[_Layers] = []
        self._address = 0

    @property
    def weights(self) -> list[Tensor]:
        """[K, out, in] of each layer, views of the parameter."""
        return self.split(self.flat)[::2]

    @property
    def biases(self) -> list[Tensor]:
        """[K, out] of each layer, views of the parameter."""
        return self.split(self.flat)[1::2]

    def split(self, flat: _Array) -> list[_Array]:
        """Cut what is laid out as the parameter (itself, its gradient) into weights and biases."""
        bounds = itertools.pairwise([0, *self._ends])
        return [flat[a:b].reshape(s) for (a, b), s in zip(bounds, self._shapes, strict=True)]

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
            [K, M, out] float32, or [count, M, out].
        """
        number = self.count if count is None else count
        if x.device.type != "cpu" or x.dtype != torch.float32 or torch.is_autocast_enabled("cpu"):
            return self._plain(x, frozen, number)
        if not torch.is_grad_enabled():
            return torch.from_numpy(_run(x.numpy(), self, self.numpy()[:number])[0])
        # without parameters among its inputs the node has nothing but x to give a gradient to
        out: Tensor = _Stacked.apply(x, self, number, *(() if frozen else (self.flat,)))
        return out

    def numpy(self) -> list[_Layers]:
        """Return the layers of each network on the memory of the parameters, which are on the CPU.

        They follow every update; after a move to another device or dtype they are made anew.
        """
        address = self.flat.data_ptr()
        if address != self._address:
            arrays = self.split(self.flat.detach().numpy())
            pairs = list(zip(arrays[::2], arrays[1::2], strict=True))
            self._views = [[(w[k], b[k]) for w, b in pairs] for k in range(self.count)]
            self._address = address
        return self._views

    def __getstate__(self) -> dict[str, Any]:
        """Leave the views out: in a copy they would not be the parameters' memory."""
        return {**self.__dict__, "_views": [], "_address": 0}

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Take states of version 0.1's first runs too, where every layer had parameters."""
        names = [f"{prefix}{k}.{i}" for i in range(len(self._ends) // 2) for k in _LAYER]
        if names[0] in state:
            state[f"{prefix}flat"] = torch.cat([state.pop(name).reshape(-1) for name in names])
        super()._load_from_state_dict(state, prefix, *rest)

    def _plain(self, x: Tensor, frozen: bool, number: int) -> Tensor:
        h = x.expand(number, *x.shape)
        parts = self.split(self.flat.detach() if frozen else self.flat)
        last = len(parts) // 2 - 1
        for i, (weight, bias) in enumerate(zip(parts[::2], parts[1::2], strict=True)):
            h = torch.baddbmm(bias[:number, None], h, weight[:number].transpose(1, 2))
            if i < last or self.activate_last:
                h = torch.relu(h) if self.activation == "relu" else torch.tanh(h)
        return h.float()


def _run(
    x: np.ndarray, networks: Stacked, layers: list[_Layers]
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return the outputs [K, M, out], and what went into every layer of every network."""
    last, rows = len(layers[0]) - 1, len(x)
    out = np.empty((len(layers), rows, len(layers[0][last][1])), np.float32)
    inputs = []
    for k, network in enumerate(layers):
        h = x
        for i, (weight, bias) in enumerate(network):
            inputs.append(h)
            to = out[k] if i == last else np.empty((rows, len(bias)), np.float32)
            h = np.dot(h, weight.T, out=to)
            h += bias
            if i < last or networks.activate_last:
                _activate(h, networks.activation)
    return out, inputs


class _Stacked(torch.autograd.Function):
    """y = W·a(… a(W·x + b) …) + b for K networks, and its gradients by hand."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, networks: Stacked, number: int, *flat: Tensor) -> Tensor:
        layers = networks.numpy()[:number]
        out, inputs = _run(x.numpy(), networks, layers)
        ctx.saved, ctx.networks, ctx.layers = inputs, networks, layers
        ctx.version = networks.flat._version
        ctx.out = out if networks.activate_last else None
        return torch.from_numpy(out)

    @staticmethod
    def backward(ctx: Any, gradients: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # torch's own decorator for this costs 8 µs
            raise RuntimeError("stacked networks are differentiable once")
        networks, layers, inputs = ctx.networks, ctx.layers, ctx.saved
        relu = networks.activation == "relu"
        if ctx.version != networks.flat._version:
            raise RuntimeError("the weights were changed between forward and backward")
        wanted = len(ctx.needs_input_grad) > 3
        if wanted:  # networks that were left out get 0
            make = np.empty if len(layers) == networks.count else np.zeros
            grad_flat = make(len(networks.flat), np.float32)
            own = networks.split(grad_flat)
        grad_x: np.ndarray | None = None
        for k, gradient in enumerate(gradients.numpy()):
            if ctx.out is not None:
                gradient = gradient.copy()
                _slope(gradient, ctx.out[k], relu)
            for i in range(len(layers[k]) - 1, -1, -1):
                weight, h = layers[k][i][0], inputs[k * len(layers[k]) + i]
                if wanted:
                    np.dot(gradient.T, h, out=own[2 * i][k])
                    np.add.reduce(gradient, 0, out=own[2 * i + 1][k])
                if i:
                    gradient = np.dot(gradient, weight)
                    _slope(gradient, h, relu)
                elif ctx.needs_input_grad[0]:
                    passed = np.dot(gradient, weight)
                    grad_x = passed if grad_x is None else grad_x + passed
        passed = None if grad_x is None else torch.from_numpy(grad_x)
        return (passed, None, None, *((torch.from_numpy(grad_flat),) if wanted else ()))


def _activate(h: np.ndarray, activation: str) -> None:
    """Apply an activation in place."""
    if activation == "relu":
        torch.from_numpy(h).relu_()
    else:
        np.tanh(h, out=h)


def _slope(gradient: np.ndarray, output: np.ndarray, relu: bool) -> None:
    """Make the gradient that before an activation in place, from what came out of it."""
    g, y = torch.from_numpy(gradient), torch.from_numpy(output)
    if relu:
        torch.ops.aten.threshold_backward.grad_input(g, y, 0, grad_input=g)
    else:
        torch.ops.aten.tanh_backward.grad_input(g, y, grad_input=g)
