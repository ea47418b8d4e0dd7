"""A table of results: one row per measurement, with the columns algo, env, seed, step and value."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from zoo.benchmarks.readers.arguments import Argument
from zoo.benchmarks.readers.series import clean, with_curves
from zoo.benchmarks.records import Collection, Note, Run
from zoo.errors import UserError, nearest

__all__ = ["COLUMNS", "is_table", "read_csv", "rows_of"]

COLUMNS = ("algo", "env", "seed", "step", "value")
_OPTIONAL = ("wall_s", "metric", "unit")
_METRICS = ("return", "accuracy")
_NOTHING = frozenset({"", "na", "n/a", "none", "null"})


@dataclass
class _Rows:
    """The rows of one run."""

    metric: str
    unit: str
    line: list[int] = field(default_factory=list)
    step: list[float] = field(default_factory=list)
    value: list[float] = field(default_factory=list)
    wall_s: list[float] = field(default_factory=list)


def read_csv(path: Path, argument: Argument) -> Collection:
    """Read one table; commas, semicolons and tabs separate, columns stand in any order.

    Optional columns: ``wall_s`` (seconds of training), ``metric`` (``return`` or ``accuracy``, a
    fraction) and ``unit`` (what steps count). The values are taken for evaluations.

    Raises
    ------
    UserError
        Where a column is missing, a number can't be read, or one step has two values.
    """
    lines = rows_of(path)
    columns, ignored = _columns(path, next(lines, (0, []))[1])
    groups: dict[tuple[str, str, int | None], _Rows] = {}
    for number, row in lines:
        _add(groups, path, number, dict(zip(columns, row, strict=False)))
    if not groups:
        raise UserError(f"{path} has a header and no rows.")
    notes = []
    if ignored:
        plural = "column" if len(ignored) == 1 else "columns"
        notes.append(Note(f"{path.name}: {plural} {', '.join(ignored)} ignored.", path))
    labels, envs = {algo for algo, _, _ in groups}, {env for _, env, _ in groups}
    if argument.env is not None and envs != {argument.env}:
        raise UserError(
            f"{path} is of {', '.join(sorted(envs))}, not of {argument.env}: leave @{argument.env}"
            " out of the argument."
        )
    runs: list[Run] = []
    for (algo, env, seed), rows in groups.items():
        series = clean(rows.step, rows.value, rows.wall_s if any(_known(rows.wall_s)) else None)
        label = argument.label if argument.label and len(labels) == 1 else None
        name = f"{argument.label} {algo}" if argument.label else algo
        run = Run(
            label=label or name,
            env=env,
            seed=seed,
            source=path,
            kind="csv",
            unit=rows.unit,
            metric=rows.metric,
            curves={},
            named=argument.label is not None,
        )
        who = f"{path.name}, {algo} on {env}, seed {seed}"
        whole = with_curves(run, {"evaluation": series}, name=who)
        runs += whole.runs
        notes += whole.notes
    return Collection(tuple(runs), tuple(notes))


def rows_of(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield each row that is not blank, with its line number; the first one is the header."""
    try:
        text = path.read_text("utf-8-sig")
    except OSError as error:
        raise UserError(f"can't read {path}: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is no text in UTF-8.") from error
    if not text.strip():
        raise UserError(f"{path} is empty.")
    header = text.lstrip().split("\n", 1)[0]
    delimiter = max(",;\t", key=header.count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=True)
    try:
        for row in reader:
            if any(cell.strip() for cell in row):
                yield reader.line_num, [cell.strip() for cell in row]
    except csv.Error as error:
        raise UserError(f"{path}, line {reader.line_num}: {error}.") from error


def is_table(path: Path) -> bool:
    """Return whether a file found by searching is such a table: its first line is looked at."""
    if path.suffix.lower() not in (".csv", ".tsv"):
        return False
    try:
        with path.open(encoding="utf-8-sig") as file:
            head = file.readline(4096).lower()
    except (OSError, UnicodeDecodeError):
        return False
    names = {name.strip(' "\r\n') for name in re.split("[,;\t]", head)}
    return set(COLUMNS) <= names


def _columns(path: Path, header: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the columns' names and those that mean nothing here."""
    columns = [name.lower() for name in header]
    for name in COLUMNS:
        if name not in columns:
            raise UserError(
                f"{path} has no column {name}: it needs {', '.join(COLUMNS)} and has"
                f" {', '.join(header)}.{nearest(name, columns)}"
            )
        if columns.count(name) > 1:
            raise UserError(f"{path} has two columns {name}.")
    return columns, [name for name in columns if name not in (*COLUMNS, *_OPTIONAL)]


def _add(
    groups: dict[tuple[str, str, int | None], _Rows], path: Path, line: int, row: dict[str, str]
) -> None:
    where = f"{path}, line {line}"
    for column in COLUMNS:
        if column not in row:
            raise UserError(f"{where} has no {column}: the row is too short.")
    for column in ("algo", "env"):
        if not row[column]:
            raise UserError(f"{where}: {column} is empty.")
    step, value = _number(row, "step", where), _number(row, "value", where)
    if not math.isfinite(step):
        raise UserError(f"{where}: step is {row['step'] or 'empty'}, not a number.")
    metric, unit = row.get("metric", "").lower() or "return", row.get("unit", "") or "steps"
    if metric not in _METRICS:
        raise UserError(f"{where}: metric is {metric!r}, and must be return or accuracy.")
    if metric == "accuracy" and not (0 <= value <= 1 or not math.isfinite(value)):
        raise UserError(f"{where}: an accuracy of {value:g}; it must be a fraction from 0 to 1.")
    key = (row["algo"], row["env"], _seed(row["seed"], where))
    rows = groups.setdefault(key, _Rows(metric, unit))
    if (rows.metric, rows.unit) != (metric, unit):
        raise UserError(f"{where}: metric or unit is another than on line {rows.line[0]}.")
    if rows.step and rows.step[-1] == step and math.isfinite(value) and rows.value[-1] != value:
        raise UserError(
            f"{where}: {' '.join(map(str, key))} has another value at step {step:g} on line"
            f" {rows.line[-1]}."
        )
    rows.line.append(line)
    rows.step.append(step)
    rows.value.append(value)
    rows.wall_s.append(_number(row, "wall_s", where))


def _number(row: dict[str, str], column: str, where: str) -> float:
    """Return a number; NaN for a cell that says that there is none."""
    text = row.get(column, "")
    if text.lower() in _NOTHING:
        return math.nan
    try:
        return float(text)
    except ValueError as error:
        raise UserError(f"{where}: {column} is {text!r}, not a number.") from error


def _seed(text: str, where: str) -> int | None:
    if text.lower() in {*_NOTHING, "nan"}:
        return None
    try:
        seed = float(text)
        if seed == int(seed):
            return int(text) if text.isdecimal() else int(seed)
    except (ValueError, OverflowError):
        pass
    raise UserError(f"{where}: seed is {text!r}, not a whole number.")


def _known(wall_s: Sequence[float]) -> Iterator[bool]:
    return (math.isfinite(seconds) for seconds in wall_s)
