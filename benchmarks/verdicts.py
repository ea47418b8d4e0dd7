"""What follows from the figures, in sentences, and what does not."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from zoo.benchmarks.estimate import Estimate
from zoo.benchmarks.intervals import (
    difference,
    fewest_runs,
    improvement,
    level,
)
from zoo.benchmarks.learning_curves import median_speed, speed_unit
from zoo.benchmarks.references import Published, reference
from zoo.benchmarks.sameness import timed_alike
from zoo.benchmarks.tasks import Group, Task
from zoo.benchmarks.wording import chance_of, interval, number, plural, rate, signed, steps, value

__all__ = ["Pair", "beside", "chance", "gains", "levels", "pairs", "sentence", "speeds"]

#: with more groups than this on a task, only the best one is compared with the others
_ALL_PAIRS = 4


@dataclass(frozen=True)
class Pair:
    """Two groups of one task, the better one first: by the difference, which may be paired.

    Attributes
    ----------
    better, worse : Group
        Whom it compares.
    difference : Estimate
        IQM of the first less that of the second.
    probability : Estimate
        That a run of the first is better than one of the second.
    paired : bool
        Whether runs of one seed were compared with each other.
    """

    better: Group
    worse: Group
    difference: Estimate
    probability: Estimate
    paired: bool

    @property
    def decided(self) -> bool:
        """Whether the interval leaves no difference out."""
        return self.difference.excludes(0.0)


def pairs(task: Task, baseline: str | None = None) -> list[Pair]:
    """Compare the groups of a task two by two; with a baseline, each with that one."""
    groups = sorted(task.compared, key=lambda g: -level(g.values).value)
    named = [g for g in groups if g.label == baseline]
    if named:
        couples = [(g, named[0]) for g in groups if g is not named[0]]
    elif len(groups) <= _ALL_PAIRS:
        couples = list(itertools.combinations(groups, 2))
    else:
        couples = [(groups[0], other) for other in groups[1:]]
    return [_pair(*(sorted(couple, key=groups.index))) for couple in couples]


def _pair(better: Group, worse: Group) -> Pair:
    paired = shares_seeds(better, worse) and len(better.members) >= fewest_runs(paired=True)
    found = difference(better.values, worse.values, paired=paired)
    if found.value < 0:  # the IQM of paired differences need not rank as the two IQMs do
        better, worse = worse, better
        found = difference(better.values, worse.values, paired=paired)
    return Pair(better, worse, found, improvement(better.values, worse.values), paired)


def shares_seeds(a: Group, b: Group) -> bool:
    """Whether both have the same seeds, and the same program drew from them."""
    kinds = [{m.run.kind for m in group.members} for group in (a, b)]
    return a.seeds is not None and a.seeds == b.seeds and kinds[0] == kinds[1]


def sentence(pair: Pair, task: Task) -> str:
    """Say what a comparison shows."""
    better, worse, percent = pair.better, pair.worse, task.percent
    amount = signed(pair.difference.value, percent)
    points = " points" if percent else ""
    env = f"[{task.env}](#{task.anchor})"
    if pair.difference.low is None or pair.difference.high is None:
        return (
            f"Nothing follows yet for {better.label} against {worse.label} on {env}:"
            f" {amount}{points} with {_seeds(pair)}, and fewer than {fewest_runs()} give no"
            " interval to be trusted."
        )
    if pair.difference.flat and pair.difference.value == 0:
        everyone = {*better.values, *worse.values}
        if len(everyone) > 1:
            return (
                f"No difference between {better.label} and {worse.label} on {env} in the runs that"
                f" an IQM counts ({_where(pair, task)})."
            )
        return (
            f"{better.label} and {worse.label} are equal on {env}:"
            f" {value(everyone.pop(), percent)} in every run ({_where(pair, task)})."
        )
    spread = f"{amount} {interval(pair.difference.low, pair.difference.high, percent, sign=True)}"
    if pair.decided:
        return (
            f"{better.label} beats {worse.label} on {env}: {spread}{points}, probability of"
            f" improvement {chance_of(pair.probability.value)} ({_where(pair, task)})."
        )
    seen = pair.difference.value - pair.difference.low
    return (
        f"No difference outside noise between {better.label} and {worse.label} on {env}:"
        f" {spread}{points} ({_where(pair, task)}; of such runs a difference is seen from about"
        f" {value(100 * seen if percent else seen)}{points} on)."
    )


def _seeds(pair: Pair) -> str:
    counts = len(pair.better.members), len(pair.worse.members)
    if counts[0] == counts[1]:
        return f"{plural(counts[0], 'seed')} each"
    return f"{counts[0]} against {plural(counts[1], 'seed')}"


def _where(pair: Pair, task: Task) -> str:
    paired = ", paired" if pair.paired else ""
    return f"{_seeds(pair)}{paired}{_at(task)}{_by(task)}"


def _by(task: Task) -> str:
    return "" if task.kind == "evaluation" else ", by training episodes"


def _at(task: Task) -> str:
    if task.at is None:
        return ", each at its own end"
    return f", at {steps(task.at, task.unit)}"


def levels(task: Task) -> list[str]:
    """Say what groups reached that have a published counterpart, or are alone on their task."""
    said = []
    for group in task.compared:
        published = _counterpart(group, task)
        if published is None and len(task.compared) > 1:
            continue
        found = level(group.values)
        one = len(group.members) == 1
        how = "one run" if one else f"IQM of {plural(len(group.members), 'seed')}"
        said.append(
            f"{group.label} on [{task.env}](#{task.anchor}): {value(found.value, task.percent)}"
            f" {interval(found.low, found.high, task.percent)}".rstrip()
            + f" ({how}{_at(task)}{_by(task)}){_beside(published, found, task)}."
        )
    return said


def _counterpart(group: Group, task: Task) -> Published | None:
    """Return a published result of the same algorithm after about as many steps."""
    if task.kind != "evaluation" or not task.at:
        return None
    return next((p for p in beside(group, task) if 0.8 <= p.budget / task.at <= 1.25), None)


def _beside(published: Published | None, found: Estimate, task: Task) -> str:
    if published is None:
        return ""
    version = "" if published.env == task.env else f", on {published.env}"
    text = f"; {published.source} published {value(published.value)} ({published.about}{version})"
    if found.low is None or found.high is None:
        return text
    if found.low <= published.value <= found.high:
        return f"{text}, which the interval holds"
    return f"{text}, which is {'below' if published.value < found.low else 'above'} the interval"


def beside(group: Group, task: Task) -> list[Published]:
    """Return what was published for a group's algorithm on a task."""
    algo = str(group.settings.get("algo.name", group.label)).lower()
    return [p for p in reference(task.env, task.metric).published if p.algo in algo.split()]


