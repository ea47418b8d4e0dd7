"""Execute the runs of a suite, some at a time, and keep its manifest."""

from __future__ import annotations

import shlex
import signal
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from zoo.benchmarks import life
from zoo.benchmarks.life import Step
from zoo.benchmarks.live import View
from zoo.benchmarks.locks import is_held
from zoo.benchmarks.manifest import Manifest, now
from zoo.benchmarks.processes import Executor, Launch
from zoo.benchmarks.suite import Job
from zoo.errors import UserError

__all__ = ["Runner", "plan", "wait_for_orphans"]

_POLL_S = 0.1
#: how long runs of a bench that was killed may take to save
_ORPHANS_S = 120.0


def plan(jobs: Sequence[Job], manifest: Manifest, out: Path) -> dict[str, Step]:
    """Return what is to be done with each run, by its folder; see :mod:`zoo.benchmarks.life`.

    One that is found to be finished is so in the manifest, too, from now on.
    """
    steps = {}
    for job in jobs:
        record = manifest.records[job.folder]
        try:
            steps[job.folder] = life.next_step(job, record, out / job.folder)
        except OSError as error:
            raise UserError(f"can't read the run {out / job.folder}: {error}.") from error
        if steps[job.folder] is Step.SKIP:
            record.status, record.error = "finished", None
    return steps


def wait_for_orphans(jobs: Sequence[Job], out: Path) -> None:
    """Wait until runs that a killed bench left behind have saved.

    Raises
    ------
    UserError
        Where a process goes on in one of the folders.
    """
    deadline, told = time.monotonic() + _ORPHANS_S, False
    for job in jobs:
        while is_held(out / job.folder):
            if not told:
                print(f"{out / job.folder} is still being saved: waiting for it", flush=True)
                told = True
            if time.monotonic() > deadline:
                raise UserError(
                    f"another process is training in {out / job.folder}: wait for it, or stop it"
                    " first."
                )
            time.sleep(_POLL_S)


class Runner:
    """Execute runs.

    Parameters
    ----------
    jobs : sequence of Job
        Runs, in the order of their start.
    steps : mapping
        From :func:`plan`.
    manifest : Manifest
        Kept up to date on the disk, before a run starts and after it ended.
    out : Path
        The folder of results.
    executor : Executor
        Where runs are executed.
    slots : int
        How many at a time.
    threads, timeout_s
        Of each run; see :class:`~zoo.benchmarks.processes.Launch`.
    view : View
        Told of every change.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        steps: dict[str, Step],
        manifest: Manifest,
        out: Path,
        executor: Executor,
        slots: int,
        threads: int,
        timeout_s: float | None,
        view: View,
    ) -> None:
        self.steps, self.manifest, self.out = steps, manifest, out
        self.executor, self.slots, self.threads = executor, slots, threads
        self.timeout_s, self.view = timeout_s, view
        self.queue = deque(job for job in jobs if steps[job.folder] is not Step.SKIP)
        self.running: dict[str, tuple[list[Job], float]] = {}  # and when each began
        self.interrupts = self._heeded = 0

    def run(self) -> None:
        """Start runs until all have ended, or Ctrl-C was heard and those under way have saved.

        Raises
        ------
        UserError
            Where the manifest can't be written; the runs under way are stopped first.
        """
        self.manifest.write()
        with self._hearing_interrupts():
            try:
                while self.running or (self.queue and not self.interrupts):
                    while self.queue and len(self.running) < self.slots and not self.interrupts:
                        self._start(self._next())
                    self._wait()
            except BaseException:
                self.interrupts = max(self.interrupts, 1)
                while self.running:
                    with suppress(UserError):  # the one that is under way says it
                        self._wait()
                raise

    def _next(self) -> list[Job]:
        """Take a run from the queue, and with it those that are trained at once with it."""
        first = self.queue.popleft()

        def kind(job: Job) -> tuple[bool, str, str, bool]:
            return job.together, job.label, job.env, self.steps[job.folder] is Step.RESUME

        others = [j for j in self.queue if first.together and kind(j) == kind(first)]
        for job in others:
            self.queue.remove(job)
        return [first, *others]

    def _start(self, jobs: list[Job]) -> None:
        job, began = jobs[0], time.monotonic()
        for each in jobs:
            record = self.manifest.records[each.folder]
            record.status, record.started, record.ended, record.error = "running", now(), None, None
            record.attempts, record.log = record.attempts + 1, f"{job.folder}.log"
        self.manifest.write()  # so that there is nothing on the disk that it does not know of
        record = self.manifest.records[job.folder]
        command = life.arguments(self.steps[job.folder], jobs, self.out)
        try:
            for each in jobs:
                life.prepare(self.steps[each.folder], self.out / each.folder)
            launch = Launch(
                arguments=tuple(command),
                log=self._log(job.folder),
                title=f"{record.started}, attempt {record.attempts}: zoo {shlex.join(command)}",
                threads=self.threads,
                timeout_s=self.timeout_s,
                accelerator=_accelerated(job),
            )
            self.executor.start(job.folder, launch)
        except OSError as error:
            for each in jobs:
                self._settle(each, began, "failed", f"could not be started: {error}")
        else:
            self.running[job.folder] = jobs, began
            for each in jobs:
                self.view.changed(each)

    def _wait(self) -> None:
        """Hear of interrupts and of runs that ended, and show how far the others are."""
        if self.interrupts and self._heeded == 0:
            self._heeded = 1
            if self.running:
                self.view.say("runs under way save and stop; Ctrl-C again kills them")
            self.executor.stop()
        if self.interrupts > 1 and self._heeded == 1:
            self._heeded = 2
            self.executor.kill()
        for name, ended in self.executor.ended():
            jobs, began = self.running.pop(name)
            for job in jobs:
                try:
                    folder, stopped = self.out / job.folder, self.interrupts > 0
                    status, error = life.outcome(folder, self._log(name), ended, stopped)
                except UserError as damaged:
                    status, error = "failed", str(damaged)
                self._settle(job, began, status, error)
        self.view.tick()
        time.sleep(_POLL_S)

    def _settle(self, job: Job, began: float, status: str, error: str | None) -> None:
        record = self.manifest.records[job.folder]
        record.status, record.error, record.ended = status, error, now()
        record.wall_s = round(record.wall_s + time.monotonic() - began, 3)
        self.view.changed(job)
        self.manifest.write()

    def _log(self, name: str) -> Path:
        return self.out / f"{name}.log"

    @contextmanager
    def _hearing_interrupts(self) -> Iterator[None]:
        """Count Ctrl-C and SIGTERM: the first ends all runs in order, the second one at once."""

        def hear(number: int, frame: FrameType | None) -> None:
            self.interrupts += 1

        before = {n: signal.signal(n, hear) for n in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _accelerated(job: Job) -> bool:
    device = str(job.config["device"])
    return device.startswith("cuda") or (device == "auto" and job.config.world == "text")
