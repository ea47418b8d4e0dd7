"""Who is compared with whom, on which figure, and where: runs become groups, groups become tasks.

A group is the runs of one label on one environment. Where their settings differ in more than the
seed, they are not runs of one thing: the group is split and the difference joins the label.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from zoo.benchmarks.readers.repeats import drop_repeats
from zoo.benchmarks.records import Curve, Note, Run
from zoo.benchmarks.run_labels import split_labels
from zoo.benchmarks.wording import number, runs_named, several, slug

__all__ = ["COUNTED", "PAST", "Group", "Member", "Task", "gather"]

COUNTED = ("finished", "unknown")
#: ends that differ by no more than this are the same; a measurement may lie that far past the
#: compared step, and so far before it without a note
_SAME, PAST, _BEFORE = 1.02, 1.05, 0.9
#: the kinds of runs that are not ours, in words
_PROGRAMS = {"csv": "CSV", "sb3": "SB3", "tensorboard": "TensorBoard", "wandb": "W&B"}


@dataclass(frozen=True)
class Member:
    """A run that enters the statistics: its curve, and its value at the compared step."""

    run: Run
    curve: Curve
    value: float


@dataclass(frozen=True)
class Group:
    """The runs of one label on one task.

    Attributes
    ----------
    label : str
        Its name.
    colour : int
        Its place in the palette, the same in all tasks.
    members : tuple of Member
        The runs that enter the statistics, in order of their seeds.
    others : tuple of Run
        Runs that do not: interrupted, failed, diverged, or without the compared figure.
    """

    label: str
    colour: int
    members: tuple[Member, ...]
    others: tuple[Run, ...]

    @property
    def values(self) -> np.ndarray:
        """The members' values at the compared step, [N]."""
        return np.array([m.value for m in self.members])

    @property
    def seeds(self) -> tuple[int, ...] | None:
        """The members' seeds; None where one is not known or stands twice."""
        seeds = [m.run.seed for m in self.members]
        known = [s for s in seeds if s is not None]
        return tuple(known) if len(set(known)) == len(seeds) else None

    @property
    def settings(self) -> Mapping[str, Any]:
        """The settings of its first run that has any."""
        runs = (*(m.run for m in self.members), *self.others)
        return next((run.settings for run in runs if run.settings), {})


@dataclass(frozen=True)
class Task:
    """One environment: the groups that ran on it, and what of them is compared.

    Attributes
    ----------
    env, metric, unit : str
        As in :class:`~zoo.benchmarks.records.Run`.
    kind : str
        ``evaluation`` or ``training``: the curves that are compared.
    at : float, optional
        The step at which all are compared; None where their steps count different things, and each
        is taken at its own end.
    groups : tuple of Group
        In the order in which they were named.
    anchor : str
        Its name in links and files, of its own among the tasks.
    """

    env: str
    metric: str
    unit: str
    kind: str
    at: float | None
    groups: tuple[Group, ...]
    anchor: str

    @property
    def compared(self) -> tuple[Group, ...]:
        """The groups that have runs in the statistics."""
        return tuple(g for g in self.groups if g.members)

    def group(self, label: str) -> Group | None:
        """Return the group of a label, where it has runs in the statistics."""
        return next((g for g in self.compared if g.label == label), None)

    @property
    def percent(self) -> bool:
        """Whether values are fractions, to be shown as percentages."""
        return self.metric == "accuracy"


def gather(runs: Sequence[Run], at: float | None = None) -> tuple[tuple[Task, ...], list[Note]]:
    """Sort runs into tasks, and say what had to be decided or left out.

    Parameters
    ----------
    runs : sequence of Run
        As the readers give them.
    at : float, optional
        The step to compare at, in place of the last one that all runs of a task have reached.

    Returns
    -------
    tuple of Task, list of Note
        In the order in which they were named.
    """
    notes: list[Note] = []
    labelled = split_labels(_split_kinds([_in_capitals(run) for run in runs], notes), notes)
    labelled, repeats = drop_repeats(labelled)  # of labels that were told apart or became one
    notes += repeats
    colours = {label: i for i, label in enumerate(dict.fromkeys(r.label for r in labelled))}
    envs = dict.fromkeys(r.env for r in labelled)
    tasks: list[Task] = []
    for env in envs:
        name = slug("task", env)
        if name in [t.anchor for t in tasks]:
            name = f"{name}-{len(tasks) + 1}"
        here = [r for r in labelled if r.env == env]
        tasks.append(_task(env, name, here, colours, at, notes))
    return tuple(tasks), notes


