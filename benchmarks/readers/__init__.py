"""Readers of results: our own run folders and other people's files, as one collection of runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace

from zoo.benchmarks.readers import manifests, zoo_runs
from zoo.benchmarks.readers.arguments import Argument, parse
from zoo.benchmarks.readers.csv_files import read_csv
from zoo.benchmarks.readers.event_files import read_events
from zoo.benchmarks.readers.repeats import different_clocks, drop_repeats, unknown_seeds
from zoo.benchmarks.readers.results_file import read_results, write_results
from zoo.benchmarks.readers.sb3 import read_sb3
from zoo.benchmarks.readers.search import LOOKED_FOR, Source, search
from zoo.benchmarks.readers.series import count
from zoo.benchmarks.readers.wandb_export import is_export, read_export
from zoo.benchmarks.readers.wandb_files import read_wandb
from zoo.benchmarks.records import Collection, Note, Run
from zoo.errors import UserError

__all__ = ["read", "write_results"]


def read(arguments: Sequence[str]) -> Collection:
    """Read all runs that the arguments name.

    Parameters
    ----------
    arguments : sequence of str
        ``[LABEL[@ENV]=]PATH`` each, where PATH is a file, a folder that is searched for runs, or a
        pattern (``runs/ppo-*``).

    Returns
    -------
    Collection
        The runs in the order of the arguments, each once, and notes on what is missing or strange.

    Raises
    ------
    UserError
        Where an argument names nothing that exists, nothing that can be read, or a file that is
        broken. What is broken among other runs that were found by searching is a note instead.
    """
    parsed = [parse(text) for text in arguments]
    found = _Found()
    # A name that a person chose goes before those that runs give themselves.
    for argument in sorted(parsed, key=lambda a: a.label is None and a.env is None):
        found.read(argument)
    runs, repeats = drop_repeats([run for a in dict.fromkeys(parsed) for run in found.runs[a]])
    if not runs:
        raise UserError(found.notes[0].text if found.notes else "there is nothing to read.")
    notes = (*found.notes, *repeats, *unknown_seeds(runs), *different_clocks(runs))
    return Collection(tuple(runs), notes)


class _Found:
    """What was read so far."""

    def __init__(self) -> None:
        self.runs: dict[Argument, list[Run]] = {}
        self.notes: list[Note] = []
        self.read_as: dict[tuple[str, str], str | None] = {}  # kind and real path → label given

    def read(self, argument: Argument) -> None:
        """Read all that one argument names."""
        errors: list[UserError] = []
        runs, sources = self.runs.setdefault(argument, []), 0
        for path in argument.paths:
            named = path.is_file() and not argument.pattern
            try:
                below, notes = search(path)
            except UserError:
                if named:
                    raise
                continue  # a pattern matches more than results
            self.notes += notes
            for source in below:
                sources += 1
                try:
                    runs += self._read_source(source, argument)
                except UserError as error:
                    if named:
                        raise
                    errors.append(error)
        if errors and not runs:
            more = f" (and {count(len(errors) - 1, 'other')} like it)" if len(errors) > 1 else ""
            raise UserError(f"{errors[0]}{more}")
        if not sources:
            raise UserError(f"no run found under {argument.text}: looked for {LOOKED_FOR}.")
        self.notes += [Note(f"left out: {error}") for error in errors]

    def _read_source(self, source: Source, argument: Argument) -> Sequence[Run]:
        place = (source.kind, os.path.realpath(source.path))
        if place in self.read_as:
            if argument.label not in (None, self.read_as[place]):
                text = f"{source.path} is named twice; it stands under {self.read_as[place]}."
                self.notes.append(Note(text, source.path))
            return ()
        collection = _READERS[source.kind](source, argument)
        self.read_as[place] = argument.label
        self.notes += collection.notes
        return collection.runs


def _read_zoo_run(source: Source, argument: Argument) -> Collection:
    collection = zoo_runs.read_run(source.path, argument.label, argument.env)
    entry = manifests.entry_of(source.path)
    if entry is None:
        return collection
    runs = tuple(
        replace(
            run,
            label=(argument.label is None and entry.label) or run.label,
            facts={**run.facts, **({"command": entry.command} if entry.command else {})},
        )
        for run in collection.runs
    )
    return replace(collection, runs=runs)


def _read_manifest(source: Source, argument: Argument) -> Collection:
    return Collection((), tuple(manifests.without_folder(source.path)))


def _read_table(source: Source, argument: Argument) -> Collection:
    return (read_export if is_export(source.path) else read_csv)(source.path, argument)


_READERS: dict[str, Callable[[Source, Argument], Collection]] = {
    "zoo": _read_zoo_run,
    "manifest": _read_manifest,
    "results": lambda source, argument: read_results(source.path, argument),
    "csv": _read_table,
    "sb3": lambda source, argument: read_sb3(source.path, source.files, argument),
    "events": lambda source, argument: read_events(source.path, source.files, argument),
    "wandb": lambda source, argument: read_wandb(source.path, source.files, argument),
}
