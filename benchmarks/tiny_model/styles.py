"""Say how much of a run's gain on the tiny model is style, and how much is better working.

    python benchmarks/tiny_model/styles.py runs/gsm8k-0 runs/gsm8k-1

For the shipped model and for each run's last weights: the share of sampled held-out completions
that are a bare answer (they begin with ``####``), and the accuracy of those and of the worked ones.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from zoo.core.build import build, load
from zoo.core.config import compose
from zoo.core.trainer import Trainer


def measure(trainer: Trainer, prompts: int, samples: int, seed: int = 10_000) -> dict[str, float]:
    """Sample held-out completions and divide them by their first characters."""
    rollout: Any = trainer.rollout
    rows = []
    for sample in range(samples):
        rows += rollout.enjoy(
            trainer.algorithm.policy, prompts=prompts, seed=seed + sample, greedy=False
        )
    right = [float(row["rewards"]["accuracy_strict"]) for row in rows]
    bare = [row["completion"].lstrip().startswith("####") for row in rows]
    worked = [r for r, b in zip(right, bare, strict=True) if not b]
    short = [r for r, b in zip(right, bare, strict=True) if b]
    return {
        "sampled": sum(right) / len(right),
        "bare share": sum(bare) / len(bare),
        "bare accuracy": sum(short) / max(len(short), 1),
        "worked accuracy": sum(worked) / max(len(worked), 1),
    }


def main() -> None:
    """Print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUN")
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--samples", type=int, default=4)
    arguments = parser.parse_args()
    base = build(compose(["algo=grpo", "env=gsm8k", "model=tiny", "logger=none"]))
    trainers = [("as shipped", base), *((run.name, run) for run in arguments.runs)]
    for i, (name, trainer) in enumerate(trainers):
        loaded = load(trainer) if isinstance(trainer, Path) else trainer
        figures = measure(loaded, arguments.prompts, arguments.samples)
        if i == 0:
            print("| weights |", " | ".join(figures), "|")
            print("|---" * (len(figures) + 1) + "|")
        print(f"| {name} |", " | ".join(f"{100 * v:.1f} %" for v in figures.values()), "|")
        loaded.close()


if __name__ == "__main__":
    main()
