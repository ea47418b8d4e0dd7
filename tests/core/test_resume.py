"""Golden 14: interrupted at N and resumed in a new process equals the whole run, bitwise."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

#: figures that measure the machine and not the run
_CLOCKS = ("time/", "speed/", "memory/", "wall_s", "sampler/tokens_per_s")

_INTERRUPT = """
import sys
from zoo.core.build import build
from zoo.core.config import compose
from zoo.core.run_folder import open_recorder

class After:
    def __init__(self, rounds): self.rounds = rounds
    def log(self, update, row, records):
        if update >= self.rounds: trainer.interrupt()
    def notice(self, text): pass
    def close(self): pass

config = compose(sys.argv[2:])
recorder = open_recorder(config)
recorder.loggers.append(After(int(sys.argv[1])))
trainer = build(config, recorder)
assert trainer.run()["status"] == "interrupted"
"""

RUNS = {
    "ppo-cartpole": [
        "algo=ppo",
        "env=CartPole-v1",
        "total_steps=2048",
        "rollout.num_envs=4",
        "rollout.steps=64",
        "algo.lr_schedule=linear",
        "algo.target_kl=0.005",
        "algo.reward_scale.mode=return_std",
        "algo.entropy.coefficient=0.01",
        "algo.kl.monitor_every=2",
        "model.normalize_observation=true",
        "eval.every=512",
        "eval.options.episodes=2",
    ],
    "ppo-pendulum": [
        "algo=ppo",
        "env=Pendulum-v1",
        "total_steps=1024",
        "rollout.num_envs=2",
        "rollout.steps=64",
        "eval.at_end=false",
    ],
    "sac-pendulum": [
        "algo=sac",
        "env=Pendulum-v1",
        "total_steps=260",
        "log_every=30",
        "model.hidden_sizes=[16,16]",
        "algo.replay.learning_starts=40",
        "algo.replay.batch_size=16",
        "algo.reward_scale.mode=return_std",
        "algo.noise={kind: ou, std: 0.1}",
        "eval.every=100",
        "eval.options.episodes=1",
    ],
    "ppo-pendulum-sde": [
        "algo=ppo",
        "env=Pendulum-v1",
        "total_steps=1024",
        "rollout.num_envs=2",
        "rollout.steps=64",
        "model.use_sde=true",
        "model.sde_sample_freq=50",
        "eval.at_end=false",
    ],
    "sac-pendulum-sde": [
        "algo=sac",
        "env=Pendulum-v1",
        "total_steps=260",
        "log_every=30",
        "model.hidden_sizes=[16,16]",
        "model.use_sde=true",
        "model.sde_sample_freq=episode",
        "algo.replay.learning_starts=40",
        "algo.replay.batch_size=16",
        "eval.at_end=false",
    ],
    "td3-pendulum": [
        "algo=td3",
        "env=Pendulum-v1",
        "total_steps=260",
        "log_every=30",
        "rollout.num_envs=2",
        "model.hidden_sizes=[16,16]",
        "algo.replay.learning_starts=40",
        "algo.replay.batch_size=16",
        "algo.noise.kind=ou",
        "eval.at_end=false",
    ],
    "dqn-cartpole": [
        "algo=dqn",
        "env=CartPole-v1",
        "total_steps=400",
        "log_every=50",
        "rollout.num_envs=2",
        "model.hidden_sizes=[16]",
        "algo.dueling=true",
        "algo.replay={n_step: 3, capacity: 150, learning_starts: 40, priority: {alpha: 0.6}}",
        "algo.exploration.kind=ucb",
        "algo.target_every=10",
        "rollout.steps=8",
        "eval.at_end=false",
    ],
    "grpo-cartpole": [
        "algo=grpo",
        "env=CartPole-v1",
        "total_steps=1500",
        "rollout.num_envs=8",
        "algo.kl.coefficient=0.01",
        "eval.at_end=false",
    ],
    # dynamic sampling, interrupted where an informative group waits for the next batch
    "dapo-gsm8k": [
        "algo=dapo",
        "env=gsm8k",
        "model=tiny",
        "updates=4",
        "algo.group_size=2",
        "algo.overlong_filter=false",
        "algo.precision=float32",
        "model.sampling_dtype=float32",
        "rollout.prompts=3",
        "rollout.max_new_tokens=12",
        "env.train_size=7",
        "env.heldout_size=8",
        "env.rewards=[{name: repetition, n: 1}]",
        "eval.at_start=false",
        "eval.at_end=false",
    ],
    # batches sampled ahead, of which some wait at the interruption, and several steps on each
    "dapo-gsm8k-ahead": [
        "algo=dapo",
        "env=gsm8k",
        "model=tiny",
        "updates=5",
        "algo.group_size=2",
        "algo.overlong_filter=false",
        "algo.minibatch_size=4",
        "algo.lr=1e-4",
        "rollout.staleness=2",
        "rollout.prompts=3",
        "rollout.max_new_tokens=12",
        "env.train_size=7",
        "env.heldout_size=8",
        "env.rewards=[{name: repetition, n: 1}]",
        "eval.at_start=false",
        "eval.every=2",
        "eval.options.prompts=2",
    ],
    # an adapter, whose base no checkpoint holds, a value head and a reference
    "ppo-gsm8k-lora": [
        "algo=ppo",
        "env=gsm8k",
        "model=tiny",
        "model.lora.rank=2",
        "updates=5",
        "rollout.prompts=4",
        "rollout.max_new_tokens=12",
        "algo.lr=1e-3",
        "algo.kl.coefficient=0.1",
        "env.train_size=7",
        "env.heldout_size=8",
        "eval.at_start=false",
        "eval.at_end=false",
    ],
    "grpo-gsm8k": [
        "algo=grpo",
        "env=gsm8k",
        "model=tiny",
        "updates=4",
        "algo.group_size=4",
        "rollout.prompts=3",
        "rollout.max_new_tokens=12",
        "algo.lr=1e-4",
        "algo.kl.monitor_every=2",
        "env.train_size=7",
        "env.heldout_size=8",
        "eval.every=2",
        "eval.at_start=false",
        "eval.options.prompts=4",
        "eval.options.samples=2",
    ],
}


def run(*arguments: str, folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, capture_output=True, text=True, timeout=300
    )
    assert done.returncode in (0, 130), done.stdout + done.stderr


def rows(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [
        {k: v for k, v in json.loads(line).items() if not k.startswith(_CLOCKS)} for line in lines
    ]


def same(one: Any, other: Any, where: str = "state") -> None:
    """Assert that two states are equal to the last bit."""
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other), where
    elif isinstance(one, dict):
        assert one.keys() == other.keys(), where
        for key in one:
            if key != "run_dir" and not str(key).startswith(_CLOCKS):
                same(one[key], other[key], f"{where}.{key}")
    elif isinstance(one, list | tuple):
        assert len(one) == len(other), where
        for i, (a, b) in enumerate(zip(one, other, strict=True)):
            same(a, b, f"{where}[{i}]")
    else:
        assert one == other or (one != one and other != other), where


@pytest.mark.parametrize("name", RUNS)
def test_golden_14_a_resumed_run_equals_the_uninterrupted_one(name: str, tmp_path: Path) -> None:
    if name.endswith("lora"):
        pytest.importorskip("peft")
    overrides = [*RUNS[name], "logger=none", "seed=3", "device=cpu"]
    rounds = 2 if name == "grpo-gsm8k" else 3
    run("-m", "zoo.cli", "train", *overrides, "run_dir=whole", folder=tmp_path)
    run("-c", _INTERRUPT, str(rounds), *overrides, "run_dir=parts", folder=tmp_path)
    assert json.loads((tmp_path / "parts/summary.json").read_text())["status"] == "interrupted"
    run("-m", "zoo.cli", "train", "--resume", "parts", folder=tmp_path)

    whole, parts = rows(tmp_path / "whole"), rows(tmp_path / "parts")
    assert len(whole) > rounds
    assert whole == parts
    if name == "dapo-gsm8k":
        assert whole[rounds - 1]["refill/left_over"] > 0
    if name == "dapo-gsm8k-ahead":
        assert whole[-1]["rollout/age_max"] >= 2
    states = [
        torch.load(tmp_path / run_dir / "checkpoints/last.pt", weights_only=True)
        for run_dir in ("whole", "parts")
    ]
    same(*states)
    assert json.loads((tmp_path / "parts/summary.json").read_text())["status"] == "finished"
