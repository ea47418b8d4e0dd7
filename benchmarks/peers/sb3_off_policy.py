"""SAC and TD3 on Pendulum-v1, DQN on CartPole-v1: this library's speed and Stable-Baselines3's.

Both get the same hyperparameters, networks, updates per step and number of threads.

    python -m zoo.benchmarks.peers.sb3_off_policy sac --runs 5 --out sb3-sac.results.json
    zoo report sb3-sac.results.json --baseline "SB3 SAC"
"""

from __future__ import annotations

from typing import Any

from zoo.benchmarks.peers.alternate import alternate, arguments_of, module

__all__ = ["TASKS", "main"]

_SAC = {
    "algo": "sac",
    "env": "Pendulum-v1",
    "steps": 20_000,
    "hidden_sizes": [256, 256],
    "num_envs": 1,
    "batch_size": 256,
    "capacity": 200_000,
    "learning_starts": 100,
    "train_frequency": 1,
    "updates": 1,
    "lr": 1e-3,
    "gamma": 0.99,
    "tau": 0.005,
}
#: rl-zoo's settings, as in conf/tuned, on networks of one size; Stable-Baselines3 has no double
#: Q-learning, so it is off on both sides
TASKS: dict[str, dict[str, Any]] = {
    "sac": _SAC,
    "td3": {**_SAC, "algo": "td3", "learning_starts": 10_000, "gamma": 0.98, "noise": 0.1},
    "dqn": {
        "algo": "dqn",
        "env": "CartPole-v1",
        "steps": 50_000,
        "hidden_sizes": [256, 256],
        "num_envs": 1,
        "batch_size": 64,
        "capacity": 100_000,
        "learning_starts": 1_000,
        "train_frequency": 256,
        "updates": 128,
        "lr": 2.3e-3,
        "gamma": 0.99,
        "double": False,
        "target_interval": 10,
        "exploration_fraction": 0.16,
        "exploration_final": 0.04,
    },
}


def main() -> None:
    """Run the comparison."""
    arguments = arguments_of(__doc__, sorted(TASKS)).parse_args()
    sides = {"zoo": module("zoo_side"), "SB3": module("sb3_side")}
    alternate(TASKS[arguments.task], sides, arguments)


if __name__ == "__main__":
    main()
