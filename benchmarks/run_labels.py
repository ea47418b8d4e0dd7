"""What groups of runs are called: runs of one label that were trained differently are told apart.

The label says what differs, three settings at most where those tell all groups apart and as many as
that takes elsewhere; a note names the others.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from zoo.benchmarks.records import Note, Run
from zoo.benchmarks.sameness import differing, trained_alike

__all__ = ["split_labels"]

#: settings in a label, if those are enough, and in a note
_IN_LABEL, _IN_NOTE = 3, 12
#: characters of a value
_LONGEST = 40


def split_labels(runs: Sequence[Run], notes: list[Note]) -> list[Run]:
    """Give runs of one label that were trained differently labels of their own."""
    alike: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        alike.setdefault((run.label, run.env), []).append(run)
    renamed: dict[int, Run] = {}
    for (label, env), members in alike.items():
        known = [(r, trained_alike(r.settings)) for r in members if r.settings]
        keys = _own(differing([s for _, s in known]), [s for _, s in known]) if known else []
        if not keys:
            continue
        if any(r.named for r in members):
            notes.append(
                Note(
                    f"The runs named {label} on {env} differ in {_some(keys)}: they are one group"
                    " because you named them so."
                )
            )
            continue
        shown = _telling(keys, [s for _, s in known])
        for run, settings in known:
            words = ", ".join(f"{_short(k, keys)}={_plain(settings.get(k))}" for k in shown)
            more = f" and {len(keys) - len(shown)} more" if len(keys) > len(shown) else ""
            renamed[id(run)] = replace(run, label=f"{label} ({words}{more})")
        others = [k for k in keys if k not in shown]
        if others:
            notes.append(
                Note(
                    f"{env}: what else the groups of {label} differ in is {_some(others)}; the"
                    " table 'Settings that differ' has the values."
                )
            )
    if renamed:
        return _told_apart([renamed.get(id(run), run) for run in runs])
    return list(runs)


def _own(keys: Sequence[str], settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Leave out a model's path where its name says the same."""
    return [
        key
        for key in keys
        if not (
            key.endswith(".path")
            and (name := key.removesuffix("path") + "name") in keys
            and _parts(name, settings) == _parts(key, settings)
        )
    ]


def _telling(keys: Sequence[str], settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Choose the settings for the labels: whole choices first, then in the order of the files."""
    ranked = sorted(keys, key=lambda key: not _is_choice(key))
    together = set(itertools.combinations(range(len(settings)), 2))
    together = {(i, j) for i, j in together if settings[i] != settings[j]}
    chosen: list[str] = []
    while together and len(keys) > _IN_LABEL:
        parts = {key: _parts(key, settings) for key in ranked if key not in chosen}
        left = {k: {(i, j) for i, j in together if p[i] == p[j]} for k, p in parts.items()}
        best = min(left, key=lambda key: len(left[key]))
        chosen.append(best)
        together = left[best]
    rest = [key for key in ranked if key not in chosen]
    chosen += rest[: max(0, _IN_LABEL - len(chosen))]
    return [key for key in ranked if key in chosen]


def _parts(key: str, settings: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return for each run the first one that has the same value."""
    values = [(key in s, s.get(key)) for s in settings]
    return [values.index(value) for value in values]


def _is_choice(key: str) -> bool:
    return key == "preset" or key.endswith(".name")


def _told_apart(runs: list[Run]) -> list[Run]:
    """Number labels that are equal though their runs were trained differently."""
    seen: dict[tuple[str, str], list[dict[str, Any]]] = {}
    apart = []
    for run in runs:
        kinds = seen.setdefault((run.label, run.env), [])
        if run.named or not run.settings:
            apart.append(run)
            continue
        settings = trained_alike(run.settings)
        if settings not in kinds:
            kinds.append(settings)
        place = kinds.index(settings)
        apart.append(replace(run, label=f"{run.label} #{place + 1}") if place else run)
    return apart


def _short(key: str, keys: Sequence[str]) -> str:
    """Return what is enough to know a setting by: without its group, a choice by its group.

    Examples
    --------
    >>> [_short(key, []) for key in ("algo.kl.coefficient", "model.name", "model.path")]
    ['kl.coefficient', 'model', 'model.path']
    """
    group, _, rest = key.partition(".")
    if rest == "name":
        return group
    ambiguous = rest == "path" or sum(k.partition(".")[2] == rest for k in keys) > 1
    return key if not rest or ambiguous else rest


def _plain(value: Any) -> str:
    """Write a value, of a long one the part that tells most: the end of a path."""
    text = "–" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
    if len(text) <= _LONGEST:
        return text
    end = text.rpartition("/")[2] if text.startswith("/") else ""
    return f"…/{end}"[:_LONGEST] if end else f"{text[: _LONGEST - 1]}…"


def _some(keys: Sequence[str]) -> str:
    left = len(keys) - _IN_NOTE
    return ", ".join(keys[:_IN_NOTE]) + (f" and {left} more settings" if left > 0 else "")
