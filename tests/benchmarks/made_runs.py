"""Result files of every kind, made small and by hand."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from zoo.benchmarks.readers import read
from zoo.benchmarks.records import Collection, Run

CONTROL = {
    "seed": 3,
    "run_dir": "here",
    "total_steps": 300,
    "updates": None,
    "algo": {"name": "ppo", "lr": 0.001, "betas": [0.9, 0.999]},
    "env": {"name": "CartPole-v1", "options": {}},
    "model": {"name": "mlp"},
    "world": "control",
}
TEXT = {
    **CONTROL,
    "total_steps": None,
    "updates": 3,
    "algo": {"name": "grpo"},
    "env": {"name": "gsm8k"},
    "model": {"name": "tiny"},
    "world": "text",
}
MADE_WITH = {
    "time": "2026-01-02T03:04:05+0000",
    "versions": {"torch": "2.9"},
    "git": {"algorithm-zoo": "abc", "working_directory": None},
    "hardware": {"cpus": 2},
}
#: three rounds, evaluated after the first and the last
ROWS = [
    {"env_steps": 100, "updates": 1, "wall_s": 1.0, "return/mean": 10.0, "eval/return_mean": 12.0},
    {"env_steps": 200, "updates": 2, "wall_s": 2.0, "return/mean": 20.0},
    {"env_steps": 300, "updates": 3, "wall_s": 3.0, "return/mean": 30.0, "eval/return_mean": 32.0},
]


def zoo_run(
    folder: Path,
    rows: Iterable[Mapping[str, Any]] = ROWS,
    status: str | None = "finished",
    config: Mapping[str, Any] = CONTROL,
    **changed: Any,
) -> Path:
    """Write a run folder of ours; ``status=None`` leaves summary.json out."""
    (folder / "checkpoints").mkdir(parents=True)
    tree = {**config, **changed, "made_with": MADE_WITH}
    (folder / "config.yaml").write_text(yaml.safe_dump(tree))
    rows = list(rows)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if status is not None:
        last = rows[-1] if rows else {}
        counters = {k: last[k] for k in ("env_steps", "updates", "wall_s") if k in last}
        summary = {"status": status, **counters, "tokens": 0, "peak_rss_gib": 0.5, "dataset": None}
        (folder / "summary.json").write_text(json.dumps({**summary, "eval": {"episodes": 10}}))
    return folder


def evaluations(folder: Path, steps: Sequence[int], results: Sequence[Sequence[float]]) -> Path:
    """Write what SB3's EvalCallback leaves behind."""
    folder.mkdir(parents=True, exist_ok=True)
    lengths = np.ones((len(steps), len(results[0])))
    np.savez(folder / "evaluations.npz", timesteps=steps, results=results, ep_lengths=lengths)
    return folder


def monitor(
    file: Path,
    episodes: Sequence[tuple[float, int, float]],
    t_start: float = 100.0,
    env: str | None = "CartPole-v1",
) -> Path:
    """Write what SB3's Monitor leaves behind: return, length and time of each episode."""
    file.parent.mkdir(parents=True, exist_ok=True)
    header = {"t_start": t_start, **({"env_id": env} if env else {})}
    lines = [f"#{json.dumps(header)}", "r,l,t", *(f"{r},{length},{t}" for r, length, t in episodes)]
    file.write_text("\n".join(lines) + "\n")
    return file


def only(path: Path | str) -> Run:
    """Return the one run that there is at a path."""
    (run,) = read([str(path)]).runs
    return run


def points(run: Run, curve: str = "evaluation") -> list[tuple[float, float]]:
    """Return a curve's steps and values."""
    found = run.curves[curve]
    return list(zip(found.step.tolist(), found.value.tolist(), strict=True))


def texts(collection: Collection) -> str:
    """Return all notes in one text."""
    return "\n".join(note.text for note in collection.notes)
