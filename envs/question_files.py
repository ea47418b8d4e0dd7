"""Reading questions and answers from .jsonl and .parquet files; faults are named by their line."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zoo.errors import UserError

__all__ = ["Row", "Table", "read_table", "split_by_hash"]

#: Names that stand for the held-out file, in this order.
HELDOUT_NAMES = ("test", "heldout", "validation", "valid", "dev")
ENDINGS = (".jsonl", ".parquet")


@dataclass(frozen=True)
class Row:
    """One question; ``where`` is its file and line."""

    question: str
    answer: str
    where: str


@dataclass(frozen=True)
class Table:
    """Both splits, and a remark on how they came about (empty where the files were the splits)."""

    train: list[Row]
    heldout: list[Row]
    remark: str


def read_table(
    where: str, path: str | Path, question_key: str = "question", answer_key: str = "answer"
) -> Table:
    """Read a folder with train and test files, or a single file.

    Parameters
    ----------
    where : str
        Name of the environment, for messages.
    path : str or Path
        A folder that holds ``train.jsonl`` or ``train.parquet`` (or parts of it,
        ``train-00000-of-00001.parquet``) and perhaps ``test.…``; or one such file. Without a test
        file a tenth of the questions is held out, chosen by a hash of the question.
    question_key, answer_key : str
        Names of the two columns.

    Raises
    ------
    UserError
        A path, file or line that isn't as it must be.
    """
    if not isinstance(path, (str, Path)) or not str(path):
        raise UserError(f"{where}: path must name a folder or a file (got {path!r})")
    root = Path(path).expanduser()
    if not root.exists():
        raise UserError(f"{where}: there is no folder or file {root.absolute()}")
    heldout_files: list[Path] = []
    if root.is_dir():
        train_files = _files(root, "train")
        for name in HELDOUT_NAMES:
            heldout_files = heldout_files or _files(root, name)
        if not train_files:
            here = ", ".join(sorted(p.name for p in root.iterdir())[:8]) or "nothing"
            raise UserError(
                f"{where}: the folder {root} holds no train.jsonl or train.parquet"
                f" (it holds {here})"
            )
    else:
        train_files = [root]
    train = _rows(where, train_files, question_key, answer_key)
    if not heldout_files:
        train, heldout = split_by_hash(train)
        if not train or not heldout:
            count = len(train) + len(heldout)
            raise UserError(
                f"{where}: {root} holds {count} question{'' if count == 1 else 's'}, too few to"
                " hold out a tenth: add a test.jsonl"
            )
        return Table(train, heldout, "no test file: a tenth of the questions is held out by hash")
    heldout = _rows(where, heldout_files, question_key, answer_key)
    questions = {row.question for row in heldout}
    kept = [row for row in train if row.question not in questions]
    if not kept:
        raise UserError(f"{where}: every training question of {root} is in the test file too")
    dropped = len(train) - len(kept)
    those = (
        "question that the test file holds too was"
        if dropped == 1
        else ("questions that the test file holds too were")
    )
    return Table(kept, heldout, f"{dropped} training {those} left out" if dropped else "")


def split_by_hash(rows: list[Row]) -> tuple[list[Row], list[Row]]:
    """Hold out a tenth of the questions, the same ones whatever their order or company."""
    train: list[Row] = []
    heldout: list[Row] = []
    for row in rows:
        digest = hashlib.sha256(row.question.encode("utf-8", "surrogatepass")).digest()
        (heldout if int.from_bytes(digest[:8], "big") % 10 == 0 else train).append(row)
    return train, heldout


def _files(folder: Path, split: str) -> list[Path]:
    for ending in ENDINGS:
        exact = folder / f"{split}{ending}"
        if exact.is_file():
            return [exact]
        parts = sorted(folder.glob(f"{split}-*{ending}"))
        if parts:
            return parts
    return []


def _rows(where: str, files: list[Path], question_key: str, answer_key: str) -> list[Row]:
    rows = []
    for file in files:
        records = _parquet(where, file) if file.suffix == ".parquet" else _jsonl(where, file)
        for line, record in records:
            place = f"{where}: {file}:{line}"
            question = _text(place, record, question_key)
            rows.append(Row(question, _text(place, record, answer_key), place))
    if not rows:
        raise UserError(f"{where}: {', '.join(map(str, files))} holds no question")
    return rows


def _jsonl(where: str, file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    try:
        data = file.read_bytes()
    except OSError as error:
        raise UserError(f"{where}: {file} cannot be read: {error.strerror}") from error
    for line, raw in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        place = f"{where}: {file}:{line}"
        try:
            text = raw.decode("utf-8").strip()
        except UnicodeDecodeError as error:
            raise UserError(f"{place}: not UTF-8 text (byte {error.start + 1})") from error
        if not text:
            continue
        try:
            record = json.loads(text)
        except (ValueError, RecursionError) as error:
            reason = getattr(error, "msg", "nested too deep")
            raise UserError(f"{place}: not a JSON object ({reason})") from error
        if not isinstance(record, dict):
            raise UserError(f"{place}: not a JSON object but {type(record).__name__}")
        yield line, record


def _parquet(where: str, file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise UserError(
            f"{where}: reading {file} needs the package pyarrow: pip install pyarrow,"
            " or give .jsonl"
        ) from error
    try:
        records = parquet.read_table(file).to_pylist()
    except (OSError, ValueError) as error:  # pyarrow's own errors are ValueErrors
        reason = str(error).splitlines()[0]
        raise UserError(f"{where}: {file} cannot be read as parquet: {reason}") from error
    yield from enumerate(records, start=1)


def _text(place: str, record: dict[str, Any], key: str) -> str:
    if key not in record:
        keys = ", ".join(repr(k) for k in list(record)[:8]) or "no key"
        raise UserError(f"{place}: '{key}' is missing (there is {keys})")
    value = record[key]
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        value = str(value)  # an answer written as a bare number
    if not isinstance(value, str):
        raise UserError(f"{place}: '{key}' must be text (got {type(value).__name__})")
    if not value.strip():
        raise UserError(f"{place}: '{key}' is empty")
    return value
