"""manifest.json of a bench folder: what its runs are called, and which never got a folder."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from zoo.benchmarks.records import Note

__all__ = ["label_of", "never_started"]


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


def never_started(folder: Path) -> list[Note]:
    """Return a note for each run of a bench folder that ended before it had a folder."""
    return [
        Note(
            f"{run.get('label')} on {run.get('env')}, seed {run.get('seed')}: {run['status']},"
            " and it left no run folder.",
            folder,
        )
        for run in _runs(folder) or []
        if run.get("status") == "failed" and not _exists(folder, run)
    ]


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


def _exists(folder: Path, run: dict[str, Any]) -> bool:
    named = _folder(folder, run)
    return named is not None and Path(named).is_dir()
