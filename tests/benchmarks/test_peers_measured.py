"""Another library's policy is measured on the starts of this library's own evaluation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from zoo.algorithms import PPO
from zoo.benchmarks.peers.measured import mean_return


def test_a_policy_has_the_return_that_evaluate_gives_it() -> None:
    ppo = PPO("Pendulum-v1", seed=1)
    actor = ppo.policy.eval().actor(1, 1, None)

    def act(seen: np.ndarray) -> Any:
        return ppo.trainer.rollout.env_actions(actor(np.asarray(seen, np.float32)[None], 0))[0]

    own = ppo.evaluate(episodes=3)["return_mean"]
    assert mean_return("Pendulum-v1", act, episodes=3) == pytest.approx(own, rel=1e-6)