def _in_capitals(run: Run) -> Run:
    """Write an algorithm's name as papers do where nobody chose another label."""
    own = not run.named and run.label == run.settings.get("algo.name")
    return replace(run, label=run.label.upper()) if own else run


def _split_kinds(runs: Sequence[Run], notes: list[Note]) -> list[Run]:
    """Tell runs apart that different programs wrote under one name which nobody chose."""
    kinds: dict[tuple[str, str], set[str]] = {}
    for run in runs:
        kinds.setdefault((run.label, run.env), set()).add(run.kind)
    mixed = {label for (label, _), found in kinds.items() if len(found) > 1}
    notes += [
        Note(f"The runs named {label} are of several programs, and one group because of that name.")
        for label in dict.fromkeys(r.label for r in runs if r.named and r.label in mixed)
    ]
    return [
        replace(run, label=f"{run.label} ({_PROGRAMS[run.kind]})")
        if run.label in mixed and run.kind in _PROGRAMS and not run.named
        else run
        for run in runs
    ]


def _task(
    env: str,
    anchor: str,
    runs: list[Run],
    colours: Mapping[str, int],
    at: float | None,
    notes: list[Note],
) -> Task:
    counted = [r for r in runs if r.status in COUNTED and r.curves]
    _note_uncounted(env, runs, notes)
    kind = _kind(env, counted, notes)
    metric = _majority([r.metric for r in counted if kind in r.curves] or [r.metric for r in runs])
    strange = [r for r in counted if r.metric != metric]
    if strange:
        notes.append(
            Note(
                f"{env}: {runs_named(strange)} measured {strange[0].metric} and not {metric}, and"
                " can't be compared."
            )
        )
    usable = [r for r in counted if kind in r.curves and r not in strange]
    unit, mixed = _unit(env, usable, notes)
    step = None if mixed else _common_step(env, usable, kind, unit, at, notes)
    members: dict[str, list[Member]] = {}
    remarks: dict[tuple[str, str], list[Run]] = {}
    for run in usable:
        value, remark = _value(run.curves[kind], kind, step)
        if remark:
            remarks.setdefault((run.label, remark), []).append(run)
        if value is not None:
            members.setdefault(run.label, []).append(Member(run, run.curves[kind], value))
    notes += [
        Note(f"{env}: {runs_named(those)} {several(those, 'was', 'were')} {remark}.")
        for (_, remark), those in remarks.items()
    ]
    inside = {id(m.run) for group in members.values() for m in group}
    groups = [
        Group(
            label,
            colours[label],
            tuple(sorted(members.get(label, []), key=_by_seed)),
            tuple(r for r in runs if r.label == label and id(r) not in inside),
        )
        for label in dict.fromkeys(r.label for r in runs)
    ]
    return Task(env, metric, unit, kind, step, tuple(groups), anchor)


def _by_seed(member: Member) -> tuple[bool, int]:
    return member.run.seed is None, member.run.seed or 0


def _majority(values: Sequence[str]) -> str:
    return max(dict.fromkeys(values), key=values.count)


def _note_uncounted(env: str, runs: Iterable[Run], notes: list[Note]) -> None:
    """Say which runs of a group are left out; leaving out those that failed flatters the rest."""
    runs = list(runs)
    for label in dict.fromkeys(r.label for r in runs):
        mine = [r for r in runs if r.label == label]
        for status in dict.fromkeys(r.status for r in mine if r.status not in COUNTED):
            left = [r for r in mine if r.status == status]
            flatter = status in ("failed", "diverged")
            caution = ", which flatters it" if flatter and len(left) < len(mine) else ""
            state = {"running": "still running", "diverged": "diverged (NaN)"}.get(status, status)
            notes.append(
                Note(
                    f"{len(left)} of the {len(mine)} runs of {label} on {env} {several(left)}"
                    f" {state} ({runs_named(left)}): left out of the statistics{caution}."
                )
            )


