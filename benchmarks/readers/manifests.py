"""manifest.json of a bench folder: what its runs are called, and which have no folder."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from zoo.benchmarks.readers.series import count
from zoo.benchmarks.records import Note

__all__ = ["label_of", "without_folder"]


def label_of(folder: Path) -> str | None:
    """Return what the nearest manifest above a run's folder calls it, None where there is none."""
    real = Path(os.path.realpath(folder))
    for above in real.parents:
        runs = _runs(above)
        if runs is not None:
            for run in runs:
                if _folder(above, run) == str(real):
                    label = run.get("label")
                    return str(label) if label else None
            return None
    return None


def without_folder(folder: Path) -> list[Note]:
    """Return what to say about the runs of a bench folder that are not there to be read."""
    missing = [run for run in _runs(folder) or [] if not _exists(folder, run)]
    failed = [run for run in missing if run.get("status") == "failed"]
    notes = [
        Note(
            f"{run.get('label')} on {run.get('env')}, seed {run.get('seed')}, failed and left no"
            f" run folder{_why(run)}.",
            folder,
        )
        for run in failed
    ]
    waiting = len(missing) - len(failed)
    if waiting:
        notes.append(Note(f"{folder.name}: {count(waiting, 'run')} not begun yet.", folder))
    return notes


def _runs(folder: Path) -> list[dict[str, Any]] | None:
    """Return what the manifest lists, None where the folder has none."""
    try:
        manifest = json.loads((folder / "manifest.json").read_bytes())
        listed = manifest["runs"] if "suite" in manifest else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return [run for run in listed if isinstance(run, dict)] if isinstance(listed, list) else None


def _folder(folder: Path, run: dict[str, Any]) -> str | None:
    named = run.get("folder")
    return os.path.realpath(folder / str(named)) if named else None


def _why(run: dict[str, Any]) -> str:
    lines = str(run.get("error") or "").strip().splitlines()
    return f" ({lines[-1][:200].rstrip('.')})" if lines else ""


def _exists(folder: Path, run: dict[str, Any]) -> bool:
    named = _folder(folder, run)
    return named is not None and Path(named).is_dir()
