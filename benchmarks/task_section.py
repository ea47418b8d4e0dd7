"""The section on one task: curves, scores, comparisons, and what the runs cost."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from zoo.benchmarks import verdicts
from zoo.benchmarks.estimate import Estimate
from zoo.benchmarks.intervals import level
from zoo.benchmarks.learning_curves import (
    median_speed,
    over_steps,
    over_time,
    passing,
    speed_unit,
)
from zoo.benchmarks.records import Run
from zoo.benchmarks.references import reference
from zoo.benchmarks.report.page import Cell, Chart, Intervals, Level, Row, Section, Table, Whisker
from zoo.benchmarks.tasks import Group, Task
from zoo.benchmarks.verdicts import Pair
from zoo.benchmarks.wording import duration, interval, number, rate, signed, slug, steps, value

__all__ = ["figure", "runs_anchor", "seconds", "task_section"]


def runs_anchor(task: Task, group: Group) -> str:
    """Return the anchor of a group's first run in the table of runs."""
    return slug("runs", task.anchor, str(group.colour))


def figure(run: Run, task: Task) -> str:
    """Return how far a run went, in the unit of its task."""
    curve = run.curves.get(task.kind) or next(iter(run.curves.values()), None)
    known = {"environment steps": "env_steps", "updates": "updates"}.get(run.unit, "")
    done = run.facts.get(known)
    if done is None and curve is not None:
        done = curve.step[-1]
    return "–" if done is None else number(float(done))


def task_section(
    task: Task, compared: Sequence[Pair], threshold: float | None, baseline: str | None
) -> Section:
    """Return everything on one task."""
    if threshold is None:
        threshold = reference(task.env, task.metric).threshold
    blocks: list[Table | Chart | Intervals | str] = [
        _scores(task),
        *_charts(task, threshold),
    ]
    if compared:
        blocks.append(_comparisons(task, compared))
        blocks.append(_differences(task, compared))
    blocks.append(_costs(task, threshold, baseline))
    published = _published(task)
    if published:
        blocks.append(published)
    return Section(task.env, tuple(blocks), task.anchor)


def _measured(task: Task) -> str:
    return f"{task.metric} of {'evaluations' if task.kind == 'evaluation' else 'training episodes'}"


def _where(task: Task) -> str:
    return "each run's end" if task.at is None else steps(task.at, task.unit)


def _scores(task: Task) -> Table:
    rows = []
    ends = [m.curve.step[-1] for g in task.compared for m in g.members]
    longer = task.at is not None and max(ends, default=0) > task.at * 1.02
    for group in task.compared:
        values = group.values
        spread = f"{value(values.min(), task.percent)} … {value(values.max(), task.percent)}"
        final = [float(m.curve.value[-1]) for m in group.members]
        rows.append(
            Row(
                (
                    Cell(group.label, f"#{runs_anchor(task, group)}"),
                    Cell(str(len(values))),
                    Cell(_estimate(level(values), task.percent), strong=True),
                    Cell(value(float(values.mean()), task.percent)),
                    Cell(value(float(np.median(values)), task.percent)),
                    Cell(spread),
                    *([Cell(value(level(final).value, task.percent))] if longer else []),
                ),
                colour=group.colour,
            )
        )
    columns = ["label", "runs", "IQM [95 % interval]", "mean", "median", "worst … best"]
    columns += ["IQM at each run's own end"] if longer else []
    return Table(tuple(columns), tuple(rows), f"{_measured(task).capitalize()} at {_where(task)}.")


def _charts(task: Task, threshold: float | None) -> list[Chart]:
    levels = _levels(task, threshold)
    label = _measured(task)
    y_format = "percent" if task.percent else "number"
    steps = tuple(over_steps(g, task.kind) for g in task.groups)
    times = tuple(over_time(g, task.kind) for g in task.groups)
    found = []
    measured_twice = any(len(t.x) > 1 for s in steps for t in s.traces)
    if task.at is not None and measured_twice:
        found.append(
            Chart(
                f"{task.anchor}-steps",
                f"{task.env} over {task.unit}",
                task.unit,
                label,
                tuple(s for s in steps if s.traces),
                levels,
                y_format=y_format,
                caption="IQM of the runs with its 95 % interval where there are runs enough, and"
                " single runs.",
            )
        )
    if any(s.x.size for s in times):
        missing = [
            f"{sum(m.curve.wall_s is None for m in g.members)} of the {len(g.members)} runs of"
            f" {g.label}"
            for g in task.compared
            if any(m.curve.wall_s is None for m in g.members)
        ]
        lacking = f" No times are known of {', '.join(missing)}." if missing else ""
        found.append(
            Chart(
                f"{task.anchor}-time",
                f"{task.env} over time",
                "training time",
                label,
                tuple(s for s in times if s.traces),
                levels,
                x_format="seconds",
                y_format=y_format,
                caption="The same over training time: each point is at the mean time of its step."
                + lacking,
            )
        )
    return found


