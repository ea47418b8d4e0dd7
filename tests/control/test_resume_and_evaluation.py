"""Interrupted rollouts continue bit for bit; evaluation is fixed, frozen and apart."""

from __future__ import annotations

import copy
import io
import sys
import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from counter_env import Counter

from zoo.errors import UserError
from zoo.policies.mlp import MLPKnobs, MLPPolicy
from zoo.rollouts.gymnasium import GymnasiumRollout
from zoo.rollouts.gymnasium_envs import EpisodeEnv, EpisodeSeeds
from zoo.rollouts.gymnasium_evaluation import play, student_t


def pair(env: Any, **options: Any) -> tuple[GymnasiumRollout, MLPPolicy]:
    torch.manual_seed(0)
    made = GymnasiumRollout(env, **options)
    knobs = MLPKnobs(hidden_sizes=(8,), normalize_observation=True)
    return made, MLPPolicy(made.observation_space, made.action_space, knobs)


def stored(*states: Any) -> list[Any]:
    file = io.BytesIO()
    torch.save(list(states), file)
    file.seek(0)
    loaded: list[Any] = torch.load(file, weights_only=True)
    return loaded


def installed(name: str) -> str:
    try:
        gymnasium.make(name).close()
    except gymnasium.error.DependencyNotInstalled:
        pytest.skip(f"{name} is not installed")
    return name


@pytest.mark.parametrize("way", [{}, {"autoreset": "next_step"}, {"vector": "async"}])
@pytest.mark.parametrize(
    "name", ["CartPole-v1", "Pendulum-v1", "LunarLander-v3", "BipedalWalker-v3", "Hopper-v5"]
)
def test_golden_14_an_interrupted_rollout_continues_bit_for_bit(name: str, way: Any) -> None:
    installed(name)
    whole, policy = pair(name, num_envs=3, steps=37, **way)
    for _ in range(2):
        whole.collect(policy)
    states = stored(whole.state_dict(), policy.state_dict())
    resumed, same = pair(name, num_envs=3, steps=37, **way)
    same.load_state_dict(states[1])
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        resumed.load_state_dict(states[0])
    for _ in range(8):
        expected, batch = whole.collect(policy), resumed.collect(same)
        for key in expected.keys():  # noqa: SIM118  a TensorDict iterates over rows
            assert torch.equal(expected[key], batch[key]), key
        assert whole.report() == resumed.report()
    again, other = whole.state_dict(), resumed.state_dict()
    assert all(map(torch.equal, again.pop("history"), other.pop("history")))
    assert torch.equal(again.pop("observation"), other.pop("observation"))
    assert again == other
    whole.close()
    resumed.close()


def test_golden_14_groups_continue_bit_for_bit() -> None:
    whole, policy = pair("CartPole-v1", num_envs=4, group_size=2)
    whole.collect(policy)
    states = stored(whole.state_dict(), policy.state_dict())
    resumed, same = pair("CartPole-v1", num_envs=4, group_size=2)
    same.load_state_dict(states[1])
    resumed.load_state_dict(states[0])
    expected, batch = whole.collect(policy), resumed.collect(same)
    for key in expected.keys():  # noqa: SIM118
        assert torch.equal(expected[key], batch[key]), key


def test_a_state_before_the_first_step_can_be_loaded() -> None:
    fresh, policy = pair("CartPole-v1", num_envs=2, steps=5)
    resumed, same = pair("CartPole-v1", num_envs=2, steps=5)
    resumed.load_state_dict(stored(fresh.state_dict())[0])
    assert torch.equal(fresh.collect(policy)["reward"], resumed.collect(same)["reward"])


class Unseeded(Counter):
    """Draws from a source that no seed reaches."""

    source = np.random.default_rng()

    def step(self, action: int) -> Any:
        observation, *rest = super().step(action)
        return observation + self.source.random(1, np.float32), *rest


class Shorter(Counter):
    """Ends sooner in every new instance."""

    made = 30

    def __init__(self) -> None:
        type(self).made -= 4
        super().__init__(end=type(self).made)


@pytest.mark.parametrize("env", [lambda: Unseeded(50), Shorter])
def test_a_resume_that_is_not_bitwise_says_so(env: Any) -> None:
    whole, policy = pair(env, num_envs=1, steps=25)
    whole.collect(policy)
    resumed, _ = pair(env, num_envs=1, steps=5)
    with pytest.warns(UserWarning, match="environment 0 .* not bitwise"):
        resumed.load_state_dict(stored(whole.state_dict())[0])
    resumed.collect(policy)


