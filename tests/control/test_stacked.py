"""Stacked networks against ordinary torch modules, and what is not computed."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from zoo.policies.stacked import Stacked

SHAPES = [
    {"count": 1, "sizes": [3, 2]},
    {"count": 2, "sizes": [5, 16, 16, 1]},
    {"count": 3, "sizes": [5, 7, 4], "activate_last": True},
]


def separate(stacked: Stacked) -> list[nn.Sequential]:
    """The same networks as ordinary modules with weights of their own."""
    activation = nn.ReLU if stacked.activation == "relu" else nn.Tanh
    networks = []
    for k in range(stacked.count):
        modules: list[nn.Module] = []
        for weight, bias in zip(stacked.weights, stacked.biases, strict=True):
            linear = nn.Linear(weight.shape[2], weight.shape[1])
            with torch.no_grad():
                linear.weight.copy_(weight[k])
                linear.bias.copy_(bias[k])
            modules += [linear, activation()]
        networks.append(nn.Sequential(*(modules if stacked.activate_last else modules[:-1])))
    return networks


def gradients(loss: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    return list(torch.autograd.grad(loss, inputs))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_values_and_gradients_equal_those_of_separate_modules(
    activation: str, shape: dict[str, Any]
) -> None:
    stacked = Stacked(**shape, activation=activation, orthogonal=False)
    x = torch.randn(9, shape["sizes"][0], requires_grad=True)
    out = stacked(x)
    modules = separate(stacked)
    expected = torch.stack([module(x) for module in modules])
    torch.testing.assert_close(out, expected, rtol=1e-6, atol=1e-6)
    upstream = torch.randn_like(out)
    ours = gradients((out * upstream).sum(), [x, stacked.flat])
    parts = stacked.split(ours[1])
    theirs = gradients(
        (expected * upstream).sum(), [x, *(p for m in modules for p in m.parameters())]
    )
    torch.testing.assert_close(ours[0], theirs[0], rtol=1e-6, atol=2e-6)
    own, depth = theirs[1:], len(stacked.weights)
    for i, kind in itertools.product(range(depth), range(2)):  # weights, then biases
        each = [own[k * 2 * depth + 2 * i + kind] for k in range(stacked.count)]
        torch.testing.assert_close(parts[2 * i + kind], torch.stack(each), rtol=1e-6, atol=2e-6)


def test_expanded_gradients_of_a_sum_are_handled() -> None:
    stacked = Stacked(2, [4, 8, 3], "relu", orthogonal=False)
    x = torch.randn(6, 4, requires_grad=True)
    stacked(x).sum().backward()
    got = x.grad
    (expected,) = gradients(sum(m(x).sum() for m in separate(stacked)), [x])  # type: ignore[arg-type]
    assert got is not None
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-6)


def test_frozen_weights_give_the_same_input_gradient_and_cost_no_product_of_theirs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stacked = Stacked(2, [4, 8, 8, 1], "relu", orthogonal=False)
    x = torch.randn(6, 4, requires_grad=True)
    (expected,) = gradients(stacked(x).square().sum(), [x])
    products = 0
    dot = np.dot

    def counted(*arguments: Any, **options: Any) -> Any:
        nonlocal products
        products += 1
        return dot(*arguments, **options)

    out = stacked(x, frozen=True)
    monkeypatch.setattr(np, "dot", counted)
    out.square().sum().backward()
    assert products == 2 * 3  # one per network and layer, through to x; none for a weight
    assert x.grad is not None and torch.equal(x.grad, expected)
    assert all(p.grad is None for p in stacked.parameters())
    products = 0
    stacked(x).square().sum().backward()
    assert products == 2 * 3 + 2 * 3 * 2  # forward; through and weights
    assert all(p.grad is not None for p in stacked.parameters())
    assert not stacked(x.detach(), frozen=True).requires_grad


def test_an_input_without_gradient_costs_no_product(monkeypatch: pytest.MonkeyPatch) -> None:
    stacked = Stacked(1, [4, 8, 1], "relu", orthogonal=False)
    out = stacked(torch.randn(6, 4))
    calls: list[tuple[int, ...]] = []
    dot = np.dot

    def recorded(a: Any, b: Any, **options: Any) -> Any:
        result = dot(a, b, **options)
        calls.append(result.shape)
        return result

    monkeypatch.setattr(np, "dot", recorded)
    out.sum().backward()
    assert calls == [(1, 8), (6, 8), (8, 4)]


def test_the_first_network_alone() -> None:
    stacked = Stacked(2, [4, 8, 1], "tanh", orthogonal=False)
    x = torch.randn(6, 4)
    out = stacked(x, count=1)
    assert out.shape == (1, 6, 1) and torch.equal(out[0], stacked(x)[0])
    out.sum().backward()
    assert stacked.flat.grad is not None
    for gradient in stacked.split(stacked.flat.grad):
        assert gradient[0].abs().max() > 0 and gradient[1].abs().max() == 0
    assert stacked(x, frozen=True, count=1).shape == (1, 6, 1)


@pytest.mark.parametrize("count", [1, None])
def test_autocast_and_other_devices_take_batched_products_with_the_same_result(
    count: int | None,
) -> None:
    stacked = Stacked(2, [4, 32, 1], "relu", orthogonal=False)
    x = torch.randn(16, 4, requires_grad=True)
    exact = stacked(x, count=count)
    plain = stacked._plain(x, False, count or 2)
    torch.testing.assert_close(plain, exact, rtol=1e-6, atol=1e-6)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = stacked(x, count=count)
        frozen = stacked(x, frozen=True, count=count)
    assert rounded.dtype == torch.float32 and not torch.equal(rounded, exact)
    torch.testing.assert_close(rounded, exact, rtol=0, atol=0.05)
    (ours,) = gradients(frozen.sum(), [x])
    (theirs,) = gradients(exact.sum(), [x])
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0.05)
    with torch.autocast("cpu", torch.bfloat16):
        stacked(x, frozen=True, count=count).sum().backward()
    assert all(p.grad is None for p in stacked.parameters())


def test_views_follow_updates_loading_copies_and_casts() -> None:
    stacked = Stacked(2, [4, 8, 1], "tanh", orthogonal=False)
    x = torch.randn(6, 4)
    before = stacked(x).detach()
    twin = copy.deepcopy(stacked)
    with torch.no_grad():
        for parameter in stacked.parameters():
            parameter.mul_(2.0)
    assert torch.equal(twin(x), before) and not torch.allclose(stacked(x), before)
    twin.load_state_dict(stacked.state_dict())
    assert torch.equal(twin(x), stacked(x))
    again = twin.to(torch.float64).to(torch.float32)
    with torch.no_grad():
        again.biases[-1].add_(1.0)
    torch.testing.assert_close(again(x), stacked(x) + 1.0)
    assert np.shares_memory(again.numpy()[1][0][0], again.weights[0].detach().numpy())


def test_states_with_a_parameter_per_layer_are_still_read() -> None:
    stacked, again = (Stacked(2, [4, 8, 1], "tanh", orthogonal=False) for _ in range(2))
    state = {f"net.weights.{i}": weight for i, weight in enumerate(stacked.weights)}
    state |= {f"net.biases.{i}": bias for i, bias in enumerate(stacked.biases)}
    nn.ModuleDict({"net": again}).load_state_dict(state)
    assert torch.equal(again.flat, stacked.flat)


def test_weights_that_change_before_the_backward_pass_are_noticed() -> None:
    stacked = Stacked(2, [4, 8, 1], "tanh", orthogonal=False)
    loss = stacked(torch.randn(6, 4)).sum()
    with torch.no_grad():
        stacked.weights[0].add_(1.0)
    with pytest.raises(RuntimeError, match="changed between forward and backward"):
        loss.backward()


def test_a_second_derivative_is_refused_rather_than_wrong() -> None:
    stacked = Stacked(1, [4, 8, 1], "tanh", orthogonal=False)
    loss = stacked(torch.randn(6, 4)).sum()
    with pytest.raises(RuntimeError, match="differentiable once"):
        torch.autograd.grad(loss, list(stacked.parameters()), create_graph=True)


def test_initialisation_is_torchs_own_or_orthogonal_and_differs_between_networks() -> None:
    uniform = Stacked(2, [16, 400, 1], "relu", orthogonal=False)
    for weight, bias, bound in zip(uniform.weights, uniform.biases, (1 / 4, 1 / 20), strict=True):
        for values in (weight, bias):
            assert values.abs().max() <= bound
        assert weight.abs().max() > 0.9 * bound
        assert not torch.equal(weight[0], weight[1])
    for values in (uniform.weights[0], uniform.biases[0]):
        assert values.max() > 0.9 / 4 and values.min() < -0.9 / 4
    spread = uniform.weights[0].std() * 4 * 3**0.5
    torch.testing.assert_close(spread, torch.tensor(1.0), rtol=0.02, atol=0)
    made = Stacked(2, [64, 64, 4], "tanh", orthogonal=True, head_gain=0.01)
    singular = torch.linalg.svdvals
    torch.testing.assert_close(singular(made.weights[0][1]), torch.full((64,), 2**0.5))
    torch.testing.assert_close(singular(made.weights[1][0]), torch.full((4,), 0.01))
    assert all(bias.abs().max() == 0 for bias in made.biases)
    assert not torch.equal(made.weights[0][0], made.weights[0][1])
