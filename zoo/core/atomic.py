"""Files whose names hold the old content or the whole new one at any moment."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

__all__ = ["replacing"]


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a file beside ``path`` that takes its name once it is written whole.

    It is flushed to the disk first. Whatever ends the writing early, a full disk or Ctrl-C, leaves
    ``path`` as it was and nothing beside it.

    Raises
    ------
    OSError
        Where the disk is full or not writable.
    """
    part = path.with_name(path.name + ".part")
    try:
        with part.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise
    directory = os.open(path.parent, os.O_RDONLY)  # the new name itself has to last, too
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
