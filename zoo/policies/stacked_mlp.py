"""MLP policies of several seeds as one: rows of a batch belong to seed after seed.

Everything that concerns a single row, the distributions above all, is :class:`MLPPolicy`'s own;
only the networks differ, whose matrix products are batched over the seeds. As in
:mod:`zoo.policies.dense` forward and backward are one autograd node in NumPy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from zoo.core.weight_stack import WeightStack
from zoo.policies.acting import CategoricalActor, ControlActor, GaussianActor, Network
from zoo.policies.factored import FactoredActor
from zoo.policies.mlp import MLPPolicy
from zoo.policies.normalizer import Normalizer

__all__ = ["Normalizers", "StackedMLP"]

#: numbers of rows that arrays are kept for: those of a mini-batch, of the last one, of a rollout
_SIZES = 8
#: (weight [S, out, in], bias [S, out]) of each layer, on the memory of a [S, P] tensor
_Layers = list[tuple[np.ndarray, np.ndarray]]


class StackedMLP(MLPPolicy):
    """S policies of one shape, whose parameters are the rows of a stack.

    Parameters
    ----------
    policies : sequence of MLPPolicy
        Of one configuration; on the CPU.
    stack : WeightStack
        Holds their parameters.
    """

    def __init__(self, policies: Sequence[MLPPolicy], stack: WeightStack) -> None:
        nn.Module.__init__(self)
        first = policies[0]
        self.count, self.stack = len(policies), stack
        self.weights = stack.weights
        self.config, self.encoder, self.has_critic = first.config, first.encoder, first.has_critic
        self.discrete, self.outputs = first.discrete, first.outputs
        self._critics = first._critics
        self.factors, self.sde = first.factors, None  # gSDE is refused
        self.action_start, self.action_shape = first.action_start, first.action_shape
        self.version = self.done = self.total = 0
        self._first = [first]  # in a list: its parameters are no others than these
        own = [policy.normalizer for policy in policies if policy.normalizer is not None]
        self.normalizer = Normalizers(own) if own else None  # type: ignore[assignment]
        self._layers = {name: self._cut(stack.weights.data, name) for name in first._layers_of}
        self._spaces: dict[tuple[tuple[str, ...], int], _Workspace] = {}
        self.relu = self.config.activation == "relu"

    def _cut(self, tensor: Tensor, name: str) -> _Layers:
        """Return a network's layers on the memory of [S, P]."""
        return [
            (self.stack.stacked(tensor, w).numpy(), self.stack.stacked(tensor, b).numpy())
            for w, b in self._first[0]._layers_of[name]
        ]

    @property
    def log_std(self) -> Tensor:  # type: ignore[override]
        """Natural log of each seed's deviation, [S, dim]."""
        return self.stack.stacked(self.weights, self._first[0].log_std)

    def _gaussian(self, mean: Tensor, log_std: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        rows = log_std.repeat_interleave(len(mean) // self.count, 0)
        return super()._gaussian(mean, rows, action)

    def actor(
        self, num_envs: int, steps: int = 1, rng: np.random.Generator | None = None
    ) -> ControlActor:
        """Return what acts in ``num_envs`` environments over all seeds, for one fragment.

        Without ``rng`` each of them is a matrix product of its own, as where a policy is measured:
        a product of several rows rounds otherwise.
        """
        network = self._in_numpy(num_envs, one_at_a_time=rng is None)
        if self.factors is not None:
            return FactoredActor(network, self.factors, steps, num_envs, rng)
        if self.discrete:
            shape = (steps, num_envs, self.outputs)
            return CategoricalActor(network, self.action_start, shape, rng)
        log_std = self.log_std.detach().repeat_interleave(num_envs // self.count, 0).numpy()
        return GaussianActor(network, log_std, (steps, num_envs, *self.action_shape), rng)

    def _in_numpy(self, num_envs: int, one_at_a_time: bool) -> Network:
        """Return the actors' forward from NumPy to NumPy, for ``num_envs`` over all seeds."""
        layers = [*self._layers["trunk"], *self._layers["policy_layers"]]
        own = num_envs // self.count
        rows = (self.count, own, 1) if one_at_a_time else (self.count, 1, own)
        room = [np.empty((*rows, bias.shape[1]), np.float32) for _, bias in layers]
        views = [
            (weight.transpose(0, 2, 1)[:, None], bias[:, None, None]) for weight, bias in layers
        ]

        def forward(observation: np.ndarray, outputs: np.ndarray) -> None:
            x = self.encoder.numpy(observation).reshape(*rows, -1)
            for (weight, bias), out in zip(views, room, strict=True):
                x = np.matmul(x, weight, out=out)
                x += bias
                if out is not room[-1]:
                    np.maximum(x, 0.0, out=x) if self.relu else np.tanh(x, out=x)
            outputs[...] = x.reshape(outputs.shape)

        return forward

    def _trunk(self, observation: Tensor) -> Tensor:
        """Return what the branches read, [S, M·T, …], of observations [S·M, T, *obs]."""
        x = self.encoder(observation).view(self.count, -1, self.encoder.size)
        if self._layers["trunk"]:
            (x,) = _Batched.apply(x, self.weights, self, ("trunk",), True)
        return x

    def _branches(self, x: Tensor, *names: str) -> tuple[Tensor, ...]:
        """Apply the named networks; [S·M·T, outputs] of each."""
        outputs = _Batched.apply(x, self.weights, self, names, False)
        return tuple(out.view(-1, out.shape[-1]) for out in outputs)

    def _workspace(self, names: tuple[str, ...], rows: int) -> _Workspace:
        """Return the arrays for so many rows of each seed; the last few sizes are kept."""
        key = (names, rows)
        if key not in self._spaces:
            if len(self._spaces) >= _SIZES:
                self._spaces.clear()
            self._spaces[key] = _Workspace(self, names, rows)
        return self._spaces[key]


class _Workspace:
    """Arrays of one forward and backward through some of the networks, for rows of one number.

    An update's hidden layers take megabytes, whose pages the system would have to make anew.
    """

    def __init__(self, policy: StackedMLP, names: tuple[str, ...], rows: int) -> None:
        self.layers = [policy._layers[name] for name in names]
        self.gradient = torch.zeros_like(policy.weights.data)
        self.grads = [policy._cut(self.gradient, name) for name in names]
        self.hidden = [[_room(policy.count, rows, b) for _, b in own] for own in self.layers]
        self.passed = [[_room(policy.count, rows, b) for _, b in own] for own in self.layers]
        self.ones = np.ones((1, rows), np.float32)
        self.used = 0


def _room(count: int, rows: int, bias: np.ndarray) -> np.ndarray:
    return np.empty((count, rows, bias.shape[1]), np.float32)


class _Batched(torch.autograd.Function):
    """y = W·a(… a(W·x + b) …) + b for networks of S seeds, and its gradients by hand."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weights: Tensor,
        policy: StackedMLP,
        names: tuple[str, ...],
        activate_last: bool,
    ) -> tuple[Tensor, ...]:
        relu, space, outputs = policy.relu, policy._workspace(names, x.shape[1]), []
        space.used += 1
        for layers, hidden in zip(space.layers, space.hidden, strict=True):
            h = x.numpy()
            for i, ((weight, bias), out) in enumerate(zip(layers, hidden, strict=True)):
                h = np.matmul(h, weight.transpose(0, 2, 1), out=out)
                h += bias[:, None]
                if i < len(layers) - 1 or activate_last:
                    np.maximum(h, 0.0, out=h) if relu else np.tanh(h, out=h)
            outputs.append(torch.from_numpy(h.copy()))
        ctx.x, ctx.space, ctx.used, ctx.relu = x.numpy(), space, space.used, relu
        ctx.activate_last, ctx.weights, ctx.version = activate_last, weights, weights._version
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError("stacked networks are differentiable once")
        space: _Workspace = ctx.space
        if ctx.version != ctx.weights._version or ctx.used != space.used:
            raise RuntimeError("weights or networks were used again between forward and backward")
        onward, grad_x = ctx.needs_input_grad[0], None
        for k, upper in enumerate(gradients):
            layers, grads, hidden = space.layers[k], space.grads[k], space.hidden[k]
            gradient = upper.numpy()
            if ctx.activate_last:
                gradient = gradient.copy()
            for i in range(len(layers) - 1, -1, -1):
                if i < len(layers) - 1 or ctx.activate_last:
                    _slope(gradient, hidden[i], ctx.relu)
                below = hidden[i - 1] if i else ctx.x
                np.matmul(gradient.transpose(0, 2, 1), below, out=grads[i][0])
                np.matmul(space.ones, gradient, out=grads[i][1][:, None])
                if i:
                    gradient = np.matmul(gradient, layers[i][0], out=space.passed[k][i - 1])
                elif onward:
                    gradient = np.matmul(gradient, layers[i][0])
            if onward:
                grad_x = gradient if grad_x is None else grad_x + gradient
        first = None if grad_x is None else torch.from_numpy(grad_x)
        return (first, space.gradient, None, None, None)


def _slope(gradient: np.ndarray, output: np.ndarray, relu: bool) -> None:
    """Make the gradient that before an activation in place, from what came out of it."""
    g, y = torch.from_numpy(gradient), torch.from_numpy(output)
    if relu:
        torch.ops.aten.threshold_backward.grad_input(g, y, 0, grad_input=g)
    else:
        torch.ops.aten.tanh_backward.grad_input(g, y, grad_input=g)


class Normalizers:
    """The normalisers of S seeds, each for its own N of the S·N environments."""

    def __init__(self, normalizers: Sequence[Normalizer]) -> None:
        self.normalizers = list(normalizers)

    def update(self, observations: Sequence[np.ndarray]) -> None:
        """Merge each seed's observations [M, *shape] into its statistics; M may differ."""
        for normalizer, observation in zip(self.normalizers, observations, strict=True):
            normalizer.update(observation)

    def __call__(self, observation: np.ndarray) -> np.ndarray:
        """Return [..., S·N, *shape] normalised, as float32."""
        axis = observation.ndim - 1 - len(self.normalizers[0].mean.shape)
        parts = np.split(observation, len(self.normalizers), axis)
        pairs = zip(self.normalizers, parts, strict=True)
        return np.concatenate([normalizer(part) for normalizer, part in pairs], axis)

    def of(self, environment: int, num_envs: int) -> Normalizer:
        """Return the normaliser of one of S·N environments."""
        return self.normalizers[environment * len(self.normalizers) // num_envs]
