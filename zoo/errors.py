"""The one exception that stands for the user's mistake."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["UserError", "nearest"]


class UserError(Exception):
    """A mistake of the user's: one clear sentence that says what, where and what to do.

    The command line prints it as ``error: …`` and exits with status 2, without a traceback.
    """


def nearest(name: str, choices: Iterable[str]) -> str:
    """Return `` Did you mean 'x'?`` for the most similar choice, or an empty string.

    Examples
    --------
    >>> nearest("grppo", ["grpo", "ppo"])
    " Did you mean 'grpo'?"
    """
    names = list(choices)
    lower = {n.lower(): n for n in names}
    match = difflib.get_close_matches(name.lower(), list(lower), n=1, cutoff=0.5)
    return f" Did you mean '{lower[match[0]]}'?" if match else ""
