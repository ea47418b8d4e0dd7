"""Reward items: values worked out by hand, and what is refused before training."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest

from zoo.core.protocols import Completion
from zoo.envs.rewards import RewardItem, accuracy, format, length, overlong, repetition
from zoo.envs.rewards.item import read_rewards
from zoo.envs.text import QuestionEnv, make_prompt
from zoo.errors import UserError

PROMPT = make_prompt("6 + 12?", "18", "x")


def mine(completion: str) -> float:
    return float(len(completion))


def env(rewards: Any) -> QuestionEnv:
    return QuestionEnv("t", [PROMPT], [PROMPT], rewards=rewards)


def test_accuracy_pays_the_grade_it_is_told_to() -> None:
    assert accuracy("#### 18", "18") == 1.0
    assert accuracy("It is 18.", "18") == 0.0
    assert accuracy("It is 18.", "18", grade="lenient") == 1.0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("6 + 12\n#### 18", 1.0),
        ("#### $1,000.00.\n", 1.0),
        ("#### 17", 1.0),
        ("#### 18 apples", 0.0),
        ("#### 18\nand so on", 0.0),
        ("#### 17\n#### 18", 0.0),
        ("#### eighteen", 0.0),
        ("18", 0.0),
        ("", 0.0),
    ],
)
def test_format_is_one_number_behind_one_marker_at_the_end(text: str, expected: float) -> None:
    assert format(text, "18") == expected


def test_format_of_a_text_answer_is_one_line() -> None:
    assert format("Well.\n#### Paris", "Rome") == 1.0
    assert format("#### Paris\nor Rome", "Rome") == 0.0
    assert format("#### ", "Rome") == 0.0


@pytest.mark.parametrize(
    ("tokens", "expected"),
    # limit 20, cache 8: nothing up to 12 tokens, then −(tokens − 12) / 8, −1 from 20 on
    [(0, 0.0), (12, 0.0), (13, -0.125), (16, -0.5), (20, -1.0), (21, -1.0), (500, -1.0)],
)
def test_overlong_is_the_soft_penalty_of_dapo(tokens: int, expected: float) -> None:
    assert overlong([7] * tokens, limit=20, cache=8) == expected


def test_length_is_the_share_of_the_limit() -> None:
    assert length([1] * 128, limit=512) == -0.25
    assert length([1] * 1000, limit=512) == -1.0
    assert length([]) == 0.0


def test_repetition_is_the_share_of_repeated_ngrams() -> None:
    assert repetition([1, 2, 3, 4, 5, 6]) == 0.0
    assert repetition([1, 2, 1, 2, 1, 2], n=2) == pytest.approx(-3 / 5)  # 12 21 12 21 12
    assert repetition([1, 2]) == 0.0


def test_total_is_the_weighted_sum_of_the_items() -> None:
    scores = env({"accuracy": 2.0, "format": 0.5, "length": {"weight": 0.1, "limit": 4}}).score(
        [PROMPT] * 3,
        [
            Completion("#### 18", [1, 2], True),
            Completion("#### 17", [1], True),
            Completion("18", [], True),
        ],
    )
    assert scores.items["accuracy"] == [1.0, 0.0, 0.0]
    assert scores.items["format"] == [1.0, 1.0, 0.0]
    assert scores.items["length"] == [-0.5, -0.25, 0.0]
    assert scores.total == pytest.approx([2.45, 0.475, 0.0])
    assert scores.grades == {
        "accuracy_strict": [1.0, 0.0, 0.0],
        "accuracy_lenient": [1.0, 0.0, 1.0],
    }
    assert scores.failures == {}
    assert scores.errors == []


def test_grades_are_reported_without_being_rewarded() -> None:
    scores = env(["format"]).score([PROMPT], [Completion("It is 18", [1], True)])
    assert scores.total == [0.0]
    assert scores.grades["accuracy_lenient"] == [1.0]


def test_grading_alone_calls_no_reward() -> None:
    def costly(completion: str) -> float:
        raise AssertionError("called")

    with env([accuracy, costly]) as environment:
        completions = [Completion("#### 18", [1], True), Completion("It is 18", [1], True)]
        scores = environment.grade([PROMPT] * 2, completions)
    assert scores.grades == {"accuracy_strict": [1.0, 0.0], "accuracy_lenient": [1.0, 1.0]}
    assert (scores.items, scores.failures, scores.errors) == ({}, {}, [])


def test_the_many_ways_to_name_a_reward(tmp_path: Path) -> None:
    file = tmp_path / "my_rewards.py"
    file.write_text("def polite(completion, *, word='please'):\n    return word in completion\n")
    items = read_rewards(
        [
            "accuracy",
            format,
            mine,
            RewardItem("half", mine, weight=0.5),
            {"name": "lenient", "function": "accuracy", "grade": "lenient", "weight": 0},
            {"name": "overlong", "limit": 512, "cache": 128},
            f"{file}:polite",
            {"name": "thanks", "function": f"{file}:polite", "word": "thanks"},
            functools.partial(length, limit=3),
        ]
    )
    names = ["accuracy", "format", "mine", "half", "lenient", "overlong", "polite", "thanks"]
    assert [item.name for item in items] == [*names, "length"]
    assert [item.weight for item in items] == [1, 1, 1, 0.5, 0, 1, 1, 1, 1]
    assert items[4].graded == ("accuracy", "lenient")
    assert read_rewards(None)[0].name == "accuracy"
    assert [i.name for i in read_rewards(mine)] == ["mine"]
    both = read_rewards({"accuracy": 1, "format": 0.1, "length": None})
    assert [(i.name, i.weight) for i in both] == [("accuracy", 1.0), ("format", 0.1)]


def test_a_function_from_a_file_runs(tmp_path: Path) -> None:
    file = tmp_path / "kind_rewards.py"
    file.write_text("WORD = 'please'\ndef kind(completion):\n    return WORD in completion\n")
    with env([f"{file}:kind"]) as environment:
        scores = environment.score([PROMPT], [Completion("please", [1], True)])
    assert scores.items["kind"] == [1.0]


def unknown_argument(completion: str, colour: str) -> float:
    return 0.0


@pytest.mark.parametrize(
    ("rewards", "sentence"),
    [
        (["acuracy"], "Did you mean 'accuracy'"),
        (["accuracy", "accuracy"], "two rewards are named 'accuracy'"),
        ([accuracy, RewardItem("accuracy", mine)], "two rewards are named 'accuracy'"),
        ([lambda completion: 1.0], "name"),
        ([unknown_argument], "asks for 'colour'"),
        (["overlong"], "needs the option 'limit'"),
        ([{"name": "overlong", "limit": 5}], "needs the option 'cache'"),
        ([{"name": "overlong", "limit": 5, "cache": 6}], "must not exceed limit"),
        ([{"name": "length", "limit": 0}], "limit must be a whole number"),
        ([{"name": "length", "limt": 5}], "Did you mean 'limit'"),
        ([{"name": "accuracy", "grade": "soft"}], "'strict' or 'lenient'"),
        ([{"name": "accuracy", "weight": "much"}], "weight must be a finite number"),
        ([{"name": "accuracy", "weight": float("nan")}], "weight must be a finite number"),
        ([{"name": "accuracy", "weight": True}], "weight must be a finite number"),
        ([{"function": mine, "timeout_s": 0}], "timeout_s must be above 0"),
        ([{"weight": 1}], "needs a 'name' or a 'function'"),
        ([{"name": "accuracy", "weight": 0}], "nothing to train on"),
        ([], "nothing to train on"),
        ([3], "a reward is a name"),
        (7, "must be a list"),
        (["no_such_module.reward"], "cannot be imported"),
        (["math.no_such_function"], "holds no function"),
        (["nowhere.py:reward"], "cannot be imported"),
        ([max], "max"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_sentence(rewards: Any, sentence: str) -> None:
    with pytest.raises(UserError, match=".") as caught:
        env(rewards)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_function_that_cannot_be_carried_is_refused_at_once(tmp_path: Path) -> None:
    with open(tmp_path / "log", "w", encoding="utf-8") as log:

        def writes(completion: str) -> float:
            return float(log.write(completion))

        with pytest.raises(UserError, match="cannot be carried to its own process"):
            env([writes])


def test_as_many_completions_as_prompts() -> None:
    with pytest.raises(ValueError, match="2 prompts for 1 completions"):
        env(None).score([PROMPT] * 2, [Completion("", [], True)])
