"""Our own run folders: config.yaml, metrics.jsonl and, once the run has ended, summary.json."""

from __future__ import annotations

import fcntl
import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from zoo.benchmarks.readers.series import Series, clean, count, with_curves
from zoo.benchmarks.records import Collection, Note, Run, place
from zoo.benchmarks.sameness import flatten
from zoo.core.worlds import WORLDS
from zoo.errors import UserError

__all__ = ["SERIES", "flatten", "is_run", "number", "read_run", "settings_of"]

#: metric → curve → the keys that hold it, the first of them that any row has
SERIES = {
    "return": {"evaluation": ("eval/return_mean",), "training": ("return/mean",)},
    "accuracy": {"evaluation": ("eval/accuracy_strict",), "training": ("train/accuracy_strict",)},
}
#: where a text run is not graded at all, its reward is what there is
_UNGRADED = {"training": ("reward/mean",)}
_UNITS = {"env_steps": "environment steps", "updates": "updates"}
_FACTS = (
    *("env_steps", "updates", "tokens", "wall_s", "seeds_together"),
    *("peak_rss_gib", "dataset", "model"),
)


def is_run(names: Iterable[str]) -> bool:
    """Return whether a folder with these entries is one of ours."""
    names = set(names)
    return "metrics.jsonl" in names or {"config.yaml", "checkpoints"} <= names


def read_run(folder: Path, label: str | None = None, env: str | None = None) -> Collection:
    """Read one run; one that recorded nothing gives a note alone.

    Parameters
    ----------
    folder : Path
        The run's folder.
    label, env : str, optional
        What a person calls its group and its task; by default the algorithm's and the
        environment's own names.

    Raises
    ------
    UserError
        Where its files can't be read.
    """
    config = _config(folder / "config.yaml")
    rows, remarks = _rows(folder / "metrics.jsonl")
    if not rows:
        return Collection((), (Note(f"{place(folder)} recorded nothing: it is left out.", folder),))
    summary = _summary(folder / "summary.json", remarks)
    algo, own_env, world = (_at(config, key) for key in ("algo.name", "env.name", "world"))
    if world not in WORLDS or not isinstance(own_env, str):
        raise UserError(f"{folder / 'config.yaml'} is not the configuration of a run of ours.")
    counter = WORLDS[world].unit
    unit = _UNITS[counter]
    metric, series = _series(rows, counter, "return" if world == "control" else "accuracy")
    if env not in (None, own_env):
        remarks.append(f"its own files say {own_env}, and it stands under {env} as asked for")
    if not series:
        text = f"{place(folder)}: no evaluation and no finished episode is in it: it is left out."
        return Collection((), (Note(text, folder),))
    run = Run(
        label=label or str(algo),
        env=env or own_env,
        seed=_whole(config.get("seed")),
        source=folder,
        kind="zoo",
        unit=unit,
        metric=metric,
        curves={},
        status=_status(folder, summary, rows[-1]),
        settings=settings_of(config),
        facts=_facts(config, summary, rows[-1], counter),
        named=label is not None,
    )
    return with_curves(run, series, remarks)


def settings_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that config.yaml holds, without what it says of where it was made."""
    return flatten({key: value for key, value in config.items() if key != "made_with"})


def _config(file: Path) -> dict[str, Any]:
    try:
        tree = yaml.safe_load(file.read_text("utf-8"))
    except FileNotFoundError as error:
        raise UserError(f"{file.parent} has metrics.jsonl but no config.yaml.") from error
    except OSError as error:
        raise UserError(f"can't read {file}: {error.strerror}.") from error
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"{file} is not YAML.") from error
    if not isinstance(tree, dict):
        raise UserError(f"{file} is not the configuration of a run of ours.")
    return tree


def _rows(file: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the rounds, and what could not be read among them."""
    try:
        lines = file.read_bytes().split(b"\n")
    except FileNotFoundError:
        return [], []
    except OSError as error:
        raise UserError(f"can't read {file}: {error.strerror}.") from error
    rows, strange, torn = [], 0, False
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if isinstance(row, dict):
            rows.append(row)
        elif number == len(lines):
            torn = True
        else:
            strange += 1
    remarks = ["the last line of metrics.jsonl is half-written: left out"] if torn else []
    if strange:
        remarks.append(f"{count(strange, 'line')} of metrics.jsonl that are no JSON left out")
    return rows, remarks


def _summary(file: Path, remarks: list[str]) -> dict[str, Any]:
    try:
        summary = json.loads(file.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError):
        summary = None
    if isinstance(summary, dict):
        return summary
    remarks.append("its summary.json can't be read, so only metrics.jsonl counts")
    return {}


def _series(rows: list[dict[str, Any]], counter: str, metric: str) -> tuple[str, dict[str, Series]]:
    """Return what the values are, and the curves that there are."""
    keys: Mapping[str, tuple[str, ...]] = SERIES[metric]
    if metric == "accuracy" and not any(
        k in row for row in rows for ks in keys.values() for k in ks
    ):
        metric, keys = "return", _UNGRADED
    series = {}
    for name, (key,) in keys.items():
        points = [(row.get(counter), row[key], row.get("wall_s")) for row in rows if key in row]
        if points:
            steps, values, walls = ([number(v) for v in column] for column in zip(*points))
            series[name] = clean(steps, values, walls)
    return metric, series


def _status(folder: Path, summary: Mapping[str, Any], last: Mapping[str, Any]) -> str:
    """Return how the run ended; a run that was resumed has the summary of its earlier part."""
    known = str(summary["status"]) if "status" in summary else None
    ahead = number(last.get("updates")) - number(summary.get("updates"))
    if known is not None and ahead == 0:
        return known
    if _locked(folder):
        return "running"
    return "interrupted" if known is None or ahead > 0 else known


def _locked(folder: Path) -> bool:
    """Return whether a process is training in the folder.

    A shared lock that is not waited for, let go at once: the trainer's own is not touched, and
    two reports don't take each other for one.
    """
    try:
        file = os.open(folder, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # a file system without locks
        return False
    finally:
        os.close(file)
    return False


def _facts(
    config: Mapping[str, Any], summary: Mapping[str, Any], last: Mapping[str, Any], counter: str
) -> dict[str, Any]:
    made_with = config.get("made_with") or {}
    facts = {key: summary.get(key, last.get(key)) for key in _FACTS}
    if number(last.get("updates")) > number(summary.get("updates")):
        facts |= {key: last[key] for key in _FACTS if key in last}
    facts["model"] = facts["model"] or _at(config, "model.name")
    facts["budget"] = config.get("total_steps" if counter == "env_steps" else "updates")
    facts["evaluation"] = summary.get("eval")
    facts["versions"], facts["hardware"] = made_with.get("versions"), made_with.get("hardware")
    facts["revision"] = (made_with.get("git") or {}).get("algorithm-zoo")
    facts["time"] = made_with.get("time")
    return {key: value for key, value in facts.items() if value is not None}


def _at(tree: Mapping[str, Any], dotted: str) -> Any:
    value: Any = tree
    for key in dotted.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def number(value: Any) -> float:
    """Return a number, NaN for anything else: JSON has null for what is not finite."""
    try:
        return float(value) if isinstance(value, int | float) else math.nan
    except OverflowError:  # JSON's integers have no end
        return math.inf


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
