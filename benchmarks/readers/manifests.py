"""manifest.json of a bench folder: what its runs are called, and which have no folder."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zoo.benchmarks.readers.series import count
from zoo.benchmarks.records import Note

__all__ = ["Entry", "entry_of", "without_folder"]


@dataclass(frozen=True)
class Entry:
    """What a bench folder says of one of its runs: its label, and the command that made it."""

    label: str | None
    command: str | None


def entry_of(folder: Path) -> Entry | None:
    """Return what the nearest manifest above a run's folder says of it, None where none does."""
    real = Path(os.path.realpath(folder))
    for above in real.parents:
        manifest = _manifest(above)
        if manifest is not None:
            for run in _runs(manifest):
                if _folder(above, run) == str(real):
                    return Entry(run.get("label") or None, manifest.get("command"))
            return None
    return None


def without_folder(folder: Path) -> list[Note]:
    """Return what to say about the runs of a bench folder that are not there to be read."""
    missing = [run for run in _runs(_manifest(folder) or {}) if not _exists(folder, run)]
    failed = [run for run in missing if run.get("status") == "failed"]
    notes = [
        Note(
            f"{run.get('label')} on {run.get('env')}, seed {run.get('seed')}, failed and left no"
            f" run folder{_why(run)}.",
            folder,
        )
        for run in failed
    ]
    lost = [run for run in missing if run.get("status") == "finished"]
    notes += [
        Note(
            f"{run.get('label')} on {run.get('env')}, seed {run.get('seed')}, finished, but there"
            " is no run in its folder any more.",
            folder,
        )
        for run in lost
    ]
    waiting = len(missing) - len(failed) - len(lost)
    if waiting:
        notes.append(Note(f"{folder.name}: {count(waiting, 'run')} not begun yet.", folder))
    return notes


def _manifest(folder: Path) -> dict[str, Any] | None:
    """Return the folder's manifest, None where it has none of ours."""
    try:
        manifest = json.loads((folder / "manifest.json").read_bytes())
    except (OSError, ValueError):
        return None
    ours = isinstance(manifest, dict) and "suite" in manifest
    return manifest if ours and isinstance(manifest.get("runs"), list) else None


def _runs(manifest: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [run for run in manifest.get("runs", []) if isinstance(run, dict)]


def _folder(folder: Path, run: dict[str, Any]) -> str | None:
    named = run.get("folder")
    return os.path.realpath(folder / str(named)) if named else None


def _why(run: dict[str, Any]) -> str:
    lines = str(run.get("error") or "").strip().splitlines()
    return f" ({lines[-1][:200].rstrip('.')})" if lines else ""


def _exists(folder: Path, run: dict[str, Any]) -> bool:
    named = _folder(folder, run)
    return named is not None and (Path(named) / "config.yaml").is_file()
