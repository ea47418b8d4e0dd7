"""manifest.json: what a suite's folder of results holds, how it was made and how far it got.

    suite       name, about, text of its file, sha256 of that text
    command     the latest `zoo bench` that wrote here; made_with: its versions, git, hardware
    execution   where, cores, jobs (processes at a time), threads (of each)
    started, ended    of that command
    runs        label, env, seed, folder (relative to the manifest), overrides, status, attempts,
                started, ended, wall_s, error, log (relative to the manifest)

A run is ``waiting``, ``running``, ``finished``, ``interrupted`` or ``failed``. ``wall_s`` are the
seconds of all its processes, their start and evaluations included. Runs that an earlier command
made stay listed, whatever the present one was asked for.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from zoo.benchmarks.suite import Suite
from zoo.core.atomic import replacing
from zoo.errors import UserError

__all__ = ["Manifest", "Record", "now"]


@dataclass
class Record:
    """What the manifest says of one run."""

    label: str
    env: str
    seed: int
    folder: str
    overrides: list[str]
    status: str = "waiting"
    attempts: int = 0
    started: str | None = None
    ended: str | None = None
    wall_s: float = 0.0
    error: str | None = None
    log: str | None = None


class Manifest:
    """The manifest of one folder of results.

    Parameters
    ----------
    out : Path
        The folder.
    suite : Suite
        What is to be run now. Its runs join those that the manifest lists already.

    Raises
    ------
    UserError
        Where the folder holds another suite's results, or its manifest can't be read.
    """

    def __init__(self, out: Path, suite: Suite) -> None:
        self.path = out / "manifest.json"
        self.suite = suite
        self.facts: dict[str, Any] = {}
        self.records = {record.folder: record for record in self._read()}
        for record in self.records.values():
            if record.status == "running":  # its `zoo bench` was killed: two can't share a folder
                record.status = "interrupted"
        for job in suite.jobs:
            new = Record(job.label, job.env, job.seed, job.folder, [])
            self.records.setdefault(job.folder, new).overrides = list(job.overrides)

    def _read(self) -> list[Record]:
        if not self.path.exists():
            return []
        try:
            tree = json.loads(self.path.read_text("utf-8"))
            name = tree["suite"]["name"]
            known = {field.name for field in fields(Record)}
            records = [Record(**{k: r[k] for k in r if k in known}) for r in tree["runs"]]
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(
                f"can't read {self.path} ({error!r}): choose another --out, or delete that file;"
                " finished runs stay."
            ) from error
        if name != self.suite.name:
            raise UserError(
                f"{self.path.parent} holds the results of the suite {name}: choose another --out"
                f" for {self.suite.name}."
            )
        return records

    def write(self) -> None:
        """Write the file in one go.

        Raises
        ------
        UserError
            Where it can't be written, on a full disk for one; the old one stays.
        """
        suite = self.suite
        tree: Mapping[str, Any] = {
            "suite": {
                "name": suite.name,
                "about": suite.about,
                "text": suite.text,
                "sha256": hashlib.sha256(suite.text.encode()).hexdigest(),
            },
            **self.facts,
            "runs": [asdict(record) for record in self.records.values()],
        }
        try:
            with replacing(self.path) as file:
                file.write(json.dumps(tree, indent=1, ensure_ascii=False).encode(errors="replace"))
        except OSError as error:
            raise UserError(
                f"can't write {self.path}: {error.strerror}. When that is mended, the same command"
                " goes on with what is there."
            ) from error


def now() -> str:
    """Return the time as run folders write it: ISO 8601 with the offset from UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")
