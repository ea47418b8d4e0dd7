"""Grade-school word problems with worked solutions, made on the spot from GSM-Symbolic templates.

The templates are those of GSM-Symbolic (Mirzadeh et al., 2024, arXiv:2410.05229) as programmed in
``reasoning_gym``. Two faults of naive use are avoided here:

* ``reasoning_gym`` seeds item *i* of a data set with ``seed + i``, so data sets with neighbouring
  seeds share most of their items. Here every (split, level, seed) has a random stream of its own.
* Templates have few parameters, so random "test" items are often already in the training set.
  Here train and held-out items are told apart by a hash of (template, numbers in the question):
  the same numbers in the same story never occur in both, whatever the seeds and the names.

``reasoning_gym`` is imported on first use.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any, Literal

__all__ = ["LEVELS", "Level", "Problem", "generate", "split_of"]

Split = Literal["train", "heldout"]

#: Share of (template, numbers) pairs that are held out.
HELDOUT_SHARE = 0.1

#: Templates whose worked solution is right for every parameter draw: the stated steps are true and
#: end in the answer. Left out are those that reasoning_gym itself marks as broken (32, 35, 37, 61,
#: 63, 65, 74, 76, 77, 79, 86, 87, 90, 97, 98) and those that sometimes round a step or the answer
#: down without a word, as in "11*0.5=5" (2, 3, 4, 49, 75, 99).
# fmt: off
_SOUND = (
    0, 1, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28,
    29, 30, 31, 33, 34, 36, 38, 39, 40, 41, 42, 43, 44, 45, 46, 47, 48, 50, 51, 52, 53, 54, 55, 56,
    57, 58, 59, 60, 62, 64, 66, 67, 68, 69, 70, 71, 72, 73, 78, 80, 81, 82, 83, 84, 85, 88, 89, 91,
    92, 93, 94, 95, 96,
)
#: Those of two or three short steps.
_EASY = (
    6, 10, 14, 16, 20, 26, 31, 34, 39, 43, 45, 48, 54, 55, 57, 58, 62, 69, 70, 72, 78, 82, 95,
)
# fmt: on

_NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?")


@dataclass(frozen=True)
class Level:
    """Which templates and numbers a level of difficulty draws from.

    Attributes
    ----------
    templates
        Template ids.
    largest
        Items with a larger number anywhere in question or solution are left out.
    """

    templates: tuple[int, ...]
    largest: float = float("inf")


#: ``easy`` is what the shipped tiny model is made for: two or three short steps, numbers up to 300.
#: ``all`` is every sound template with the numbers that GSM-Symbolic gives it.
LEVELS: dict[str, Level] = {
    "easy": Level(templates=_EASY, largest=300),
    "all": Level(templates=_SOUND),
}


@dataclass(frozen=True)
class Problem:
    """One word problem.

    Attributes
    ----------
    question
        The problem as text.
    solution
        Worked solution, one step a line; its last line is ``#### {answer}``.
    answer
        The answer as a plain number, without unit or thousands separator.
    template
        Which of the 100 GSM-Symbolic templates it is made from, 0–99.
    numbers
        The numbers in the question, in reading order. With ``template`` they decide the split.
    """

    question: str
    solution: str
    answer: str
    template: int
    numbers: tuple[float, ...]


def split_of(template: int, numbers: tuple[float, ...]) -> Split:
    """Split that a (template, numbers) pair belongs to, the same on every machine.

    Examples
    --------
    >>> split_of(6, (30.0, 2.0)) == split_of(6, (30.0, 2.0))
    True
    """
    key = f"{template}|" + ",".join(f"{number:g}" for number in numbers)
    digest = hashlib.sha256(key.encode()).digest()
    fraction = int.from_bytes(digest[:8], "big") / 2**64
    return "heldout" if fraction < HELDOUT_SHARE else "train"


def generate(
    count: int, *, split: Split = "train", seed: int = 0, level: str = "easy"
) -> list[Problem]:
    """Make ``count`` different problems.

    Parameters
    ----------
    count
        How many; no question occurs twice among them.
    split
        ``"train"`` or ``"heldout"``. No (template, numbers) pair occurs in both, for any seeds.
    seed
        Random stream. The same arguments give the same list; a smaller ``count`` gives its head.
    level
        A key of `LEVELS`.

    Returns
    -------
    list of Problem
        Templates are drawn with equal probability before numbers that are too large are left out.

    Raises
    ------
    ValueError
        Unknown split or level, or fewer different problems exist than were asked for.
    """
    if split not in ("train", "heldout"):
        raise ValueError(f"split must be 'train' or 'heldout' (got {split!r})")
    if level not in LEVELS:
        raise ValueError(f"level must be one of {', '.join(LEVELS)} (got {level!r})")
    chosen = LEVELS[level]
    rng = Random(f"gsm_symbolic/{split}/{level}/{seed}")  # str seeds are hashed: streams disjoint
    problems: dict[str, Problem] = {}
    misses = 0  # draws since the last new problem
    while len(problems) < count:
        problem = _draw(rng, rng.choice(chosen.templates))
        if (
            problem.question in problems
            or split_of(problem.template, problem.numbers) != split
            or _largest_number(problem) > chosen.largest
        ):
            misses += 1
            if misses > 20_000:
                raise ValueError(
                    f"gsm_symbolic level {level!r}, split {split!r} has only about"
                    f" {len(problems)} different problems (asked for {count}):"
                    " ask for fewer, or use level 'all'"
                )
            continue
        misses = 0
        problems[problem.question] = problem
    return list(problems.values())


def _draw(rng: Random, template: int) -> Problem:
    item = _generators()[template](rng, 1.0)  # 1.0: the only difficulty reasoning_gym vouches for
    answer = str(item["answer"])
    steps, _, stated = item["metadata"]["answer_cot"].rpartition("####")
    if float(stated) != float(answer):
        raise RuntimeError(
            f"reasoning_gym's gsm_symbolic template {template} states {stated.strip()} where its"
            f" answer is {answer}: this version differs from the one the templates were checked on"
        )
    question = item["question"]
    return Problem(
        question=question,
        solution=f"{steps.strip()}\n#### {answer}",  # some templates end in 46.0 for 46
        answer=answer,
        template=template,
        numbers=_numbers(question),
    )


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(float(number.replace(",", "")) for number in _NUMBER.findall(text))


def _largest_number(problem: Problem) -> float:
    return max(problem.numbers + _numbers(problem.solution))


@cache
def _generators() -> dict[int, Callable[[Random, float], dict[str, Any]]]:
    try:
        from reasoning_gym.arithmetic.gsm_symbolic.gsm_symbolic import (
            GSMSymbolicDataset,
            GSMSymbolicDatasetConfig,
        )
    except ImportError as error:
        raise ImportError(
            "GSM-Symbolic problems need the package reasoning-gym: pip install reasoning-gym"
        ) from error
    return GSMSymbolicDataset(GSMSymbolicDatasetConfig()).generators