def _kind(env: str, runs: Sequence[Run], notes: list[Note]) -> str:
    """Choose the curves that all runs have, evaluations before training."""
    for kind in ("evaluation", "training"):
        if runs and all(kind in r.curves for r in runs):
            if kind == "training" and any("evaluation" in r.curves for r in runs):
                lacking = [r for r in runs if "evaluation" not in r.curves]
                notes.append(
                    Note(
                        f"{env}: compared by the returns of training episodes, since"
                        f" {runs_named(lacking)} {several(lacking, 'has', 'have')} no evaluations."
                    )
                )
            return kind
    kind = "evaluation" if any("evaluation" in r.curves for r in runs) else "training"
    lacking = [r for r in runs if kind not in r.curves]
    if lacking:
        notes.append(
            Note(
                f"{env}: {runs_named(lacking)} {several(lacking, 'has', 'have')} no {kind} curve"
                " as the others have, and can't be compared."
            )
        )
    return kind


def _unit(env: str, runs: Sequence[Run], notes: list[Note]) -> tuple[str, bool]:
    """Return what steps count, and whether that differs between runs."""
    units = [r.unit for r in runs]
    known = [u for u in units if u != "steps"]
    if not known:
        return "steps", False
    unit = _majority(known)
    if len(set(known)) > 1:
        notes.append(
            Note(
                f"{env}: steps are {' in some runs and '.join(dict.fromkeys(known))} in others, so"
                " that no step is common: each run is taken at its own end, and only the time axis"
                " holds all curves."
            )
        )
        return unit, True
    if "steps" in units:
        unknown = [r for r in runs if r.unit == "steps"]
        notes.append(
            Note(
                f"{env}: the steps of {runs_named(unknown)} are taken for {unit}, which their"
                " source does not say."
            )
        )
    return unit, False


def _common_step(
    env: str, runs: Sequence[Run], kind: str, unit: str, at: float | None, notes: list[Note]
) -> float | None:
    """Return the last step that all runs have reached; the step asked for where there is one."""
    ends = [float(r.curves[kind].step[-1]) for r in runs]
    if not ends:
        return None
    if at is not None:
        return at
    step = min(ends)
    if max(ends) > step * _SAME:
        shortest = [r for r, end in zip(runs, ends, strict=True) if end == step]
        notes.append(
            Note(
                f"{env}: runs end between {number(step)} and {number(max(ends))} {unit}, and are"
                f" compared at {number(step)}, where {runs_named(shortest)}"
                f" {several(shortest, 'ends', 'end')}."
            )
        )
    return step


def _value(curve: Curve, kind: str, step: float | None) -> tuple[float | None, str]:
    """Return what a run had reached at a step, and a remark where that is not plain.

    The evaluation nearest to it, if one is within 5 %, else the point on the line between its
    neighbours; of training episodes, whose returns are noisy, the mean over the last tenth of the
    steps until then. None where it was not measured about there.
    """
    x, y = curve.step, curve.value
    at = float(x[-1]) if step is None else step
    if x[0] > at * PAST:
        return None, f"first measured after {number(at)}, and left out"
    if x[-1] < at * _BEFORE:
        return None, f"last measured before {number(at)}, and left out"
    nearest = int(np.abs(x - at).argmin())
    if kind == "training":
        last = int(np.searchsorted(x, at * PAST, side="right"))
        first = min(last - 1, int(np.searchsorted(x, x[last - 1] * _BEFORE)))
        return float(y[first:last].mean()), ""
    if at / PAST <= x[nearest] <= at * PAST or at > x[-1]:
        return float(y[nearest]), ""
    return float(np.interp(at, x, y)), (
        f"not measured near {number(at)}: the value there is on the line between the measurements"
        " before and after"
    )
