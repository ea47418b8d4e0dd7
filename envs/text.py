"""Single-turn text environments: questions, gold answers, and a weighted list of rewards."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal

from zoo.core.protocols import Completion, Prompt, Scores
from zoo.envs import parsing
from zoo.envs.rewards.item import RewardItem, read_rewards
from zoo.envs.rewards.process import Failure, RewardProcess
from zoo.errors import UserError

__all__ = ["Grades", "Grader", "QuestionEnv", "Split", "grade_answers", "make_prompt"]

Split = Literal["train", "heldout"]

#: What ``instruction=True`` adds to a question that asks for a number.
INSTRUCTION = (
    "Think step by step, and end with a line that holds only `#### ` and the final answer,"
    " for example `#### 42`."
)
#: One traceback of each kind is kept, up to so many kinds.
MAX_ERRORS = 20


@dataclass
class Grades:
    """An environment's own judgement of n completions.

    Attributes
    ----------
    accuracy, score : dict of str to list of float
        Under ``"strict"`` and ``"lenient"``, [n] each; NaN where the grader failed.
        ``accuracy`` is 0 or 1, ``score`` may give partial credit.
    failures : dict of int to Failure
        By the completion's position.
    """

    accuracy: dict[str, list[float]]
    score: dict[str, list[float]]
    failures: dict[int, Failure] = field(default_factory=dict)


Grader = Callable[[Sequence[Prompt], Sequence[Completion]], Grades]
#: (reward, kind of failure, last line) → what errors.log is to hold of it
_Errors = dict[tuple[str, str, str], str]


def grade_answers(prompts: Sequence[Prompt], completions: Sequence[Completion]) -> Grades:
    """Compare each completion's answer with the gold answer, see :mod:`zoo.envs.parsing`."""
    pairs = zip(prompts, completions, strict=True)
    grades = [parsing.grade(completion.text, prompt.answer) for prompt, completion in pairs]
    accuracy = {
        "strict": [grade.strict for grade in grades],
        "lenient": [grade.lenient for grade in grades],
    }
    return Grades(accuracy=accuracy, score=accuracy)


def make_prompt(
    question: str,
    answer: str,
    id: str,
    *,
    instruction: str | None = None,
    system: str | None = None,
    metadata: dict[str, Any] | None = None,
) -> Prompt:
    """Return a prompt whose chat messages hold the question.

    Parameters
    ----------
    question, answer, id
        See :class:`~zoo.core.protocols.Prompt`.
    instruction : str, optional
        Stands behind the question, a blank line between. None leaves the bare question.
    system : str, optional
        A system message before it.
    metadata : dict, optional
        Whatever the scorer needs besides.
    """
    content = f"{question}\n\n{instruction}" if instruction else question
    messages = [{"role": "user", "content": content}]
    if system:
        messages.insert(0, {"role": "system", "content": system})
    return Prompt(question, answer, messages, id, metadata or {})


