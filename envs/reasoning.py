r"""Every task of reasoning-gym by its name (Stojanovski et al., 2025, arXiv:2505.24760).

**Splits.** reasoning-gym seeds item *i* with ``seed + i``, so data sets of neighbouring seeds share
items. Here the seeds of the two splits lie in two separate ranges, each user's seed begins at a
place of its own, and a training question that is also held out is drawn again.

**Answers.** The task's own scorer judges the extracted answer, in a process of its own under a
time limit. Strict takes the last ``<answer>…</answer>``, else what follows the last ``####`` (its
first line, or everything where the gold answer has several lines). Lenient takes strict's where
there is one, else the last ``\boxed{}``, else the last number where the gold answer is one, else
the last line (everything where the gold answer has several). Three or more different marked
answers are guessing and score 0.

``accuracy`` is 1 where the task's score is at least 0.99; the raw score is the item ``score``.
``gsm_symbolic`` alone is judged by :mod:`zoo.envs.parsing`: the task's own scorer reads the first
number and pays for wrong answers.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, overload

import numpy as np

from zoo.core.protocols import Completion, Prompt
from zoo.envs import parsing
from zoo.envs.gsm8k import gsm_symbolic_prompts
from zoo.envs.rewards.process import Failure, RewardProcess
from zoo.envs.text import (
    Grades,
    QuestionEnv,
    Split,
    grade_answers,
    make_prompt,
    read_instruction,
    read_seed,
    read_size,
)
from zoo.errors import UserError, nearest

__all__ = ["ReasoningGym", "extract", "tasks"]

TRAIN_SIZE = 2_000
HELDOUT_SIZE = 200
#: A score from here on is a right answer.
RIGHT = 0.99
#: Seconds that the task's scorer may take for one answer.
TIMEOUT_S = 5.0
INSTRUCTION = (
    "Think step by step, then give only the final answer between <answer> and </answer>,"
    " in the form that the question asks for."
)
#: Training items are seeded below, held-out items from here on; both below 2³¹.
_HALF = 2**30
#: So often a held-out question is drawn again.
_DRAWS = 50

_MARKER = re.compile(r"#{4,}")
_PLAIN_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?")


def tasks() -> list[str]:
    """Return the names of all tasks of the installed reasoning-gym."""
    return sorted(_factory().DATASETS)


class ReasoningGym(QuestionEnv):
    """A task of reasoning-gym.

    Parameters
    ----------
    task : str
        Its name, such as ``"leg_counting"``; :func:`tasks` lists them.
    config : mapping, optional
        The task's own settings, such as ``{"max_animals": 3}``.
    level : str
        For ``gsm_symbolic`` only, see :class:`zoo.envs.gsm8k.GSM8K`.
    train_size, heldout_size : int, optional
        How many questions; 2,000 and 200 where none is given. Training questions are made when
        they're first asked for.
    seed : int
        Random stream of both splits.
    rewards
        See :func:`zoo.envs.rewards.item.read_rewards`. ``"accuracy"`` pays 0 or 1, ``"score"`` the
        task's own score with its partial credit.
    instruction : str or bool, optional
        Stands behind every question: a text, or True for "Think step by step, then give …".
    system : str, optional
        System message.
    timeout_s : float
        Seconds that the task's scorer may take for one answer.

    Raises
    ------
    UserError
        An unknown task, settings that it refuses, or a task with too few different questions.
    """

    def __init__(
        self,
        task: str | None = None,
        *,
        config: Mapping[str, Any] | None = None,
        level: str = "easy",
        train_size: int | None = None,
        heldout_size: int | None = None,
        seed: int = 0,
        rewards: Any = None,
        instruction: str | bool | None = None,
        system: str | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        if task is None:
            raise UserError("reasoning_gym needs the name of a task: env.task=leg_counting")
        if not isinstance(task, str) or task not in tasks():
            raise UserError(
                f"reasoning-gym has no task {task!r}.{nearest(str(task), tasks())}"
                " `zoo.envs.reasoning.tasks()` lists all."
            )
        train_size = read_size(task, "train_size", train_size)
        heldout_size = read_size(task, "heldout_size", heldout_size)
        seed = read_seed(task, seed)
        timeout_s = _read_timeout(task, timeout_s)
        settings = dict(config or {})
        self._scorer: RewardProcess | None = None
        if task == "gsm_symbolic":
            if settings:
                raise UserError(
                    "gsm_symbolic takes no config: choose its problems by level=easy or level=all"
                )
            text = read_instruction(instruction)
            train: Sequence[Prompt]
            train, heldout = gsm_symbolic_prompts(
                level, train_size, heldout_size, seed, text, system
            )
            detail = f", level {level}"
            grader = grade_answers
        else:
            text = read_instruction(instruction, INSTRUCTION)
            source = _Source(task, settings, seed, text, system)
            heldout = source.heldout(heldout_size or HELDOUT_SIZE)
            train = _Train(source, train_size or TRAIN_SIZE, {p.question for p in heldout})
            detail = f", {settings}" if settings else ""
            self._scorer = RewardProcess("accuracy", _Scorer(task, settings), timeout_s=timeout_s)
            grader = self._grade
        super().__init__(
            task,
            train,
            heldout,
            rewards=rewards,
            dataset=f"{task} (reasoning-gym {_version()}{detail})",
            grader=grader,
        )

    def close(self) -> None:
        """End the scorer's and the rewards' processes."""
        super().close()
        if self._scorer is not None:
            self._scorer.close()

    def _grade(self, prompts: Sequence[Prompt], completions: Sequence[Completion]) -> Grades:
        assert self._scorer is not None
        calls: dict[tuple[int, str], int] = {}  # (completion, answer) → position of its call
        arguments: list[dict[str, Any]] = []
        wanted: dict[str, list[tuple[int, str] | None]] = {"strict": [], "lenient": []}
        for index, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
            for grade, answer in zip(wanted, extract(completion.text, prompt.answer), strict=True):
                if answer is None:
                    wanted[grade].append(None)
                    continue
                if (index, answer) not in calls:
                    calls[index, answer] = len(arguments)
                    arguments.append({"answer": answer, "entry": prompt.metadata["entry"]})
                wanted[grade].append((index, answer))
        results = self._scorer.run(arguments)
        grades = Grades(accuracy={}, score={})
        for grade, keys in wanted.items():
            values = []
            for key in keys:
                result = 0.0 if key is None else results[calls[key]]
                if isinstance(result, Failure):
                    grades.failures[key[0] if key else 0] = result
                    result = math.nan
                values.append(result)
            grades.score[grade] = values
            grades.accuracy[grade] = [
                math.nan if math.isnan(value) else float(value >= RIGHT) for value in values
            ]
        return grades


def extract(text: str, gold: str) -> tuple[str | None, str | None]:
    """Return the strict and the lenient answer of a completion, None where there is none.

    Parameters
    ----------
    text : str
        The completion.
    gold : str
        The gold answer, only looked at for its shape: a number, one line, or several. May be empty.
    """
    text, open_thought = parsing.split_thought(text[-parsing.MAX_CHARACTERS :])
    several = "\n" in gold.strip()
    marked = [] if open_thought else _marked(text, several)
    if len(set(marked)) >= parsing.GUESSES:
        return None, None
    strict = marked[-1] if marked else None
    if strict is not None:
        return strict, strict
    return None, _unmarked(text, gold, several)


def _marked(text: str, several: bool) -> list[str]:
    tagged = _tagged(text)
    if tagged:
        return tagged
    pieces = [piece.strip() for piece in _MARKER.split(text)[1:]]
    if not several:
        pieces = [piece.partition("\n")[0].strip() for piece in pieces]
    return [piece for piece in pieces if piece]


def _tagged(text: str) -> list[str]:
    """Return what stands between each ``<answer>`` and the next ``</answer>``, in linear time.

    A regular expression looks for the end again from every beginning, which hostile text makes
    quadratic.
    """
    found, position = [], 0
    while (start := text.find("<answer>", position)) >= 0:
        start += len("<answer>")
        end = text.find("</answer>", start)
        if end < 0:
            break
        found.append(text[start:end].strip())
        position = end + len("</answer>")
    return found


def _unmarked(text: str, gold: str, several: bool) -> str | None:
    inside = parsing.boxed(text)
    if inside is not None and inside.strip():
        return inside.strip()
    if _PLAIN_NUMBER.fullmatch(gold.strip()):
        value = parsing.lenient_number(text)
        if value is None:
            return None
        return gold.strip() if value == parsing.number(gold) else str(value)
    text = text.strip()
    return (text if several else text.rpartition("\n")[2].strip()) or None


class _Scorer:
    """The task's own scorer; it is carried to its process by name and settings."""

    def __init__(self, task: str, settings: dict[str, Any]) -> None:
        self.task = task
        self.settings = settings
        self._dataset: Any = None

    def __call__(self, answer: str, entry: dict[str, Any]) -> float:
        return float(self._dataset.score_answer(answer, entry))

    def __getstate__(self) -> dict[str, Any]:
        return {"task": self.task, "settings": self.settings}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]
        self._dataset = _dataset(self.task, self.settings, 0, 1)  # while loading: it's not timed


