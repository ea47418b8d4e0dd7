"""Two libraries train one task in turn, each run in a fresh process: one clock for all comparisons.

A side is a command that takes the task as a JSON object and prints, as its last line, another one:
``seconds`` and ``cpu_s`` (user and system time of all threads) from before the environments are
built until training has ended, without imports and with whatever is compiled; ``steps`` done; the
final policy's mean ``return``, measured after the clock has stopped, so that the speed is seen to
be learning's; ``peak_rss_gib`` and ``versions``.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from zoo.benchmarks.readers.results_file import write_results
from zoo.benchmarks.records import Collection, Curve, Run
from zoo.core.run_folder import made_with

__all__ = ["alternate", "arguments_of", "child", "module"]


def arguments_of(description: str | None, tasks: Sequence[str]) -> argparse.ArgumentParser:
    """Return the parser of what every comparison asks for, which of its tasks first."""
    parser = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    parser.add_argument("task", choices=tasks)
    parser.add_argument("--steps", type=int, help="environment steps instead of the task's own")
    parser.add_argument("--runs", type=int, default=3, help="alternating runs of each side")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, help="FILE.results.json for `zoo report`")
    return parser


def module(name: str) -> list[str]:
    """Return the command of a side that this interpreter runs."""
    return [sys.executable, "-m", f"zoo.benchmarks.peers.{name}"]


def alternate(
    task: Mapping[str, Any], sides: Mapping[str, Sequence[str]], arguments: argparse.Namespace
) -> None:
    """Run both sides in turn, say what came of it, and write a results file where one is asked for.

    Parameters
    ----------
    task : mapping
        ``algo``, ``env``, ``steps`` and the hyperparameters that both sides take.
    sides : mapping
        The name of each library, ours first, and its command.
    arguments : argparse.Namespace
        As :func:`arguments_of` parses them.
    """
    task = {**task, "threads": arguments.threads}
    if arguments.steps is not None:
        task["steps"] = arguments.steps
    ours, theirs = sides
    runs = []
    for seed in range(arguments.runs):
        for library in (ours, theirs) if seed % 2 == 0 else (theirs, ours):
            result = child(sides[library], {**task, "seed": seed})
            print(
                f"seed {seed} {library:8} {result['steps'] / result['seconds']:8,.0f} steps/s,"
                f" {result['steps'] / result['cpu_s']:8,.0f} per CPU second,"
                f" return {result['return']:.1f}",
                flush=True,
            )
            runs.append(_run(library, task, seed, result))
    for name, clock in (("steps per second", "wall_s"), ("steps per CPU second", "cpu_s")):
        ratio = _median(runs, clock, ours) / _median(runs, clock, theirs)
        print(f"ratio of the median {name}: {ratio:.2f}")
    if arguments.out:
        write_results(Collection(tuple(runs)), arguments.out)


def _median(runs: Sequence[Run], clock: str, library: str) -> float:
    of = [r.facts for r in runs if r.label.startswith(library)]
    return statistics.median(facts["env_steps"] / facts[clock] for facts in of)


def child(command: Sequence[str], task: Mapping[str, Any]) -> dict[str, Any]:
    """Run one side in a fresh process."""
    done = subprocess.run(
        [*command, json.dumps(task)],
        env={**os.environ, "OMP_NUM_THREADS": str(task["threads"])},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def _run(library: str, task: Mapping[str, Any], seed: int, result: Mapping[str, Any]) -> Run:
    """Put a result into the form that reports read: one evaluation, at the end of training."""
    end = Curve(*(np.array([float(result[k])]) for k in ("steps", "return", "seconds")))
    made = made_with()
    spec = sys.modules["__main__"].__spec__
    name = "zoo.benchmarks.peers" if spec is None else spec.name
    own = {k: v for k, v in task.items() if k not in ("algo", "env")}
    return Run(
        label=f"{library} {task['algo'].upper()}",
        env=task["env"],
        seed=seed,
        source=Path(f"{library.lower()}-{seed}"),
        kind="peers",  # one clock for both
        unit="environment steps",
        metric="return",
        curves={"evaluation": end},
        status="finished",
        settings={"algo.name": task["algo"], "dtype": "float32", **own},
        facts={
            "env_steps": result["steps"],
            "wall_s": result["seconds"],
            "cpu_s": result["cpu_s"],
            "peak_rss_gib": result["peak_rss_gib"],
            "versions": {**made["versions"], **result["versions"]},
            "hardware": made["hardware"],
            "revision": made["git"]["algorithm-zoo"],
            "time": made["time"],
            "command": shlex.join(["python", "-m", name, *sys.argv[1:]]),
        },
        named=True,
    )