def test_normalizer_counts_real_observations_once() -> None:
    for way in ({}, {"autoreset": "next_step"}, {"autoreset": "same_step"}):
        made, policy = pair(Counter, num_envs=2, steps=4, **way)
        made.collect(policy)
        # per environment 0 (reset), 1, 2, 3, 0 (reset), 1
        assert policy.normalizer is not None
        assert float(policy.normalizer.count) == 12
        assert policy.normalizer.mean.item() == pytest.approx(7 / 6)
        made.collect(policy)  # 2, 3, 0, 1, 2
        assert float(policy.normalizer.count) == 22
        assert policy.normalizer.mean.item() == pytest.approx(15 / 11)


def test_normalizer_counts_the_live_steps_of_groups_once() -> None:
    made, policy = pair(lambda: Counter(2, stagger=5), num_envs=4, group_size=1)
    batch = made.collect(policy)
    assert policy.normalizer is not None
    assert float(policy.normalizer.count) == 4 + int(batch["mask"].sum())


def test_next_observations_are_normalised_like_the_following_step() -> None:
    made, policy = pair("CartPole-v1", num_envs=3, steps=60)
    batch = made.collect(policy)
    same = (batch["observation"][:, 1:] == batch["next_observation"][:, :-1]).all(-1)
    ended = (batch["terminated"] | batch["truncated"])[:, :-1]
    assert torch.equal(same, ~ended) and ended.any()


def test_golden_15_evaluation_is_reproducible_and_leaves_training_alone() -> None:
    made, policy = pair("CartPole-v1", num_envs=2, steps=20)
    made.collect(policy)
    before = stored(made.state_dict(), policy.state_dict())
    twin, same = pair("CartPole-v1", num_envs=2, steps=20)
    same.load_state_dict(before[1])
    twin.load_state_dict(before[0])
    first = made.evaluate(policy, episodes=9, seed=5)
    sampled = made.evaluate(policy, episodes=9, seed=5, deterministic=False)
    assert made.evaluate(policy, episodes=9, seed=5) == first != sampled
    assert made.evaluate(policy, episodes=9, seed=5, deterministic=False) == sampled
    assert twin.evaluate(same, episodes=9, seed=5) == first
    assert made.evaluate(policy, episodes=9, seed=6) != first
    for key, value in before[1].items():
        assert torch.equal(policy.state_dict()[key], value)
    assert torch.equal(made.collect(policy)["observation"], twin.collect(same)["observation"])


def test_evaluation_applies_the_normalizer() -> None:
    made, policy = pair("CartPole-v1", num_envs=2, steps=50)
    made.collect(policy)
    with torch.no_grad():
        policy.policy_layers[-1].weight.mul_(100)
    with_it = made.evaluate(policy)
    assert policy.normalizer is not None
    policy.normalizer.mean += 100.0
    assert made.evaluate(policy) != with_it


@pytest.mark.parametrize("copies", [1, 3, 8])
def test_evaluation_plays_the_same_episodes_whatever_the_number_of_copies(copies: int) -> None:
    made, policy = pair(lambda: Counter(2, stagger=9), num_envs=1)
    expected = []
    env = Counter(2, stagger=9)
    for k in range(7):
        length = env.reset(seed=EpisodeSeeds(4, 3)(0, k))[1]["start"]
        expected.append(length * (length + 1) / 2)
    result = made.evaluate(policy, episodes=7, seed=4, num_envs=copies)
    assert result["return_mean"] == pytest.approx(np.mean(expected))
    assert result["return_std"] == pytest.approx(np.std(expected, ddof=1))
    half = 2.447 * np.std(expected, ddof=1) / np.sqrt(7)  # Student's t at 6 degrees of freedom
    assert result["return_ci95"] == pytest.approx(half, rel=1e-3)
    assert result["episodes"] == 7


class Gamble(Counter):
    """Short episodes are lost and long ones won, so counting what ends first would say lost."""

    def step(self, action: int) -> Any:
        seen, _, terminated, truncated, info = super().step(action)
        reward = (1.0 if self.last > 10 else -1.0) if terminated else 0.0
        return seen, reward, terminated, truncated, info

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        seen, info = super().reset(seed=seed)
        self.last = 40 if self.np_random.random() < 0.5 else 2
        return seen, info


