"""Scores averaged over tasks, each put on the scale from a random policy to the best published."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from zoo.benchmarks import statistics
from zoo.benchmarks.estimate import Band, Estimate
from zoo.benchmarks.intervals import aggregate, difference, fewest_runs, improvement, profile
from zoo.benchmarks.references import reference
from zoo.benchmarks.tasks import Group, Task
from zoo.benchmarks.wording import listed, plural

__all__ = ["Aggregate", "Overall", "average"]

THRESHOLDS = np.linspace(0.0, 1.2, 61)
_STATISTICS = {
    "IQM": statistics.iqm,
    "median": statistics.median,
    "mean": statistics.mean,
    "optimality gap": statistics.optimality_gap,
}


@dataclass(frozen=True)
class Overall:
    """What one label reached over all tasks.

    Attributes
    ----------
    label, colour : str, int
        Its group's.
    scores : ndarray, [runs, tasks]
        On the scale where 0 is a random policy and 1 the best published result.
    figures : mapping
        ``IQM``, ``median``, ``mean`` and ``optimality gap``.
    profile : Band
        The fraction of scores above each of ``THRESHOLDS``.
    seeds : tuple of tuple of int, optional
        The runs' seeds on every task; None where one is not known.
    kinds : frozenset of str
        Who wrote the runs.
    """

    label: str
    colour: int
    scores: np.ndarray
    figures: Mapping[str, Estimate]
    profile: Band
    seeds: tuple[tuple[int, ...], ...] | None
    kinds: frozenset[str]


@dataclass(frozen=True)
class Aggregate:
    """An average over tasks.

    Attributes
    ----------
    envs : tuple of str
        The tasks it runs over.
    overall : tuple of Overall
        Those that ran on all of them.
    notes : tuple of str
        What was left out.
    """

    envs: tuple[str, ...]
    overall: tuple[Overall, ...]
    notes: tuple[str, ...]

    @functools.cached_property
    def pairs(self) -> list[tuple[Overall, Overall, Estimate, Estimate, bool]]:
        """Compare two by two, the better one first.

        Returns
        -------
        list of (Overall, Overall, Estimate, Estimate, bool)
            The two, the difference of their IQMs, the probability of improvement, and whether runs
            of one seed were compared with each other.
        """
        found = []
        for a, b in itertools.combinations(self.overall, 2):
            shared = a.seeds is not None and (a.seeds, a.kinds) == (b.seeds, b.kinds)
            paired = shared and len(a.scores) >= fewest_runs(paired=True)
            if difference(a.scores, b.scores, paired=paired).value < 0:
                a, b = b, a
            apart = difference(a.scores, b.scores, paired=paired)
            found.append((a, b, apart, improvement(a.scores, b.scores), paired))
        return found


def average(tasks: Sequence[Task]) -> Aggregate | None:
    """Average over the tasks that all of at least two labels, or the only one, ran on.

    Returns
    -------
    Aggregate, optional
        None where there are not two tasks whose scale is known.
    """
    scaled = [t for t in tasks if reference(t.env, t.metric).scaled and t.compared]
    if len(scaled) < 2:
        return None
    labels = list(dict.fromkeys(g.label for t in scaled for g in t.compared))
    ran = {label: {t.env for t in scaled if t.group(label)} for label in labels}
    full = [label for label in labels if len(ran[label]) == len(scaled)]
    if len(full) < min(2, len(labels)):  # all on every task, or the tasks that most have in common
        common = [t for t in scaled if all(t.env in envs for envs in ran.values())]
        scaled, full = common, labels
    if len(scaled) < 2:
        return None
    notes = []
    left = [label for label in labels if label not in full]
    if left:
        notes.append(f"Averages leave out {listed(left)}, not run on all of their tasks.")
    missing = [t.env for t in tasks if t.env not in [s.env for s in scaled]]
    if missing:
        notes.append(
            f"Averages leave out {listed(missing)}: not all ran there, or the scale is not known."
        )
    groups = {label: [g for t in scaled if (g := t.group(label))] for label in full}
    counts = [len(g.members) for label in full for g in groups[label]]
    most = min(counts)
    if max(counts) > most:
        notes.append(
            f"Averages take the first {plural(most, 'run')} by seed of each task, as many as"
            " every one has."
        )
    overall = tuple(_overall(groups[label], scaled, most) for label in full)
    return Aggregate(tuple(t.env for t in scaled), overall, tuple(notes))


def _overall(groups: Sequence[Group], tasks: Sequence[Task], runs: int) -> Overall:
    scores = statistics.as_scores(
        [_scaled(g.values[:runs], t) for g, t in zip(groups, tasks, strict=True)]
    )
    seeds = tuple(g.seeds[:runs] for g in groups if g.seeds is not None)
    return Overall(
        groups[0].label,
        groups[0].colour,
        scores,
        {
            # no interval of a median over tasks holds what it claims (docs/statistics.md)
            name: Estimate(float(f(scores))) if name == "median" else aggregate(f, scores)
            for name, f in _STATISTICS.items()
        },
        profile(scores, THRESHOLDS),
        seeds if len(seeds) == len(groups) else None,
        frozenset(m.run.kind for g in groups for m in g.members),
    )


def _scaled(values: np.ndarray, task: Task) -> np.ndarray:
    """Put values on the scale where 0 is a random policy and 1 the best published result."""
    scale = reference(task.env, task.metric)
    assert scale.random is not None and scale.best is not None
    return (values - scale.random) / (scale.best - scale.random)
