"""W&B's offline runs: the ``.wandb`` file that its client writes before, or without, any upload.

W&B's Python package ships the definition of the records (protobuf) but, as of 0.31, no reader of
the file. The framing around the records is LevelDB's log format (github.com/google/leveldb,
doc/log_format.md), read here: blocks of 32 KiB, in them chunks of checksum (4 bytes, CRC-32),
length (2), kind (1: whole, 2: first, 3: middle, 4: last) and content; the first block begins with
7 bytes that say ``:W&B``, a magic number and a version.
"""

from __future__ import annotations

import json
import math
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zoo.benchmarks.readers.arguments import Argument
from zoo.benchmarks.readers.naming import identify
from zoo.benchmarks.readers.scalars import Convention, Points, convention_of, series_of
from zoo.benchmarks.readers.series import with_curves
from zoo.benchmarks.readers.zoo_runs import flatten, number
from zoo.benchmarks.records import Collection, Note, Run
from zoo.errors import UserError

__all__ = ["is_wandb", "read_wandb"]

_BLOCK, _HEAD = 32768, struct.Struct("<IHB")
_WHOLE, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_ENV = ("env.name", "env_id", "env_name", "env", "gym_id", "environment")
#: what SB3's callback dumps of a model besides its settings
_STATE = ("start_time", "tensorboard_log", "num_timesteps", "run_dir")


@dataclass
class _Offline:
    """What the files of one run hold."""

    config: dict[str, Any] = field(default_factory=dict)
    figures: dict[str, Points] = field(default_factory=dict)
    project: str = ""
    exit_code: int | None = None
    remarks: list[str] = field(default_factory=list)


def is_wandb(name: str) -> bool:
    """Return whether a file of this name is the log of a W&B run."""
    return name.endswith(".wandb")


def read_wandb(source: Path, files: Sequence[Path], argument: Argument) -> Collection:
    """Read one run from its log, or from those of its parts where it was resumed.

    Raises
    ------
    UserError
        Where it is no such log, has no known figure, doesn't say of which task it is, or wandb is
        not installed.
    """
    offline = _read(files)
    if not offline.figures:
        text = "; ".join(offline.remarks) or "no history is in it"
        return Collection((), (Note(f"{source} is left out: {text}.", source),))
    convention = convention_of(offline.figures)
    if convention is None:
        names = [name for name in sorted(offline.figures) if not name.startswith("_")]
        raise UserError(
            f"{source} has none of the figures that are read, such as eval/mean_reward or"
            f" charts/episodic_return; it has {', '.join(names[:8])}."
        )
    unit, series = series_of(convention, offline.figures)
    if convention.library and convention.counter not in offline.figures:
        unit = "steps"  # W&B's own step counts calls of its log
    config = flatten(offline.config)
    algo = config.get("algo.name", config.get("algo", config.get("exp_name")))
    said = {
        "env": next((config[key] for key in _ENV if isinstance(config.get(key), str)), None),
        "seed": config.get("seed"),
        "algo": algo if isinstance(algo, str) else None,
        "settings": {key: value for key, value in config.items() if _is_setting(key, value)},
        "name": offline.project or None,
    }
    who = identify(source, argument, library=convention.library, said=said)
    run = Run(
        label=who.label,
        env=who.env,
        seed=who.seed,
        source=source,
        kind="wandb",
        unit=unit,
        metric=convention.metric,
        curves={},
        status=_status(offline, convention),
        settings=who.settings,
        named=argument.label is not None,
    )
    return with_curves(run, series, (*offline.remarks, *who.remarks))


def _read(files: Sequence[Path]) -> _Offline:
    try:
        from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
        from wandb.proto import wandb_internal_pb2
    except ImportError as error:
        raise UserError(
            f"{files[0]} needs the package wandb, which is not installed: try `pip install wandb`."
        ) from error
    offline, elapsed = _Offline(), 0.0
    for file in files:
        begun: float | None = None
        before, offline.exit_code = elapsed, None
        for content in _records(file, offline.remarks):
            record = wandb_internal_pb2.Record()  # type: ignore[attr-defined]
            try:
                record.ParseFromString(content)
            except DecodeError as error:
                raise UserError(f"{file} is no log of a W&B run.") from error
            kind = record.WhichOneof("record_type")
            if kind == "run":
                _update(offline.config, record.run.config.update)
                offline.project = record.run.project or offline.project
                begun = record.run.start_time.ToMicroseconds() / 1e6 or None
            elif kind == "config":
                _update(offline.config, record.config.update)
            elif kind == "history":
                row = {_key(item): _value(item.value_json) for item in record.history.item}
                now = row.get("_timestamp")
                if isinstance(now, int | float):
                    begun = now if begun is None else begun
                    elapsed = max(elapsed, before + now - begun)
                _add(offline.figures, row, record.history.step.num, elapsed)
            elif kind == "exit":
                offline.exit_code = record.exit.exit_code
    return offline


def _records(file: Path, remarks: list[str]) -> Iterator[bytes]:
    """Yield the records; a log that is cut or damaged ends there, with a remark."""
    try:
        data = file.read_bytes()
    except OSError as error:
        raise UserError(f"can't read {file}: {error.strerror}.") from error
    if not data:
        remarks.append(f"{file.name} is empty")
        return
    if not data.startswith(b":W&B"):
        raise UserError(f"{file} is no log of a W&B run.")
    at, parts = 7, bytearray()
    while at < len(data):
        left = _BLOCK - at % _BLOCK
        if left < _HEAD.size or not any(data[at : at + _HEAD.size]):  # the rest of a block is zeros
            at += left
            continue
        content = b""
        if at + _HEAD.size <= len(data):
            checksum, length, kind = _HEAD.unpack_from(data, at)
            content = data[at + _HEAD.size : at + _HEAD.size + length]
            whole = len(content) == length
        if not content or not whole or zlib.crc32(bytes([kind]) + content) != checksum:
            remarks.append(f"{file.name} is cut or damaged at byte {at:,}: read up to there")
            return
        at += _HEAD.size + length
        parts += content
        if kind in (_WHOLE, _LAST):
            yield bytes(parts)
            parts.clear()


def _add(figures: dict[str, Points], row: Mapping[str, Any], step: float, wall_s: float) -> None:
    for name, value in row.items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            figures.setdefault(name, Points()).add(step, number(value), wall_s)
        elif value in ("NaN", "Infinity", "-Infinity"):
            figures.setdefault(name, Points()).add(step, math.nan, wall_s)


def _update(config: dict[str, Any], items: Any) -> None:
    for item in items:
        name = _key(item)
        if name != "_wandb":
            config[name] = _value(item.value_json)


def _key(item: Any) -> str:
    return item.key or ".".join(item.nested_key)


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _is_setting(key: str, value: Any) -> bool:
    """Return whether it is a plain setting, and not what an object in memory looked like."""
    if key.startswith("_") or key in _STATE:
        return False
    return not isinstance(value, str) or not ("<" in value or len(value) > 200)


def _status(offline: _Offline, convention: Convention) -> str:
    if offline.exit_code is None:
        return "running"
    if offline.exit_code != 0:
        return "failed"
    # A run of ours that was interrupted ends in order; its budget tells.
    budget = offline.config.get("updates" if convention.metric == "accuracy" else "total_steps")
    counter = offline.figures.get(convention.counter)
    if convention.library or counter is None or not isinstance(budget, int):
        return "finished"
    return "interrupted" if counter.value[-1] < budget else "finished"