class _Source:
    """Makes a task's prompts, each split from its own range of seeds."""

    def __init__(
        self,
        task: str,
        settings: dict[str, Any],
        seed: int,
        instruction: str | None,
        system: str | None,
    ) -> None:
        self.task = task
        self.settings = settings
        self.seed = seed
        self._instruction = instruction
        self._system = system
        self._datasets: dict[tuple[str, int, int], Any] = {}

    def prompt(self, split: Split, size: int, index: int, draw: int = 0) -> Prompt:
        """Make item ``index`` of ``size``; another ``draw`` gives another item for its place."""
        # Items are asked of a data set of the right size: some tasks choose among their templates
        # by the position, and some are costly to set up.
        key = (split, size, draw)
        if key not in self._datasets:
            start = self._start(split, size) + draw * size
            self._datasets[key] = _dataset(self.task, self.settings, start, size)
        with _kept_random_state():
            entry = self._datasets[key][index]
        return self._prompt(entry, split, index)

    def heldout(self, size: int) -> list[Prompt]:
        """Make the held-out prompts, each question once.

        Where repeats show that the task has few questions, half of those found are left to train.
        """
        found: dict[str, Prompt] = {}
        for index in range(size):
            prompt = self.prompt("heldout", size, index)
            found.setdefault(prompt.question, prompt)
        prompts = list(found.values())
        if len(prompts) < 0.9 * size:
            prompts = [p for p in prompts if hashlib.sha256(p.question.encode()).digest()[0] % 2]
        if not prompts:
            raise UserError(f"{self.task} has too few different questions to hold some out")
        return prompts

    def _start(self, split: Split, size: int) -> int:
        """Return the first item's seed: in the split's half, at a place that the seed decides."""
        digest = hashlib.sha256(f"{self.task}/{split}/{self.seed}".encode()).digest()
        place = int.from_bytes(digest[:8], "big") % (_HALF - size * _DRAWS)
        return place + (_HALF if split == "heldout" else 0)

    def _prompt(self, entry: dict[str, Any], split: Split, index: int) -> Prompt:
        answer = entry.get("answer")
        return make_prompt(
            entry["question"],
            "" if answer is None else str(answer),
            f"{self.task}/{self.seed}/{split}/{index}",
            instruction=self._instruction,
            system=self._system,
            metadata={"entry": entry},
        )


