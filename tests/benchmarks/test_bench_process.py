"""The processes of runs, real ones."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from zoo.benchmarks.life import Ended
from zoo.benchmarks.processes import Launch, LocalProcesses, Process

PATIENCE_S = 60.0


def wait_until(happened, what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not happened():
        assert time.monotonic() < deadline, f"{what} did not happen"
        time.sleep(0.02)


def gone(pid: int) -> bool:
    try:
        return "Z" in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True


def ended(process: Process) -> Ended:
    wait_until(lambda: process.poll() is not None, "the end of the process")
    result = process.poll()
    assert result is not None
    return result


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux's parent-death signal")
def test_a_worker_is_told_to_stop_when_its_parent_is_killed(tmp_path):
    ready, told = tmp_path / "ready", tmp_path / "told"
    worker = f"""
import os, pathlib, signal, sys, time
from zoo.benchmarks.worker import follow
follow(int(sys.argv[1]))
signal.signal(signal.SIGTERM, lambda *_: pathlib.Path({str(told)!r}).touch() or sys.exit())
pathlib.Path({str(ready)!r}).write_text(str(os.getpid()))
time.sleep({PATIENCE_S})
"""
    parent = f"""
import os, subprocess, sys
subprocess.run([sys.executable, "-c", {worker!r}, str(os.getpid())], start_new_session=True)
"""
    process = subprocess.Popen([sys.executable, "-c", parent])
    wait_until(lambda: ready.exists() and ready.read_text(), "the start of the worker")
    assert not told.exists()
    process.kill()
    process.wait()
    wait_until(told.exists, "the worker's hearing of it")
    wait_until(lambda: gone(int(ready.read_text())), "the end of the worker")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux's parent-death signal")
def test_a_worker_whose_parent_is_gone_already_does_not_start():
    code = "from zoo.benchmarks.worker import follow; follow(1); print('started')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (130, "")


def test_a_process_adds_what_it_prints_to_its_log(tmp_path):
    log = tmp_path / "größe 1.log"
    log.write_text("of an earlier attempt\n")
    process = Process(Launch(("nonsense",), log, "attempt 2", threads=1))
    assert ended(process) == Ended(2)
    lines = log.read_text().splitlines()
    assert lines[:2] == ["of an earlier attempt", "--- attempt 2"]
    assert lines[2].startswith("error: unknown command 'nonsense'")


def test_a_process_has_the_threads_it_may_use_and_a_session_of_its_own(tmp_path, monkeypatch):
    seen = {}

    class Popen:
        pid = 1

        def __init__(self, command, **options):
            seen.update(options)

    monkeypatch.setattr(subprocess, "Popen", Popen)
    Process(Launch(("list",), tmp_path / "log", "", threads=3, directory="/nowhere at all"))
    assert {seen["env"][k] for k in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")} == {"3"}
    assert seen["start_new_session"] and seen["cwd"] is None


def test_a_process_that_takes_too_long_is_killed_with_its_reason(tmp_path):
    arguments = ("train", "algo=ppo", "env=CartPole-v1", f"run_dir={tmp_path / 'run'}")
    process = Process(Launch(arguments, tmp_path / "log", "", threads=1, timeout_s=0.01))
    assert ended(process) == Ended(-signal.SIGKILL, "killed after 0.01 s, the --timeout")


def test_what_a_process_leaves_behind_ends_with_it(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(
        "import os, subprocess\n"
        "print(subprocess.Popen(['sleep', '600']).pid, flush=True)\n"
        "os._exit(3)\n"
    )
    log = tmp_path / "log"
    process = Process(Launch(("list",), log, "", threads=1, python_path=str(tmp_path)))
    assert ended(process) == Ended(3)
    wait_until(lambda: gone(int(log.read_text().split()[-1])), "the end of the child")


def test_all_processes_are_told_to_stop(tmp_path):
    executor = LocalProcesses()
    arguments = ("train", "algo=ppo", "env=CartPole-v1", "total_steps=1_000_000_000")
    for name in ("a", "b"):
        launch = Launch((*arguments, f"run_dir={tmp_path / name}"), tmp_path / f"{name}.log", "", 1)
        executor.start(name, launch)
    executor.stop()
    over = {}
    wait_until(lambda: over.update(executor.ended()) or len(over) == 2, "the end of both")
    assert {ended.code for ended in over.values()} <= {130, -signal.SIGTERM}
    assert executor.ended() == []
