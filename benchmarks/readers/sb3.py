"""Runs of Stable-Baselines3: evaluations.npz, monitor.csv and progress.csv of one folder."""

from __future__ import annotations

import json
import math
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from zoo.benchmarks.readers.arguments import Argument
from zoo.benchmarks.readers.csv_files import rows_of
from zoo.benchmarks.readers.event_files import is_events, read_scalars
from zoo.benchmarks.readers.naming import identify
from zoo.benchmarks.readers.scalars import SB3, Points, series_of
from zoo.benchmarks.readers.series import EPISODES, Series, clean, with_curves
from zoo.benchmarks.records import Collection, Note, Run
from zoo.errors import UserError

__all__ = ["is_evaluations", "is_monitor", "read_sb3"]

_STEPS, _SECONDS = "time/total_timesteps", "time/time_elapsed"


@dataclass(frozen=True)
class _Episodes:
    """All training episodes of a run, by the time they ended.

    Attributes
    ----------
    returns, lengths : ndarray, [N]
        Of each episode.
    t : ndarray, [N]
        Seconds since the first environment was made, never falling.
    files : int
        How many environments wrote them.
    env : str, optional
        What the files say the task is.
    """

    returns: np.ndarray
    lengths: np.ndarray
    t: np.ndarray
    files: int
    env: str | None


def is_evaluations(name: str) -> bool:
    """Return whether a file of this name holds evaluations."""
    return name == "evaluations.npz"


def is_monitor(name: str) -> bool:
    """Return whether a file of this name holds training episodes."""
    return name == "monitor.csv" or name.endswith(".monitor.csv")


def read_sb3(source: Path, files: Sequence[Path], argument: Argument) -> Collection:
    """Read one run.

    Parameters
    ----------
    source : Path
        Its folder, or its only file.
    files : sequence of Path
        Its files.
    argument : Argument
        What the user wrote.

    Raises
    ------
    UserError
        Where a file is not what its name says, or nothing says of which task the run is.
    """
    remarks: list[str] = []
    monitors = [file for file in files if is_monitor(file.name)]
    episodes = _episodes(monitors, remarks) if monitors else None
    names = {file.name for file in files}
    series: dict[str, Series] = {}
    if not names & {"evaluations.npz", "progress.csv"}:
        series |= _logged([file for file in files if is_events(file.name)], remarks)
    for file in files:
        if file.name == "progress.csv":
            series |= series_of(SB3, _progress(file))[1]
    if episodes is not None and len(episodes.t):
        steps, returns, t = np.cumsum(episodes.lengths), episodes.returns, episodes.t
        series["training"] = clean(steps.tolist(), returns.tolist(), t.tolist(), EPISODES)
    for file in files:
        if file.suffix == ".npz":
            measured, values = _evaluations(file)
            series["evaluation"] = clean(measured, values, _clock(measured, episodes))
    if not series:
        return Collection((), (Note(f"{source} recorded nothing: it is left out.", source),))
    said = {"env": episodes.env if episodes else None}
    who = identify(source, argument, library="SB3", said=said)
    run = Run(
        label=who.label,
        env=who.env,
        seed=who.seed,
        source=source,
        kind="sb3",
        unit=SB3.unit,
        metric=SB3.metric,
        curves={},
        settings=who.settings,
        named=argument.label is not None,
    )
    return with_curves(run, series, (*remarks, *who.remarks))


def _logged(files: Sequence[Path], remarks: list[str]) -> dict[str, Series]:
    """Return the curves that event files hold; the run can do without them."""
    if not files:
        return {}
    try:
        events = read_scalars(files)
    except UserError as error:
        remarks.append(f"its event files are not read: {str(error).rstrip('.')}")
        return {}
    remarks += events.remarks
    return series_of(SB3, events.figures)[1]


def _evaluations(file: Path) -> tuple[list[float], list[float]]:
    """Return the steps and the mean returns of the evaluations."""
    try:
        # Pickled objects could run code, and there is no honest reason for any.
        with np.load(file, allow_pickle=False) as arrays:
            steps, results = np.asarray(arrays["timesteps"]), np.asarray(arrays["results"])
    except OSError as error:
        raise UserError(f"can't read {file}: {error.strerror or 'it is no npz file'}.") from error
    except KeyError as error:
        raise UserError(
            f"{file} has no array {error.args[0].split()[0]}: EvalCallback writes timesteps and"
            " results."
        ) from error
    except (ValueError, TypeError, EOFError, RuntimeError, zlib.error, zipfile.BadZipFile) as error:
        pickled = "allow_pickle" in str(error)
        why = "holds pickled objects, which are not read" if pickled else "is no npz file"
        raise UserError(f"{file} {why}.") from error
    if steps.dtype.kind not in "iuf" or results.dtype.kind not in "iuf":
        raise UserError(f"{file}: timesteps and results must be numbers.")
    if steps.ndim != 1 or results.ndim != 2 or len(steps) != len(results) or not results.size:
        raise UserError(
            f"{file}: timesteps has the shape {steps.shape} and results {results.shape}; they must"
            " be [n] and [n, episodes]."
        )
    return steps.astype(float).tolist(), results.astype(float).mean(1).tolist()


