"""Runs in processes of their own: a crash is theirs alone, and so is their peak of memory."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from zoo.benchmarks.life import Ended
from zoo.benchmarks.suite import Job

__all__ = ["Executor", "Launch", "LocalProcesses", "Process", "share"]

#: what sets the number of threads of torch's and NumPy's libraries
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


@dataclass(frozen=True)
class Launch:
    """How a run's process is started, on this machine or another.

    Attributes
    ----------
    arguments : tuple of str
        Of the command ``zoo``.
    log : Path
        What it prints is added to this file.
    title : str
        The line that stands above it there.
    threads : int
        CPU threads that it may use.
    timeout_s : float, optional
        Seconds after which it is killed.
    accelerator : bool
        Whether it takes one where there is one.
    directory, python_path : str
        Where it starts, if that exists there, and where Python looks for modules.
    """

    arguments: tuple[str, ...]
    log: Path
    title: str
    threads: int
    timeout_s: float | None = None
    accelerator: bool = False
    directory: str = field(default_factory=os.getcwd)
    python_path: str = field(default_factory=lambda: os.environ.get("PYTHONPATH", ""))


class Executor(Protocol):
    """Where runs are executed.

    Attributes
    ----------
    cores, most : int
        CPU cores there are in all, and those that one run can have.
    """

    cores: int
    most: int

    def start(self, name: str, launch: Launch) -> None:
        """Start a run."""
        ...

    def ended(self) -> list[tuple[str, Ended]]:
        """Return the runs that ended since the last call, without waiting."""
        ...

    def stop(self) -> None:
        """Ask every run to save and stop."""
        ...

    def kill(self) -> None:
        """End every run at once."""
        ...

    def close(self) -> None:
        """Give back what was taken to execute runs."""
        ...


class Process:
    """One run's process, which leads a group of its own: Ctrl-C reaches it through us alone."""

    def __init__(self, launch: Launch) -> None:
        threads = dict.fromkeys(_THREADS, str(launch.threads))
        # What it prints shall be there if it crashes, and where it crashed.
        environment = {**os.environ, **threads, "PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"}
        if launch.python_path:
            environment["PYTHONPATH"] = launch.python_path
        worker = [sys.executable, "-m", "zoo.benchmarks.worker", str(os.getpid())]
        with launch.log.open("ab") as log:
            log.write(f"--- {launch.title}\n".encode(errors="replace"))
            log.flush()
            self._process = subprocess.Popen(
                [*worker, *launch.arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=launch.directory if Path(launch.directory).is_dir() else None,
                start_new_session=True,
            )
        self._timeout_s, self._started, self._reason = launch.timeout_s, time.monotonic(), ""

    def poll(self) -> Ended | None:
        """Return how it ended, None while it runs; one that is out of time is killed."""
        code = self._process.poll()
        if code is not None:
            self._kill_group()  # workers of its environments that it left behind
            return Ended(code, self._reason)
        if self._timeout_s is not None and time.monotonic() - self._started > self._timeout_s:
            self._reason = f"killed after {self._timeout_s:g} s, the --timeout"
            self.kill()
        return None

    def stop(self) -> None:
        """Ask it to save and stop; its workers are its own business."""
        self._process.terminate()

    def kill(self) -> None:
        """End it and its workers at once."""
        self._kill_group()

    def _kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # all are gone
            os.killpg(self._process.pid, signal.SIGKILL)


class LocalProcesses:
    """Runs on this machine."""

    def __init__(self) -> None:
        allowed = getattr(os, "sched_getaffinity", None)  # Linux; containers may have fewer
        self.cores = self.most = len(allowed(0)) if allowed else os.cpu_count() or 1
        self._running: dict[str, Process] = {}

    def start(self, name: str, launch: Launch) -> None:
        """Start a run."""
        self._running[name] = Process(launch)

    def ended(self) -> list[tuple[str, Ended]]:
        """Return the runs that ended since the last call, without waiting."""
        found = [(name, process.poll()) for name, process in self._running.items()]
        over = [(name, ended) for name, ended in found if ended is not None]
        for name, _ in over:
            del self._running[name]
        return over

    def stop(self) -> None:
        """Ask every run to save and stop."""
        for process in self._running.values():
            process.stop()

    def kill(self) -> None:
        """End every run at once."""
        for process in self._running.values():
            process.kill()

    def close(self) -> None:
        """Do nothing: there is nothing to give back."""


def share(jobs: Sequence[Job], executor: Executor, slots: int | None) -> tuple[int, int]:
    """Return how many runs go at a time, as asked or as the cores carry, and the threads of each.

    Runs on control tasks and those that set ``threads`` need so many, others all there are.
    """
    wanted = (j.config["threads"] or (1 if j.config.world == "control" else None) for j in jobs)
    most = max((min(n or executor.most, executor.most) for n in wanted), default=1)
    slots = slots or max(1, executor.cores // most)
    return slots, min(executor.most, max(1, executor.cores // slots))
