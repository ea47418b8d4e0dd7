"""Answers of models that think first."""

from __future__ import annotations

import pytest

from zoo.envs import parsing
from zoo.envs.reasoning import extract
from zoo.envs.rewards import format


@pytest.mark.parametrize(
    ("text", "gold", "strict", "lenient"),
    [
        ("<think>#### 17</think>\n#### 18", "18", 1, 1),
        ("<think>#### 1 #### 2 #### 3</think>#### 18", "18", 1, 1),  # a thought is no guessing
        ("<think>#### 18</think>", "18", 0, 0),
        ("<think>#### 18</think>so it is 19", "18", 0, 0),
        ("<think>17</think>so it is 18", "18", 0, 1),
        ("<think>6 + 12 = 18\n#### 18", "18", 0, 1),  # never closed
        ("<think>#### 1 #### 2 #### 3 … 18", "18", 0, 1),
        ("#### 18\n<think>sure?", "18", 0, 1),
        ("<think>a</think>#### 17\n\n<think>b</think>#### 18", "18", 1, 1),  # two turns
        ("17</think>#### 18", "18", 1, 1),  # the prompt opened it
        ("<think>Rome</think>#### Paris", "Paris", 1, 1),
        ("<think>#### Paris", "Paris", 0, 0),
    ],
)
def test_grades_read_behind_the_thought(text: str, gold: str, strict: int, lenient: int) -> None:
    assert parsing.grade(text, gold) == parsing.Grade(float(strict), float(lenient))


def test_the_lenient_number_too() -> None:
    assert parsing.lenient_number("<think>#### 17</think>18 or so") == 18
    assert parsing.lenient_number("<think>#### 17 or 18") == 18


def test_the_format_is_that_of_the_answer() -> None:
    assert format("<think>#### 17 #### 18</think>\n#### 18", "18") == 1.0
    assert format("<think>#### 18", "18") == 0.0


def test_reasoning_tasks_read_behind_the_thought_as_well() -> None:
    assert extract("<think><answer>a</answer></think><answer>b</answer>", "b") == ("b", "b")
    assert extract("<think><answer>a</answer>", "b")[0] is None