def _levels(task: Task, threshold: float | None) -> tuple[Level, ...]:
    published = [p for group in task.groups for p in verdicts.beside(group, task)]
    lines = [
        Level(
            f"{p.source}: {p.algo.upper()} {number(p.budget)} steps"
            + ("" if p.env == task.env else f" on {p.env}"),
            p.value,
        )
        for p in dict.fromkeys(published)
    ]
    if threshold is not None:
        lines.append(Level("threshold", threshold))
    return tuple(lines)


def _differences(task: Task, compared: Sequence[Pair]) -> Intervals:
    scale = 100 if task.percent else 1

    def scaled(x: float | None) -> float | None:
        return None if x is None else scale * x

    rows = tuple(
        Whisker(
            f"{p.better.label} − {p.worse.label}",
            p.better.colour,
            scale * p.difference.value,
            scaled(p.difference.low),
            scaled(p.difference.high),
            _signed(p.difference, task.percent),
        )
        for p in compared
    )
    return Intervals(
        f"{task.anchor}-differences",
        "Differences of IQM",
        "points" if task.percent else task.metric,
        rows,
        zero=True,
        caption="An interval that reaches over 0 leaves open which of the two is better.",
    )


def _comparisons(task: Task, compared: Sequence[Pair]) -> Table:
    rows = tuple(
        Row(
            (
                Cell(f"{p.better.label} against {p.worse.label}"),
                Cell(_signed(p.difference, task.percent), strong=p.decided),
                Cell(_estimate(p.probability)),
                Cell("yes" if p.paired else "no"),
                Cell(
                    "yes" if p.decided else "no" if p.difference.low is not None else "too few runs"
                ),
            )
        )
        for p in compared
    )
    columns = (
        "comparison",
        f"difference of IQM{', points' if task.percent else ''}",
        "probability of improvement",
        "paired by seed",
        "outside noise",
    )
    paired = " Paired ones are the IQM of the differences between runs of one seed."
    caption = f"Comparisons at {_where(task)}.{paired if any(p.paired for p in compared) else ''}"
    return Table(columns, rows, caption)


def _costs(task: Task, threshold: float | None, baseline: str | None) -> Table:
    unit = speed_unit(task)
    rates = {g.label: median_speed(g, unit) for g in task.compared}
    base = rates.get(baseline) if baseline else None
    rows = []
    for group in task.compared:
        speed = rates[group.label]
        peaks = [
            m.run.facts["peak_rss_gib"] for m in group.members if m.run.facts.get("peak_rss_gib")
        ]
        times = [seconds(m.run, task) for m in group.members]
        known = [t for t in times if t is not None]
        cells = [
            Cell(group.label, f"#{runs_anchor(task, group)}"),
            Cell(rate(speed)),
            Cell(duration(float(np.median(known))) if known else "–"),
            Cell(f"{max(peaks):.2f}" if peaks else "–"),
        ]
        if base:
            cells.insert(2, Cell("–" if speed is None else f"{speed / base:.2f} ×"))
        if threshold is not None:
            passed = passing(group, threshold, task)
            cells += [
                Cell(f"{passed.reached} of {passed.runs}"),
                Cell("–" if passed.step is None else number(passed.step)),
                Cell(duration(passed.seconds)),
            ]
        rows.append(Row(tuple(cells), colour=group.colour))
    until = ""
    columns = ["label", f"{unit} (median)", "time (median)", "peak GiB (largest)"]
    if base:
        columns.insert(2, f"against {baseline}")
    if threshold is not None:
        reached = f"reached {value(threshold, task.percent)}"
        until = f" The threshold is looked for up to {_where(task)}."
        columns += [reached, f"{task.unit} to it (median)", "time to it (median)"]
    return Table(tuple(columns), tuple(rows), f"What the runs took.{until}")


def seconds(run: Run, task: Task) -> float | None:
    """Return how long a run took, by its summary or the end of its curve; None if not known."""
    if run.facts.get("wall_s") is not None:
        return float(run.facts["wall_s"])
    curve = run.curves.get(task.kind)
    wall = None if curve is None else curve.wall_s
    return None if wall is None else float(wall[-1])


def _published(task: Task) -> Table | None:
    """Return what others published for any algorithm on this task."""
    rows = tuple(
        Row(
            (
                Cell(p.source, p.url),
                Cell(p.algo.upper()),
                Cell(f"{value(p.value)} ± {value(p.std)}"),
                Cell(number(p.budget)),
                Cell(p.about if p.env == task.env else f"{p.about}, on {p.env}"),
            )
        )
        for p in reference(task.env, task.metric).published
    )
    columns = ("source", "algorithm", "return", "steps", "what it is")
    return Table(columns, rows, f"Published results on {task.env}.") if rows else None


def _estimate(estimate: Estimate, percent: bool = False) -> str:
    text = value(estimate.value, percent)
    return f"{text} {interval(estimate.low, estimate.high, percent)}".strip()


def _signed(estimate: Estimate, percent: bool) -> str:
    text = signed(estimate.value, percent)
    return f"{text} {interval(estimate.low, estimate.high, percent, sign=True)}".strip()
