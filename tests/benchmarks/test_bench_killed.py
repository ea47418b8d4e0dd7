"""A bench that is killed again and again ends with the results of one that is not."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from bench_suites import SHORT, figures, write_suite

from zoo.benchmarks.manifest import Manifest
from zoo.benchmarks.suite import load

KILLS = 5
LONGER = [*SHORT, "total_steps=30_000", "eval.every=5_000", "checkpoint.every_s=0.5"]
ROWS = (
    {"algo": "ppo", "env": "CartPole-v1", "overrides": LONGER},
    {"algo": "grpo", "env": "Acrobot-v1", "overrides": LONGER[:1] + LONGER[-3:]},
)


def start(suite: str, out: Path) -> subprocess.Popen:
    command = [sys.executable, "-m", "zoo.cli", "bench", suite, "--out", str(out), "--jobs", "2"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=out.parent)


def written(out: Path) -> int:
    """Return how much the runs have measured so far: bytes of their metrics."""
    return sum(file.stat().st_size for file in out.rglob("metrics.jsonl"))


def training(out: Path) -> bool:
    """Return whether the process of a run in this folder is alive."""
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = file.read_bytes()
        except OSError:
            continue
        if b"zoo.benchmarks.worker" in command and bytes(out) in command:
            return True
    return False


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux's parent-death signal")
@pytest.mark.parametrize("seed", [0, 1])
def test_a_bench_killed_at_any_moment_goes_on_to_the_same_results(tmp_path, seed):
    suite = write_suite(tmp_path, *ROWS, seeds=2)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert start(suite, whole).wait() == 0

    everything, rng = written(whole), random.Random(seed)
    for _ in range(KILLS):
        moment = written(killed) + rng.uniform(0.0, 0.2) * everything
        bench = start(suite, killed)
        while bench.poll() is None and written(killed) < moment:
            time.sleep(0.01)
        if bench.poll() is None:
            os.kill(bench.pid, signal.SIGKILL)
            bench.wait()
    assert start(suite, killed).wait() == 0

    jobs = load(suite).jobs
    for job in jobs:
        rows = figures(whole / job.folder)
        assert rows[-1]["env_steps"] >= 30_000
        assert figures(killed / job.folder) == rows
    manifest = Manifest(killed, load(suite))
    assert {record.status for record in manifest.records.values()} == {"finished"}
    assert max(record.attempts for record in manifest.records.values()) > 1
    deadline = time.monotonic() + 10
    while training(killed):  # nothing trains on by itself
        assert time.monotonic() < deadline
        time.sleep(0.1)
