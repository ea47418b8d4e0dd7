"""The section on all tasks together."""

from __future__ import annotations

from zoo.benchmarks.aggregate import THRESHOLDS, Aggregate
from zoo.benchmarks.estimate import Estimate
from zoo.benchmarks.intervals import fewest_runs, fewest_tasks
from zoo.benchmarks.report.page import (
    Cell,
    Chart,
    Intervals,
    Row,
    Section,
    Series,
    Table,
    Whisker,
)
from zoo.benchmarks.wording import chance_of, interval, listed, plural, signed, value

__all__ = ["overview_section", "overview_verdicts"]

_FIGURES = ("IQM", "median", "mean", "optimality gap")


def overview_verdicts(averaged: Aggregate) -> list[str]:
    """Say what the averages show: each decided comparison, and one sentence on the others."""
    said, open_ = [], []
    over = f"over {plural(len(averaged.envs), 'task')}"
    for better, worse, apart, probability, paired in averaged.pairs:
        seeds = f"{plural(len(better.scores), 'seed')} each{', paired' if paired else ''}"
        if apart.low is None:
            continue
        if apart.excludes(0.0):
            said.append(
                f"{better.label} beats {worse.label} {over}: {_difference(apart)} of the normalised"
                f" IQM, probability of improvement {chance_of(probability.value)} ({seeds})."
            )
        else:
            open_.append(f"{better.label} and {worse.label} ({_difference(apart)})")
    if open_:
        said.append(f"No difference outside noise {over} between {listed(open_)}.")
    return said


def _difference(apart: Estimate) -> str:
    return f"{signed(apart.value)} {interval(apart.low, apart.high, sign=True)}".strip()


def overview_section(averaged: Aggregate) -> Section:
    """Return scores, comparisons and profiles over all tasks."""
    intro = (
        f"Scores over {listed(list(averaged.envs))}, each on the scale where 0 is a policy of"
        " random actions and 1 the best published result (of accuracies, 0 and 1 themselves)."
    )
    rows = tuple(
        Row(
            (
                Cell(o.label),
                Cell(str(len(o.scores))),
                *(Cell(_estimate(o.figures[name]), strong=name == "IQM") for name in _FIGURES),
            ),
            colour=o.colour,
        )
        for o in averaged.overall
    )
    caption = (
        "Normalised scores; the optimality gap is what is missing to 1, and less of it is better."
    )
    whiskers = tuple(
        Whisker(o.label, o.colour, e.value, e.low, e.high, _estimate(e))
        for o in averaged.overall
        for e in [o.figures["IQM"]]
    )
    profiles = tuple(
        Series(o.label, o.colour, THRESHOLDS, o.profile.centre, o.profile.low, o.profile.high)
        for o in averaged.overall
    )
    blocks: list[Table | Chart | Intervals | str] = [
        intro,
        Table(("label", "seeds", *_FIGURES), rows, caption),
        Intervals("overall-iqm", "IQM over all tasks", "normalised score", whiskers),
        Chart(
            "overall-profile",
            "Performance profile",
            "normalised score τ",
            "runs above τ",
            profiles,
            x_format="number",
            y_format="percent",
            caption="The fraction of runs whose normalised score is above τ: higher is better.",
        ),
    ]
    runs = min(len(o.scores) for o in averaged.overall)
    if len(averaged.envs) < fewest_tasks() or runs < fewest_runs():
        blocks[0] = (
            f"{intro} Averages have intervals from {fewest_tasks()} tasks and {fewest_runs()} runs"
            " of each on: of fewer, the interquartile mean cuts inside single tasks."
        )
    found = averaged.pairs
    if found:
        compared = tuple(
            Row(
                (
                    Cell(f"{better.label} against {worse.label}"),
                    Cell(_difference(apart), strong=apart.excludes(0.0)),
                    Cell(_estimate(probability)),
                    Cell("yes" if paired else "no"),
                )
            )
            for better, worse, apart, probability, paired in found
        )
        columns = ("comparison", "difference of IQM", "probability of improvement", "paired")
        blocks.insert(2, Table(columns, compared, "Comparisons over all tasks."))
    return Section("All tasks", tuple(blocks), "all-tasks")


def _estimate(estimate: Estimate) -> str:
    return f"{value(estimate.value)} {interval(estimate.low, estimate.high)}".strip()
