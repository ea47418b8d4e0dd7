"""A guessing game: higher, lower, found. The smallest environment that answers completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from zoo.core.protocols import Completion, Prompt, Turn
from zoo.envs import parsing
from zoo.envs.text import Grades, QuestionEnv, make_prompt, read_instruction, read_size
from zoo.errors import UserError

__all__ = ["Guess"]

#: What ``instruction=True`` adds to the question.
INSTRUCTION = "Answer each time with a line that holds only `#### ` and your guess, like `#### 2`."
#: each secret occurs so often in a split
_COPIES = 100


class Guess(QuestionEnv):
    """A secret number from 1 to ``largest``, and after each guess whether it is higher or lower.

    A guess is the number that the turn answers with, see :mod:`zoo.envs.parsing`. Halving finds
    every secret up to 2^k − 1 within k turns; k guesses that don't listen find at most k of them.
    So what exceeds k / ``largest`` has been learned from the replies. There is nothing to hold
    out: both splits ask for the same numbers, and what is measured is the play.

    Parameters
    ----------
    largest : int
        The secret is from 1 up to it.
    max_turns : int
        Guesses; None gives as many as halving needs.
    rewards
        See :func:`zoo.envs.rewards.item.read_rewards`; None pays 1 for a secret that was found.
    instruction : str or bool, optional
        Behind the question: a text, or True for "Answer each time with …".
    system : str, optional
        System message.

    Raises
    ------
    UserError
        For numbers that make no game.
    """

    max_turns: int

    def __init__(
        self,
        *,
        largest: int = 7,
        max_turns: int | None = None,
        rewards: Any = None,
        instruction: str | bool | None = None,
        system: str | None = None,
    ) -> None:
        numbers = read_size("guess", "largest", largest)
        if numbers is None or numbers < 2:
            raise UserError(f"guess: largest must be a whole number ≥ 2 (got {largest!r})")
        self.largest = numbers
        self.max_turns = read_size("guess", "max_turns", max_turns) or numbers.bit_length()
        question = f"Guess a number from 1 to {numbers}."
        text = read_instruction(instruction, INSTRUCTION)

        def prompts(split: str) -> list[Prompt]:
            return [
                make_prompt(
                    question,
                    str(secret),
                    f"guess/{split}/{copy}/{secret}",
                    instruction=text,
                    system=system,
                )
                for copy in range(_COPIES)
                for secret in range(1, numbers + 1)
            ]

        super().__init__(
            "guess",
            prompts("train"),
            prompts("heldout"),
            rewards=rewards,
            dataset=f"guess (1 to {numbers} in {self.max_turns} turns)",
            grader=found,
        )

    def reply(
        self, prompts: Sequence[Prompt], completions: Sequence[Completion]
    ) -> list[dict[str, str] | None]:
        """Say where the secret is from the last guess; nothing where it was found."""
        return [
            _answer(completion.turns[-1], int(prompt.answer))
            for prompt, completion in zip(prompts, completions, strict=True)
        ]


def found(prompts: Sequence[Prompt], completions: Sequence[Completion]) -> Grades:
    """Grade dialogues: 1 where any of the guesses was right."""
    grades = [
        [parsing.grade(text, prompt.answer) for text in _guesses(completion)]
        for prompt, completion in zip(prompts, completions, strict=True)
    ]
    accuracy = {
        name: [max(getattr(grade, name) for grade in row) for row in grades]
        for name in ("strict", "lenient")
    }
    return Grades(accuracy=accuracy, score=accuracy)


def _guesses(completion: Completion) -> list[str]:
    own = [turn.text for turn in completion.turns if turn.role == "assistant"]
    return own or [completion.text]


def _answer(turn: Turn, secret: int) -> dict[str, str] | None:
    guess = parsing.lenient_number(turn.text)
    if guess == secret:
        return None
    content = "That is no number."
    if guess is not None:
        content = f"The number is {'higher' if guess < secret else 'lower'}."
    return {"role": "user", "content": content}
