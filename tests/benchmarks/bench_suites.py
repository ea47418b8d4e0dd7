"""What the tests of `zoo bench` share: short suites, and an executor that trains nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import yaml

from zoo.benchmarks import suite as suites
from zoo.benchmarks.life import Ended
from zoo.benchmarks.processes import Launch

#: as short as a run can be and still collect, learn, evaluate and save
SHORT = [
    "total_steps=256",
    "rollout.num_envs=4",
    "rollout.steps=32",
    "algo.epochs=1",
    "eval.every=128",
    "eval.options.episodes=2",
    "model.hidden_sizes=[8]",
]
ROW = {"algo": "ppo", "env": "CartPole-v1", "overrides": SHORT}


def write_suite(folder: Path, *rows: dict, seeds: object = 1, name: str = "own") -> str:
    """Write a suite's file; return its path."""
    file = folder / f"{name}.yaml"
    tree = {"about": "A suite of the tests.", "seeds": seeds, "runs": list(rows)}
    file.write_text(yaml.safe_dump(tree))
    return str(file)


def load(folder: Path, *rows: dict, seeds: object = 1, **options: object) -> suites.Suite:
    """Write a suite's file and load it."""
    return suites.load(write_suite(folder, *rows, seeds=seeds), **options)


def write_run(folder: Path, job: suites.Job, status: str | None, saved: bool = False) -> None:
    """Leave behind what a run of these settings leaves, as far as `zoo bench` reads it."""
    (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
    tree = {**job.config.to_dict(), "run_dir": str(folder), "made_with": {"time": "then"}}
    (folder / "config.yaml").write_text(yaml.safe_dump(tree))
    if saved:
        (folder / "checkpoints" / "last.pt").write_bytes(b"saved")
    if status is not None:
        (folder / "summary.json").write_text(json.dumps({"status": status}))


def figures(folder: Path) -> list[dict]:
    """Return what a run measured, all but times."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [
        {k: v for k, v in row.items() if k != "wall_s" and not k.startswith(("time/", "speed/"))}
        for row in rows
    ]


class Pretender:
    """An executor whose runs end as ``play`` says: it gets the folder's name and the launch."""

    cores = most = 4

    def __init__(self, play: Callable[[str, Launch], Ended | None]) -> None:
        self.play, self.launches = play, dict[str, Launch]()
        self.order, self.most_at_once = [], 0
        self.running, self.stopped, self.killed = {}, 0, 0

    def start(self, name: str, launch: Launch) -> None:
        self.order.append(name)
        self.launches[name] = self.running[name] = launch
        self.most_at_once = max(self.most_at_once, len(self.running))

    def ended(self) -> list[tuple[str, Ended]]:
        played = [(name, self.play(name, launch)) for name, launch in self.running.items()]
        over = [(name, ended) for name, ended in played if ended is not None]
        for name, _ in over:
            del self.running[name]
        return over

    def stop(self) -> None:
        self.stopped += 1

    def kill(self) -> None:
        self.killed += 1

    def close(self) -> None:
        pass
