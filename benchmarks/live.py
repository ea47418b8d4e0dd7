"""What a person sees of a suite while it runs: a live table on a terminal, lines elsewhere."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from typing import Any, Protocol

from zoo.benchmarks.progress import Progress
from zoo.benchmarks.suite import Job
from zoo.core.loggers import duration, short

__all__ = ["Lines", "LiveTable", "View"]

_REDRAW_S = 0.5


class View(Protocol):
    """Is told what happens to the runs; entered before the first and left after the last."""

    def __enter__(self) -> View:
        """Begin to show."""
        ...

    def __exit__(self, *error: object) -> None:
        """End."""
        ...

    def say(self, text: str) -> None:
        """Show one sentence."""
        ...

    def changed(self, job: Job) -> None:
        """Show that a run started or ended; its record says which."""
        ...

    def tick(self) -> None:
        """Show how far the runs are; called often, and cheap most of the time."""
        ...


class Lines:
    """One line for each start and each end of a run."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def say(self, text: str) -> None:
        """Print the sentence; where nobody reads on (``| head``) the runs go on in silence."""
        try:
            print(text, flush=True)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    def changed(self, job: Job) -> None:
        """Print a line."""
        progress = self._progress
        progress.changed(job)
        if progress.status(job) == "running":
            self.say(f"started      {job}")
        else:
            self.say(f"{_end(progress, job)}; {_so_far(progress)}")

    def tick(self) -> None:
        """Print nothing: a file is read afterwards."""


class LiveTable:
    """A table of the groups of runs that stays in place; what is said scrolls by above it."""

    def __init__(self, progress: Progress) -> None:
        from rich.console import Console
        from rich.live import Live

        self._progress, self._drawn = progress, 0.0
        self._live = Live(
            console=Console(highlight=False), auto_refresh=False, vertical_overflow="ellipsis"
        )

    def __enter__(self) -> LiveTable:
        self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.update(self._table(), refresh=True)
        self._live.stop()

    def say(self, text: str) -> None:
        """Print the sentence above the table."""
        self._live.console.print(text, markup=False, soft_wrap=True)

    def changed(self, job: Job) -> None:
        """Say what failed; the table shows the rest."""
        self._progress.changed(job)
        if self._progress.status(job) == "failed":
            self.say(_end(self._progress, job))

    def tick(self) -> None:
        """Draw the table anew where half a second has passed."""
        if time.monotonic() - self._drawn >= _REDRAW_S:
            self._drawn = time.monotonic()
            self._live.update(self._table(), refresh=True)

    def _table(self) -> Any:
        from rich.table import Table
        from rich.text import Text

        table = Table(caption=_so_far(self._progress), caption_justify="left")
        for name in ("run", "environment", "finished", "failed", "last evaluation"):
            table.add_column(name, no_wrap=True)
        table.add_column("running")
        for (label, env), jobs in self._progress.groups.items():
            cells = [label, env, *_cells(self._progress, jobs)]
            table.add_row(*(Text(cell) for cell in cells))
        return table


def _cells(progress: Progress, jobs: Sequence[Job]) -> list[str]:
    """Return what a group's row says: finished, failed, last evaluation, running."""
    by_status: dict[str, list[Job]] = {"finished": [], "failed": [], "running": []}
    for job in jobs:
        by_status.setdefault(progress.status(job), []).append(job)
    for job in by_status["running"]:
        progress.tails[job.folder].look()
    last = (progress.tails[job.folder].evaluation for job in jobs)
    known = [value for value in last if value is not None]
    spent = [f"seed {j.seed} {progress.tails[j.folder].spent:.0%}" for j in by_status["running"]]
    return [
        f"{len(by_status['finished'])}/{len(jobs)}",
        str(len(by_status["failed"]) or ""),
        f"{short(sum(known) / len(known))} (mean of {len(known)})" if known else "",
        ", ".join(spent),
    ]


def _end(progress: Progress, job: Job) -> str:
    """Return how a run ended, in one line."""
    record, last = progress.records[job.folder], progress.tails[job.folder].evaluation
    line = f"{record.status:<12} {job} in {duration(progress.seconds(job))}"
    if record.error:
        return f"{line}: {record.error} (see {record.log})"
    return line if last is None else f"{line}, evaluation {short(last)}"


def _so_far(progress: Progress) -> str:
    left = progress.left()
    rest = f", about {duration(left)} left" if left else ""
    gone = duration(time.monotonic() - progress.began)
    return f"{len(progress.ended)} of {len(progress.jobs)} runs ended after {gone}{rest}"
