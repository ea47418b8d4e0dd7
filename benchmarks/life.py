"""The life of a run: waiting → running → finished, interrupted or failed, and on from there.

What the next `zoo bench` does with a run, by the first line that holds:

    summary.json says finished                 SKIP
    summary.json says failed                   RETRY: its folder is moved aside, and it starts anew
    there is checkpoints/last.pt               RESUME: it goes on exactly where it was saved, also
                                               where it was killed, for lack of memory perhaps
    the manifest says failed                   RETRY
    there is anything else                     RESTART: killed before it was saved, it starts anew
    there is no folder, or an empty one        START

What was finished or will go on must have been started with the settings that the suite says now.
A run is interrupted where it was asked to stop, or where nobody knows how it ended; it failed where
it ended by itself, short of its budget. A run that is "running" in the manifest of a bench that was
killed counts as interrupted.
"""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import yaml

from zoo.benchmarks.manifest import Record
from zoo.benchmarks.sameness import flatten
from zoo.benchmarks.suite import Job
from zoo.core.config import as_overrides, with_defaults
from zoo.errors import UserError

__all__ = ["Ended", "Step", "arguments", "next_step", "outcome", "prepare", "summary"]

#: what a run may differ in from what the suite says: where it went, who was told, who made it
_FREE = ("run_dir", "logger", "made_with")
_ABSENT = "nothing"


class Step(Enum):
    """What is to be done with a run; the value is for people."""

    SKIP = "finished"
    RETRY = "failed, to be tried again"
    RESUME = "to be resumed"
    RESTART = "to be started again"
    START = "to be started"


@dataclass(frozen=True)
class Ended:
    """How a run's process ended: its exit status (below 0: the signal), None where it got lost.

    ``reason`` says why it was ended from outside.
    """

    code: int | None
    reason: str = ""


def next_step(job: Job, record: Record, folder: Path) -> Step:
    """Return what is to be done with a run.

    Raises
    ------
    UserError
        Where its folder was made with other settings, or is none of a run's.
    """
    if not folder.is_dir() or not any(folder.iterdir()):
        return Step.RETRY if record.status == "failed" else Step.START
    status = summary(folder).get("status")
    if status == "failed":
        return Step.RETRY
    if status == "finished" or (folder / "checkpoints" / "last.pt").is_file():
        _refuse_other_settings(job, folder)
        return Step.SKIP if status == "finished" else Step.RESUME
    if record.status == "failed":
        return Step.RETRY
    if record.attempts == 0 and not (folder / "config.yaml").is_file():
        raise UserError(f"{folder} holds what no run wrote: move it, or choose another --out.")
    return Step.RESTART


def prepare(step: Step, folder: Path) -> None:
    """Make the folder's name free for a run that starts anew; a failed one's traceback stays."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    if step is Step.RETRY and folder.is_dir():
        count = 1
        while (aside := folder.with_name(f"{folder.name}.failed-{count}")).exists():
            count += 1
        folder.rename(aside)
    elif step is Step.RESTART:
        shutil.rmtree(folder)


def arguments(step: Step, jobs: Sequence[Job], out: Path) -> list[str]:
    """Return the command, ``zoo`` left out, that starts a run or goes on with it.

    Several jobs are seeds of one setting, trained at once in folders side by side.
    """
    folder, overrides, several = out / jobs[0].folder, list(jobs[0].overrides), []
    if len(jobs) > 1:
        folder, several = folder.parent, as_overrides({"seeds": [job.seed for job in jobs]})
        overrides = [text for text in overrides if text.partition("=")[0] != "seed"]
    if step is Step.RESUME:
        return ["train", "--resume", str(folder), *several]
    return ["train", *overrides, *several, *as_overrides({"run_dir": str(folder)})]


def outcome(folder: Path, log: Path, ended: Ended, stopped: bool) -> tuple[str, str | None]:
    """Return the status of a run whose process ended, and what went wrong.

    Parameters
    ----------
    folder, log : Path
        Where the run and its process wrote.
    ended : Ended
        How the process ended.
    stopped : bool
        Whether all runs were asked to stop.
    """
    code = ended.code
    own = summary(folder).get("status")
    if own == "finished":
        return "finished", None
    if ended.reason and code is not None:
        return "failed", ended.reason
    if own == "failed":  # by itself, even where all runs were being stopped
        return "failed", _last_line(log)
    if stopped or code in (None, 130, -signal.SIGINT, -signal.SIGTERM):
        return "interrupted", None if stopped else ended.reason or None
    if code < 0:
        hint = ", perhaps for lack of memory" if code == -signal.SIGKILL else ""
        return "failed", f"killed by {signal.Signals(-code).name}{hint}"
    if code == 0:
        return "failed", "its process ended before its budget was spent, without an error"
    return "failed", _last_line(log)


def summary(folder: Path) -> dict[str, Any]:
    """Return what summary.json holds, an empty dict where there is none.

    Raises
    ------
    UserError
        Where the file was damaged.
    """
    file = folder / "summary.json"
    if not file.is_file():
        return {}
    try:
        return dict(json.loads(file.read_text("utf-8")))
    except (ValueError, TypeError) as error:
        raise UserError(f"{file} is not the summary of a run: delete {folder}.") from error


def _refuse_other_settings(job: Job, folder: Path) -> None:
    file = folder / "config.yaml"
    try:
        found = flatten(with_defaults(yaml.safe_load(file.read_text("utf-8"))))
    except (OSError, ValueError, LookupError, TypeError, AttributeError, yaml.YAMLError) as error:
        raise UserError(
            f"{file} is not the configuration of a run: delete {folder}, or choose another --out."
        ) from error
    expected = flatten(job.config.to_dict())
    for key in [*expected, *found]:
        then, now = found.get(key, _ABSENT), expected.get(key, _ABSENT)
        if then != now and key.split(".")[0] not in _FREE:
            raise UserError(
                f"{folder} was run with {key}={_shown(then)}, and the suite now says"
                f" {_shown(now)}: choose another --out, or delete that folder."
            )


def _shown(value: Any) -> str:
    return as_overrides({"": value})[0][1:]


def _last_line(log: Path) -> str:
    """Return the last line of a process's output: of a traceback, the error itself."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 8192))
            lines = [line.strip() for line in file.read().decode(errors="replace").split("\n")]
    except OSError as error:
        return f"its log can't be read: {error}"
    last = next((line for line in reversed(lines) if line), "it said nothing")
    return last.removeprefix("error: ")
