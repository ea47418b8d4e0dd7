"""What a text rollout refuses: options that make no sense, and scores that are none."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from zoo.core.protocols import Scores
from zoo.errors import UserError

__all__ = ["check_options", "check_replies", "check_scores", "check_turns"]

#: what each option of evaluating must be, and the check for it
_OPTIONS = {
    "prompts": ("a whole number ≥ 1, or null for all", lambda x: x is None or _whole(x, 1)),
    "samples": ("a whole number ≥ 0", lambda x: _whole(x, 0)),
    "k": ("a whole number", lambda x: _whole(x, 0)),
    "seed": ("a whole number from 0 to 2**63 - 1", lambda x: _whole(x, 0) and x < 2**63),
    "temperature": (
        "a number > 0, or null for the model's own",
        lambda x: x is None or (_number(x) and 0 < x < math.inf),
    ),
    "top_p": ("a number above 0 and at most 1", lambda x: _number(x) and 0 < x <= 1),
    "top_k": ("a whole number ≥ 0", lambda x: _whole(x, 0)),
}


def check_options(**options: Any) -> None:
    """Refuse options of an evaluation that make no sense.

    Raises
    ------
    UserError
        With the option's name, its value and what it must be.
    """
    for name, value in options.items():
        meaning, right = _OPTIONS[name]
        if not right(value):
            raise UserError(f"evaluation: {name} must be {meaning} (got {value!r}).")


def check_scores(env: Any, scores: Any, count: int) -> None:
    """Refuse what is no `Scores` of ``count`` completions; an environment may be anybody's.

    Raises
    ------
    UserError
        With what is wrong and what ``score`` must return.
    """

    def refuse(what: str) -> UserError:
        return UserError(
            f"env={env.name}: score() returned {what}. It must return zoo.core.protocols.Scores"
            f" with one number per completion ({count} here) in total, in every item, and in"
            " grades['accuracy_strict'] and grades['accuracy_lenient']; NaN where scoring failed."
        )

    if not isinstance(scores, Scores):
        raise refuse(f"a {type(scores).__name__}")
    for name in ("accuracy_strict", "accuracy_lenient"):
        if name not in scores.grades:
            raise refuse(f"no grades['{name}']")
    columns: dict[str, Sequence[float]] = {"total": scores.total}
    columns |= {f"items['{name}']": values for name, values in scores.items.items()}
    columns |= {f"grades['{name}']": values for name, values in scores.grades.items()}
    for name, values in columns.items():
        if not hasattr(values, "__len__") or len(values) != count:
            size = len(values) if hasattr(values, "__len__") else f"{values!r}, not a list,"
            raise refuse(f"{size} numbers in {name}")
        wrong = next((x for x in values if not hasattr(x, "__float__")), 0.0)
        if not hasattr(wrong, "__float__"):
            raise refuse(f"{wrong!r} in {name}")


def check_turns(env: Any) -> Any:
    """Return a dialogue environment; refuse one whose ``max_turns`` is no whole number ≥ 1."""
    turns = getattr(env, "max_turns", None)
    if not _whole(turns, 1):
        raise UserError(
            f"env={env.name}: an environment that has reply() says how often the policy speaks at"
            f" most by max_turns, a whole number ≥ 1 (got {turns!r})."
        )
    return env


def check_replies(env: Any, replies: Any, count: int) -> None:
    """Refuse what is no list of ``count`` chat messages or None; it may be anybody's.

    Raises
    ------
    UserError
        With what is wrong and what ``reply`` must return.
    """

    def refuse(what: str) -> UserError:
        return UserError(
            f"env={env.name}: reply() returned {what}. It must return one entry per dialogue"
            f" ({count} here): {{'role': …, 'content': …}} of texts, where the role is not"
            " 'assistant', or None where the dialogue is over."
        )

    if isinstance(replies, (str, Mapping)) or not isinstance(replies, Sequence):
        raise refuse(f"a {type(replies).__name__}")
    if len(replies) != count:
        raise refuse(f"{len(replies)} entries")
    for reply in replies:
        if reply is not None and not (
            isinstance(reply, Mapping)
            and {"role", "content"} <= set(reply)
            and all(isinstance(text, str) for text in reply.values())
            and reply["role"] != "assistant"
        ):
            raise refuse(repr(reply))


def _whole(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
