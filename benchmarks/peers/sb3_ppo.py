"""PPO on CartPole-v1: environment steps per second of this library and of Stable-Baselines3.

Both get the same hyperparameters, network, number of environments and number of threads.

    python -m zoo.benchmarks.peers.sb3_ppo tuned --runs 5 --out sb3.results.json
    zoo report sb3.results.json --baseline "SB3 PPO"
"""

from __future__ import annotations

from typing import Any

from zoo.benchmarks.peers.alternate import alternate, arguments_of, module

__all__ = ["TASKS", "main"]

_TUNED = {
    "algo": "ppo",
    "env": "CartPole-v1",
    "steps": 100_000,
    "hidden_sizes": [64, 64],
    "num_envs": 8,
    "rollout_steps": 32,
    "minibatch_size": 256,
    "epochs": 10,
    "gamma": 0.98,
    "gae_lambda": 0.8,
    "lr": 1e-3,
    "linear": True,
}
#: ours for CartPole-v1 (conf/tuned/ppo), rl-zoo's for it, and SB3's defaults with one environment
TASKS: dict[str, dict[str, Any]] = {
    "tuned": _TUNED,
    "rl-zoo": {**_TUNED, "epochs": 20},
    "defaults": {
        **_TUNED,
        "num_envs": 1,
        "rollout_steps": 2048,
        "minibatch_size": 64,
        "gamma": 0.99,
        "gae_lambda": 0.95,
        "lr": 3e-4,
        "linear": False,
    },
}


def main() -> None:
    """Run the comparison."""
    arguments = arguments_of(__doc__, sorted(TASKS)).parse_args()
    sides = {"zoo": module("zoo_side"), "SB3": module("sb3_side")}
    alternate(TASKS[arguments.task], sides, arguments)


if __name__ == "__main__":
    main()
