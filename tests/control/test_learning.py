"""The shipped settings learn what they are shipped for."""

from __future__ import annotations

import pytest

from zoo.algorithms import GRPO, PPO

QUIET = ["eval.every=1_000_000_000", "eval.at_end=false"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_ppo_balances_cartpole_within_a_hundred_thousand_steps(seed: int) -> None:
    algorithm = PPO("CartPole-v1", seed=seed, overrides=QUIET).train(100_000)
    assert algorithm.evaluate(episodes=20)["return_mean"] >= 495
    algorithm.close()


@pytest.mark.slow
def test_ppo_swings_up_the_pendulum_within_a_hundred_thousand_steps() -> None:
    algorithm = PPO("Pendulum-v1", seed=1, overrides=QUIET).train(100_000)
    assert algorithm.evaluate(episodes=200)["return_mean"] >= -175
    algorithm.close()


@pytest.mark.slow
def test_grpo_balances_cartpole_within_three_hundred_thousand_steps() -> None:
    algorithm = GRPO("CartPole-v1", seed=1, overrides=QUIET)
    reached = False
    for _ in range(10):
        algorithm.train(30_000)
        reached = reached or algorithm.evaluate(episodes=20)["return_mean"] >= 475
    assert reached
    algorithm.close()
