"""Where the runs are below a folder, and which files belong to one run."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from glob import escape, glob
from pathlib import Path

from zoo.benchmarks.readers import zoo_runs
from zoo.benchmarks.readers.arguments import natural
from zoo.benchmarks.readers.csv_files import is_table
from zoo.benchmarks.readers.event_files import is_events
from zoo.benchmarks.readers.naming import is_part
from zoo.benchmarks.readers.results_file import is_results
from zoo.benchmarks.readers.sb3 import is_evaluations, is_monitor
from zoo.benchmarks.readers.wandb_files import is_wandb
from zoo.benchmarks.records import Note
from zoo.errors import UserError

__all__ = ["LOOKED_FOR", "Source", "search"]

LOOKED_FOR = (
    "run folders (config.yaml with metrics.jsonl), Stable-Baselines3's evaluations.npz, monitor.csv"
    " and progress.csv, TensorBoard's events.out.tfevents.*, W&B's run-*.wandb, *.results.json and"
    " CSV files with the columns algo, env, seed, step and value"
)
#: files of a folder that stand for the folder
_STAND_FOR_RUN = {"metrics.jsonl", "config.yaml", "summary.json", "manifest.json"}


@dataclass(frozen=True)
class Source:
    """Something that can be read: what it is, where it is, and its files where they are several."""

    kind: str
    path: Path
    files: tuple[Path, ...] = ()


@dataclass
class _Folder:
    """Files of other libraries' runs, by the folder of the run."""

    sb3: list[Path] = field(default_factory=list)
    events: list[Path] = field(default_factory=list)


@dataclass
class _Search:
    root: Path
    sources: list[Source] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)
    others: dict[Path, _Folder] = field(default_factory=dict)
    logs: dict[tuple[Path, str], list[Path]] = field(default_factory=dict)


def search(path: Path) -> tuple[list[Source], list[Note]]:
    """Return what can be read at a path or anywhere below it, and what could not be looked into.

    Checkpoints, hidden folders and those that ``zoo bench`` moved out of the way (``.failed-``)
    are not looked into. Folders named ``eval``, ``monitor``, ``tb`` and the like are part of the
    run whose folder they are in.

    Raises
    ------
    UserError
        Where a path is a file of no kind that is read.
    """
    if path.is_file():
        if path.name in _STAND_FOR_RUN:
            return search(path.parent)
        return [_file(path)], []
    found = _Search(path)
    _look(path, found)
    _other_libraries(found)
    found.sources.sort(key=lambda source: natural(source.path))
    return found.sources, found.notes


_FILES: tuple[tuple[Callable[[str], bool], str], ...] = (
    (is_results, "results"),
    (is_events, "events"),
    (is_wandb, "wandb"),
    (lambda name: is_monitor(name) or name == "progress.csv" or name.endswith(".npz"), "sb3"),
    (lambda name: name.lower().endswith((".csv", ".tsv", ".txt")), "csv"),
)


def _file(path: Path) -> Source:
    """Return what a file is that a person named; SB3's usual names stand for their folder."""
    kind = next((kind for fits, kind in _FILES if fits(path.name)), None)
    if kind is None:
        raise UserError(f"{path} is none of what is read: {LOOKED_FOR}.")
    if _is_sb3(path.name) and not _has_own_name(path):
        here = [f for f in glob(f"{escape(str(path.parent))}/*.*") if _is_sb3(Path(f).name)]
        return Source(kind, path.parent, tuple(map(Path, sorted(here, key=natural))))
    return Source(kind, path, (path,))


def _look(folder: Path, found: _Search) -> None:
    real = os.path.realpath(folder)
    if real in found.seen:  # a loop of symbolic links, or a second way to the same folder
        return
    found.seen.add(real)
    try:
        entries = sorted(os.scandir(folder), key=lambda e: (e.is_symlink(), natural(e.name)))
    except OSError as error:
        found.notes.append(Note(f"can't look into {folder}: {error.strerror}.", folder))
        return
    names = [entry.name for entry in entries]
    if zoo_runs.is_run(names):
        found.sources.append(Source("zoo", folder))
        if _has_rows(folder / "metrics.jsonl"):
            return  # its event files say the same once more
    if "manifest.json" in names:
        found.sources.append(Source("manifest", folder))
    for entry in entries:
        if os.path.isdir(entry):
            if not _skipped(entry.name):
                _look(folder / entry.name, found)
        elif os.path.isfile(entry):
            _take(folder / entry.name, found)


