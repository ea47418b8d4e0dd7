"""The guessing game: its rules, its grades, and what a reward sees of a dialogue."""

from __future__ import annotations

from typing import Any

import pytest

from zoo.core.protocols import Completion, DialogueEnv, Turn
from zoo.envs.guess import Guess
from zoo.errors import UserError


def dialogue(*texts: str) -> Completion:
    """Turns of both sides, the policy's first."""
    roles = ["assistant", "user"] * len(texts)
    turns = tuple(Turn(r, t, [1]) for r, t in zip(roles, texts, strict=False))
    own = [t.text for t in turns if t.role == "assistant"]
    return Completion("\n\n".join(own), [1] * len(own), True, turns)


def secret(env: Guess, number: int) -> Any:
    return next(p for p in env.prompts("train") if p.answer == str(number))


def test_the_reply_leads_to_the_secret() -> None:
    env = Guess()
    assert isinstance(env, DialogueEnv)
    prompt = secret(env, 5)
    said = ["#### 4", "#### 7", "perhaps 5", "#### 5", "I don't know", "<think>4?</think>6"]
    replies = env.reply([prompt] * len(said), [dialogue(text) for text in said])
    assert [reply and reply["content"] for reply in replies] == [
        "The number is higher.",
        "The number is lower.",
        None,
        None,
        "That is no number.",
        "The number is lower.",
    ]
    later = dialogue("#### 4", "The number is higher.", "#### 6")
    assert env.reply([prompt], [later]) == [{"role": "user", "content": "The number is lower."}]


def test_any_guess_counts_and_the_environments_words_do_not() -> None:
    env = Guess(rewards=["accuracy"])
    prompt = secret(env, 5)
    rows = [
        dialogue("#### 4", "The number is higher.", "#### 5"),
        dialogue("#### 4", "The number is higher.", "so 5"),
        dialogue("#### 4", "#### 5", "#### 6"),
        dialogue("#### 1", "x", "#### 2", "x", "#### 5"),  # three guesses are no guessing here
    ]
    scores = env.score([prompt] * 4, rows)
    assert scores.grades["accuracy_strict"] == [1.0, 0.0, 0.0, 1.0]
    assert scores.grades["accuracy_lenient"] == [1.0, 1.0, 0.0, 1.0]
    assert scores.total == [1.0, 0.0, 0.0, 1.0]


@pytest.mark.parametrize("largest", [2, 7, 20])
def test_halving_finds_every_secret_in_the_turns_there_are(largest: int) -> None:
    env = Guess(largest=largest)
    for number in range(1, largest + 1):
        prompt, low, high = secret(env, number), 1, largest
        texts: list[str] = []
        for _ in range(env.max_turns):
            middle = (low + high) // 2
            texts.append(f"#### {middle}")
            (reply,) = env.reply([prompt], [dialogue(*texts)])
            if reply is None:
                break
            low, high = (middle + 1, high) if "higher" in reply["content"] else (low, middle - 1)
            texts.append(reply["content"])
        assert reply is None


def test_the_default_is_as_many_turns_as_halving_needs() -> None:
    turns = [Guess(largest=n).max_turns for n in (2, 3, 4, 7, 8, 1000)]
    assert turns == [2, 2, 3, 3, 4, 10]
    assert Guess(max_turns=1).max_turns == 1


@pytest.mark.parametrize("largest", [1, 0, None, 2.5])
def test_no_game(largest: Any) -> None:
    with pytest.raises(UserError, match="largest must be a whole number"):
        Guess(largest=largest)


def turns_left(turns: list[Turn]) -> float:
    """Pay for few turns, in a process of its own."""
    return -float(sum(turn.role == "assistant" for turn in turns))


def test_a_users_reward_sees_both_sides_and_a_single_answer_is_one_turn() -> None:
    def words(turns: list[list[Turn]], completions: list[str]) -> list[float]:
        return [float(len(row)) for row in turns]

    env = Guess(rewards=[turns_left, words])
    rows = [dialogue("#### 4", "The number is higher.", "#### 5"), Completion("#### 5", [1], True)]
    with env:
        scores = env.score([secret(env, 5)] * 2, rows)
    assert scores.items["turns_left"] == [-2.0, -1.0]
    assert scores.items["words"] == [3.0, 1.0]
    assert scores.grades["accuracy_strict"] == [1.0, 1.0]
