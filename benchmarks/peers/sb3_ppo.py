"""PPO on CartPole-v1: environment steps per second of this library and of Stable-Baselines3.

Both get the same hyperparameters, network, number of environments and number of threads, and run
alternately, each run in a fresh process. The clock covers building the environments and the
algorithm and all of training, without the imports. Evaluation is off on both sides; the final
policies are evaluated after the clock has stopped, so that the speed is seen to be learning's.

    python -m zoo.benchmarks.peers.sb3_ppo --steps 100000 --runs 3
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import metadata
from typing import Any

__all__ = ["main"]

#: ours for CartPole-v1 (conf/tuned/ppo), rl-zoo's for it, and SB3's defaults with one environment
SETTINGS: dict[str, dict[str, Any]] = {
    "tuned": {
        "num_envs": 8,
        "steps": 32,
        "minibatch_size": 256,
        "epochs": 10,
        "gamma": 0.98,
        "gae_lambda": 0.8,
        "lr": 1e-3,
        "linear": True,
    },
    "rl-zoo": {
        "num_envs": 8,
        "steps": 32,
        "minibatch_size": 256,
        "epochs": 20,
        "gamma": 0.98,
        "gae_lambda": 0.8,
        "lr": 1e-3,
        "linear": True,
    },
    "defaults": {
        "num_envs": 1,
        "steps": 2048,
        "minibatch_size": 64,
        "epochs": 10,
        "gamma": 0.99,
        "gae_lambda": 0.95,
        "lr": 3e-4,
        "linear": False,
    },
}


def ours(settings: dict[str, Any], steps: int, seed: int, threads: int) -> dict[str, float]:
    """Train with this library; return the seconds and the policy's mean return."""
    import hydra  # noqa: F401  the clock counts imports on neither side
    import torch

    from zoo.algorithms import PPO

    torch.set_num_threads(threads)
    schedule = "linear" if settings["linear"] else "constant"
    started = time.perf_counter()
    algorithm = PPO(
        "CartPole-v1",
        seed=seed,
        device="cpu",
        lr=settings["lr"],
        lr_schedule=schedule,
        clip_schedule=schedule,
        gamma=settings["gamma"],
        gae_lambda=settings["gae_lambda"],
        epochs=settings["epochs"],
        minibatch_size=settings["minibatch_size"],
        adam_eps=1e-5,
        overrides=[
            f"rollout.num_envs={settings['num_envs']}",
            f"rollout.steps={settings['steps']}",
            f"threads={threads}",
            "eval.every=1_000_000_000",
            "eval.at_end=false",
        ],
    )
    algorithm.train(steps)
    seconds = time.perf_counter() - started
    result = algorithm.evaluate(episodes=20)
    return {"seconds": seconds, "steps": algorithm.trainer.done, "return": result["return_mean"]}


def theirs(settings: dict[str, Any], steps: int, seed: int, threads: int) -> dict[str, float]:
    """Train with Stable-Baselines3; return the seconds and the policy's mean return."""
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy

    torch.set_num_threads(threads)
    lr, clip = settings["lr"], 0.2
    scheduled = settings["linear"]
    started = time.perf_counter()
    envs = make_vec_env("CartPole-v1", settings["num_envs"], seed=seed)
    model = PPO(
        "MlpPolicy",
        envs,
        seed=seed,
        device="cpu",
        learning_rate=_linear(lr) if scheduled else lr,
        clip_range=_linear(clip) if scheduled else clip,
        n_steps=settings["steps"],
        batch_size=settings["minibatch_size"],
        n_epochs=settings["epochs"],
        gamma=settings["gamma"],
        gae_lambda=settings["gae_lambda"],
        ent_coef=0.0,
        vf_coef=0.5,
        max_grad_norm=0.5,
    )
    model.learn(steps)
    seconds = time.perf_counter() - started
    mean, _ = evaluate_policy(model, make_vec_env("CartPole-v1", 1, seed=10_000), 20, warn=False)
    return {"seconds": seconds, "steps": model.num_timesteps, "return": float(mean)}  # type: ignore[arg-type]


def _linear(start: float) -> Callable[[float], float]:
    return lambda remaining: start * remaining


def _child(side: str, arguments: argparse.Namespace, seed: int) -> dict[str, float]:
    """Run one side in a fresh process."""
    command = [sys.executable, "-m", "zoo.benchmarks.peers.sb3_ppo", "--side", side]
    for name in ("settings", "steps", "threads"):
        command += [f"--{name}", str(getattr(arguments, name))]
    threads = {"OMP_NUM_THREADS": str(arguments.threads)}
    done = subprocess.run(
        [*command, "--seed", str(seed)],
        env={**os.environ, **threads},
        check=True,
        capture_output=True,
        text=True,
    )
    result: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def _compare(arguments: argparse.Namespace) -> dict[str, Any]:
    runs: dict[str, list[dict[str, float]]] = {"ours": [], "theirs": []}
    for run in range(arguments.runs):
        for side in ("ours", "theirs") if run % 2 == 0 else ("theirs", "ours"):
            result = _child(side, arguments, seed=run)
            runs[side].append(result)
            speed = result["steps"] / result["seconds"]
            print(f"run {run} {side:6} {speed:8.0f} steps/s, return {result['return']:.1f}")
    speeds = {side: [r["steps"] / r["seconds"] for r in done] for side, done in runs.items()}
    median = {side: statistics.median(values) for side, values in speeds.items()}
    return {
        "settings": {**SETTINGS[arguments.settings], "threads": arguments.threads},
        "steps_per_s": {side: [round(v, 1) for v in values] for side, values in speeds.items()},
        "median_steps_per_s": {side: round(value, 1) for side, value in median.items()},
        "ratio": round(median["ours"] / median["theirs"], 2),
        "returns": {side: [r["return"] for r in done] for side, done in runs.items()},
        "versions": {
            name: metadata.version(name)
            for name in ("algorithm-zoo", "stable-baselines3", "torch", "gymnasium", "numpy")
        },
        "machine": {
            "processor": _processor(),
            "cores": os.cpu_count(),
            "load": os.getloadavg()[0],
            "system": platform.platform(),
            "python": platform.python_version(),
        },
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            names = [
                line.split(":", 1)[1].strip() for line in file if line.startswith("model name")
            ]
    except OSError:
        names = []
    return names[0] if names else platform.processor()


def main() -> None:
    """Run the comparison, or one side of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--settings", choices=sorted(SETTINGS), default="tuned")
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--runs", type=int, default=3, help="alternating runs of each side")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--side", choices=("ours", "theirs"), help="run only this side, once")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.side is None:
        print(json.dumps(_compare(arguments), indent=2))
        return
    side = ours if arguments.side == "ours" else theirs
    settings = SETTINGS[arguments.settings]
    print(json.dumps(side(settings, arguments.steps, arguments.seed, arguments.threads)))


if __name__ == "__main__":
    main()
