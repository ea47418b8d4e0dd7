"""How far the runs of a suite are, and how long the rest will take."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from zoo.benchmarks.manifest import Record
from zoo.benchmarks.suite import Job
from zoo.core.worlds import WORLDS

__all__ = ["Progress", "Tail"]


class Tail:
    """How far one run is, from what was added to its metrics.jsonl since the last look.

    Attributes
    ----------
    spent : float
        Part of its budget, 0 to 1.
    evaluation : float, optional
        Its last one: mean return, or strict accuracy.
    """

    def __init__(self, job: Job, folder: Path) -> None:
        world = WORLDS[job.config.world]
        self._counter, self._figure = world.unit, f"eval/{world.score}"
        self._file, self._budget = folder / "metrics.jsonl", int(job.config[world.budget])
        self._read = 0
        self.spent = 0.0
        self.evaluation: float | None = None

    def look(self) -> None:
        """Read on; a row that is half written is left for the next time."""
        try:
            with self._file.open("rb") as file:
                file.seek(self._read)
                whole, newline, _ = file.read().rpartition(b"\n")
        except OSError:  # not there yet
            return
        self._read += len(whole) + len(newline)
        lines = whole.split(b"\n")
        for line in [*(one for one in lines if self._figure.encode() in one), lines[-1]]:
            try:
                row = json.loads(line)
                self.spent = min(1.0, row[self._counter] / self._budget)
                self.evaluation = row.get(self._figure, self.evaluation)
            except (ValueError, KeyError, TypeError):
                continue


class Progress:
    """What has happened to the runs since the start.

    Parameters
    ----------
    jobs : sequence of Job
        All of them, those too that were finished before.
    records : mapping
        Folder → what the manifest says now.
    out : Path
        The folder of results.
    slots : int
        How many run at a time.
    """

    def __init__(
        self, jobs: Sequence[Job], records: Mapping[str, Record], out: Path, slots: int
    ) -> None:
        self.jobs, self.records, self.slots = jobs, records, slots
        self.began = time.monotonic()
        self.tails = {job.folder: Tail(job, out / job.folder) for job in jobs}
        self.groups: dict[tuple[str, str], list[Job]] = {}
        for job in jobs:
            self.groups.setdefault((job.label, job.env), []).append(job)
        self._started: dict[str, float] = {}
        self._seconds: dict[str, float] = {}
        self.ended = {job.folder for job in jobs if self.status(job) == "finished"}
        for folder in self.ended:
            self.tails[folder].look()

    def status(self, job: Job) -> str:
        """Return a run's status."""
        return self.records[job.folder].status

    def changed(self, job: Job) -> None:
        """Take notice that a run started or ended."""
        if self.status(job) == "running":
            self._started[job.folder] = time.monotonic()
        else:
            self.ended |= {job.folder} if self.status(job) in ("finished", "failed") else set()
            self._seconds[job.folder] = self.seconds(job)
            self.tails[job.folder].look()

    def seconds(self, job: Job) -> float:
        """Return how long a run has been running, or did."""
        now = time.monotonic()
        return self._seconds.get(job.folder, now - self._started.get(job.folder, now))

    def left(self) -> float | None:
        """Estimate the seconds until all have ended, None where none has finished yet.

        A run takes as long as those of its group that finished did, and as the mean of the others
        where there are none.
        """
        means = {}
        for group, jobs in self.groups.items():
            took = [self._seconds[j.folder] for j in jobs if self._finished_now(j)]
            if took:
                means[group] = sum(took) / len(took)
        if not means:
            return None
        usual = sum(means.values()) / len(means)
        open_jobs = (job for job in self.jobs if job.folder not in self.ended)
        seconds = (
            max(0.0, means.get((job.label, job.env), usual) - self.seconds(job))
            for job in open_jobs
        )
        return sum(seconds) / self.slots

    def _finished_now(self, job: Job) -> bool:
        return job.folder in self._seconds and self.status(job) == "finished"
