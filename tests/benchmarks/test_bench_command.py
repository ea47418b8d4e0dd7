"""`zoo bench` from the command line to the report, with runs that are as short as can be."""

from __future__ import annotations

import json
import os
import shlex
import signal
from pathlib import Path

import pytest
from bench_suites import ROW, SHORT, load, write_run, write_suite

from zoo.benchmarks.locks import holding
from zoo.cli import main

#: environments that end their process in their own ways
HOSTILE = """
import os, signal
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv

class Crashing(CartPoleEnv):
    def step(self, action):
        os.kill(os.getpid(), signal.SIGSEGV)

class Leaving(CartPoleEnv):
    def step(self, action):
        os._exit(0)

class Raising(CartPoleEnv):
    def step(self, action):
        raise ValueError("of the environment")

for cls in (Crashing, Leaving, Raising):
    gymnasium.register(f"{cls.__name__}-v0", cls, max_episode_steps=500)
"""


@pytest.fixture
def zoo(capsys, tmp_path, monkeypatch):
    """Return a function that runs a command in an empty folder: its status, output, error."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        status = main(list(arguments))
        out, err = capsys.readouterr()
        return status, out, err

    return run


def runs(out: Path) -> list[dict]:
    return json.loads((out / "manifest.json").read_text())["runs"]


def test_a_suite_runs_reports_and_is_done(zoo, tmp_path):
    out = tmp_path / "größe = 1 b"
    command = ["bench", write_suite(tmp_path, ROW), "--out", str(out), "--jobs", "2"]
    status, said, err = zoo(*command)
    assert (status, err) == (0, "")
    assert [run["status"] for run in runs(out)] == ["finished"]
    assert said.count("started ") == 1 and said.count("finished ") == 1
    assert "2 at a time" in said and "1 of 1 runs ended" in said
    assert f"report: {out / 'report.html'}" in said and (out / "report.md").is_file()
    for run in runs(out):
        assert (out / run["folder"] / "checkpoints" / "last.pt").is_file()
        assert "finished after 256 env steps" in (out / run["log"]).read_text()

    status, said, _ = zoo(*command)
    assert status == 0 and "1 finished" in said and "started " not in said

    status, _, err = zoo(*command, "algo.lr=0.5")
    assert status == 2
    assert "was run with algo.lr=0.001, and the suite now says 0.5: choose another --out" in err


def test_a_crash_is_the_runs_own(zoo, tmp_path, monkeypatch):
    (tmp_path / "hostile.py").write_text(HOSTILE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    suite = write_suite(tmp_path, {**ROW, "env": ["hostile:Crashing-v0", "CartPole-v1"]})
    status, said, _ = zoo("bench", suite, "--out", "out", "--jobs", "2")
    assert status == 1
    crashed, well = runs(Path("out"))
    assert (crashed["status"], crashed["error"]) == ("failed", "killed by SIGSEGV")
    assert well["status"] == "finished"
    assert crashed["folder"] == "ppo/hostile-Crashing-v0/seed-0"
    log = Path("out", crashed["log"])
    assert "in step" in log.read_text()  # where it crashed
    assert f"failed: ppo on hostile:Crashing-v0, seed 0: killed by SIGSEGV (log: {log})" in said


@pytest.mark.slow
def test_failures_of_every_kind_are_told_apart_and_tried_again(zoo, tmp_path, monkeypatch):
    (tmp_path / "hostile.py").write_text(HOSTILE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    envs = ["hostile:Leaving-v0", "hostile:Raising-v0"]
    suite = write_suite(tmp_path, {**ROW, "env": envs})
    assert zoo("bench", suite, "--out", "out")[0] == 1
    left, raised = runs(Path("out"))
    assert left["error"].startswith("its process ended before its budget was spent")
    assert raised["error"].endswith("ValueError: of the environment")
    assert zoo("bench", suite, "--out", "out", "--only", envs[1])[0] == 1
    _, raised = runs(Path("out"))
    assert raised["attempts"] == 2
    folder = Path("out", raised["folder"])
    for attempt in (folder, folder.with_name("seed-0.failed-1")):
        assert "ValueError: of the environment" in (attempt / "errors.log").read_text()


@pytest.mark.slow
def test_ctrl_c_saves_and_the_same_command_goes_on(zoo, tmp_path, monkeypatch):
    from zoo.benchmarks.live import Lines

    long = {**ROW, "overrides": [*SHORT, "total_steps=100_000", "eval.every=null"]}
    command = ["bench", write_suite(tmp_path, long, seeds=2), "--out", "out", "--jobs", "1"]
    metrics = Path("out/ppo/CartPole-v1/seed-0/metrics.jsonl")

    def interrupt_once(self) -> None:
        if metrics.is_file() and metrics.stat().st_size:
            monkeypatch.setattr(Lines, "tick", lambda self: None)
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Lines, "tick", interrupt_once)
    status, said, _ = zoo(*command)
    assert status == 130
    assert [run["status"] for run in runs(Path("out"))] == ["interrupted", "waiting"]
    assert f"2 runs left; the same command goes on: {shlex.join(['zoo', *command])}" in said
    status, said, _ = zoo(*command)
    assert status == 0 and "1 to be resumed" in said and "1 to be started" in said
    assert [run["attempts"] for run in runs(Path("out"))] == [2, 1]


def test_list_says_what_there_is_to_do_and_does_nothing(zoo, tmp_path):
    suite = write_suite(tmp_path, ROW, seeds=3)
    for seed, status in enumerate(("finished", "interrupted")):
        job = load(tmp_path, ROW, seeds=[seed]).jobs[0]
        write_run(tmp_path / "out" / job.folder, job, status, saved=True)
    write_suite(tmp_path, ROW, seeds=3)
    before = sorted(tmp_path.rglob("*"))
    status, said, _ = zoo("bench", suite, "--out", "out", "--list")
    assert status == 0
    assert "own: 3 runs. A suite of the tests." in said
    assert "ppo  CartPole-v1  1 finished, 1 to be resumed, 1 to be started" in said
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--seeds", "0"], "--seeds must name 1 to 10,000 seeds (got '0')"),
        (["--seeds", "3..1"], "--seeds must name 1 to 10,000 seeds (got '3..1')"),
        (["--jobs", "0"], "argument --jobs: must be 1 or more"),
        (["--jobs", "-1"], "argument --jobs: must be 1 or more"),
        (["--timeout", "0"], "argument --timeout: must be 1 or more"),
        (["--only", "sac"], "--only sac: the suite has ppo/CartPole-v1"),
        (["algo.lrr=1"], "no setting 'algo.lrr'. Did you mean 'algo.lr'?"),
        (["--out", "a_file"], "can't make the folder a_file: File exists"),
        (["--out", "a_file/out"], "can't make the folder a_file/out: Not a directory"),
        (["--out", "a_run/inside"], "is in the run folder"),
        (["--out", "a_run"], "is in the run folder"),
    ],
)
def test_a_mistake_is_one_line(zoo, tmp_path, options, said):
    suite = write_suite(tmp_path, ROW)
    (tmp_path / "a_file").touch()
    write_run(tmp_path / "a_run", load(tmp_path, ROW).jobs[0], "finished")
    status, out, err = zoo("bench", suite, *options)
    assert (status, out) == (2, "")
    assert said in err and err.count("\n") == 1


def test_overrides_and_options_may_come_in_any_order(zoo, tmp_path):
    suite = write_suite(tmp_path, ROW)
    status, said, _ = zoo("bench", suite, "--list", "algo.lr=0.1", "--seeds", "2", "algo.gamma=0.9")
    assert status == 0 and "2 to be started" in said


def test_a_second_bench_in_one_folder_is_refused(zoo, tmp_path):
    suite = write_suite(tmp_path, ROW)
    (tmp_path / "out").mkdir()
    with holding(tmp_path / "out"):
        status, _, err = zoo("bench", suite, "--out", "out")
    assert status == 2 and "another zoo bench is working in out" in err
