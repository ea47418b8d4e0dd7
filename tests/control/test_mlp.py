"""The MLP policy against torch.distributions and hand-worked values; the normaliser."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from gymnasium import spaces
from tensordict import TensorDict
from torch.distributions import Categorical, Independent, Normal, kl_divergence

from zoo.errors import UserError
from zoo.policies.acting import torch_network
from zoo.policies.mlp import MLPKnobs, MLPPolicy
from zoo.policies.normalizer import Normalizer
from zoo.policies.spaces import ObservationEncoder

BOX = spaces.Box(-1, 1, (3,), np.float32)
ACTIONS = {
    "discrete": spaces.Discrete(4),
    "shifted": spaces.Discrete(4, start=-2),
    "continuous": spaces.Box(-1, 1, (2,), np.float32),
    "matrix": spaces.Box(-1, 1, (2, 2), np.float32),
}
SHAPES = [
    {},
    {"shared": True},
    {"activation": "relu", "hidden_sizes": (5,)},
    {"hidden_sizes": ()},
    {"orthogonal": False, "log_std_init": -0.7},
]


def batch_of(policy: MLPPolicy, rows: int = 3, steps: int = 4) -> TensorDict:
    rng = np.random.default_rng(1)
    observation = rng.standard_normal((rows * steps, 3), np.float32)
    action, log_prob = policy.act(observation, rng)
    leaves = {"observation": observation, "action": action, "log_prob": log_prob}
    td = {k: torch.from_numpy(v).reshape(rows, steps, *v.shape[1:]) for k, v in leaves.items()}
    return TensorDict(td, batch_size=[rows])


def network(policy: MLPPolicy, layers: torch.nn.ModuleList, x: torch.Tensor) -> torch.Tensor:
    """The textbook form, through the modules one by one."""
    act = torch.tanh if policy.config.activation == "tanh" else torch.relu
    for layer in [*policy.trunk, *layers[:-1]]:
        x = act(layer(x))
    out: torch.Tensor = layers[-1](x)
    return out


def distribution(policy: MLPPolicy, observation: torch.Tensor) -> torch.distributions.Distribution:
    x = network(policy, policy.policy_layers, observation.flatten(0, 1))
    if policy.discrete:
        return Categorical(logits=x)
    return Independent(Normal(x, policy.log_std.exp()), 1)


@pytest.mark.parametrize("knobs", SHAPES)
@pytest.mark.parametrize("kind", ACTIONS)
def test_evaluate_and_act_agree_with_torch_distributions(kind: str, knobs: dict) -> None:
    policy = MLPPolicy(BOX, ACTIONS[kind], MLPKnobs(**knobs))
    with torch.no_grad():  # a head of gain .01 would hide a wrong axis
        policy.policy_layers[-1].weight.mul_(100 if knobs.get("orthogonal", True) else 1)
    batch = batch_of(policy)
    out = policy.evaluate(batch)
    expected = distribution(policy, batch["observation"])
    action = batch["action"].flatten(0, 1)
    action = action - policy.action_start if policy.discrete else action.flatten(1)
    torch.testing.assert_close(out.log_prob, expected.log_prob(action).view(3, 4))
    torch.testing.assert_close(out.entropy, expected.entropy().view(3, 4))
    torch.testing.assert_close(out.log_prob, batch["log_prob"], rtol=1e-5, atol=1e-5)
    assert out.value is not None and out.kl is None
    ours = torch.autograd.grad(
        (out.log_prob * out.log_prob.detach() + 0.3 * out.entropy).sum() + out.value.square().sum(),
        list(policy.parameters()),
    )
    reference = expected.log_prob(action)
    value = network(policy, policy.value_layers, batch["observation"]).squeeze(-1)
    torch.testing.assert_close(out.value, value)
    theirs = torch.autograd.grad(
        (reference * reference.detach() + 0.3 * expected.entropy()).sum() + value.square().sum(),
        list(policy.parameters()),
    )
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["discrete", "continuous"])
def test_reference_gives_the_exact_divergence(kind: str) -> None:
    policy = MLPPolicy(BOX, ACTIONS[kind])
    reference = policy.reference_copy()
    assert not any(p.requires_grad for p in reference.parameters())
    batch = batch_of(policy)
    same = policy.evaluate(batch, reference).kl
    assert same is not None and same.abs().max() < 1e-6
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    kl = policy.evaluate(batch, reference).kl
    expected = kl_divergence(
        distribution(policy, batch["observation"]), distribution(reference, batch["observation"])
    )
    assert kl is not None and kl.min() > 1e-4 and kl.requires_grad
    torch.testing.assert_close(kl, expected.view(3, 4))


def test_sampled_actions_follow_the_distribution() -> None:
    policy = MLPPolicy(BOX, ACTIONS["discrete"])
    with torch.no_grad():
        policy.policy_layers[-1].bias.copy_(torch.tensor([0.1, 0.2, 0.3, 0.4]).log())
    rng = np.random.default_rng(0)
    action, _ = policy.act(np.zeros((40_000, 3), np.float32), rng)
    frequency = np.bincount(action, minlength=4) / 40_000
    np.testing.assert_allclose(frequency, [0.1, 0.2, 0.3, 0.4], atol=0.01)
    policy = MLPPolicy(BOX, ACTIONS["continuous"], MLPKnobs(log_std_init=math.log(0.5)))
    with torch.no_grad():
        policy.policy_layers[-1].bias.copy_(torch.tensor([3.0, -1.0]))
    action, _ = policy.act(np.zeros((40_000, 3), np.float32), rng)
    np.testing.assert_allclose(action.mean(0), [3.0, -1.0], atol=0.01)
    np.testing.assert_allclose(action.std(0), [0.5, 0.5], atol=0.01)


def test_deterministic_actions_are_the_mode() -> None:
    rng = np.random.default_rng(0)
    observation = rng.standard_normal((20, 3), np.float32)
    for kind in ("shifted", "continuous"):
        policy = MLPPolicy(BOX, ACTIONS[kind])
        action, _ = policy.act(observation, rng, deterministic=True)
        expected = distribution(policy, torch.from_numpy(observation)[None]).mode.detach().numpy()
        expected = expected - 2 if kind == "shifted" else expected
        np.testing.assert_allclose(action, expected, rtol=1e-5, atol=1e-7)


def test_acting_sees_every_update_of_the_weights() -> None:
    policy = MLPPolicy(BOX, ACTIONS["continuous"])
    observation, rng = np.ones((2, 3), np.float32), np.random.default_rng(0)
    before = policy.act(observation, rng, deterministic=True)[0].copy()
    optimizer = torch.optim.Adam(policy.parameters(), lr=0.1)
    policy.evaluate(batch_of(policy)).log_prob.sum().backward()
    optimizer.step()
    moved = policy.act(observation, rng, deterministic=True)[0]
    assert np.abs(moved - before).min() > 1e-3
    fresh = MLPPolicy(BOX, ACTIONS["continuous"])
    fresh.load_state_dict(policy.state_dict())
    assert np.array_equal(fresh.act(observation, rng, deterministic=True)[0], moved)
    assert np.array_equal(copy.deepcopy(policy).act(observation, rng, True)[0], moved)


def test_initialisation_has_the_documented_gains() -> None:
    policy = MLPPolicy(BOX, ACTIONS["discrete"], MLPKnobs(hidden_sizes=(64, 64)))
    singular = torch.linalg.svdvals
    torch.testing.assert_close(singular(policy.policy_layers[1].weight), torch.full((64,), 2**0.5))
    torch.testing.assert_close(singular(policy.policy_layers[2].weight), torch.full((4,), 0.01))
    torch.testing.assert_close(singular(policy.value_layers[2].weight), torch.ones(1))
    assert all(layer.bias.abs().max() == 0 for layer in policy.policy_layers)


@pytest.mark.parametrize("shared", [False, True])
def test_parameter_groups_hold_every_parameter_once(shared: bool) -> None:
    policy = MLPPolicy(BOX, ACTIONS["continuous"], MLPKnobs(shared=shared))
    groups = policy.parameter_groups()
    listed = [id(p) for group in groups.values() for p in group]
    assert sorted(listed) == sorted(id(p) for p in policy.parameters())
    assert any(p is policy.log_std for p in groups["policy"])
    without = MLPPolicy(BOX, ACTIONS["continuous"], critic=False)
    assert set(without.parameter_groups()) == {"policy"} and not without.has_critic
    assert without.evaluate(batch_of(without)).value is None


def test_micro_batches_hold_every_row_once() -> None:
    policy = MLPPolicy(BOX, ACTIONS["discrete"])
    batch = batch_of(policy, rows=7)
    parts = policy.micro_batches(batch, 3)
    assert [len(p) for p in parts] == [3, 3, 1]
    assert torch.equal(torch.cat([p["action"] for p in parts]), batch["action"])
    assert policy.micro_batches(batch, None) == [batch]


def test_knobs_that_cannot_be_built_are_refused() -> None:
    with pytest.raises(UserError, match="activation must be tanh or relu"):
        MLPKnobs(activation="gelu")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="hidden_sizes"):
        MLPKnobs(hidden_sizes=(64, 0))
    with pytest.raises(UserError, match="normalize_observation"):
        MLPPolicy(spaces.Discrete(3), ACTIONS["discrete"], MLPKnobs(normalize_observation=True))
    with pytest.raises(UserError, match="actions of whole numbers"):
        MLPPolicy(BOX, spaces.Box(0, 5, (2,), np.int64))


def test_encoder_values_by_hand() -> None:
    one_hot = ObservationEncoder(spaces.Discrete(3, start=5))
    expected = [[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]
    assert one_hot.numpy(np.array([6, 5])).tolist() == expected
    assert one_hot(torch.tensor([[6], [5]])).tolist() == expected
    image = ObservationEncoder(spaces.Box(0, 255, (1, 2), np.uint8))
    assert image.dtype == np.uint8
    assert image.numpy(np.array([[[255, 51]]], np.uint8)).tolist() == [[1.0, pytest.approx(0.2)]]
    assert image(torch.tensor([[[[255, 51]]]], dtype=torch.uint8)).tolist() == [
        [1.0, pytest.approx(0.2)]
    ]
    whole = ObservationEncoder(spaces.Box(-9, 9, (2,), np.int64))
    assert whole.numpy(np.array([[3, -4]])).dtype == np.float32
    double = ObservationEncoder(spaces.Box(-9, 9, (2,), np.float64))
    assert double.dtype == np.float32


def test_normalizer_equals_the_moments_of_everything_seen() -> None:
    rng = np.random.default_rng(0)
    data = rng.normal(1e4, 3.0, (1000, 2)).astype(np.float32)
    normalizer = Normalizer((2,))
    start = 0
    for size in (1, 4, 95, 900):
        normalizer.update(data[start : start + size])
        start += size
    exact = data.astype(np.float64)
    np.testing.assert_allclose(normalizer.mean.numpy(), exact.mean(0), rtol=1e-12)
    np.testing.assert_allclose(normalizer.var.numpy(), exact.var(0), rtol=1e-9)
    assert float(normalizer.count) == 1000
    normalised = normalizer(data)
    assert normalised.dtype == np.float32
    np.testing.assert_allclose(normalised.mean(0), 0.0, atol=1e-3)
    np.testing.assert_allclose(normalised.std(0), 1.0, atol=1e-3)
    assert normalizer(np.array([2e4, 0.0], np.float32)).tolist() == [10.0, -10.0]


def test_normalizer_keeps_float64_when_the_policy_is_cast() -> None:
    policy = MLPPolicy(BOX, ACTIONS["discrete"], MLPKnobs(normalize_observation=True))
    policy.to(torch.float16).to(torch.float32)
    assert policy.normalizer is not None and policy.normalizer.mean.dtype == torch.float64
    assert "normalizer.mean" in policy.state_dict()


def test_a_second_derivative_is_refused_rather_than_wrong() -> None:
    policy = MLPPolicy(BOX, ACTIONS["discrete"])
    log_prob = policy.evaluate(batch_of(policy)).log_prob.sum()
    with pytest.raises(RuntimeError, match="differentiable once"):
        torch.autograd.grad(log_prob, list(policy.policy_layers.parameters()), create_graph=True)


def test_the_torch_forward_for_other_devices_gives_the_same_outputs() -> None:
    policy = MLPPolicy(BOX, ACTIONS["continuous"])
    observation = np.random.default_rng(0).standard_normal((6, 3), np.float32)
    ours, theirs = np.zeros((6, 2), np.float32), np.zeros((6, 2), np.float32)
    policy.numpy_network(6)(observation, ours)
    forward = torch_network(lambda x: network(policy, policy.policy_layers, x), torch.device("cpu"))
    forward(observation, theirs)
    np.testing.assert_allclose(ours, theirs, atol=1e-6)


@pytest.mark.parametrize("knobs", [{}, {"shared": True}, {"activation": "relu"}])
def test_autocast_takes_the_ordinary_layers(knobs: dict) -> None:
    policy = MLPPolicy(BOX, ACTIONS["discrete"], MLPKnobs(**knobs))
    batch = batch_of(policy)
    exact = policy.evaluate(batch)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = policy.evaluate(batch)
    assert exact.value is not None and rounded.value is not None
    torch.testing.assert_close(rounded.value.float(), exact.value, rtol=0, atol=0.05)
    assert not torch.equal(rounded.value.float(), exact.value)
    rounded.log_prob.sum().backward()
    assert all(p.grad is not None for p in policy.policy_layers.parameters())
