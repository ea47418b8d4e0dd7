"""gSDE (Raffin et al. 2021): by hand, against torch.distributions and Stable-Baselines3."""

from __future__ import annotations

import copy
import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from tensordict import TensorDict
from torch.distributions import Independent, Normal, kl_divergence

from zoo.errors import UserError
from zoo.policies.acting import torch_network
from zoo.policies.categorical_q import CategoricalQPolicy
from zoo.policies.deterministic import DeterministicPolicy
from zoo.policies.mlp import MLPKnobs, MLPPolicy
from zoo.policies.q_network import QNetworkPolicy
from zoo.policies.squashed import SquashedGaussianPolicy
from zoo.policies.state_dependent import MatrixNoise, marginal_log_std
from zoo.rollouts.gymnasium import GymnasiumRollout

BOX, ACTIONS = spaces.Box(-1, 1, (3,), np.float32), spaces.Box(-2, 2, (2,), np.float32)
POLICIES: dict[str, Any] = {"gaussian": MLPPolicy, "squashed": SquashedGaussianPolicy}


def make(kind: str, **knobs: Any) -> Any:
    knobs = {"use_sde": True, "log_std_init": -1.0, "hidden_sizes": (8, 5), **knobs}
    policy = POLICIES[kind](BOX, ACTIONS, MLPKnobs(**knobs))
    with torch.no_grad():  # entries that differ, or a transposed matrix would go unseen
        policy.log_std += 0.5 * torch.randn(policy.log_std.shape)
    return policy