def _take(file: Path, found: _Search) -> None:
    """Put a file to the run that it belongs to."""
    name, folder = file.name, file.parent
    run = folder
    while run != found.root and is_part(run.name):
        run = run.parent
    if _is_sb3(name):
        if not _of_evaluation(file, run):
            found.others.setdefault(run, _Folder()).sb3.append(file)
    elif is_events(name):
        found.others.setdefault(run, _Folder()).events.append(file)
    elif is_wandb(name):
        found.logs.setdefault((folder.parent, name), []).append(file)
    elif is_results(name):
        found.sources.append(Source("results", file))
    elif is_table(file):
        found.sources.append(Source("csv", file))


def _other_libraries(found: _Search) -> None:
    """Turn the files that were found into runs, each run once."""
    for logs in found.logs.values():  # a resumed run has several, one after another
        found.sources.append(Source("wandb", logs[0], tuple(logs)))
    synced = {name.removeprefix("run-").removesuffix(".wandb") for _, name in found.logs}
    for folder, files in found.others.items():
        above = [found.others[a] for a in folder.parents if a in found.others]
        if files.sb3:
            found.sources += _sb3_runs(folder, files.sb3, _events_of(folder, found))
        elif any(other.sb3 for other in above):
            continue  # the same run's, said once more
        elif any(other.events for other in above) and _is_time(folder.name):
            continue  # add_hparams() writes its table there
        elif synced & set(folder.parts):
            continue  # W&B has taken them over
        else:
            found.sources.append(Source("events", folder, tuple(files.events)))


def _events_of(folder: Path, found: _Search) -> list[Path]:
    """Return the event files of a run of Stable-Baselines3: in its folder, or in one below it."""
    if found.others[folder].events:
        return found.others[folder].events
    below = [f for f, o in found.others.items() if folder in f.parents and o.events and not o.sb3]
    if len(below) > 1:
        text = f"{folder} is one run by its files, so the event files in {len(below)} folders below"
        found.notes.append(
            Note(f"{text} it are not read: name these folders to have them.", folder)
        )
        return []
    return found.others[below[0]].events if below else []


def _sb3_runs(folder: Path, files: list[Path], events: list[Path]) -> Iterator[Source]:
    """Yield one run, or one for each monitor file where these have names of their own."""
    monitors = [f for f in files if is_monitor(f.name)]
    if len(monitors) == len(files) > 1 and any(map(_has_own_name, monitors)):
        yield from (Source("sb3", file, (file,)) for file in monitors)
    else:
        yield Source("sb3", folder, (*files, *events))


def _skipped(name: str) -> bool:
    return name.startswith(".") or name == "checkpoints" or ".failed-" in name


def _has_own_name(file: Path) -> bool:
    """Return whether a monitor file is called otherwise than SB3 calls those of one run."""
    usual = file.name == "monitor.csv" or file.name.split(".")[0].isdecimal()
    return is_monitor(file.name) and not usual


def _is_sb3(name: str) -> bool:
    return is_evaluations(name) or is_monitor(name) or name == "progress.csv"


def _of_evaluation(file: Path, run: Path) -> bool:
    """Return whether a monitor file is of the environment that a run is evaluated in."""
    names = (file.name, *(p.name for p in file.parents if run in p.parents))
    return is_monitor(file.name) and any(name.lower().startswith("eval") for name in names)


def _is_time(name: str) -> bool:
    return name.replace(".", "", 1).isdecimal()


def _has_rows(file: Path) -> bool:
    try:
        return file.stat().st_size > 0
    except OSError:
        return False
