"""Time ten seeds at once against one, in turns, and print the table of docs/many-seeds.md.

python -m zoo.benchmarks.seeds_speed
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

__all__ = ["main", "measured"]

_EVALUATION = {
    "off": ["eval.every=null", "eval.at_end=false"],
    "on": [],  # as the settings have it
}


def measured(overrides: list[str]) -> tuple[float, float]:
    """Train in a process of its own; return its user and system time, and the clock's, in seconds.

    Raises
    ------
    RuntimeError
        Where the training failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        program = "import sys; from zoo.cli import main; sys.exit(main())"
        command = [sys.executable, "-c", program, "train", *overrides, "logger=none"]
        start = time.perf_counter()
        process = subprocess.Popen(
            [*command, f"run_dir={Path(folder) / 'run'}"], stdout=subprocess.DEVNULL
        )
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - start
    if status:
        raise RuntimeError(f"{' '.join(command)} ended with status {status}")
    return usage.ru_utime + usage.ru_stime, wall


def main() -> None:
    """Print a Markdown table of medians, and every measurement under it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("overrides", nargs="*", default=["algo=ppo", "env=CartPole-v1"])
    parser.add_argument("--seeds", default="0..9")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    print(f"| evaluation | one seed | seeds={arguments.seeds} | CPU time | clock |")
    print("|---|---|---|---|---|", flush=True)
    for name, options in _EVALUATION.items():
        one, many = [], []
        for _ in range(arguments.repeats):
            one.append(measured([*arguments.overrides, *options, "seed=0"]))
            many.append(measured([*arguments.overrides, *options, f"seeds={arguments.seeds}"]))
        cpu, wall = (
            [statistics.median(run[k] for run in runs) for runs in (one, many)] for k in (0, 1)
        )
        print(
            f"| {name} | {cpu[0]:.1f} s | {cpu[1]:.1f} s | {cpu[1] / cpu[0]:.2f} × |"
            f" {wall[1] / wall[0]:.2f} × |"
        )
        for label, runs in (("one", one), ("many", many)):
            print(
                f"<!-- {label}: {[tuple(round(x, 2) for x in run) for run in runs]} -->", flush=True
            )


if __name__ == "__main__":
    main()
