"""Where runs come from: how their settings, versions, machines and data differ."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from zoo.benchmarks.records import Run
from zoo.benchmarks.report.page import Cell, Row, Section, Table
from zoo.benchmarks.sameness import differing, hardware
from zoo.benchmarks.tasks import Task
from zoo.benchmarks.wording import listed, value

__all__ = ["origin_notes", "origin_section", "settings_section"]

#: settings that differ from run to run by their nature
_PER_RUN = ("seed", "run_dir", "logger")
_INTERNAL = ("_target_", "_schema_")


def settings_section(tasks: Sequence[Task]) -> Section | None:
    """Return the settings in which the groups of each task differ."""
    tables = []
    for task in tasks:
        groups = [g for g in task.groups if g.settings]
        if len(groups) < 2:
            continue
        settings = [_shown(g.settings) for g in groups]
        rows = tuple(
            Row((Cell(key), *(Cell(_plain(s.get(key, "–"))) for s in settings)))
            for key in differing(settings)
        )
        if rows:
            columns = ("setting", *(g.label for g in groups))
            tables.append(Table(columns, rows, f"Settings that differ on {task.env}."))
    return (
        Section("Settings that differ", tuple(tables), "settings", folded=True) if tables else None
    )


def _shown(settings: Any) -> dict[str, Any]:
    return {
        key: setting
        for key, setting in settings.items()
        if key.split(".")[0] not in _PER_RUN and key.rpartition(".")[2] not in _INTERNAL
    }


def _plain(setting: Any) -> str:
    if setting is None:
        return "none"
    return f"{setting:g}" if isinstance(setting, float) else str(setting)


def origin_notes(tasks: Sequence[Task]) -> list[str]:
    """Say what about the runs' origin bears on how far they can be compared."""
    notes = []
    for task in tasks:
        runs = [m.run for g in task.compared for m in g.members]
        notes += _dataset_notes(task, runs)
        for what, read in _ORIGINS:
            found = _values(runs, read)
            if len(found) > 1:
                notes.append(
                    f"{task.env}: the runs differ in {what} ({listed(found[:3])})."
                    + (_SLOWER if what == "hardware" else "")
                )
        evaluation = [
            # an empty group is one that the runs of an older version did not have
            {k: v for k, v in r.settings.items() if k.startswith(_EVALUATION) and v != {}}
            for r in runs
            if r.settings
        ]
        unequal = differing(evaluation) if evaluation else []
        if unequal:
            notes.append(f"{task.env}: the runs were evaluated with different {listed(unequal)}.")
    return list(dict.fromkeys(notes))


_EVALUATION = ("eval.options", "eval.final")
_SLOWER = " Times and speeds are not comparable between them."


def _dataset_notes(task: Task, runs: Sequence[Run]) -> list[str]:
    notes = []
    datasets = _values(runs, lambda r: r.facts.get("dataset"))
    if len(datasets) > 1:
        notes.append(
            f"{task.env}: the runs had different questions ({listed(datasets)}), so their"
            " accuracies can't be compared."
        )
    elif datasets and task.percent:
        notes.append(f"The questions of {task.env} are {datasets[0]}.")
    found = [r.facts.get("evaluation") or {} for r in runs]
    halves = [e["accuracy_ci95"] for e in found if e.get("accuracy_ci95") is not None]
    prompts = {e.get("n") for e in found if e.get("n")}
    if task.percent and halves and len(prompts) == 1:
        notes.append(
            f"All runs on {task.env} are evaluated on the same questions: intervals are over seeds."
            f" The choice of questions adds about ± {value(100 * float(np.mean(halves)))} points to"
            " every level, and little to differences."
        )
    return notes


def _version(package: str) -> Callable[[Run], str | None]:
    return lambda run: (run.facts.get("versions") or {}).get(package)


_ORIGINS: tuple[tuple[str, Callable[[Run], str | None]], ...] = (
    ("hardware", hardware),
    ("the version of torch", _version("torch")),
    ("the version of gymnasium", _version("gymnasium")),
    ("the version of algorithm-zoo", _version("algorithm-zoo")),
    ("the revision of algorithm-zoo", lambda run: run.facts.get("revision")),
)


def _values(runs: Iterable[Run], read: Callable[[Run], Any]) -> list[str]:
    """Return the different values of a fact, as texts; runs that lack it say nothing."""
    return list(dict.fromkeys(str(v) for v in map(read, runs) if v))


def origin_section(tasks: Sequence[Task]) -> Section | None:
    """Return versions, machines and the commands that made the runs."""
    runs = [r for t in tasks for g in t.groups for r in (*(m.run for m in g.members), *g.others)]
    rows = [("command", _values(runs, lambda r: r.facts.get("command")))]
    rows.append(("made", _dates(runs)))
    rows.append(("hardware", _values(runs, hardware)))
    rows.append(
        ("platform", _values(runs, lambda r: (r.facts.get("hardware") or {}).get("platform")))
    )
    rows.append(("algorithm-zoo revision", _values(runs, lambda r: r.facts.get("revision"))))
    packages = dict.fromkeys(p for r in runs for p in r.facts.get("versions") or {})
    rows += [(package, _values(runs, _version(package))) for package in packages]
    shown = tuple(Row((Cell(name), Cell(listed(found)))) for name, found in rows if found)
    if not shown:
        return None
    return Section("How the runs were made", (Table(("", ""), shown),), "origin", folded=True)


def _dates(runs: Iterable[Run]) -> list[str]:
    days = sorted({str(r.facts["time"])[:10] for r in runs if r.facts.get("time")})
    return days if len(days) < 2 else [f"{days[0]} to {days[-1]}"]
