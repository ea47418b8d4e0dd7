"""Where the runs are below a folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from zoo.benchmarks.readers import zoo_runs
from zoo.benchmarks.readers.arguments import natural
from zoo.benchmarks.records import Note

__all__ = ["LOOKED_FOR", "Source", "search"]

LOOKED_FOR = "run folders (config.yaml with metrics.jsonl)"


@dataclass(frozen=True)
class Source:
    """Something that can be read as runs: its kind and where it is."""

    kind: str
    path: Path


@dataclass
class _Walk:
    notes: list[Note] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)


def search(path: Path, named: bool = False) -> tuple[list[Source], list[Note]]:
    """Return what can be read at a path or anywhere below it, and what could not be looked into.

    ``named`` says that a person named this very file.

    Checkpoints, hidden folders and those that ``zoo bench`` moved out of the way (``.failed-``)
    are not looked into.
    """
    walk = _Walk()
    if path.is_file():
        own = {"metrics.jsonl", "config.yaml", "summary.json", "manifest.json"}
        return search(path.parent) if path.name in own else ([], [])
    return list(_sources(path, walk)), walk.notes


def _sources(folder: Path, walk: _Walk) -> Iterator[Source]:
    real = os.path.realpath(folder)
    if real in walk.seen:  # a loop of symbolic links, or a second way to the same folder
        return
    walk.seen.add(real)
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: natural(entry.name))
    except OSError as error:
        walk.notes.append(Note(f"can't look into {folder}: {error.strerror}.", folder))
        return
    names = [entry.name for entry in entries]
    if zoo_runs.is_run(names):
        yield Source("zoo", folder)
        return
    if "manifest.json" in names:
        yield Source("manifest", folder)
    for entry in entries:
        if entry.is_dir() and not _skipped(entry.name):
            yield from _sources(folder / entry.name, walk)


def _skipped(name: str) -> bool:
    return name.startswith(".") or name == "checkpoints" or ".failed-" in name