def gains(task: Task) -> list[str]:
    """Say how far each group came from where it started, where the start was measured."""
    said = []
    for group in task.compared:
        starts = [m.curve.value[0] for m in group.members if m.curve.step[0] == 0]
        if len(starts) != len(group.members) or not task.percent:
            continue
        gain = level(group.values - np.array(starts))
        before, after = level(np.array(starts)), level(group.values)
        said.append(
            f"{group.label} on [{task.env}](#{task.anchor}):"
            f" {value(before.value, True)} → {value(after.value, True)},"
            f" {signed(gain.value, True)}{_spread(gain)} points"
            f" ({plural(len(starts), 'seed')}{_at(task)})."
        )
    return said


def _spread(gain: Estimate) -> str:
    return f" {interval(gain.low, gain.high, True, sign=True)}" if gain.low is not None else ""


def speeds(task: Task, baseline: str | None) -> list[str]:
    """Say how fast each group was beside the baseline, where their times can be compared."""
    base, unit = task.group(baseline) if baseline else None, speed_unit(task)
    slow = median_speed(base, unit) if base else None
    if base is None or not slow:
        return []
    said = []
    for group in task.compared:
        found = median_speed(group, unit)
        runs = [m.run for m in (*group.members, *base.members)]
        if group is base or found is None or not timed_alike(runs):
            continue
        medians = f"medians of {plural(min(len(group.members), len(base.members)), 'run')}"
        said.append(
            f"{group.label} takes {found / slow:.2f} times the {unit} of {base.label} on"
            f" [{task.env}](#{task.anchor}): {rate(found)} against {rate(slow)} ({medians})."
        )
    return said


def chance(count: int, picked: int = 0) -> list[str]:
    """Warn of what many comparisons bring about by chance.

    Parameters
    ----------
    count : int
        Comparisons with an interval.
    picked : int
        The most groups of a task of which only the best was compared with the others.
    """
    said = []
    if count > 5:
        said.append(
            f"{count} comparisons were made at 95 % each: about {number(0.05 * count, 2)} of them"
            " would look like a difference where there is none."
        )
    if picked > _ALL_PAIRS:
        said.append(
            f"The best of {picked} groups is compared with the others. It was picked for having"
            " done well, luck included, so that such a comparison shows a difference where there is"
            " none more often than 5 times in 100."
        )
    return said
