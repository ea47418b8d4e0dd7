"""Stable-Baselines3's side of a comparison: ``python -m zoo.benchmarks.peers.sb3_side TASK``."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from importlib import metadata
from typing import Any

import numpy as np
import stable_baselines3 as sb3
import torch
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.noise import NormalActionNoise

from zoo.benchmarks.peers.measured import mean_return
from zoo.core.memory import peak_rss_gib

__all__ = ["main", "train"]


def train(task: dict[str, Any]) -> dict[str, Any]:
    """Train on a task; return the seconds, the steps and the policy's mean return."""
    torch.set_num_threads(task["threads"])
    wall, cpu = time.perf_counter(), time.process_time()
    envs = make_vec_env(task["env"], task["num_envs"], seed=task["seed"])
    model = getattr(sb3, task["algo"].upper())(
        "MlpPolicy",
        envs,
        seed=task["seed"],
        device="cpu",
        gamma=task["gamma"],
        policy_kwargs={"net_arch": task["hidden_sizes"]},
        **_TRANSLATED[task["algo"]](task, envs),
    )
    model.learn(task["steps"])
    clock = {"seconds": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu}
    result = mean_return(task["env"], lambda seen: model.predict(seen, deterministic=True)[0])
    return {**clock, "steps": model.num_timesteps, "return": result}


def _ppo(task: dict[str, Any], envs: Any) -> dict[str, Any]:
    scheduled = task["linear"]
    return {
        "learning_rate": _linear(task["lr"]) if scheduled else task["lr"],
        "clip_range": _linear(0.2) if scheduled else 0.2,
        "n_steps": task["rollout_steps"],
        "batch_size": task["minibatch_size"],
        "n_epochs": task["epochs"],
        "gae_lambda": task["gae_lambda"],
        "ent_coef": 0.0,
        "vf_coef": 0.5,
        "max_grad_norm": 0.5,
    }


def _linear(start: float) -> Callable[[float], float]:
    return lambda remaining: start * remaining


def _replayed(task: dict[str, Any]) -> dict[str, Any]:
    return {
        "learning_rate": task["lr"],
        "buffer_size": task["capacity"],
        "batch_size": task["batch_size"],
        "learning_starts": task["learning_starts"],
        "train_freq": task["train_frequency"],
        "gradient_steps": task["updates"],
    }


def _sac(task: dict[str, Any], envs: Any) -> dict[str, Any]:
    return {**_replayed(task), "tau": task["tau"]}


def _td3(task: dict[str, Any], envs: Any) -> dict[str, Any]:
    size = envs.action_space.shape[0]
    noise = NormalActionNoise(np.zeros(size), np.full(size, task["noise"]))
    return {**_replayed(task), "tau": task["tau"], "action_noise": noise}


def _dqn(task: dict[str, Any], envs: Any) -> dict[str, Any]:
    if task["double"]:
        raise ValueError("Stable-Baselines3 has no double Q-learning")
    return {
        **_replayed(task),
        "target_update_interval": task["target_interval"],
        "exploration_fraction": task["exploration_fraction"],
        "exploration_final_eps": task["exploration_final"],
    }


_TRANSLATED = {"ppo": _ppo, "sac": _sac, "td3": _td3, "dqn": _dqn}


def main() -> None:
    """Train on the task given, and print the result."""
    result = train(json.loads(sys.argv[1]))
    versions = {"stable-baselines3": metadata.version("stable-baselines3")}
    print(json.dumps({**result, "peak_rss_gib": peak_rss_gib(), "versions": versions}))


if __name__ == "__main__":
    main()
