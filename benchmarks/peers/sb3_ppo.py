"""PPO on CartPole-v1: environment steps per second of this library and of Stable-Baselines3.

Both get the same hyperparameters, network, number of environments and number of threads, and run
alternately, each run in a fresh process. The clock covers building the environments and the
algorithm and all of training, without the imports. Evaluation is off on both sides; the final
policies are evaluated after the clock has stopped, so that the speed is seen to be learning's.

    python -m zoo.benchmarks.peers.sb3_ppo --runs 5 --out sb3.results.json
    zoo report sb3.results.json --baseline "SB3 PPO"
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from zoo.benchmarks.records import Collection, Curve, Run
from zoo.core.memory import peak_rss_gib
from zoo.core.run_folder import made_with

__all__ = ["main"]

_LABELS = {"ours": "zoo PPO", "theirs": "SB3 PPO"}
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


def _child(side: str, arguments: argparse.Namespace, seed: int) -> dict[str, Any]:
    """Run one side in a fresh process."""
    command = [sys.executable, "-m", "zoo.benchmarks.peers.sb3_ppo", "--side", side]
    for name in ("settings", "steps", "threads"):
        command += [f"--{name}", str(getattr(arguments, name))]
    threads = {"OMP_NUM_THREADS": str(arguments.threads)}
    done = subprocess.run(
        [*command, "--seed", str(seed)],
        env={**os.environ, **threads},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def _compare(arguments: argparse.Namespace) -> list[Run]:
    """Run both sides in turn and return the runs."""
    runs = []
    for seed in range(arguments.runs):
        for side in ("ours", "theirs") if seed % 2 == 0 else ("theirs", "ours"):
            result = _child(side, arguments, seed)
            speed = result["steps"] / result["seconds"]
            print(f"seed {seed} {side:6} {speed:8,.0f} steps/s, return {result['return']:.1f}")
            runs.append(_run(side, arguments, seed, result))
    return runs


def _run(side: str, arguments: argparse.Namespace, seed: int, result: dict[str, Any]) -> Run:
    """Put a result into the form that reports read: one evaluation, at the end of training."""
    end = Curve(*(np.array([float(result[k])]) for k in ("steps", "return", "seconds")))
    made = made_with()
    return Run(
        label=_LABELS[side],
        env="CartPole-v1",
        seed=seed,
        source=Path(f"{side}-{seed}"),
        kind="peers",  # one clock for both
        unit="environment steps",
        metric="return",
        curves={"evaluation": end},
        status="finished",
        settings={"algo.name": "ppo", "threads": arguments.threads, **SETTINGS[arguments.settings]},
        facts={
            "env_steps": result["steps"],
            "wall_s": result["seconds"],
            "peak_rss_gib": result["peak_rss_gib"],
            "versions": {**made["versions"], "stable-baselines3": result["sb3"]},
            "hardware": made["hardware"],
            "revision": made["git"]["algorithm-zoo"],
            "time": made["time"],
            "command": shlex.join(["python", "-m", "zoo.benchmarks.peers.sb3_ppo", *sys.argv[1:]]),
        },
        named=True,
    )


def main() -> None:
    """Run the comparison, or one side of it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--settings", choices=sorted(SETTINGS), default="tuned")
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--runs", type=int, default=3, help="alternating runs of each side")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, help="FILE.results.json for `zoo report`")
    parser.add_argument("--side", choices=sorted(_LABELS), help="run only this side, once")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.side is not None:
        side = ours if arguments.side == "ours" else theirs
        settings = SETTINGS[arguments.settings]
        result = side(settings, arguments.steps, arguments.seed, arguments.threads)
        version = metadata.version("stable-baselines3")
        print(json.dumps({**result, "peak_rss_gib": peak_rss_gib(), "sb3": version}))
        return
    runs = _compare(arguments)
    speeds = {
        label: statistics.median(
            r.facts["env_steps"] / r.facts["wall_s"] for r in runs if r.label == label
        )
        for label in _LABELS.values()
    }
    print(f"ratio of the medians: {speeds[_LABELS['ours']] / speeds[_LABELS['theirs']]:.2f}")
    if arguments.out:
        from zoo.benchmarks.readers.results_file import write_results

        write_results(Collection(tuple(runs)), arguments.out)


if __name__ == "__main__":
    main()
