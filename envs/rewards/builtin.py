"""The reward items that come with the library.

Each is a plain function of what it names in its signature, bounded in time, and can be called by
hand: ``accuracy("#### 18", "18")``. Keyword-only parameters are its options.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from zoo.envs import parsing

__all__ = ["BUILTIN", "accuracy", "format", "length", "overlong", "repetition", "score"]


def accuracy(
    completion: str, answer: str, *, grade: Literal["strict", "lenient"] = "strict"
) -> float:
    """Return 1 where the completion's answer is right, else 0.

    Parameters
    ----------
    completion, answer : str
        The model's text and the gold answer.
    grade : {"strict", "lenient"}
        How the answer is read, see :mod:`zoo.envs.parsing`. Inside an environment this item pays
        the environment's own grade, which for a reasoning-gym task is the task's scorer.
    """
    both = parsing.grade(completion, answer)
    return both.lenient if grade == "lenient" else both.strict


def score(completion: str, answer: str, *, grade: Literal["strict", "lenient"] = "strict") -> float:
    """Return the task's own score, with its partial credit; elsewhere the same as accuracy."""
    return accuracy(completion, answer, grade=grade)


def format(completion: str, answer: str = "0") -> float:
    """Return 1 where ``#### answer`` stands exactly once and at the end, else 0.

    The answer must be a number where the gold answer is one, else one line of any text. Whether it
    is right plays no part. What follows a thought is read, and nothing of one that is left open.
    """
    text, open_thought = parsing.split_thought(completion[-parsing.MAX_CHARACTERS :])
    if open_thought:
        return 0.0
    if parsing.number(answer) is not None:
        return float(parsing.marked_number_end(text) == len(text))
    marked = parsing.only_marked_text(text)
    return float(bool(marked) and "\n" not in str(marked))


def length(token_ids: Sequence[int], *, limit: int = 512) -> float:
    """Return −(number of tokens) / limit, at least −1: shorter answers lose less."""
    return 0.0 - min(len(token_ids) / limit, 1.0)


def overlong(token_ids: Sequence[int], *, limit: int, cache: int) -> float:
    """Return DAPO's soft overlong penalty, from 0 down to −1 (arXiv:2503.14476, eq. 13).

    ``0`` up to ``limit − cache`` tokens, then falling linearly to ``−1`` at ``limit``.

    Parameters
    ----------
    token_ids : sequence of int
        The completion, stop token included.
    limit : int
        L_max, the longest completion in tokens.
    cache : int
        L_cache, the length in tokens of the slope before it.
    """
    start = limit - cache
    return 0.0 - min(max((len(token_ids) - start) / cache, 0.0), 1.0)


def repetition(token_ids: Sequence[int], *, n: int = 4) -> float:
    """Return −(share of n-grams of tokens that occurred before), from 0 down to almost −1."""
    count = len(token_ids) - n + 1
    if count <= 0:
        return 0.0
    different = len({tuple(token_ids[i : i + n]) for i in range(count)})
    return different / count - 1.0


BUILTIN = {f.__name__: f for f in (accuracy, format, length, overlong, repetition, score)}
