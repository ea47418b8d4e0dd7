"""W&B's export of a chart: a CSV file with one column for each run, ``RUN - FIGURE``."""

from __future__ import annotations

import math
from pathlib import Path

from zoo.benchmarks.readers.arguments import Argument
from zoo.benchmarks.readers.csv_files import rows_of
from zoo.benchmarks.readers.naming import identify
from zoo.benchmarks.readers.scalars import Points, convention_of, series_of
from zoo.benchmarks.readers.series import with_curves
from zoo.benchmarks.records import Collection, Note, Run
from zoo.errors import UserError

__all__ = ["is_export", "read_export"]

#: the horizontal axes that are read, and what they count; None: what the figure's own logger counts
_AXES = {
    "Step": None,
    "global_step": "environment steps",
    "env_steps": "environment steps",
    "updates": "updates",
}
_BOUNDS = ("__MIN", "__MAX")


def is_export(path: Path) -> bool:
    """Return whether a CSV file is one."""
    header = next(rows_of(path))[1]
    return header[0] in _AXES and any(" - " in name for name in header[1:])


def read_export(path: Path, argument: Argument) -> Collection:
    """Read the runs of one exported chart.

    Raises
    ------
    UserError
        Where its figure is not known, a number can't be read, or nothing says of which task a run
        is.
    """
    lines = rows_of(path)
    axis, *names = next(lines)[1]
    figures: dict[str, dict[str, Points]] = {}
    for line, (step, *cells) in lines:
        for name, cell in zip(names, cells, strict=False):
            who, separator, figure = name.rpartition(" - ")
            if separator and cell and not figure.endswith(_BOUNDS):
                points = figures.setdefault(who, {}).setdefault(figure, Points())
                points.add(_number(step, path, line), _number(cell, path, line), math.nan)
    runs: list[Run] = []
    notes: list[Note] = []
    for name, of_run in figures.items():
        convention = convention_of(of_run)
        if convention is None:
            other = ", ".join(of_run)
            raise UserError(f"{path} has none of the figures that are read, but {other}.")
        bare, series = series_of(convention, of_run)
        ours = convention.counter != "global_step"
        unit = _AXES[axis] or (bare if ours else "steps")  # a step of W&B's is a call of its log
        place = path.with_name(name.replace("/", "-"))  # where its name would be, if it had a file
        identity = identify(place, argument, library=convention.library)
        run = Run(
            label=identity.label,
            env=identity.env,
            seed=identity.seed,
            source=path,
            kind="wandb",
            unit=unit,
            metric=convention.metric,
            curves={},
            named=argument.label is not None,
        )
        whole = with_curves(run, series, identity.remarks, name=f"{path.name}, {name}")
        runs += whole.runs
        notes += whole.notes
    return Collection(tuple(runs), tuple(notes))


def _number(text: str, path: Path, line: int) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise UserError(f"{path}, line {line}: {text!r} is not a number.") from error
