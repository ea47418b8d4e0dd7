"""What is written on the command line: ``[LABEL[@ENV]=]PATH``, where PATH may be a pattern."""

from __future__ import annotations

import glob
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from zoo.errors import UserError

__all__ = ["Argument", "natural", "parse"]


@dataclass(frozen=True)
class Argument:
    """One argument, read.

    Attributes
    ----------
    text : str
        As it was written.
    label : str, optional
        What the user calls these runs.
    env : str, optional
        The task that the user says they are of.
    paths : tuple of Path
        Files and folders that exist.
    pattern : bool
        Whether they are what a pattern matched, which may be more than was meant.
    """

    text: str
    label: str | None
    env: str | None
    paths: tuple[Path, ...]
    pattern: bool = False


def parse(text: str) -> Argument:
    """Read one argument; a path that exists as it stands may hold ``=`` itself.

    Raises
    ------
    UserError
        Where nothing of that name exists.
    """
    paths = _expand(text)
    if paths:
        return Argument(text, None, None, paths, pattern=not Path(text).expanduser().exists())
    name, equals, rest = text.partition("=")
    if equals:
        paths = _expand(rest)
        if paths:
            label, env = name.rsplit("@", 1) if "@" in name else (name, None)
            pattern = not Path(rest).expanduser().exists()
            return Argument(text, label or None, env or None, paths, pattern)
    wanted = rest if equals and rest else text
    kind = "no file or folder matches" if glob.has_magic(wanted) else "there is no file or folder"
    raise UserError(f"{kind} {wanted!r}: give run folders or result files, as [LABEL[@ENV]=]PATH.")


def natural(path: Path | str) -> list[tuple[int, str]]:
    """Return a key that sorts ``seed-2`` before ``seed-10``."""
    pieces: Iterable[str] = re.split(r"(\d+)", str(path))
    return [(int(piece), "") if piece.isdecimal() else (-1, piece) for piece in pieces]


def _expand(text: str) -> tuple[Path, ...]:
    """Return what a path or a pattern stands for; nothing where there is no such thing."""
    if not text:
        return ()
    path = Path(text).expanduser()
    try:
        if path.exists():
            return (path,)
        found = glob.glob(str(path), recursive=True) if glob.has_magic(text) else []
    except (OSError, ValueError):  # a name too long, or with a NUL byte
        return ()
    return tuple(sorted((Path(f) for f in found), key=natural))
