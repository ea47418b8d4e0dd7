"""TensorBoard event files: scalars of Stable-Baselines3, CleanRL, this library and others."""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from zoo.benchmarks.readers.arguments import Argument, natural
from zoo.benchmarks.readers.naming import identify
from zoo.benchmarks.readers.scalars import Points, convention_of, series_of
from zoo.benchmarks.readers.series import with_curves
from zoo.benchmarks.records import Collection, Note, Run
from zoo.errors import UserError

__all__ = ["Events", "is_events", "read_events", "read_scalars"]


@dataclass
class Events:
    """What the event files of one run hold.

    Attributes
    ----------
    figures : dict
        Name → its points. Seconds are those since the first event; a pause between two files
        does not count.
    table : dict
        CleanRL's table of hyperparameters.
    remarks : list of str
        What was wrong with the files.
    """

    figures: dict[str, Points] = field(default_factory=dict)
    table: dict[str, Any] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)


def is_events(name: str) -> bool:
    """Return whether a file of this name holds events."""
    return "tfevents." in name


def read_events(source: Path, files: Sequence[Path], argument: Argument) -> Collection:
    """Read the run whose event files these are.

    Raises
    ------
    UserError
        Where there is no known figure in them, nothing says of which task the run is, or
        tensorboard is not installed.
    """
    events = read_scalars(files)
    if not events.figures:
        text = "; ".join(events.remarks) or "its event files hold no scalars"
        return Collection((), (Note(f"{source} is left out: {text}.", source),))
    convention = convention_of(events.figures)
    if convention is None:
        raise UserError(
            f"{source} has none of the figures that are read, such as eval/mean_reward or"
            f" charts/episodic_return; it has {', '.join(sorted(events.figures)[:8])}."
        )
    unit, series = series_of(convention, events.figures)
    said = {
        "env": events.table.get("env_id"),
        "seed": events.table.get("seed"),
        "algo": events.table.get("exp_name"),
        "settings": events.table or None,
    }
    who = identify(
        source,
        argument,
        library=convention.library,
        said=said,
        counted=convention.library == "SB3",  # it writes to PPO_1, PPO_2, …
    )
    run = Run(
        label=who.label,
        env=who.env,
        seed=who.seed,
        source=source,
        kind="tensorboard",
        unit=unit,
        metric=convention.metric,
        curves={},
        settings=who.settings,
        named=argument.label is not None,
    )
    return with_curves(run, series, (*events.remarks, *who.remarks))


def read_scalars(files: Sequence[Path]) -> Events:
    """Read the scalars of one run's event files, the oldest file first.

    Raises
    ------
    UserError
        Where tensorboard is not installed, or a file can't be read.
    """
    try:
        from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
        from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
    except ImportError as error:
        raise UserError(
            f"{files[0]} needs the package tensorboard, which is not installed: try"
            " `pip install tensorboard`."
        ) from error
    events, elapsed = Events(), 0.0
    for file in sorted(files, key=lambda file: natural(file.name)):
        records = _records(file)
        begun, loaded, before = None, 0, elapsed
        try:
            for event in LegacyEventFileLoader(str(file)).Load():
                loaded += 1
                begun = event.wall_time if begun is None else begun
                elapsed = max(elapsed, before + event.wall_time - begun)
                for value in event.summary.value:
                    _add(events, value, event.step, before + event.wall_time - begun)
        except DecodeError:
            pass  # the count below tells
        if loaded < records:
            events.remarks.append(
                f"{file.name} can't be read on after its event {loaded} of {records}"
            )
    return events


def _records(file: Path) -> int:
    """Return how many records a file has, a half-written one counted.

    A record is a length (8 bytes), its checksum (4), the content and its checksum (4). The loader
    stops without a word where a checksum is wrong.
    """
    try:
        size, at, count = file.stat().st_size, 0, 0
        with file.open("rb") as content:
            while at < size:
                content.seek(at)
                head = content.read(8)
                at += 16 + (struct.unpack("<Q", head)[0] if len(head) == 8 else 0)
                count += 1
    except OSError as error:
        raise UserError(f"can't read {file}: {error.strerror}.") from error
    return count


def _add(events: Events, value: Any, step: int, wall_s: float) -> None:
    """Take one summary value: a scalar in either of TensorBoard's forms, or CleanRL's table."""
    from tensorboard.util.tensor_util import make_ndarray

    if value.HasField("simple_value"):
        events.figures.setdefault(value.tag, Points()).add(step, value.simple_value, wall_s)
    elif value.tag.startswith("hyperparameters") and value.HasField("tensor"):
        text = b"".join(value.tensor.string_val).decode("utf-8", "replace")
        events.table.update(_table(text))
    elif value.HasField("tensor") and not value.tensor.string_val:
        array = make_ndarray(value.tensor)
        if array.size == 1 and array.dtype.kind in "fiu":
            events.figures.setdefault(value.tag, Points()).add(step, float(array.item()), wall_s)


def _table(markdown: str) -> dict[str, Any]:
    """Return what a table of two columns holds, below its two head lines.

    Examples
    --------
    >>> _table("|param|value|\\n|-|-|\\n|seed|3|\\n|env_id|CartPole-v1|")
    {'seed': 3, 'env_id': 'CartPole-v1'}
    """
    rows = re.findall(r"^\|([^|]+)\|(.*?)\|?\s*$", markdown, re.MULTILINE)[2:]
    return {name.strip(): _plain(value.strip()) for name, value in rows}


def _plain(text: str) -> Any:
    """Return what Python's ``str`` wrote, as far as it is a plain value."""
    if text == "None":
        return None
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        return text
    return value if isinstance(value, str | int | float | bool) else text
