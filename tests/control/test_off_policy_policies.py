"""The policies of SAC, TD3 and DQN against torch.distributions, hand-worked values and modules."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from tensordict import TensorDict
from torch import Tensor, nn
from torch.distributions import Categorical, Normal, kl_divergence

from zoo.core.targets import Target
from zoo.errors import UserError
from zoo.plugins.entropy import target_entropy
from zoo.policies.categorical_q import CategoricalQPolicy
from zoo.policies.control import ControlPolicy, MLPKnobs
from zoo.policies.deterministic import DeterministicPolicy
from zoo.policies.exploration import ExplorationKnobs
from zoo.policies.q_network import QNetworkPolicy
from zoo.policies.squashed import SquashedGaussianPolicy
from zoo.policies.squashing import squashed_log_prob, squashed_sample

BOX = spaces.Box(-1, 1, (3,), np.float32)
ACTIONS = spaces.Box(np.float32([-2, 0]), np.float32([2, 10]))  # type: ignore[arg-type]
DISCRETE = spaces.Discrete(4, start=2)
KNOBS = MLPKnobs(hidden_sizes=(16, 16), activation="relu", orthogonal=False)
POLICIES: dict[str, Callable[..., Any]] = {
    "squashed": lambda k=KNOBS: SquashedGaussianPolicy(BOX, ACTIONS, k),
    "deterministic": lambda k=KNOBS: DeterministicPolicy(BOX, ACTIONS, k),
    "categorical": lambda k=KNOBS: CategoricalQPolicy(BOX, DISCRETE, k),
    "q": lambda k=KNOBS: QNetworkPolicy(BOX, DISCRETE, k),
    "dueling": lambda k=KNOBS: QNetworkPolicy(BOX, DISCRETE, k, dueling=True),
}


def observations(rows: int = 6, steps: int = 2) -> Tensor:
    return torch.randn(rows, steps, 3)


def spread(policy: ControlPolicy) -> Any:
    """Move the heads away from 0, where a wrong sign or axis would not show."""
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.mul_(2.0)
    return policy


def batch_of(policy: Any, rows: int = 6, steps: int = 2) -> TensorDict:
    rng = np.random.default_rng(1)
    observation = rng.standard_normal((rows * steps, 3), np.float32)
    action, log_prob = policy.act(observation, rng)
    leaves = {"observation": observation, "action": action, "log_prob": log_prob}
    td = {k: torch.from_numpy(v).reshape(rows, steps, *v.shape[1:]) for k, v in leaves.items()}
    return TensorDict(td, batch_size=[rows])


# Spaces.


@pytest.mark.parametrize("made", [SquashedGaussianPolicy, DeterministicPolicy])
def test_actions_that_cannot_be_squashed_are_refused(made: Any) -> None:
    with pytest.raises(UserError, match="must be finite"):
        made(BOX, spaces.Box(-np.inf, np.inf, (2,)))
    with pytest.raises(UserError, match="must be finite"):
        made(BOX, spaces.Box(np.float32([0, 0]), np.float32([1, np.inf])))  # type: ignore[arg-type]
    with pytest.raises(UserError, match="finite and apart"):
        made(BOX, spaces.Box(np.float32([1, 0]), np.float32([1, 1])))  # type: ignore[arg-type]
    with pytest.raises(UserError, match="needs continuous actions"):
        made(BOX, DISCRETE)
    with pytest.raises(UserError, match="whole numbers in a Box"):
        made(BOX, spaces.Box(0, 5, (2,), np.int64))


@pytest.mark.parametrize("made", [CategoricalQPolicy, QNetworkPolicy])
def test_continuous_actions_are_refused_by_policies_of_discrete_ones(made: Any) -> None:
    with pytest.raises(UserError, match="Discrete"):
        made(BOX, ACTIONS)


@pytest.mark.parametrize("kind", POLICIES)
def test_a_shared_trunk_is_refused(kind: str) -> None:
    with pytest.raises(UserError, match=r"model\.shared"):
        POLICIES[kind](MLPKnobs(shared=True))


# SAC on a Box.


def test_units_change_neither_log_densities_nor_what_the_target_entropy_means() -> None:
    narrow = SquashedGaussianPolicy(BOX, spaces.Box(-1, 1, (2,)), KNOBS)
    wide = SquashedGaussianPolicy(BOX, spaces.Box(-1000, 1000, (2,)), KNOBS)
    wide.load_state_dict(narrow.state_dict())
    observation, rows = observations(), []
    for policy in (narrow, wide):
        torch.manual_seed(1)
        rows.append(policy.sample(observation))
    (action, log_prob), (large, same) = rows
    torch.testing.assert_close(large, 1000 * action)
    assert torch.equal(log_prob, same)
    assert target_entropy(spaces.Box(-1000, 1000, (6,))) == -6.0  # golden 11
    ours = narrow.evaluate(TensorDict({"observation": observation, "action": action}, [6]))
    theirs = wide.evaluate(TensorDict({"observation": observation, "action": large}, [6]))
    torch.testing.assert_close(ours.log_prob, log_prob, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(theirs.log_prob, log_prob, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(wide.q(observation, large), narrow.q(observation, action))


def test_samples_follow_mean_and_deviation() -> None:
    policy = POLICIES["squashed"]()
    with torch.no_grad():
        policy.network.weights[-1].zero_()
        policy.network.biases[-1][0] = torch.tensor([0.3, -0.2, math.log(0.5), math.log(0.1)])
    rng = np.random.default_rng(0)
    many = np.zeros((40_000, 3), np.float32)
    sampled, _ = policy.sample(torch.from_numpy(many))
    acted, log_prob = policy.act(many, rng)
    for action in (sampled.detach().numpy(), acted):
        y = (action - [0, 5]) / [2, 5]
        u = np.arctanh(y)
        np.testing.assert_allclose(u.mean(0), [0.3, -0.2], atol=0.01)
        np.testing.assert_allclose(u.std(0), [0.5, 0.1], atol=0.01)
    batch = TensorDict(
        {
            "observation": torch.from_numpy(many[:, None]),
            "action": torch.from_numpy(acted[:, None]),
        },
        [len(many)],
    )
    expected = policy.log_prob(batch)[:, 0].numpy()
    np.testing.assert_allclose(log_prob, expected, rtol=1e-3, atol=1e-3)
    mode, _ = policy.act(many[:1], rng, deterministic=True)
    np.testing.assert_allclose(mode[0], [2 * math.tanh(0.3), 5 + 5 * math.tanh(-0.2)], rtol=1e-5)


def test_recorded_log_probabilities_equal_those_of_evaluate() -> None:
    policy = spread(POLICIES["squashed"]())
    batch = batch_of(policy)
    out = policy.evaluate(batch)
    # near a bound a float32 action no longer tells its u to four digits
    torch.testing.assert_close(out.log_prob, batch["log_prob"], rtol=1e-3, atol=5e-3)
    assert out.log_prob.shape == out.entropy.shape == (6, 2)
    out.log_prob.sum().backward()
    assert all(p.grad is not None for p in policy.network.parameters())


def test_the_entropy_estimate_is_that_of_the_present_policy() -> None:
    policy = POLICIES["squashed"]()
    observation = torch.zeros(20_000, 1, 3)
    action = torch.zeros(20_000, 1, 2)  # what was stored plays no part
    out = policy.evaluate(TensorDict({"observation": observation, "action": action}, [20_000]))
    _, log_prob = policy.sample(observation)
    assert out.entropy.mean().item() == pytest.approx(-log_prob.mean().item(), abs=0.03)


def test_exact_divergence_of_squashed_gaussians_is_that_of_their_samples() -> None:
    policy, reference = spread(POLICIES["squashed"]()), spread(POLICIES["squashed"]())
    observation = torch.randn(3, 1, 3)
    many = observation.repeat_interleave(100_000, 0)
    with torch.no_grad():
        mean, log_std = policy.distribution(many)
        y, log_prob = squashed_sample(mean, log_std)
        ref_mean, ref_log_std = reference.distribution(many)
        other = squashed_log_prob(y, ref_mean, ref_log_std)
        # compare where the stored float32 action still tells u; the rest is rare here
        estimate = (log_prob - other).view(3, -1).mean(1)
    batch = TensorDict({"observation": observation, "action": torch.zeros(3, 1, 2)}, [3])
    kl = policy.evaluate(batch, reference).kl
    assert kl is not None and kl.shape == (3, 1) and kl.min() > 0.01
    torch.testing.assert_close(kl.detach()[:, 0], estimate, rtol=0.03, atol=0.01)
    m, s, rm, rs = policy.distribution(observation) + reference.distribution(observation)
    exact = kl_divergence(Normal(m, s.exp()), Normal(rm, rs.exp())).sum(-1)
    torch.testing.assert_close(kl[:, 0], exact)
    _, out = policy.expected_value(observation, reference=reference)
    assert out.kl is not None
    torch.testing.assert_close(out.kl, kl)
    same = policy.evaluate(batch, policy.reference_copy()).kl
    assert same is not None and same.abs().max() < 1e-6
    kl.sum().backward()
    assert all(p.grad is not None for p in policy.network.parameters())


def modules(network: Any, k: int = 0) -> nn.Sequential:
    """One network of a stack as ordinary torch modules on the same memory."""
    built: list[nn.Module] = []
    for weight, bias in zip(network.weights, network.biases, strict=True):
        linear = nn.Linear(weight.shape[2], weight.shape[1])
        linear.weight.data, linear.bias.data = weight.data[k], bias.data[k]
        built += [linear, nn.ReLU()]
    return nn.Sequential(*built[:-1])


def test_a_whole_actor_update_has_the_gradient_of_plain_modules() -> None:
    policy = spread(POLICIES["squashed"]())
    observation, alpha = observations(32, 1), 0.3
    torch.manual_seed(5)
    value, out = policy.expected_value(observation)
    assert value.shape == out.entropy.shape == (32, 1)
    (-value - alpha * out.entropy).mean().backward()
    # in float64: log(1 − tanh²) loses its digits in float32
    actor = modules(policy.network).double()
    first, second = (modules(policy.critics.networks, k).double() for k in (0, 1))
    torch.manual_seed(5)
    noise = torch.randn(32, 2).double()
    states = observation[:, 0].double()
    mean, log_std = actor(states).chunk(2, 1)
    law = Normal(mean, log_std.clamp(-20, 2).exp())
    u = mean + law.scale * noise
    log_prob = (law.log_prob(u) - torch.log(1 - u.tanh().square())).sum(-1)
    x = torch.cat([states, u.tanh()], 1)
    smallest = torch.minimum(first(x), second(x))[:, 0]
    (alpha * log_prob - smallest).mean().backward()
    torch.testing.assert_close(value[:, 0].double(), smallest, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(out.log_prob[:, 0].double(), log_prob, rtol=1e-5, atol=1e-5)
    theirs = [p.grad.float() for p in actor.parameters()]
    ours = [part[0] for part in policy.network.split(policy.network.flat.grad)]
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    assert all(p.grad is None for p in policy.critics.parameters())


def test_values_are_the_smaller_ones_of_the_critics_that_are_given() -> None:
    policy = POLICIES["squashed"]()
    target = Target(policy.critics, 0.005)
    with torch.no_grad():
        for parameter in policy.critics.parameters():
            parameter.add_(1.0)
    observation = observations()
    torch.manual_seed(2)
    value, _ = policy.expected_value(observation, target)
    torch.manual_seed(2)
    action, _ = policy.sample(observation)
    both = target(observation, action)
    assert both.shape == (2, 6, 2) and not torch.allclose(both, policy.q(observation, action))
    assert torch.equal(value, both.amin(0))
    assert not torch.equal(both[0], both[1])


def test_log_std_init_shifts_the_initial_deviation() -> None:
    torch.manual_seed(0)
    plain = SquashedGaussianPolicy(BOX, ACTIONS, MLPKnobs(orthogonal=True))
    torch.manual_seed(0)
    low = SquashedGaussianPolicy(BOX, ACTIONS, MLPKnobs(orthogonal=True, log_std_init=-3.0))
    zeros = torch.zeros(1, 3)
    for policy, expected in ((plain, 0.0), (low, -3.0)):
        mean, log_std = policy.distribution(zeros)
        assert mean.tolist() == [[0.0, 0.0]] and log_std.tolist() == [[expected] * 2]


# TD3.


def test_deterministic_actions_are_squashed_into_the_bounds_of_each_dimension() -> None:
    policy = spread(POLICIES["deterministic"]())
    observation = observations()
    expected = modules(policy.network)(observation).tanh() * torch.tensor([2.0, 5.0])
    expected = expected + torch.tensor([0.0, 5.0])
    torch.testing.assert_close(policy.action(observation), expected)
    flat = observation.reshape(-1, 3).numpy()
    acted, log_prob = policy.act(flat, np.random.default_rng(0), deterministic=True)
    np.testing.assert_allclose(acted, expected.detach().reshape(-1, 2), rtol=1e-5, atol=1e-6)
    assert np.isnan(log_prob).all() and not policy.stochastic
    with pytest.raises(TypeError, match="no log-probabilities"):
        policy.evaluate(batch_of(policy))


def test_target_smoothing_is_clipped_and_scaled_per_dimension(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    policy = POLICIES["deterministic"]()
    with torch.no_grad():
        policy.network.weights[-1].zero_()
        policy.network.biases[-1][0] = torch.tensor([0.0, math.atanh(0.8)])
    draws = torch.tensor([[1.0, -1.0], [-10.0, 10.0]])
    monkeypatch.setattr(torch, "randn_like", lambda _: draws)
    action = policy.smoothed_action(torch.zeros(2, 3), std=0.2, clip=0.5)
    # y = 0 ± .2 and 0 − .5; .8 − .2 and .8 + .5 cut off at 1. Then ·2, and ·5 + 5
    torch.testing.assert_close(action, torch.tensor([[0.4, 8.0], [-1.0, 10.0]]))


def test_the_actors_gradient_goes_through_the_first_critic_alone() -> None:
    policy = spread(POLICIES["deterministic"]())
    observation = observations()
    value = policy.q(observation, policy.action(observation), frozen=True, count=1)
    assert value.shape == (1, 6, 2)
    value.sum().backward()
    ours = [p.grad.clone() for p in policy.network.parameters()]
    assert all(p.grad is None for p in policy.critics.parameters())
    policy.zero_grad(set_to_none=True)
    policy.q(observation, policy.action(observation))[0].sum().backward()
    for a, p in zip(ours, policy.network.parameters(), strict=True):
        torch.testing.assert_close(a, p.grad, rtol=1e-5, atol=1e-6)


# Discrete SAC.


def test_expectations_over_discrete_actions_are_exact_sums() -> None:
    policy = spread(POLICIES["categorical"]())
    observation = observations()
    value, out = policy.expected_value(observation)
    law = Categorical(logits=modules(policy.network)(observation))
    both = torch.stack([modules(policy.critics.networks, k)(observation) for k in (0, 1)])
    expected = (law.probs * both.amin(0)).sum(-1)
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(out.entropy, law.entropy())
    torch.testing.assert_close(out.log_prob, -law.entropy())
    (value.sum() + 0.2 * out.entropy.sum()).backward()
    assert all(p.grad is None for p in policy.critics.parameters())
    assert all(p.grad is not None for p in policy.network.parameters())
    target = Target(policy.critics, 0.5)
    again, _ = policy.expected_value(observation, target)
    torch.testing.assert_close(again, value)


def test_values_of_discrete_actions_that_do_not_start_at_zero() -> None:
    policy = spread(POLICIES["categorical"]())
    batch = batch_of(policy)
    assert batch["action"].min() >= 2 and batch["action"].max() <= 5
    every = policy.critics(batch["observation"])
    assert every.shape == (2, 6, 2, 4)
    chosen = policy.q(batch["observation"], batch["action"])
    for k in (0, 1):
        expected = every[k].gather(-1, batch["action"].unsqueeze(-1) - 2).squeeze(-1)
        assert torch.equal(chosen[k], expected)
    law = Categorical(logits=policy.logits(batch["observation"]))
    out = policy.evaluate(batch)
    torch.testing.assert_close(out.log_prob, law.log_prob(batch["action"] - 2))
    torch.testing.assert_close(out.log_prob, batch["log_prob"], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(out.entropy, law.entropy())


# DQN.


def test_dueling_values_are_centred_advantages_on_a_common_value() -> None:
    policy = spread(POLICIES["dueling"]())
    observation = observations()
    q, network = policy.q(observation), policy.network
    hidden = network.trunk(observation.reshape(-1, 3))[0]
    value, advantage = network.value(hidden)[0], network.advantage(hidden)[0]
    torch.testing.assert_close(q.mean(-1).view(-1, 1), value)
    torch.testing.assert_close(
        (q - q.mean(-1, keepdim=True)).view(-1, 4), advantage - advantage.mean(-1, keepdim=True)
    )
    flat = observation.reshape(-1, 3).numpy()
    action, _ = policy.act(flat, np.random.default_rng(0), deterministic=True)
    assert torch.equal(policy.index(torch.from_numpy(action)), q.view(-1, 4).argmax(1))
    assert len(set(action.tolist())) > 1
    # trunk 3 → 16; 16 → 16 → 4 and 16 → 16 → 1 for the streams
    assert sum(p.numel() for p in policy.parameters()) == 64 + (272 + 68) + (272 + 17)


@pytest.mark.parametrize("sizes", [(), (8,), (8, 7, 6)])
@pytest.mark.parametrize("dueling", [False, True])
def test_q_networks_of_any_depth_act_by_their_values(dueling: bool, sizes: tuple[int, ...]) -> None:
    policy = QNetworkPolicy(BOX, DISCRETE, MLPKnobs(hidden_sizes=sizes), dueling=dueling)
    observation = torch.randn(50, 3)
    action, _ = policy.act(observation.numpy(), np.random.default_rng(0), deterministic=True)
    assert torch.equal(torch.from_numpy(action) - 2, policy.q(observation).argmax(1))
    policy.q(observation).sum().backward()
    assert all(p.grad is not None for p in policy.parameters())


def test_a_q_network_with_a_temperature_is_a_softmax_policy() -> None:
    knobs = ExplorationKnobs("boltzmann", temperature=0.5)
    policy = spread(QNetworkPolicy(BOX, DISCRETE, KNOBS, exploration=knobs))
    reference = spread(QNetworkPolicy(BOX, DISCRETE, KNOBS, exploration=knobs))
    batch = batch_of(policy)
    out = policy.evaluate(batch, reference)
    law = Categorical(logits=policy.q(batch["observation"]) / 0.5)
    other = Categorical(logits=reference.q(batch["observation"]) / 0.5)
    torch.testing.assert_close(out.log_prob, law.log_prob(batch["action"] - 2))
    torch.testing.assert_close(out.log_prob, batch["log_prob"], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(out.entropy, law.entropy())
    assert policy.stochastic and out.kl is not None
    torch.testing.assert_close(out.kl, kl_divergence(law, other))
    greedy = POLICIES["q"]()
    assert not greedy.stochastic
    with pytest.raises(TypeError, match="no log-probabilities"):
        greedy.evaluate(batch)


# The protocol.


def test_critics_learn_unless_they_are_frozen_and_start_with_the_documented_gain() -> None:
    orthogonal = MLPKnobs(hidden_sizes=(16,))
    for kind in ("squashed", "deterministic", "categorical"):
        policy = POLICIES[kind](orthogonal)
        batch = batch_of(policy)
        pair = batch["observation"], batch["action"]
        assert policy.q(*pair).requires_grad and not policy.q(*pair, frozen=True).requires_grad
        first, last = policy.critics.networks.weights
        singular = torch.linalg.svdvals
        rank = min(first.shape[1:])
        torch.testing.assert_close(singular(first[1]), torch.full((rank,), 2**0.5))
        torch.testing.assert_close(singular(last[1]), torch.ones(last.shape[1]))
        torch.testing.assert_close(
            singular(policy.network.weights[-1][0]), torch.full((policy.outputs,), 0.01)
        )
    for kind in ("q", "dueling"):
        for name, network in POLICIES[kind](orthogonal).network.named_children():
            gain = 2**0.5 if name == "trunk" else 1.0
            values = torch.linalg.svdvals(network.weights[-1][0])
            torch.testing.assert_close(values, torch.full_like(values, gain))


@pytest.mark.parametrize("kind", POLICIES)
def test_parameter_groups_hold_every_parameter_once(kind: str) -> None:
    policy = POLICIES[kind]()
    groups = policy.parameter_groups()
    listed = [id(p) for group in groups.values() for p in group]
    assert sorted(listed) == sorted(id(p) for p in policy.parameters())
    both = {"policy", "critic"}
    assert set(groups) == ({"policy"} if kind in ("q", "dueling") else both)
    assert policy.has_critic == ("critic" in groups)


@pytest.mark.parametrize("kind", POLICIES)
def test_a_loaded_policy_and_a_reference_copy_act_alike(kind: str) -> None:
    policy, fresh = spread(POLICIES[kind]()), POLICIES[kind]()
    observation = np.random.default_rng(0).standard_normal((20, 3), np.float32)
    fresh.load_state_dict(policy.state_dict())
    copied = policy.reference_copy()
    assert not any(p.requires_grad for p in copied.parameters())
    expected = policy.act(observation, np.random.default_rng(1))[0].copy()
    assert np.array_equal(fresh.act(observation, np.random.default_rng(1))[0], expected)
    if kind in ("squashed", "categorical"):  # the others explore, which a frozen copy does not
        assert np.array_equal(copied.act(observation, np.random.default_rng(1))[0], expected)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.mul_(-1.5)
    mode = copied.act(observation, np.random.default_rng(1), True)[0]
    assert not np.array_equal(policy.act(observation, np.random.default_rng(1), True)[0], mode)


@pytest.mark.parametrize(
    "space", [spaces.Discrete(3, start=1), spaces.Box(0, 255, (2, 2), np.uint8)]
)
@pytest.mark.parametrize("kind", POLICIES)
def test_other_observations_keep_their_leading_dimensions(kind: str, space: Any) -> None:
    made = {
        "squashed": SquashedGaussianPolicy,
        "deterministic": DeterministicPolicy,
        "categorical": CategoricalQPolicy,
    }.get(kind, QNetworkPolicy)
    box = made in (SquashedGaussianPolicy, DeterministicPolicy)
    policy: Any = made(space, ACTIONS if box else DISCRETE, KNOBS)
    observation = torch.from_numpy(np.stack([space.sample() for _ in range(6)])).reshape(
        3, 2, *space.shape
    )
    action = torch.zeros(3, 2, 2) if box else torch.full((3, 2), 3)
    if made is QNetworkPolicy:
        assert policy.q(observation).shape == (3, 2, 4)
    else:
        assert policy.q(observation, action).shape == (2, 3, 2)
    if kind in ("squashed", "categorical"):
        value, out = policy.expected_value(observation)
        assert value.shape == out.entropy.shape == out.log_prob.shape == (3, 2)
    acted, _ = policy.act(observation.flatten(0, 1).numpy(), np.random.default_rng(0))
    assert acted.shape == ((6, 2) if box else (6,))


def test_actions_of_any_shape_keep_it() -> None:
    space = spaces.Box(-3, 3, (2, 2), np.float32)
    for made in (SquashedGaussianPolicy, DeterministicPolicy):
        policy: Any = made(BOX, space, KNOBS)
        observation = observations()
        action = policy.sample(observation)[0] if made is SquashedGaussianPolicy else None
        action = policy.action(observation) if action is None else action
        assert action.shape == (6, 2, 2, 2)
        assert policy.q(observation, action).shape == (2, 6, 2)
        acted, _ = policy.act(observation.flatten(0, 1).numpy(), np.random.default_rng(0))
        assert acted.shape == (12, 2, 2) and np.abs(acted).max() <= 3
