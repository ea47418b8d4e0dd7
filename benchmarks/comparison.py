"""From the runs that were read to the page that compares them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from zoo.benchmarks import verdicts
from zoo.benchmarks.aggregate import Aggregate, average
from zoo.benchmarks.intervals import fewest_runs
from zoo.benchmarks.origin import origin_notes, origin_section, settings_section
from zoo.benchmarks.overview import overview_section, overview_verdicts
from zoo.benchmarks.records import Collection, Note, Run, place
from zoo.benchmarks.report.page import Cell, Page, Row, Section, Table
from zoo.benchmarks.task_section import figure, runs_anchor, seconds, task_section
from zoo.benchmarks.tasks import Task, gather
from zoo.benchmarks.wording import duration, listed, plural, several, value
from zoo.errors import UserError, nearest

__all__ = ["Options", "compare"]

_METHOD = (
    "IQM is the interquartile mean: the mean of the middle half of the runs. A run's value is"
    " its evaluation nearest to the compared step, or between two on the line that joins them; not"
    " its best one.",
    "Intervals are 95 % intervals over runs: percentiles of the bootstrapped IQM, widened for few"
    " runs, and Wilson's for the probability of improvement, which is P(X > Y) + ½ P(X = Y). How"
    " often they hold the true value, for how many runs and which distributions, was simulated: the"
    " documentation of the statistics has the table. Bands are pointwise.",
    "A threshold is passed when an evaluation first measures it or more; medians count runs that"
    " never did, failed and diverged ones among them, as later than all others. Seconds are of"
    " collecting and learning, without evaluation; in logs of other libraries they are whatever"
    " their log holds. Peak memory is that of the whole process.",
)


@dataclass(frozen=True)
class Options:
    """What a user may ask of a report.

    Attributes
    ----------
    title : str, optional
        In place of one made of labels and tasks.
    remarks : tuple of str
        The author's own sentences, above the verdicts' details.
    baseline : str, optional
        The label with which all others are compared.
    at : float, optional
        The step to compare at.
    thresholds : mapping
        Task → the score at which it counts as learned, in place of the known one.
    command : str
        What made the page, for its foot.
    """

    title: str | None = None
    remarks: tuple[str, ...] = ()
    baseline: str | None = None
    at: float | None = None
    thresholds: Mapping[str, float] = field(default_factory=dict)
    command: str = ""


def compare(collection: Collection, options: Options | None = None) -> Page:
    """Compare runs and say what follows.

    Raises
    ------
    UserError
        Where there is nothing to compare, or an option names what is not there.
    """
    options = options or Options()
    if not collection.runs:
        raise UserError("there is no run to report on" + _reasons(collection.notes) + ".")
    tasks, decided = gather(collection.runs, options.at)
    _check(options, tasks)
    if not any(task.compared for task in tasks):
        raise UserError("no run can be reported on" + _reasons((*collection.notes, *decided)) + ".")
    averaged = average(tasks)
    compared = {task.env: verdicts.pairs(task, options.baseline) for task in tasks}
    sections = [
        *([overview_section(averaged)] if averaged else []),
        *(
            task_section(t, compared[t.env], options.thresholds.get(t.env), options.baseline)
            for t in tasks
        ),
        *filter(None, [settings_section(tasks)]),
        _runs_section(tasks),
        *filter(None, [origin_section(tasks)]),
    ]
    notes = [
        *(note.text for note in (*collection.notes, *decided)),
        *origin_notes(tasks),
        *(averaged.notes if averaged else ()),
        *_few(tasks),
        *_by_chance(tasks, compared, averaged, options.baseline),
    ]
    made = f" This page was made by `{options.command}`." if options.command else ""
    return Page(
        title=options.title or _title(tasks),
        subtitle=_subtitle(tasks),
        verdicts=tuple(_verdicts(tasks, compared, averaged, options.baseline)),
        notes=(*options.remarks, *notes),
        sections=tuple(sections),
        footer=(*_METHOD, *([made.strip()] if made else [])),
    )


def _reasons(notes: Sequence[Note]) -> str:
    return f": {notes[0].text.rstrip('.')}" if notes else ""


def _check(options: Options, tasks: Sequence[Task]) -> None:
    labels = list(dict.fromkeys(g.label for t in tasks for g in t.groups))
    if options.baseline is not None and options.baseline not in labels:
        raise UserError(
            f"no runs are labelled '{options.baseline}': there {several(labels)} {listed(labels)}."
            f"{nearest(options.baseline, labels)}"
        )
    envs = [t.env for t in tasks]
    for env in options.thresholds:
        if env not in envs:
            raise UserError(f"a threshold names '{env}', but the runs are on {listed(envs)}.")


def _title(tasks: Sequence[Task]) -> str:
    labels = list(dict.fromkeys(g.label for t in tasks for g in t.groups))
    return f"{_shortened(labels, 4)} on {_shortened([t.env for t in tasks], 3)}"


def _shortened(names: list[str], most: int) -> str:
    if len(names) <= most:
        return listed(names)
    return f"{', '.join(names[: most - 1])} and {len(names) - most + 1} more"


def _subtitle(tasks: Sequence[Task]) -> str:
    runs = sum(len(g.members) + len(g.others) for t in tasks for g in t.groups)
    counted = sum(len(g.members) for t in tasks for g in t.groups)
    left = "" if runs == counted else f", {counted} of them in the statistics"
    return f"{plural(runs, 'run')} on {plural(len(tasks), 'task')}{left}"


def _verdicts(
    tasks: Sequence[Task],
    compared: Mapping[str, Sequence[verdicts.Pair]],
    averaged: Aggregate | None,
    baseline: str | None,
) -> list[str]:
    said = list(overview_verdicts(averaged)) if averaged else []
    decided = [(p, t) for t in tasks for p in compared[t.env] if p.decided]
    open_ = [(p, t) for t in tasks for p in compared[t.env] if not p.decided]
    said += [verdicts.sentence(p, t) for p, t in (*decided, *open_)]
    said += [
        f"{listed([g.label for g in t.groups if not g.members])} on [{t.env}](#{t.anchor}) can't be"
        " compared: the notes say why."
        for t in tasks
        if len(t.compared) < len(t.groups)
    ]
    for task in tasks:
        said += verdicts.speeds(task, baseline)
        said += verdicts.gains(task) or verdicts.levels(task)
    return said


def _by_chance(
    tasks: Sequence[Task],
    compared: Mapping[str, Sequence[verdicts.Pair]],
    averaged: Aggregate | None,
    baseline: str | None,
) -> list[str]:
    found = [p.difference for ps in compared.values() for p in ps]
    found += [apart for _, _, apart, _, _ in averaged.pairs] if averaged else []
    picked = 0 if baseline else max(len(t.compared) for t in tasks)
    return verdicts.chance(sum(f.low is not None for f in found), picked)


def _few(tasks: Sequence[Task]) -> list[str]:
    few = {len(g.members) for t in tasks for g in t.compared if len(g.members) < fewest_runs()}
    if not few:
        return []
    counts = " or ".join(map(str, sorted(few)))
    return [
        f"Groups of {counts} {'run' if set(few) == {1} else 'runs'} have no intervals and no bands:"
        " a 95 % interval from so few holds the true value clearly less often than it says, and one"
        f" seed's luck looks like a difference. From {fewest_runs()} seeds on they are drawn."
    ]


def _files(run: Run) -> Cell:
    """Return where a run's files are, or the file of results that it was kept in."""
    kept = next((place for place in run.source.parents if place.is_file()), None)
    return Cell(place(run.source), run.source if run.source.exists() else kept)