class _Train(Sequence[Prompt]):
    """Training prompts, each made when it's first asked for; none of them is held out."""

    def __init__(self, source: _Source, size: int, heldout: set[str]) -> None:
        self._source = source
        self._size = size
        self._heldout = heldout
        self._made: dict[int, Prompt] = {}
        self[0]  # a task whose questions are all held out is refused now

    def __len__(self) -> int:
        return self._size

    @overload
    def __getitem__(self, index: int) -> Prompt: ...
    @overload
    def __getitem__(self, index: slice) -> list[Prompt]: ...
    def __getitem__(self, index: int | slice) -> Prompt | list[Prompt]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._size))]
        if not -self._size <= index < self._size:
            raise IndexError(f"training prompt {index} of {self._size}")
        index %= self._size
        if index not in self._made:
            self._made[index] = self._make(index)
        return self._made[index]

    def _make(self, index: int) -> Prompt:
        for draw in range(_DRAWS):
            prompt = self._source.prompt("train", self._size, index, draw)
            if prompt.question not in self._heldout:
                return prompt
        raise UserError(
            f"{self._source.task} has too few different questions: {_DRAWS} draws gave only"
            " held-out ones. Use a smaller heldout_size, or a config with more variety."
        )


@contextlib.contextmanager
def _kept_random_state() -> Iterator[None]:
    """Put NumPy's global generator back: a few tasks seed it, which would undo the run's own."""
    state = np.random.get_state()
    try:
        yield
    finally:
        np.random.set_state(state)


def _dataset(task: str, settings: Mapping[str, Any], seed: int, size: int) -> Any:
    try:
        with _kept_random_state():
            return _factory().create_dataset(task, **{**settings, "seed": seed, "size": size})
    except (AssertionError, TypeError, ValueError, KeyError) as error:
        raise UserError(f"reasoning-gym's {task} refuses its config {settings}: {error}") from error


def _read_timeout(task: str, value: Any) -> float:
    number = not isinstance(value, bool) and isinstance(value, (int, float))
    if not number or not 0 < value < math.inf:
        raise UserError(f"{task}: timeout_s must be a number of seconds above 0 (got {value!r})")
    return float(value)


def _factory() -> Any:
    try:
        from reasoning_gym import factory
    except ImportError as error:
        raise UserError(
            "reasoning tasks need the package reasoning-gym: pip install reasoning-gym"
        ) from error
    return factory


def _version() -> str:
    from importlib.metadata import version

    return version("reasoning-gym")
