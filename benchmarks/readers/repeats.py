"""What the runs look like together: repeats, unknown seeds, clocks that differ."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from zoo.benchmarks.readers.series import count
from zoo.benchmarks.records import Note, Run
from zoo.benchmarks.sameness import trained_alike

__all__ = ["different_clocks", "drop_repeats", "unknown_seeds"]

_CLOCKS = {
    "sb3": "Stable-Baselines3's files",
    "tensorboard": "TensorBoard's event files",
    "wandb": "W&B's logs",
}


def drop_repeats(runs: Sequence[Run]) -> tuple[list[Run], list[Note]]:
    """Keep one run of each label, task and seed, unless their settings differ.

    The one that got furthest is kept, the newest of those that got equally far: a run that was
    started again must not count as two seeds.
    """
    kept: dict[int, Run] = {}
    notes = []
    for place, run in enumerate(runs):
        twin = next((p for p, other in kept.items() if _same(run, other)), None)
        if twin is None:
            kept[place] = run
            continue
        better, other = sorted((kept[twin], run), key=_progress, reverse=True)
        kept[twin] = better
        notes.append(
            Note(
                f"{run.label} on {run.env} has seed {run.seed} twice with the same settings:"
                f" {better.source} counts, {other.source} is left out.",
                other.source,
            )
        )
    return list(kept.values()), notes


def unknown_seeds(runs: Sequence[Run]) -> list[Note]:
    """Say of which groups no seeds are known."""
    groups: dict[tuple[str, str], int] = {}
    for run in runs:
        if run.seed is None:
            groups[run.label, run.env] = groups.get((run.label, run.env), 0) + 1
    return [
        Note(
            f"{label} on {env}: the seeds of {count(number, 'run')} are not known, so they are"
            " paired with no others."
        )
        for (label, env), number in groups.items()
    ]


def different_clocks(runs: Sequence[Run]) -> list[Note]:
    """Say where runs are timed in two ways: by a clock of several, or one that does not stop."""
    return [*_shared_clocks(runs), *_running_clocks(runs)]


def _shared_clocks(runs: Sequence[Run]) -> list[Note]:
    """Say of which groups the seeds were trained at once, and what their times are then."""
    groups: dict[tuple[str, str], set[int]] = {}
    for run in runs:
        number = run.facts.get("seeds_together")
        if number:
            groups.setdefault((run.label, run.env), set()).add(int(number))
    return [
        Note(
            f"{label} on {env} trained {' or '.join(map(str, sorted(numbers)))} seeds at once in"
            " one process: the seconds of each run are those of all of them, to be counted once and"
            " not added up, and its speed is its own steps by those."
        )
        for (label, env), numbers in groups.items()
    ]


def _running_clocks(runs: Sequence[Run]) -> list[Note]:
    """Say where other runs' clocks go on while they evaluate; those of ours stop."""
    timed = {r.kind for r in runs for curve in r.curves.values() if curve.wall_s is not None}
    others = [_CLOCKS[kind] for kind in _CLOCKS if kind in timed]
    if "zoo" not in timed or not others:
        return []
    text = (
        f"Seconds of runs from {' and '.join(others)} go on while the policy is evaluated and may"
        " count part of the start; those of runs of zoo count collecting and learning only."
    )
    return [Note(text)]


def _same(run: Run, other: Run) -> bool:
    names = [(r.label, r.env, r.seed, r.kind) for r in (run, other)]
    if run.seed is None or names[0] != names[1]:
        return False
    # Where one of them says nothing about its settings, they can't be told apart.
    unknown = not (run.settings and other.settings)
    return unknown or trained_alike(run.settings) == trained_alike(other.settings)


def _progress(run: Run) -> tuple[float, float]:
    furthest = max((float(curve.step[-1]) for curve in run.curves.values()), default=0.0)
    return furthest, _age(run.source)


def _age(source: Path) -> float:
    try:
        return source.stat().st_mtime
    except OSError:
        return 0.0