def _episodes(files: Sequence[Path], remarks: list[str]) -> _Episodes:
    """Merge the monitor files of all environments, as Stable-Baselines3 itself does."""
    parts, starts, envs = [], [], []
    for file in files:
        header, rows = _monitor(file, remarks)
        start = header.get("t_start")
        starts.append(float(start) if isinstance(start, int | float) else math.nan)
        envs += [str(header["env_id"])] if header.get("env_id") else []
        parts.append(rows)
    if len(set(envs)) > 1:
        raise UserError(
            f"{files[0].parent} mixes the episodes of {' and '.join(sorted(set(envs)))}."
        )
    first = min(starts)
    together = math.isfinite(first)  # old files don't say when they began
    offsets = [start - first if together else 0.0 for start in starts]
    whole = np.concatenate(
        [part + np.array([0.0, 0.0, start]) for part, start in zip(parts, offsets)]
    )
    whole = whole[np.argsort(whole[:, 2], kind="stable")]
    return _Episodes(whole[:, 0], whole[:, 1], whole[:, 2], len(files), envs[0] if envs else None)


def _monitor(file: Path, remarks: list[str]) -> tuple[dict[str, Any], np.ndarray]:
    """Return the header and the episodes' return, length and time, [N, 3]."""
    lines = rows_of(file)
    number, first = next(lines)
    header: Any = {}
    if first[0].startswith("#"):
        with file.open(encoding="utf-8-sig") as text:
            try:
                header = json.loads(text.readline()[1:])
            except ValueError as error:
                raise UserError(f"{file}, line 1 is no header of a monitor file.") from error
        number, first = next(lines, (0, []))
    columns = [name.lower() for name in first]
    if not isinstance(header, dict) or not {"r", "l", "t"} <= set(columns):
        raise UserError(f"{file} is no monitor file: it needs the columns r, l and t.")
    places = [columns.index(name) for name in "rlt"]
    rows, last = [], 0
    for number, row in lines:
        try:
            rows.append([float(row[place]) for place in places])
        except (ValueError, IndexError):
            if last:
                raise UserError(
                    f"{file}, line {last} can't be read: it needs r, l and t."
                ) from None
            last = number
    if last and last != number:
        raise UserError(f"{file}, line {last} can't be read: it needs r, l and t.")
    if last:
        remarks.append(f"the last line of {file.name} is half-written: left out")
    episodes = np.array(rows, np.float64).reshape(-1, 3)
    if not np.isfinite(episodes[:, 1:]).all() or (episodes[:, 1] <= 0).any():
        raise UserError(f"{file}: lengths and times of episodes must be positive numbers.")
    t = episodes[:, 2]
    back = np.diff(t) < 0  # training went on later in the same file, with a clock of its own
    t[1:] += np.cumsum(np.where(back, t[:-1], 0.0))
    if back.any():
        remarks.append(f"{file.name} was continued: its clocks are joined")
    return header, episodes


def _clock(steps: Sequence[float], episodes: _Episodes | None) -> list[float] | None:
    """Return when the evaluations were, by the monitor; None where it doesn't reach so far.

    Episodes that had not ended are not in it, at most one of each environment.
    """
    if episodes is None or not len(episodes.t):
        return None
    ended = np.cumsum(episodes.lengths)
    if max(steps) > ended[-1] + episodes.files * episodes.lengths.max():
        return None
    pace = episodes.t[-1] / ended[-1]
    late = np.maximum(np.asarray(steps) - ended[-1], 0.0) * pace
    times: list[float] = (np.interp(steps, [0.0, *ended], [0.0, *episodes.t]) + late).tolist()
    return times


def _progress(file: Path) -> dict[str, Points]:
    """Return what SB3's CSV logger wrote, by name."""
    lines = rows_of(file)
    columns = next(lines)[1]
    rows = [
        {name: float(cell) for name, cell in zip(columns, row, strict=False) if _is_number(cell)}
        for _, row in lines
    ]
    rows = [row for row in rows if _STEPS in row]
    timed = [(row[_STEPS], row[_SECONDS]) for row in rows if _SECONDS in row]
    steps, seconds = np.array(timed or [(0.0, math.nan)]).T
    figures: dict[str, Points] = {}
    for row in rows:
        when = float(np.interp(row[_STEPS], steps, seconds))
        for name, value in row.items():
            figures.setdefault(name, Points()).add(row[_STEPS], value, when)
    return figures


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
