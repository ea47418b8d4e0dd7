"""Folders that one process works in at a time; the system gives them free when it ends."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from zoo.errors import UserError

__all__ = ["holding", "is_held"]


@contextmanager
def holding(folder: Path) -> Iterator[None]:
    """Keep a folder for this process.

    Raises
    ------
    UserError
        Where another one has it, or it can't be opened.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise UserError(f"can't open the folder {folder}: {error.strerror}.") from error
    try:
        if not _taken(descriptor):
            raise UserError(
                f"another zoo bench is working in {folder}: wait for it, or choose another --out."
            )
        yield
    finally:
        os.close(descriptor)


def is_held(folder: Path) -> bool:
    """Return whether a process has the folder now: for a run's folder, whether one trains in it."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        return not _taken(descriptor)
    finally:
        os.close(descriptor)


def _taken(descriptor: int) -> bool:
    """Try to lock; a file system without locks counts as free."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True
