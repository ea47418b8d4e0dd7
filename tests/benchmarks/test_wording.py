"""Figures in words."""

from __future__ import annotations

import math

import pytest
from hand_made import run

from zoo.benchmarks import wording


@pytest.mark.parametrize(
    ("x", "text"),
    [
        (100000, "100,000"),
        (-151.8554, "−151.9"),
        (0.03712, "0.03712"),
        (0, "0"),
        (1234567.8, "1,234,568"),
        (math.nan, "–"),
        (math.inf, "–"),
    ],
)
def test_numbers(x, text):
    assert wording.number(x) == text


@pytest.mark.parametrize(
    ("x", "percent", "text"),
    [
        (500, False, "500.0"),
        (-1.234, False, "−1.23"),
        (0.1234, False, "0.123"),
        (-0.0001, False, "0.000"),
        (0.4071, True, "40.7 %"),
        (None, False, "–"),
        (math.nan, True, "–"),
    ],
)
def test_scores(x, percent, text):
    assert wording.value(x, percent) == text


def test_differences_have_a_sign():
    assert wording.signed(4.1) == "+4.10"
    assert wording.signed(-12.34) == "−12.3"
    assert wording.signed(0.0) == "0.0"
    assert wording.signed(0.041, percent=True) == "+4.10"


def test_intervals():
    assert wording.interval(None, None) == ""
    assert wording.interval(-1.0, 20.0) == "[−1.00, 20.0]"
    assert wording.interval(0.391, 0.402, percent=True) == "[39.1, 40.2 %]"
    assert wording.interval(-0.01, 0.02, percent=True, sign=True) == "[−1.00, +2.00]"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.5, "0.5 s"), (119, "119 s"), (150, "2.5 min"), (7200, "2.0 h"), (None, "–")],
)
def test_durations(seconds, text):
    assert wording.duration(seconds) == text


def test_probabilities_and_speeds():
    assert [wording.chance_of(p) for p in (0.0, 0.834, 0.1, 1.0)] == [".00", ".83", ".10", "1"]
    assert [wording.rate(x) for x in (None, 1234.5, 1.5)] == ["–", "1,234", "1.50"]


def test_lists_and_counts():
    assert wording.listed([]) == ""
    assert wording.listed(["a"]) == "a"
    assert wording.listed(["a", "b", "c"]) == "a, b and c"
    assert wording.plural(1, "seed") == "1 seed"
    assert wording.plural(1000, "seed") == "1,000 seeds"
    runs = [run("a", s, [1]) for s in range(5)]
    assert wording.runs_named(runs[:2]) == "a seed 0 and a seed 1"
    assert wording.runs_named(runs) == "a seed 0, a seed 1, a seed 2 and 2 more"
    assert wording.runs_named([run("a", None, [1])]) == "a"


def test_names_for_anchors_are_short_and_plain():
    assert wording.slug("task", "ALE/Pong-v5") == "task-ale-pong-v5"
    assert wording.slug("task", "α β") == "task"
    assert len(wording.slug("a" * 300)) == 80
