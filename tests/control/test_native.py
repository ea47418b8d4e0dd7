"""Gymnasium's vectorised CartPole gives the scalar one's transitions, to the last bit."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

from zoo.envs.control import ControlEnv
from zoo.errors import UserError
from zoo.rollouts.gymnasium import GymnasiumRollout
from zoo.rollouts.gymnasium_envs import Envs, EpisodeSeeds, LocalEnvs
from zoo.rollouts.native import NativeEnvs

N = 5


def _balancing(observation: np.ndarray, rng: np.random.Generator) -> list[int]:
    """Balance the first environment until its time is up; let chance fell the others."""
    actions = rng.integers(0, 2, len(observation))
    actions[0] = observation[0, 2] + 0.5 * observation[0, 3] + 0.1 * observation[0, 1] > 0
    return [int(action) for action in actions]


def _play(envs: Envs, steps: int, drop: float = 0.0) -> list[np.ndarray]:
    rng, rows = np.random.default_rng(0), []
    observation = np.zeros((N, 4), np.float32)
    envs.reset(observation)
    for _ in range(steps):
        actions = _balancing(observation, rng)
        held = rng.random(N) < drop
        listed = [None if h else a for a, h in zip(actions, held, strict=True)]
        reward, flags = np.zeros(N, np.float32), np.zeros((2, N), bool)
        finals = envs.step(listed, observation, reward, flags[0], flags[1])
        last = np.zeros((N, 4), np.float32)
        for i, final in finals:
            last[i] = final
        rows.append(np.column_stack([observation, reward, *flags, last]))
    return rows


@pytest.mark.parametrize("drop", [0.0, 0.3], ids=["all-step", "some-hold-still"])
def test_transitions_are_those_of_the_scalar_environment(drop: float) -> None:
    make, seeds = ControlEnv("CartPole-v1"), EpisodeSeeds(3, 0)
    scalar = _play(LocalEnvs(make, N, seeds), 3000, drop)
    native = _play(NativeEnvs(make, N, seeds), 3000, drop)
    np.testing.assert_array_equal(native, scalar)
    rows = np.array(scalar)
    assert rows[:, :, 5].sum() > 100 and rows[:, :, 6].sum() >= 3  # fell, and 500 steps were up


def test_an_episode_starts_from_its_own_seed_wherever_it_is_played() -> None:
    make, seeds = ControlEnv("CartPole-v1"), EpisodeSeeds(3, 0)
    few, many = np.zeros((2, 4), np.float32), np.zeros((4, 4), np.float32)
    NativeEnvs(make, 2, seeds).reset(few)
    NativeEnvs(make, 4, seeds).reset(many)
    np.testing.assert_array_equal(few, many[:2])
    assert len(np.unique(many, axis=0)) == 4


def test_time_limits_and_options_are_the_scalar_environments() -> None:
    make = ControlEnv("CartPole-v1", max_episode_steps=7, options={"sutton_barto_reward": True})
    seeds = EpisodeSeeds(0, 0)
    scalar, native = _play(LocalEnvs(make, N, seeds), 40), _play(NativeEnvs(make, N, seeds), 40)
    np.testing.assert_array_equal(native, scalar)
    assert np.array(scalar)[:, :, 6].sum() >= 5 * N


def test_interrupted_episodes_are_followed_and_one_that_ends_early_is_not() -> None:
    make, seeds = ControlEnv("CartPole-v1"), EpisodeSeeds(1, 0)
    actions = [[1, 0, 1], [], [1] * 40]  # pushed to one side for ever, a pole falls
    seen = [np.zeros((3, 4), np.float32) for _ in range(2)]
    envs: list[Envs] = [LocalEnvs(make, 3, seeds), NativeEnvs(make, 3, seeds)]
    followed = [e.replay(s, [4, 0, 2], actions) for e, s in zip(envs, seen, strict=True)]
    assert followed == [[True, True, False]] * 2
    np.testing.assert_array_equal(*seen)
    assert [e.episodes() for e in envs] == [[4, 0, 3]] * 2


def test_rollouts_are_the_same_bits() -> None:
    from zoo.policies.mlp import MLPPolicy

    batches = []
    for vector in ("sync", "native"):
        rollout = GymnasiumRollout(ControlEnv("CartPole-v1"), 4, 300, seed=2, vector=vector)  # type: ignore[arg-type]
        import torch

        torch.manual_seed(0)
        policy = MLPPolicy(rollout.observation_space, rollout.action_space)
        batches.append([rollout.collect(policy) for _ in range(2)][1])
    assert all(batches[0][key].equal(batches[1][key]) for key in sorted(batches[0].keys()))


@pytest.mark.parametrize(
    "make",
    [
        ControlEnv("Acrobot-v1"),
        lambda: gymnasium.wrappers.TransformReward(gymnasium.make("CartPole-v1"), float),
    ],
    ids=["another-environment", "wrapped"],
)
def test_what_has_no_vectorised_form_is_refused(make: object) -> None:
    with pytest.raises(UserError, match=r"rollout\.vector=sync"):
        GymnasiumRollout(make, 2, 8, vector="native")  # type: ignore[arg-type]
