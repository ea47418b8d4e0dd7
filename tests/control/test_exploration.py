"""Exploration: frequencies with fixed seeds, hand-worked choices, and what must survive a save."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from zoo.errors import UserError
from zoo.policies.categorical_q import CategoricalQPolicy
from zoo.policies.control import MLPKnobs
from zoo.policies.deterministic import DeterministicPolicy
from zoo.policies.exploration import (
    ActionNoise,
    EpsilonGreedy,
    ExplorationKnobs,
    NoiseKnobs,
    Softmax,
    decayed,
    warmup_steps,
)
from zoo.policies.q_network import QNetworkPolicy
from zoo.policies.squashed import SquashedGaussianPolicy
from zoo.policies.ucb import UCB
from zoo.rollouts.gymnasium import GymnasiumRollout

BOX = spaces.Box(-1, 1, (3,), np.float32)
ACTIONS = spaces.Box(np.float32([-2, 0]), np.float32([2, 10]))  # type: ignore[arg-type]
DISCRETE = spaces.Discrete(4, start=2)
KNOBS = MLPKnobs(hidden_sizes=(8,))
VALUES = np.array([0.1, 0.9, 0.3, 0.5], np.float32)


def q_policy(warmup: int = 0, **knobs: Any) -> QNetworkPolicy:
    return QNetworkPolicy(
        BOX, DISCRETE, KNOBS, exploration=ExplorationKnobs(**knobs), warmup=warmup
    )


def td3(warmup: int = 0, **knobs: Any) -> DeterministicPolicy:
    return DeterministicPolicy(BOX, ACTIONS, KNOBS, noise=NoiseKnobs(**knobs), warmup=warmup)


POLICIES: dict[str, Callable[..., Any]] = {
    "epsilon": lambda **k: q_policy(kind="epsilon", initial=0.5, final=0.2, fraction=0.5, **k),
    "boltzmann": lambda **k: q_policy(kind="boltzmann", **k),
    "gumbel": lambda **k: q_policy(kind="gumbel", temperature=2.0, **k),
    "ucb": lambda **k: q_policy(kind="ucb", bins=2, **k),
    "gaussian": lambda **k: td3(kind="gaussian", std=0.3, **k),
    "ou": lambda **k: td3(kind="ou", std=0.5, dt=0.5, **k),
    "squashed": lambda **k: SquashedGaussianPolicy(BOX, ACTIONS, KNOBS, **k),
    "squashed ou": lambda **k: SquashedGaussianPolicy(
        BOX, ACTIONS, KNOBS, noise=NoiseKnobs("ou"), **k
    ),
    "categorical": lambda **k: CategoricalQPolicy(BOX, DISCRETE, KNOBS, **k),
}


def choose(choice: Any, values: np.ndarray, observation: np.ndarray, step: int = 0) -> np.ndarray:
    action = np.zeros(len(values), np.int64)
    choice(values, observation, step, action)
    return action


# ε-greedy.


def test_golden_20_every_environment_draws_for_itself() -> None:
    strategy = EpsilonGreedy(ExplorationKnobs(initial=0.5, final=0.5))
    actions = 10_000  # so many that a random one is never the greedy one
    values = np.zeros((1_000, actions), np.float32)
    values[:, 7] = 1.0
    choice = strategy.begin((50, 1_000, actions), np.random.default_rng(0), 0, 100)
    counts = [int((choose(choice, values, values, t) != 7).sum()) for t in range(50)]
    assert min(counts) > 430 and max(counts) < 570  # 500 ± 15.8 each
    assert np.mean(counts) == pytest.approx(500, abs=7) and len(set(counts)) > 10
    for epsilon, expected in ((0.0, 0), (1.0, 1_000)):
        sure = EpsilonGreedy(ExplorationKnobs(initial=epsilon, final=epsilon))
        choice = sure.begin((1, 1_000, actions), np.random.default_rng(0), 0, 100)
        assert (choose(choice, values, values) != 7).sum() == pytest.approx(expected, abs=2)


def test_frequencies_and_log_probabilities_of_epsilon_greedy() -> None:
    strategy = EpsilonGreedy(ExplorationKnobs(initial=0.4, final=0.4))
    values = np.tile(VALUES, (40_000, 1))
    choice = strategy.begin((1, 40_000, 4), np.random.default_rng(0), 0, 100)
    action = choose(choice, values, values)
    expected = np.array([0.1, 0.7, 0.1, 0.1])
    np.testing.assert_allclose(np.bincount(action) / 40_000, expected, atol=0.01)
    log_prob = choice.log_prob(values[None], action[None])[0]
    np.testing.assert_allclose(log_prob, np.log(expected)[action], rtol=1e-6)


def test_decay_of_epsilon_by_hand() -> None:
    share = np.array([0.0, 0.5, 1.0, 3.0])
    assert decayed(1.0, 0.1, "linear", share).tolist() == pytest.approx([1.0, 0.55, 0.1, 0.1])
    falling = decayed(0.4, 0.1, "exponential", share)
    assert falling.tolist() == pytest.approx([0.4, 0.2, 0.1, 0.1])
    strategy = EpsilonGreedy(ExplorationKnobs(final=0.0, fraction=0.1))
    done = np.array([0, 25, 50, 100, 900])
    assert strategy.epsilon(done, 1_000).tolist() == pytest.approx([1.0, 0.75, 0.5, 0.0, 0.0])
    falling = ExplorationKnobs(initial=0.4, final=0.1, fraction=1.0, schedule="exponential")
    assert EpsilonGreedy(falling).epsilon(np.array([500]), 1_000).tolist() == pytest.approx([0.2])
    at_once = EpsilonGreedy(ExplorationKnobs(final=0.3, fraction=0.0))
    assert at_once.epsilon(done, 1_000).tolist() == pytest.approx([0.3] * 5)


def test_epsilon_decays_within_a_fragment_by_the_steps_of_all_environments() -> None:
    policy = q_policy(final=0.0, fraction=1.0)
    policy.done, policy.total = 40, 100
    actor = policy.actor(10, 6, np.random.default_rng(0))
    observation = np.zeros((10, 3), np.float32)
    for t in range(6):
        actor(observation, t)
    greedy = policy.act(observation[:1], np.random.default_rng(0), deterministic=True)[0][0]
    epsilon = 1 - (40 + 10 * np.arange(6)) / 100
    chosen = actor.action == greedy
    expected = np.log(epsilon[:, None] / 4 + (1 - epsilon[:, None]) * chosen)
    np.testing.assert_allclose(actor.log_prob(6), expected, rtol=1e-5)


# Softmax.


@pytest.mark.parametrize("kind", ["boltzmann", "gumbel"])
def test_boltzmann_and_gumbel_max_are_the_same_distribution(kind: Any) -> None:
    strategy = Softmax(ExplorationKnobs(kind, temperature=0.5))
    values = np.tile(VALUES, (100_000, 1))
    choice = strategy.begin((1, 100_000, 4), np.random.default_rng(0), 0, 0)
    action = choose(choice, values, values)
    weights = np.exp(VALUES / 0.5)
    expected = weights / weights.sum()
    np.testing.assert_allclose(np.bincount(action) / 100_000, expected, atol=0.006)
    log_prob = choice.log_prob(values[None], action[None])[0]
    np.testing.assert_allclose(log_prob, np.log(expected)[action], rtol=1e-5)


@pytest.mark.parametrize("kind", ["boltzmann", "gumbel"])
def test_a_small_temperature_is_greedy_and_large_values_do_not_overflow(kind: Any) -> None:
    strategy = Softmax(ExplorationKnobs(kind, temperature=1e-4))
    values = np.float32([[1e4, 2e4], [-1e4, -2e4], [3e4, 3e4 - 1]])
    choice = strategy.begin((1, 3, 2), np.random.default_rng(0), 0, 0)
    assert choose(choice, values, values).tolist() == [1, 0, 0]


def test_boltzmann_never_leaves_the_actions_there_are() -> None:
    choice = Softmax(ExplorationKnobs("boltzmann")).begin((1, 2, 3), np.random.default_rng(0), 0, 0)
    choice.noise[:] = [0.0, 1.0 - 2**-53]  # type: ignore[attr-defined]
    assert choose(choice, np.zeros((2, 3), np.float32), np.zeros((2, 1))).tolist() == [0, 2]


# UCB.


def test_upper_confidence_bounds_by_hand() -> None:
    strategy = UCB(ExplorationKnobs("ucb", bonus=1.0), spaces.Discrete(2), 2)
    choice = strategy.begin((1, 1, 2), np.random.default_rng(0), 0, 0)
    values, state = np.float32([[1.0, 0.5]]), np.array([0])
    # 0 and then 1 as untried ones; n = (1, 1): 1.83 > 1.33; (2, 1): 1.74 > 1.55;
    # (3, 1): 1.680 > 1.677; (4, 1): 1.63 < 1.77
    chosen = [int(choose(choice, values, state)[0]) for _ in range(6)]
    assert chosen == [0, 1, 0, 0, 0, 1]
    assert strategy.visits(np.array([0, 1])).tolist() == [[4.0, 2.0], [0.0, 0.0]]
    assert choose(choice, values, np.array([1])).tolist() == [0]  # another state starts afresh
    assert choice.log_prob(values[None], np.zeros((1, 1), np.int64)).tolist() == [[0.0]]


def test_environments_in_one_state_try_different_actions() -> None:
    strategy = UCB(ExplorationKnobs("ucb"), spaces.Discrete(5, start=3), 4)
    values = np.tile(VALUES, (4, 1))
    assert choose(strategy, values, np.full(4, 3)).tolist() == [1, 3, 2, 0]


def test_a_box_is_cut_into_bins_between_its_bounds_or_within_the_span() -> None:
    low, high = np.float32([0, -np.inf]), np.float32([10, np.inf])
    strategy = UCB(ExplorationKnobs("ucb", bins=5, span=1.0), spaces.Box(low, high), 2)
    seen = np.float32([[0, -1], [1.99, -0.61], [2, -0.59], [10, 1], [99, 99], [-1, -99]])
    expected = [[0, 0], [0, 0], [1, 1], [4, 4], [4, 4], [0, 0]]
    assert strategy._bins(seen).tolist() == expected
    half = UCB(ExplorationKnobs("ucb", bins=2), spaces.Box(low[:1], np.float32([np.inf])), 2)
    assert half._bins(np.float32([[-0.1], [0.1]])).tolist() == [[0], [1]]  # 0 … ∞ is no range
    # CartPole's speeds are bounded by the largest float32, which is no bound to count within
    wide = np.float32([3e38, 4])
    strategy = UCB(ExplorationKnobs("ucb", bins=2, span=2.0), spaces.Box(-wide, wide), 2)
    assert strategy._bins(np.float32([[-0.1, -0.1], [0.1, 3.9]])).tolist() == [[0, 0], [1, 1]]


def test_normalised_observations_are_counted_within_the_span() -> None:
    far, knobs = spaces.Box(900, 1000, (1,)), ExplorationKnobs("ucb", bins=2, span=1.0)
    for normalised, expected in ((False, [[0], [0]]), (True, [[0], [1]])):
        shape = MLPKnobs(hidden_sizes=(8,), normalize_observation=normalised)
        policy: Any = QNetworkPolicy(far, DISCRETE, shape, exploration=knobs)
        assert policy.exploration._bins(np.float32([[-0.5], [0.5]])).tolist() == expected


def test_counts_grow_without_bound_and_survive_a_save() -> None:
    strategy = UCB(ExplorationKnobs("ucb", bins=1000), spaces.Box(0, 1, (2,)), 3)
    rng = np.random.default_rng(0)
    for _ in range(20):
        choose(strategy, rng.random((30, 3)), rng.random((30, 2)))
    again = UCB(ExplorationKnobs("ucb", bins=1000), spaces.Box(0, 1, (2,)), 3)
    assert again.state_dict()["counts"].shape == (0, 3)
    again.load_state_dict(copy.deepcopy(strategy.state_dict()))
    assert float(again.state_dict()["counts"].sum()) == 600
    for _ in range(20):
        values, seen = rng.random((30, 3)), rng.random((30, 2))
        assert np.array_equal(strategy.visits(seen), again.visits(seen))
        assert np.array_equal(choose(strategy, values, seen), choose(again, values, seen))


def test_counts_of_discrete_observations_survive_a_save() -> None:
    strategy, again = (UCB(ExplorationKnobs("ucb"), spaces.Discrete(9), 3) for _ in range(2))
    choose(strategy, np.tile(VALUES[:3], (5, 1)), np.array([1, 8, 1, 4, 1]))
    again.load_state_dict(strategy.state_dict())
    assert again.visits(np.array([1, 8])).tolist() == [[1.0, 1.0, 1.0], [0.0, 1.0, 0.0]]
    choose(again, VALUES[None, :3], np.array([8]))
    assert strategy.visits(np.array([8])).tolist() == [[0.0, 1.0, 0.0]]


def test_counting_what_hardly_ever_repeats_is_refused() -> None:
    with pytest.raises(UserError, match="hardly ever fall into one bin twice"):
        UCB(ExplorationKnobs("ucb"), spaces.Box(0, 255, (8, 8), np.uint8), 2)


# Noise on continuous actions.


def test_gaussian_noise_has_the_same_size_in_units_of_each_range() -> None:
    policy = td3(std=0.1)
    observation = np.zeros((20_000, 3), np.float32)
    action, log_prob = policy.act(observation, np.random.default_rng(0))
    mean = policy.act(observation[:1], np.random.default_rng(0), deterministic=True)[0][0]
    np.testing.assert_allclose(action.std(0), [0.2, 0.5], rtol=0.02)
    np.testing.assert_allclose(action.mean(0), mean, atol=0.02)
    assert np.isnan(log_prob).all()
    large, _ = td3(std=5.0).act(observation, np.random.default_rng(0))
    assert large.min(0).tolist() == [-2, 0] and large.max(0).tolist() == [2, 10]


def test_noise_is_added_to_the_squashed_action_and_cut_off_there() -> None:
    policy, observation = (
        td3(std=0.8),
        np.random.default_rng(1).standard_normal((50, 3), np.float32),
    )
    mode = policy.act(observation, np.random.default_rng(0), deterministic=True)[0].copy()
    action, _ = policy.act(observation, np.random.default_rng(5))
    draws = np.random.default_rng(5).standard_normal((1, 50, 2), dtype=np.float32)[0]
    y = np.clip((mode - [0, 5]) / [2, 5] + 0.8 * draws, -1, 1)
    np.testing.assert_allclose(action, [0, 5] + y * [2, 5], rtol=1e-5, atol=1e-5)


def test_ornstein_uhlenbeck_noise_by_hand() -> None:
    noise = ActionNoise(NoiseKnobs("ou", std=0.2, theta=0.5, dt=0.25), size=1)
    noise.begin(4, 2, np.random.default_rng(3))
    draws = np.random.default_rng(3).standard_normal((4, 2, 1), dtype=np.float32) * 0.1  # .2·√.25
    first = noise(0).copy()
    np.testing.assert_allclose(first, draws[0], rtol=1e-6)
    second = noise(1).copy()
    np.testing.assert_allclose(second, 0.875 * first + draws[1], rtol=1e-5)  # 1 − .5·.25
    noise.ended(np.array([True, False]))
    third = noise(2)
    np.testing.assert_allclose(third[0], draws[2, 0], rtol=1e-6)
    np.testing.assert_allclose(third[1], 0.875 * second[1] + draws[2, 1], rtol=1e-5)


def test_ornstein_uhlenbeck_noise_settles_at_its_deviation() -> None:
    noise = ActionNoise(NoiseKnobs("ou", std=0.3, theta=0.5, dt=0.1), size=1)
    noise.begin(300, 2_000, np.random.default_rng(0))
    last = np.stack([noise(t) for t in range(300)])[-1]
    assert last.std() == pytest.approx(0.3 / math.sqrt(2 * 0.5 - 0.5**2 * 0.1), rel=0.05)


def test_noise_starts_afresh_with_another_number_of_environments() -> None:
    noise = ActionNoise(NoiseKnobs("ou", std=0.2), size=1)
    noise.begin(1, 2, np.random.default_rng(0))
    noise(0)
    noise.begin(1, 3, np.random.default_rng(0))
    assert noise.state_dict()["noise"].tolist() == [[0.0]] * 3


def test_the_rollout_ends_the_noise_with_the_episode() -> None:
    def make() -> gymnasium.Env[Any, Any]:
        return gymnasium.make("Pendulum-v1", max_episode_steps=3)

    rollout = GymnasiumRollout(make, num_envs=2, steps=3, seed=0)
    policy = DeterministicPolicy(
        rollout.observation_space, rollout.action_space, KNOBS, noise=NoiseKnobs("ou", std=0.5)
    )
    batch = rollout.collect(policy)
    assert batch["truncated"].tolist() == [[False, False, True]] * 2
    assert policy.get_extra_state()["noise"].abs().max() == 0
    rollout.steps = 2
    rollout.collect(policy)
    assert policy.get_extra_state()["noise"].abs().min() > 0
    rollout.close()


# Warm-up.


def test_warm_up_lasts_for_exactly_so_many_environment_steps() -> None:
    expected = [
        (0, 4, 5, 3),
        (4, 4, 5, 2),
        (9, 4, 5, 1),
        (10, 4, 5, 0),
        (99, 4, 5, 0),
        (0, 1, 2, 2),
    ]
    for done, num_envs, steps, count in expected:
        assert warmup_steps(10, done, num_envs, steps) == count


@pytest.mark.parametrize("kind", POLICIES)
def test_golden_16_warm_up_is_uniform_seeded_and_ends_within_a_fragment(kind: str) -> None:
    policy, bare = POLICIES[kind](warmup=6_000), POLICIES[kind]()
    with torch.no_grad():  # a head of gain .01 is as good as uniform itself
        for parameter in policy.parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
    bare.load_state_dict(policy.state_dict())
    policy.done, policy.total, observation = 2_000, 10_000, np.zeros((2_000, 3), np.float32)

    def run(seed: int) -> tuple[np.ndarray, np.ndarray]:
        fresh = copy.deepcopy(policy)
        actor = fresh.actor(2_000, 3, np.random.default_rng(seed))
        for t in range(3):
            actor(observation, t)
        return actor.action, actor.log_prob(3)

    (action, log_prob), (same, _), (other, _) = run(0), run(0), run(1)
    assert np.array_equal(action, same) and not np.array_equal(action[:2], other[:2])
    if action.ndim == 2:
        shares = np.bincount(action[:2].reshape(-1) - 2, minlength=4) / 4_000
        np.testing.assert_allclose(shares, 0.25, atol=0.03)
        uniform = -math.log(4)
    else:
        y = (action[:2].reshape(-1, 2) - [0, 5]) / [2, 5]
        np.testing.assert_allclose(y.mean(0), 0.0, atol=0.04)
        np.testing.assert_allclose(y.std(0), 3**-0.5, atol=0.02)
        assert np.abs(y).max() <= 1 and np.abs(y).max(0).min() > 0.99
        uniform = -2 * math.log(2)
    np.testing.assert_allclose(log_prob[:2], uniform, rtol=1e-6)
    assert not np.allclose(log_prob[2], uniform, rtol=1e-3)
    deterministic, _ = policy.act(observation[:5], np.random.default_rng(0), deterministic=True)
    assert np.array_equal(
        deterministic, bare.act(observation[:5], np.random.default_rng(0), True)[0]
    )


# What an evaluation must leave alone, and what a saved run needs.


@pytest.mark.parametrize("kind", POLICIES)
def test_a_policy_that_is_measured_neither_explores_nor_remembers(kind: str) -> None:
    policy = POLICIES[kind](warmup=100)
    observation = np.random.default_rng(0).standard_normal((50, 3), np.float32)
    policy.actor(50, 1, np.random.default_rng(0))(observation, 0)
    before = copy.deepcopy(policy.state_dict())
    policy.eval()
    sampled, _ = policy.act(observation, np.random.default_rng(1))
    mode, _ = policy.act(observation, np.random.default_rng(1), deterministic=True)
    distribution = kind in ("boltzmann", "gumbel", "squashed", "squashed ou", "categorical")
    assert np.array_equal(sampled, mode) != distribution
    for key, value in policy.state_dict().items():
        if key == "_extra_state":
            for name, kept in value.items():
                assert torch.equal(kept, before[key][name])
        else:
            assert torch.equal(value, before[key])


@pytest.mark.parametrize("kind", POLICIES)
def test_a_saved_and_loaded_run_acts_on_bit_for_bit(kind: str) -> None:
    policy, rng = POLICIES[kind](warmup=12), np.random.default_rng(0)
    seen = np.random.default_rng(1).standard_normal((40, 4, 3)).astype(np.float32)
    policy.total = 160

    def play(policy: Any, rng: np.random.Generator, first: int, last: int) -> np.ndarray:
        rows = []
        for t in range(first, last):
            policy.done = 4 * t
            actor = policy.actor(4, 1, rng)
            rows.append(actor(seen[t], 0).copy())
            if actor.follows_episodes:
                actor.ended(np.arange(4) == t % 7)
        return np.stack(rows)

    play(policy, rng, 0, 20)
    state, stream = copy.deepcopy(policy.state_dict()), copy.deepcopy(rng.bit_generator.state)
    expected = play(policy, rng, 20, 40)
    fresh, other = POLICIES[kind](warmup=12), np.random.default_rng(9)
    fresh.load_state_dict(state)
    fresh.total, other.bit_generator.state = 160, stream
    assert np.array_equal(play(fresh, other, 20, 40), expected)


def test_a_loaded_state_does_not_follow_the_policy_it_came_from() -> None:
    policy, fresh = td3(kind="ou"), td3(kind="ou")
    observation = np.zeros((2, 3), np.float32)
    policy.act(observation, np.random.default_rng(0))
    fresh.load_state_dict(policy.state_dict())
    kept = fresh.get_extra_state()["noise"].clone()
    policy.act(observation, np.random.default_rng(1))
    assert torch.equal(fresh.get_extra_state()["noise"], kept)
    assert not torch.equal(policy.get_extra_state()["noise"], kept)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: ExplorationKnobs(initial=1.5), r"0 ≤ initial ≤ 1"),
        (lambda: ExplorationKnobs(final=-0.1), r"0 ≤ final ≤ 1"),
        (lambda: ExplorationKnobs(fraction=1.1), r"0 ≤ fraction ≤ 1"),
        (lambda: ExplorationKnobs(temperature=0.0), "temperature > 0"),
        (lambda: ExplorationKnobs(bonus=-1.0), "bonus ≥ 0"),
        (lambda: ExplorationKnobs(bins=0), "bins ≥ 1"),
        (lambda: ExplorationKnobs(span=0.0), "span > 0"),
        (lambda: ExplorationKnobs(schedule="exponential", final=0.0), "must be positive"),
        (lambda: ExplorationKnobs(schedule="exponential", initial=0.0), "must be positive"),
        (lambda: NoiseKnobs(std=-1.0), "std ≥ 0"),
        (lambda: NoiseKnobs(theta=-1.0), "theta ≥ 0"),
        (lambda: NoiseKnobs(dt=0.0), "dt > 0"),
    ],
)
def test_knobs_that_cannot_be_drawn_are_refused(made: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        made()
