"""Relative paths in a run's settings, made absolute where it starts: it may go on elsewhere."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

__all__ = ["absolute", "anchored"]


def absolute(path: str) -> str:
    """Return the absolute path of what is there; other texts, a hub's OWNER/NAME, as they are."""
    found = os.path.abspath(os.path.expanduser(path))
    return found if path and os.path.exists(found) else path


def anchored(value: Any, key: str = "") -> Any:
    """Return settings in which ``path`` and ``FILE.py:NAME`` are absolute, at whatever depth.

    Parameters
    ----------
    value : object
        Settings as YAML holds them, a list or a single one of them.
    key : str
        What a single one is called.

    Examples
    --------
    >>> anchored({"path": "OWNER/NAME", "rewards": ["accuracy"]})
    {'path': 'OWNER/NAME', 'rewards': ['accuracy']}
    """
    if isinstance(value, Mapping):
        return {k: anchored(v, str(k)) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [anchored(v) for v in value]
    if not isinstance(value, str):
        return value
    if key == "path":
        return absolute(value)
    file, _, name = value.rpartition(":")
    return f"{absolute(file)}:{name}" if file.endswith(".py") else value
