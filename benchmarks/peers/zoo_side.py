"""Our own side of a comparison: ``python -m zoo.benchmarks.peers.zoo_side TASK``."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import torch

from zoo import algorithms
from zoo.core.memory import peak_rss_gib

__all__ = ["main", "train", "translated"]


def train(task: dict[str, Any]) -> dict[str, Any]:
    """Train on a task; return the seconds, the steps and the policy's mean return."""
    import hydra  # noqa: F401  the clock counts imports on neither side

    torch.set_num_threads(task["threads"])
    knobs, overrides = translated(task)
    wall, cpu = time.perf_counter(), time.process_time()
    algorithm = getattr(algorithms, task["algo"].upper())(
        task["env"], seed=task["seed"], device="cpu", overrides=overrides, **knobs
    )
    algorithm.train(task["steps"])
    clock = {"seconds": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu}
    measured = algorithm.evaluate(episodes=20)
    return {**clock, "steps": algorithm.trainer.done, "return": measured["return_mean"]}


def translated(task: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return a task's hyperparameters as knobs and overrides; evaluation is off."""
    knobs, overrides = _TRANSLATED[task["algo"]](task)
    overrides += [f"threads={task['threads']}", "eval.every=1_000_000_000", "eval.at_end=false"]
    overrides += [f"model.hidden_sizes={task['hidden_sizes']}"]
    return {**knobs, "lr": task["lr"], "gamma": task["gamma"]}, overrides


def _ppo(task: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    schedule = "linear" if task["linear"] else "constant"
    knobs = {k: task[k] for k in ("epochs", "minibatch_size", "gae_lambda")}
    knobs |= {"lr_schedule": schedule, "clip_schedule": schedule, "adam_eps": 1e-5}
    return knobs, [f"rollout.num_envs={task['num_envs']}", f"rollout.steps={task['rollout_steps']}"]


def _replayed(task: dict[str, Any]) -> list[str]:
    frequency = task["train_frequency"]
    replay = {k: task[k] for k in ("capacity", "batch_size", "learning_starts")}
    replay |= {"updates_per_step": task["updates"] / frequency, "n_step": 1}
    return [
        "algo.lr_schedule=constant",
        "rollout.num_envs=1",
        f"rollout.steps={frequency}",
        *(f"algo.replay.{key}={value}" for key, value in replay.items()),
    ]


def _sac(task: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    return {"tau": task["tau"]}, [*_replayed(task), f"algo.entropy.lr={task['lr']}"]


def _td3(task: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    return {"tau": task["tau"]}, [*_replayed(task), f"algo.noise.std={task['noise']}"]


def _dqn(task: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    keys = {"fraction": task["exploration_fraction"], "final": task["exploration_final"]}
    explored = [f"algo.exploration.{key}={value}" for key, value in keys.items()]
    # theirs is replaced every so many steps: within a block of updates never, before each for sure
    knobs = {"double": task["double"], "target_every": task["updates"]}
    return knobs, [*_replayed(task), *explored]


_TRANSLATED = {"ppo": _ppo, "sac": _sac, "td3": _td3, "dqn": _dqn}


def main() -> None:
    """Train on the task given, and print the result."""
    result = train(json.loads(sys.argv[1]))
    print(json.dumps({**result, "peak_rss_gib": peak_rss_gib(), "versions": {}}))


if __name__ == "__main__":
    main()