class QuestionEnv:
    """Questions with gold answers, and rewards. It is a :class:`~zoo.core.protocols.TextEnv`.

    Parameters
    ----------
    name : str
        Of the environment.
    train, heldout : sequence of Prompt
        The two splits. They must share no question.
    rewards
        What :func:`~zoo.envs.rewards.item.read_rewards` reads; None pays for accuracy alone.
    dataset : str, optional
        What is really used; the name without one.
    notice : str, optional
        A sentence that the user has to see.
    grader : callable, optional
        Judges completions; by default they're compared with the gold answers.

    Raises
    ------
    UserError
        A reward that makes no sense, or an empty split.
    """

    def __init__(
        self,
        name: str,
        train: Sequence[Prompt],
        heldout: Sequence[Prompt],
        *,
        rewards: Any = None,
        dataset: str | None = None,
        notice: str | None = None,
        grader: Grader = grade_answers,
    ) -> None:
        self.name = name
        self.dataset = dataset or name
        self.notice = notice
        self.rewards = read_rewards(rewards)
        self._grader = grader
        self._splits = {"train": train, "heldout": heldout}
        self._processes: dict[str, RewardProcess] = {
            item.name: RewardProcess(
                item.name, item.function, timeout_s=item.timeout_s, batch=bool(item.batch)
            )
            for item in self.rewards
            if not item.builtin
        }
        for split, prompts in self._splits.items():
            if not len(prompts):
                raise UserError(f"{name}: the {split} split holds no question")

    def prompts(self, split: Split) -> Sequence[Prompt]:
        """Return the prompts of ``"train"`` or ``"heldout"``."""
        if split not in self._splits:
            raise ValueError(f"split must be 'train' or 'heldout' (got {split!r})")
        return self._splits[split]

    def score(self, prompts: Sequence[Prompt], completions: Sequence[Completion]) -> Scores:
        """Score completion i as an answer to prompt i.

        Returns
        -------
        Scores
            An item that raised, hung or returned no finite number is NaN for that completion, and
            so is its total, unless the item's weight is 0. ``accuracy_strict`` and
            ``accuracy_lenient`` are always among the grades, NaN where the grader failed.

        Raises
        ------
        UserError
            A reward function that can't be loaded in its process; nothing a completion holds.
        """
        grades, scores, errors = self._graded(prompts, completions)
        for item in self.rewards:
            values = self._values(item, prompts, completions, grades)
            numbers = [math.nan if isinstance(value, Failure) else value for value in values]
            failed = sum(math.isnan(number) for number in numbers)
            if failed:
                scores.failures[item.name] = failed
            failures = {i: value for i, value in enumerate(values) if isinstance(value, Failure)}
            _note(errors, item.name, failures, prompts)
            scores.items[item.name] = numbers
            if item.weight:
                scores.total = [
                    total + item.weight * number
                    for total, number in zip(scores.total, numbers, strict=True)
                ]
        if grades.score is not grades.accuracy:
            scores.items.setdefault("score", grades.score["strict"])
        scores.errors = list(errors.values())
        return scores

    def grade(self, prompts: Sequence[Prompt], completions: Sequence[Completion]) -> Scores:
        """Grade completion i as an answer to prompt i, without the rewards.

        Returns
        -------
        Scores
            Grades, and what the grader failed on; there are no items, and every total is 0.
        """
        _, scores, errors = self._graded(prompts, completions)
        scores.errors = list(errors.values())
        return scores

    def close(self) -> None:
        """End the rewards' processes."""
        for process in self._processes.values():
            process.close()

    def __enter__(self) -> QuestionEnv:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _graded(
        self, prompts: Sequence[Prompt], completions: Sequence[Completion]
    ) -> tuple[Grades, Scores, _Errors]:
        if len(prompts) != len(completions):
            raise ValueError(f"{len(prompts)} prompts for {len(completions)} completions")
        grades = self._grader(prompts, completions)
        scores = Scores(total=[0.0] * len(prompts), items={})
        scores.grades = {f"accuracy_{g}": list(values) for g, values in grades.accuracy.items()}
        errors: _Errors = {}
        if grades.failures:
            scores.failures["accuracy"] = len(grades.failures)
            _note(errors, "accuracy", grades.failures, prompts)
        return grades, scores, errors

    def _values(
        self,
        item: RewardItem,
        prompts: Sequence[Prompt],
        completions: Sequence[Completion],
        grades: Grades,
    ) -> Sequence[float | Failure]:
        if item.graded is not None:
            which, grade = item.graded
            return (grades.accuracy if which == "accuracy" else grades.score)[grade]
        calls = item.calls(prompts, completions)
        if item.builtin:
            return [float(item.function(**call)) for call in calls]
        return self._processes[item.name].run(calls, [len(prompts)] if item.batch else None)


def _note(
    errors: _Errors, name: str, failures: Mapping[int, Failure], prompts: Sequence[Prompt]
) -> None:
    """Keep the first failure of each kind: same reward, same kind, same last line."""
    for index, failure in failures.items():
        last = failure.detail.rstrip().rpartition("\n")[2] if failure.kind != "no number" else ""
        key = (name, failure.kind, last[:80])
        if key not in errors and len(errors) < MAX_ERRORS:
            errors[key] = (
                f"reward '{name}' on completion {index}, prompt {prompts[index].id}"
                f" ({failure.kind}): {failure.detail}"
            )


def read_instruction(instruction: str | bool | None, standard: str = INSTRUCTION) -> str | None:
    """Return the text behind a question: True stands for the environment's own wording."""
    if instruction is None or instruction is False:
        return None
    if instruction is True:
        return standard
    if not isinstance(instruction, str):
        raise UserError(f"instruction must be a text, true or null (got {instruction!r})")
    return instruction


def read_size(where: str, what: str, value: Any) -> int | None:
    """Return a split's size, None for all there is."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise UserError(f"{where}: {what} must be a whole number ≥ 1 or null (got {value!r})")
    return value


def read_seed(where: str, value: Any) -> int:
    """Return a seed."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise UserError(f"{where}: seed must be a whole number ≥ 0 (got {value!r})")
    return value