def features_and_mean(policy: Any, observation: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The textbook form of the actor, one layer after the other."""
    if isinstance(policy, MLPPolicy):
        pairs = [(layer.weight, layer.bias) for layer in [*policy.trunk, *policy.policy_layers]]
    else:
        stacked = [policy.network, policy.head]
        pairs = [(w[0], b[0]) for s in stacked for w, b in zip(s.weights, s.biases, strict=True)]
    x = observation
    for weight, bias in pairs[:-1]:
        x = torch.tanh(x @ weight.T + bias)
    return x, x @ pairs[-1][0].T + pairs[-1][1]


def gaussian(policy: Any, observation: torch.Tensor) -> Independent:
    h, mean = features_and_mean(policy, observation)
    return Independent(Normal(mean, (h.square() @ policy.log_std.exp().square() + 1e-6).sqrt()), 1)


def unsquashed(kind: str, action: torch.Tensor) -> torch.Tensor:
    return action if kind == "gaussian" else (action / 2).double().atanh().float()


def test_the_variance_sums_squared_features_times_squared_deviations() -> None:
    features, std = torch.tensor([[1.0, -2.0], [0.0, 0.0]]), torch.tensor([[0.5, 1.0], [0.25, 3.0]])
    variance = (2 * marginal_log_std(features, std.log())).exp()
    # 1·.25 + 4·.0625 and 1·1 + 4·9; without features the small constant is left
    assert torch.allclose(variance, torch.tensor([[0.5, 37.0], [0.0, 0.0]]) + 1e-6)


@pytest.mark.parametrize("shape", [{}, {"shared": True}, {"hidden_sizes": (4,)}], ids=str)
def test_log_prob_and_entropy_are_those_of_the_marginal_gaussian(shape: dict[str, Any]) -> None:
    policy = make("gaussian", **shape)
    rng = np.random.default_rng(0)
    observation = rng.standard_normal((7, 3), np.float32)
    action, log_prob = policy.act(observation, rng)
    batch = {"observation": torch.tensor(observation)[:, None], "action": torch.tensor(action)}
    batch["action"] = batch["action"][:, None]
    out = policy.evaluate(TensorDict(batch, [7]))
    expected = gaussian(policy, torch.tensor(observation))
    assert torch.allclose(out.log_prob[:, 0], expected.log_prob(torch.tensor(action)), atol=1e-5)
    assert torch.allclose(out.entropy[:, 0], expected.entropy(), atol=1e-5)
    assert np.allclose(log_prob, out.log_prob[:, 0].detach(), atol=1e-5)
    assert out.entropy[:, 0].std() > 0.01  # it depends on the state


def test_the_squashed_log_prob_is_the_gaussians_less_the_slope_of_tanh() -> None:
    policy = make("squashed")
    rng = np.random.default_rng(0)
    observation = rng.standard_normal((7, 3), np.float32)
    action, log_prob = policy.act(observation, rng)
    y = torch.tensor(action) / 2
    plain = gaussian(policy, torch.tensor(observation)).log_prob(unsquashed("squashed", 2 * y))
    expected = plain - torch.log(1 - y.square()).sum(-1)
    batch = {"observation": torch.tensor(observation)[:, None], "action": 2 * y[:, None]}
    out = policy.evaluate(TensorDict(batch, [7]))
    assert torch.allclose(out.log_prob[:, 0], expected, atol=1e-4)
    assert np.allclose(log_prob, expected.detach(), atol=1e-4)


@pytest.mark.parametrize("squash", [False, True])
def test_density_and_entropy_equal_those_of_stable_baselines3(squash: bool) -> None:
    distributions = pytest.importorskip("stable_baselines3.common.distributions")
    policy = make("squashed" if squash else "gaussian")
    observation = torch.randn(6, 3)
    h, mean = features_and_mean(policy, observation)
    other = distributions.StateDependentNoiseDistribution(2, squash_output=squash)
    other.latent_sde_dim = 5
    other.proba_distribution(mean, policy.log_std, h)
    action = 1.6 * torch.rand(6, 2) - 0.8
    taken = (2 * action if squash else action)[:, None]
    batch = TensorDict({"observation": observation[:, None], "action": taken}, [6])
    out = policy.evaluate(batch)
    assert torch.allclose(out.log_prob[:, 0], other.log_prob(action), atol=1e-4)
    if not squash:
        assert torch.allclose(out.entropy[:, 0], other.entropy(), atol=1e-5)


def test_the_gradient_of_the_deviation_stops_at_ppos_features_and_not_at_sacs() -> None:
    observation = torch.randn(4, 1, 3)
    ppo = make("gaussian")
    batch = TensorDict({"observation": observation, "action": torch.randn(4, 1, 2)}, [4])
    ppo.evaluate(batch).entropy.sum().backward()
    assert ppo.log_std.grad is not None and ppo.log_std.grad.abs().min() > 0
    assert ppo.policy_layers[0].weight.grad is None
    sac = make("squashed")
    _, log_std = sac.distribution(observation)
    log_std.sum().backward()
    assert (
        sac.log_std.grad.abs().min() > 0
        and sac.network.split(sac.network.flat.grad)[0].abs().max() > 0
    )


def test_sampled_actions_have_the_marginal_deviation() -> None:
    """Over many matrices, and also where every action is drawn by itself (not training)."""
    policy = make("gaussian")
    observation = np.tile(np.array([[0.5, -1.0, 2.0]], np.float32), (20_000, 1))
    expected = gaussian(policy, torch.tensor(observation[:1]))
    for training in (True, False):
        policy.train(training)
        action, _ = policy.act(observation, np.random.default_rng(1))
        assert np.allclose(action.mean(0), expected.mean[0].detach(), atol=0.02)
        assert np.allclose(action.std(0), expected.variance[0].sqrt().detach(), rtol=0.03)


def noises(policy: Any, kind: str, steps: int, rng: Any, ends: dict[int, list[bool]]) -> Any:
    """u − μ of every step [T, N, dim] at one observation that does not change."""
    observation = np.tile(np.array([[0.5, -1.0, 2.0]], np.float32), (3, 1))
    _, mean = features_and_mean(policy, torch.tensor(observation))
    actor, seen = policy.actor(3, steps, rng), []
    for t in range(steps):
        action = torch.tensor(actor(observation, t).copy())
        seen.append((unsquashed(kind, action) - mean).detach().numpy())
        if actor.follows_episodes:
            actor.ended(np.array(ends.get(t, [False] * 3)))
    return np.stack(seen)


@pytest.mark.parametrize("kind", POLICIES)
def test_noise_lasts_until_its_matrix_is_drawn_again_and_is_each_environments_own(kind) -> None:
    rng = np.random.default_rng(2)
    policy = make(kind, sde_sample_freq=3)
    seen = np.concatenate([noises(policy, kind, steps, rng, {}) for steps in (2, 5)])
    same = [np.allclose(a, b, atol=1e-5) for a, b in itertools.pairwise(seen)]
    assert same == [True, True, False, True, True, False]  # over the joint of two rollouts
    assert len({round(float(x), 3) for x in seen[0, :, 0]}) == 3

    policy = make(kind, sde_sample_freq="rollout")
    seen = np.concatenate([noises(policy, kind, steps, rng, {}) for steps in (2, 3)])
    same = [np.allclose(a, b, atol=1e-5) for a, b in itertools.pairwise(seen)]
    assert same == [True, False, True, True]

    policy = make(kind, sde_sample_freq="episode")
    ends = {1: [False, True, False]}
    seen = np.concatenate([noises(policy, kind, 3, rng, ends), noises(policy, kind, 1, rng, {})])
    same = np.isclose(seen[1:], seen[:-1], atol=1e-5).all(-1)
    assert same.tolist() == [[True] * 3, [True, False, True], [True] * 3]


def test_noise_is_the_matrix_times_the_features_and_follows_the_present_deviation() -> None:
    noise = MatrixNoise(2, 1, "episode")
    noise.begin(1, np.zeros((2, 1), np.float32), np.random.default_rng(0))
    first = noise(np.array([[1.0, 0.0]], np.float32))[0, 0]
    second = noise(np.array([[0.0, 1.0]], np.float32))[0, 0]
    both = noise(np.array([[2.0, -3.0]], np.float32))[0, 0]
    assert both == pytest.approx(2 * first - 3 * second, abs=1e-6)
    log_std = np.array([[math.log(2.0)], [math.log(0.5)]], np.float32)
    noise.begin(1, log_std, np.random.default_rng(9))  # an update later; the episode goes on
    scaled = noise(np.array([[1.0, 1.0]], np.float32))[0, 0]
    assert scaled == pytest.approx(2 * first + 0.5 * second, abs=1e-6)


@pytest.mark.parametrize("kind", POLICIES)
def test_deterministic_actions_are_the_mean(kind: str) -> None:
    policy = make(kind)
    observation = np.random.default_rng(0).standard_normal((4, 3), np.float32)
    action, _ = policy.act(observation, np.random.default_rng(1), deterministic=True)
    _, mean = features_and_mean(policy, torch.tensor(observation))
    expected = mean if kind == "gaussian" else 2 * mean.tanh()
    assert np.allclose(action, expected.detach(), atol=1e-5)


@pytest.mark.parametrize("kind", POLICIES)
def test_measuring_moves_nothing_that_exploration_remembers(kind: str) -> None:
    policy = make(kind, sde_sample_freq="episode")
    noises(policy, kind, 2, np.random.default_rng(0), {})
    before = copy.deepcopy(policy.sde.get_extra_state())
    policy.eval()
    noises(policy, kind, 4, np.random.default_rng(1), {})
    after = policy.sde.get_extra_state()
    assert torch.equal(before["standard"], after["standard"]) and before["age"] == after["age"]


@pytest.mark.parametrize("kind", POLICIES)
def test_a_loaded_policy_goes_on_with_its_matrices(kind: str) -> None:
    policy, rng = make(kind, sde_sample_freq=4), np.random.default_rng(0)
    noises(policy, kind, 3, rng, {})
    twin = make(kind, sde_sample_freq=4)
    twin.load_state_dict(copy.deepcopy(policy.state_dict()))
    state = rng.bit_generator.state
    one = noises(policy, kind, 6, rng, {})
    rng.bit_generator.state = state
    assert np.array_equal(one, noises(twin, kind, 6, rng, {}))


@pytest.mark.parametrize("kind", POLICIES)
def test_the_torch_forward_for_other_devices_gives_the_same_actions(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = make(kind)
    plain = noises(policy, kind, 2, np.random.default_rng(0), {})

    def in_torch(layers: Any, forward: Any, num_envs: int, activate_last: bool = False) -> Any:
        assert activate_last
        return torch_network(forward, torch.device("cpu"))

    monkeypatch.setattr(policy, "in_numpy", in_torch)
    assert np.allclose(plain, noises(policy, kind, 2, np.random.default_rng(0), {}), atol=1e-5)


def test_the_divergence_to_a_reference_is_exact() -> None:
    policy, reference = make("gaussian"), make("gaussian")
    observation = torch.randn(5, 1, 3)
    batch = TensorDict({"observation": observation, "action": torch.randn(5, 1, 2)}, [5])
    expected = kl_divergence(
        gaussian(policy, observation[:, 0]), gaussian(reference, observation[:, 0])
    )
    assert torch.allclose(policy.evaluate(batch, reference).kl[:, 0], expected, rtol=1e-3)


def test_whole_episodes_of_groups_draw_anew_for_each() -> None:
    rollout = GymnasiumRollout("Pendulum-v1", num_envs=2, group_size=2, seed=0)
    knobs = MLPKnobs(use_sde=True, sde_sample_freq="episode")
    policy = MLPPolicy(rollout.observation_space, rollout.action_space, knobs, critic=False)
    seen = []
    for _ in range(2):
        rollout.collect(policy)
        seen.append(policy.sde.get_extra_state()["standard"])
    rollout.close()
    assert not torch.isclose(seen[0], seen[1]).any()


@pytest.mark.parametrize(
    ("policy", "space", "who"),
    [
        (MLPPolicy, spaces.Discrete(2), "discrete"),
        (CategoricalQPolicy, spaces.Discrete(2), "discrete"),
        (QNetworkPolicy, spaces.Discrete(2), "DQN"),
        (DeterministicPolicy, ACTIONS, "TD3"),
    ],
    ids=["ppo-discrete", "sac-discrete", "dqn", "td3"],
)
def test_policies_without_a_gaussian_refuse_it(policy: Any, space: Any, who: str) -> None:
    with pytest.raises(UserError, match=f"use_sde.*{who}"):
        policy(BOX, space, MLPKnobs(use_sde=True))


def test_knobs_that_cannot_be_drawn_by_are_refused() -> None:
    with pytest.raises(UserError, match="sde_sample_freq"):
        MLPKnobs(sde_sample_freq=0)
    with pytest.raises(UserError, match="hidden_sizes"):
        MLPKnobs(use_sde=True, hidden_sizes=())
    with pytest.raises(UserError, match="does nothing without use_sde"):
        MLPKnobs(sde_sample_freq=4)
