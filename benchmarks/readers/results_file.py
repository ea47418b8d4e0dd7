"""Runs in one small file, ``*.results.json`` or ``*.results.json.gz``, to commit and to report on.

Curves are thinned to 200 points, numbers rounded to 7 digits, and settings that all runs share are
kept once. A report made of the file is that of the run folders to this precision.
"""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from zoo.benchmarks.readers.arguments import Argument
from zoo.benchmarks.readers.series import clean, thin
from zoo.benchmarks.records import Collection, Curve, Note, Run
from zoo.core.atomic import replacing
from zoo.core.run_folder import finite
from zoo.errors import UserError

__all__ = ["is_results", "read_results", "write_results"]

_FORMAT, _VERSION = "algorithm-zoo results", 1
_POINTS, _DIGITS = 200, 7
#: what a run holds besides curves, settings and facts
_PLAIN = ("label", "env", "seed", "kind", "unit", "metric", "status", "named")


def is_results(name: str) -> bool:
    """Return whether a file of this name holds results."""
    return name.endswith((".results.json", ".results.json.gz"))


def write_results(collection: Collection, path: Path) -> None:
    """Write runs and notes to a file, compressed where its name ends in ``.gz``; atomic.

    Raises
    ------
    UserError
        Where the name is none that is read again, or the file can't be written.
    """
    if not is_results(path.name):
        raise UserError(f"{path} must end in .results.json or .results.json.gz.")
    runs = collection.runs
    shared = {name: _shared([getattr(run, name) for run in runs]) for name in ("settings", "facts")}
    content = {
        "format": _FORMAT,
        "version": _VERSION,
        "shared": shared,
        "runs": [
            _packed(run, shared, source) for run, source in zip(runs, _places(runs), strict=True)
        ],
        # What has no source is about all runs together, and is said again when they are read.
        "notes": [[note.text, note.source.name] for note in collection.notes if note.source],
    }
    text = json.dumps(finite(content), ensure_ascii=False, separators=(",", ":"))
    data = text.encode("utf-8")
    if path.name.endswith(".gz"):
        data = gzip.compress(data, mtime=0)  # no time in it: the same runs give the same file
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            file.write(data)
    except OSError as error:
        raise UserError(f"can't write {path}: {error.strerror}.") from error


def read_results(path: Path, argument: Argument) -> Collection:
    """Read what :func:`write_results` wrote; a run's source is the file and the folder's name.

    Raises
    ------
    UserError
        Where it is no such file, or one of a later version.
    """
    try:
        data = path.read_bytes()
        content = json.loads(gzip.decompress(data) if path.name.endswith(".gz") else data)
        if content["format"] != _FORMAT:
            raise KeyError("format")
        if content["version"] > _VERSION:
            raise UserError(f"{path} was written by a later version: `pip install -U` this one.")
        runs = tuple(_unpacked(run, content["shared"], path) for run in content["runs"])
        notes = tuple(Note(text, path / source) for text, source in content["notes"])
    except OSError as error:
        why = error.strerror or "it is not compressed by gzip"
        raise UserError(f"can't read {path}: {why}.") from error
    except (ValueError, KeyError, TypeError, EOFError, AttributeError, zlib.error) as error:
        raise UserError(f"{path} is no results file.") from error
    if argument.env is not None and {run.env for run in runs} != {argument.env}:
        raise UserError(
            f"{path} says itself of which tasks its runs are: leave @{argument.env} out."
        )
    if argument.label is not None:
        several = len({run.label for run in runs}) > 1
        name = argument.label
        runs = tuple(
            replace(run, label=f"{name} {run.label}" if several else name, named=True)
            for run in runs
        )
    return Collection(runs, notes)


def _shared(mappings: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what all of them say alike."""
    first = mappings[0] if mappings else {}
    return {k: v for k, v in first.items() if all(k in m and m[k] == v for m in mappings)}


def _places(runs: Sequence[Run]) -> list[str]:
    """Return where each run is, seen from the folder that holds all of them."""
    sources = [os.path.abspath(run.source) for run in runs]
    above = os.path.commonpath([os.path.dirname(source) for source in sources]) if runs else ""
    return [Path(os.path.relpath(source, above)).as_posix() for source in sources]


def _packed(run: Run, shared: Mapping[str, Mapping[str, Any]], source: str) -> dict[str, Any]:
    packed = {name: getattr(run, name) for name in _PLAIN}
    packed["source"] = source
    packed["curves"] = {
        name: _rounded(_columns(thin(curve, _POINTS))) for name, curve in run.curves.items()
    }
    for name, common in shared.items():
        packed[name] = {k: v for k, v in getattr(run, name).items() if k not in common}
    packed["facts"] = _rounded(packed["facts"])
    return packed


def _unpacked(packed: Mapping[str, Any], shared: Mapping[str, Any], path: Path) -> Run:
    return Run(
        **{name: packed[name] for name in _PLAIN},
        source=path / packed["source"],
        curves={name: _curve(*columns) for name, columns in packed["curves"].items()},
        settings={**shared["settings"], **packed["settings"]},
        facts={**shared["facts"], **packed["facts"]},
    )


def _curve(step: Sequence[float], value: Sequence[float], wall_s: Sequence[float] | None) -> Curve:
    """Return a curve, unless it is none: ValueError, as of a file that somebody changed."""
    series = clean(step, value, wall_s)
    whole = series.curve is not None and not series.remarks and len(series.curve.step) == len(step)
    if series.curve is None or not whole or (wall_s is None) != (series.curve.wall_s is None):
        raise ValueError("curve")
    return series.curve


def _columns(curve: Curve) -> list[list[float] | None]:
    return [
        None if column is None else [int(v) if v == int(v) else float(v) for v in column]
        for column in (curve.step, curve.value, curve.wall_s)
    ]


def _rounded(value: Any) -> Any:
    """Round what is no whole number, everywhere."""
    if isinstance(value, Mapping):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    return float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value
