"""What the tests of the command line share."""

from __future__ import annotations

from collections.abc import Callable

Command = Callable[..., tuple[int, str, str]]

#: as short as a run can be and still collect, learn, evaluate and save
SHORT = [
    "algo=ppo",
    "env=CartPole-v1",
    "seed=1",
    "total_steps=256",
    "rollout.num_envs=4",
    "rollout.steps=32",
    "algo.epochs=1",
    "eval.every=128",
    "eval.options.episodes=2",
    "model.hidden_sizes=[8]",
]