@pytest.mark.parametrize("copies", [1, 3, 8])
def test_short_episodes_are_not_over_represented(copies: int) -> None:
    made, policy = pair(lambda: Gamble(2), num_envs=1)
    starts, env, expected = EpisodeSeeds(4, 3), Gamble(2), []
    for k in range(50):  # no multiple of 3 or 8
        env.reset(seed=starts(0, k))
        expected.append((1.0, 40) if env.last == 40 else (-1.0, 2))
    assert play(made, policy, 50, 4, True, copies) == expected
    result = made.evaluate(policy, episodes=50, seed=4, num_envs=copies)
    assert result["return_mean"] == np.mean([total for total, _ in expected])
    assert abs(result["return_mean"]) < 0.3  # the first 50 to end on 8 copies would be −0.9


@pytest.mark.parametrize("name", ["Pendulum-v1", "CartPole-v1"])
def test_a_deterministic_policy_returns_the_same_to_the_last_bit_on_any_number_of_copies(
    name: str,
) -> None:
    made, policy = pair(name, num_envs=2, steps=20)
    made.collect(policy)  # the normaliser has seen something
    first, *others = (play(made, policy, 10, 0, True, copies) for copies in (1, 3, 8))
    assert all(other == first for other in others)
    shown = made.enjoy(policy, episodes=10, render_mode=None)
    assert [(e["return"], e["length"]) for e in shown] == first


@pytest.mark.parametrize("name", ["CartPole-v1", "BipedalWalker-v3"])
def test_an_episode_is_the_same_whatever_was_played_before(name: str) -> None:
    def play(env: EpisodeEnv, seed: int) -> np.ndarray:
        rng = np.random.default_rng(0)
        seen, over = [env.reset(seed=seed)[0]], False
        while not over:
            action = rng.uniform(-1, 1, 4).astype(np.float32) if "Walker" in name else 1
            observation, _, terminated, truncated, _ = env.step(action)
            seen.append(observation)
            over = terminated or truncated or len(seen) > 100
        return np.stack(seen)

    installed(name)
    env = EpisodeEnv(lambda: gymnasium.make(name), EpisodeSeeds(0, 0), 0)
    first = play(env, 5)
    play(env, 1)
    assert np.array_equal(play(env, 5), first)


def test_evaluation_without_an_episode_is_refused() -> None:
    made, policy = pair(Counter, num_envs=1)
    with pytest.raises(UserError, match="episodes ≥ 1"):
        made.evaluate(policy, episodes=0)
    assert np.isnan(made.evaluate(policy, episodes=1)["return_ci95"])


@pytest.mark.parametrize(
    ("freedom", "quantile"), [(1, 12.706), (3, 3.182), (4, 2.776), (9, 2.262), (19, 2.093)]
)
def test_student_t_quantiles(freedom: int, quantile: float) -> None:
    assert student_t(freedom) == pytest.approx(quantile, rel=5e-3)


def test_enjoy_draws_text_from_the_first_observation_to_the_last() -> None:
    made = GymnasiumRollout("FrozenLake-v1", num_envs=1)
    policy = MLPPolicy(made.observation_space, made.action_space)
    (shown,) = made.enjoy(policy, episodes=1, render_mode="ansi")
    assert len(shown["frames"]) == shown["length"] + 1
    assert "FHFH" in shown["frames"][0]


@pytest.mark.parametrize("mode", ["human", "rgb_array"])
def test_enjoy_names_the_package_that_drawing_needs(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pygame", None)
    made, policy = pair("CartPole-v1", num_envs=1)
    with pytest.raises(UserError, match=r"pip install 'algorithm-zoo\[control\]'") as refusal:
        list(made.enjoy(policy, episodes=1, render_mode=mode))
    assert "\n" not in str(refusal.value)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_enjoy_refuses_modes_that_the_environment_lacks() -> None:
    made, policy = pair("CartPole-v1", num_envs=1)
    with pytest.raises(UserError, match="can't be shown as ansi: it has human, rgb_array"):
        list(made.enjoy(policy, render_mode="ansi"))


def test_enjoy_yields_the_episodes_of_the_evaluation() -> None:
    made, policy = pair("CartPole-v1", num_envs=1, steps=5)
    made.collect(policy)
    before = copy.deepcopy(policy.state_dict())
    shown = list(made.enjoy(policy, episodes=3, render_mode=None, seed=5))
    mean = made.evaluate(policy, episodes=3, seed=5)["return_mean"]
    assert np.mean([e["return"] for e in shown]) == mean
    assert all(torch.equal(v, before[k]) for k, v in policy.state_dict().items())


def test_a_factory_that_cannot_render_is_refused_for_watching() -> None:
    made, policy = pair(lambda: Counter(3), num_envs=1)
    with pytest.raises(UserError, match="render_mode"):
        next(made.enjoy(policy, render_mode="human"))