def _runs_section(tasks: Sequence[Task]) -> Section:
    members = [m for task in tasks for group in task.groups for m in group.members]
    later = any(m.value != m.curve.value[-1] for m in members)
    rows = []
    for task in tasks:
        for group in task.groups:
            values = {id(m.run): m.value for m in group.members}
            ends = {id(m.run): float(m.curve.value[-1]) for m in group.members}
            everyone = [*(m.run for m in group.members), *group.others]
            for row, run in enumerate(everyone):
                facts = run.facts
                peak = facts.get("peak_rss_gib")
                cells = (
                    Cell(run.label),
                    Cell(run.env),
                    Cell("–" if run.seed is None else str(run.seed)),
                    Cell(value(values.get(id(run)), task.percent)),
                    *([Cell(value(ends.get(id(run)), task.percent))] if later else []),
                    Cell(run.status),
                    Cell(figure(run, task)),
                    Cell(duration(seconds(run, task))),
                    Cell("–" if peak is None else f"{peak:.2f}"),
                    _files(run),
                )
                anchor = runs_anchor(task, group) if row == 0 else ""
                rows.append(Row(cells, anchor, group.colour))
    figures = ("value", "at its end") if later else ("value",)
    columns = ("label", "task", "seed", *figures, "status", "steps", "time", "peak GiB", "files")
    caption = "Every run, with the value that entered the statistics and where its files are."
    return Section("Runs", (Table(columns, tuple(rows), caption),), "runs", folded=True)
