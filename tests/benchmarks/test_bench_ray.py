"""The same runs on a Ray cluster."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import pytest
from bench_suites import ROW, figures, write_suite

from zoo.benchmarks.life import Ended
from zoo.benchmarks.processes import Launch
from zoo.benchmarks.ray_cluster import RayCluster
from zoo.cli import main
from zoo.errors import UserError


def test_without_ray_one_sentence_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"not installed: `pip install 'algorithm-zoo\[scale\]'`"):
        RayCluster("auto", tmp_path)


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("nonsense", "takes auto, local, or HOST:PORT"),
        ("host:port", "takes auto, local, or HOST:PORT"),
        ("localhost:1", "no Ray cluster at --ray localhost:1: "),
        ("localhost:99999999999", "no Ray cluster at --ray localhost:99999999999: "),
    ],
)
def test_an_address_without_a_cluster_is_refused_at_once(tmp_path, address, said):
    pytest.importorskip("ray")
    with pytest.raises(UserError, match=said):
        RayCluster(address, tmp_path)


@pytest.mark.slow
def test_runs_on_ray_give_the_results_of_runs_here(tmp_path, monkeypatch):
    pytest.importorskip("ray")
    monkeypatch.chdir(tmp_path)
    suite = write_suite(tmp_path, ROW, {**ROW, "algo": "grpo", "overrides": ["env.options={a: 1}"]})
    for out, where in (("here", []), ("there", ["--ray", "local"])):
        assert main(["bench", suite, "--out", out, *where]) == 1  # grpo's environment fails
        manifest = json.loads(Path(out, "manifest.json").read_text())
        assert [run["status"] for run in manifest["runs"]] == ["finished", "failed"]
        assert "refuses env.options" in manifest["runs"][1]["error"]
    assert manifest["execution"]["where"] == "ray local"
    assert figures(Path("here/ppo/CartPole-v1/seed-0")) == figures(
        Path("there/ppo/CartPole-v1/seed-0")
    )


@pytest.mark.slow
def test_a_run_on_ray_that_is_cancelled_saves_and_one_that_waits_does_not_start(tmp_path):
    pytest.importorskip("ray")
    cluster = RayCluster("local", tmp_path)
    try:
        arguments = ("train", "algo=ppo", "env=CartPole-v1", "total_steps=1_000_000_000")
        for name in ("a", "b"):
            command = (*arguments, f"run_dir={tmp_path / name}")
            launch = Launch(command, tmp_path / f"{name}.log", "", threads=cluster.most)
            cluster.start(name, launch)
            while name == "a" and not (tmp_path / name / "metrics.jsonl").exists():
                time.sleep(0.1)
        cluster.stop()
        over: dict[str, Ended] = {}
        while len(over) < 2:
            over.update(cluster.ended())
            time.sleep(0.1)
    finally:
        cluster.close()
    assert over["a"] == Ended(130)
    assert over["b"].code is None
    assert (tmp_path / "a" / "checkpoints" / "last.pt").is_file()
    assert not (tmp_path / "b").exists()


@pytest.mark.slow
def test_a_node_that_does_not_see_the_results_is_named(tmp_path):
    pytest.importorskip("ray")
    descriptor = os.open(tmp_path, os.O_RDONLY)  # an address that holds in this process alone
    os.dup2(descriptor, 200)
    try:
        with pytest.raises(UserError, match="does not see /proc/self/fd/200: give an --out"):
            RayCluster("local", Path("/proc/self/fd/200"))
    finally:
        os.close(200)
        os.close(descriptor)
    assert list(tmp_path.iterdir()) == []
