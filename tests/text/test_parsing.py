"""Answer parsing: the table of both grades, and what no text may do to the grader."""

from __future__ import annotations

import time
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zoo.envs.parsing import boxed, grade, lenient_number, number

BOTH, LENIENT, NEITHER = (1.0, 1.0), (0.0, 1.0), (0.0, 0.0)

TABLE = [
    ("He has 6 + 12 apples.\n#### 18", "18", BOTH),
    ("#### $18", "18", BOTH),
    ("#### 18.0", "18", BOTH),
    ("#### 18.", "18", BOTH),
    ("#### +18", "18", BOTH),
    ("#### 1,000", "1000", BOTH),
    ("#### 1000", "1,000", BOTH),
    ("#### 17 no, wait: #### 18", "18", BOTH),
    ("#### 17 no, wait: #### 18", "17", NEITHER),
    ("#### 18" + " and so on" * 40, "18", BOTH),
    ("#### 18\n" + "x" * 400, "18", BOTH),
    ("The answer is 18 apples.", "18", LENIENT),
    (r"\boxed{18}", "18", LENIENT),
    (r"\boxed{\frac{1}{2}}", "0.5", LENIENT),
    ("", "18", NEITHER),
    (" \n\t ", "18", NEITHER),
    ("#### 1", "18", NEITHER),
    ("The answer is 1", "18", NEITHER),
    ("####", "18", NEITHER),
    ("#### -", "18", NEITHER),
    ("#### 1,0", "1000", NEITHER),
    ("#### 1,0", "1", NEITHER),
    ("#### eighteen", "18", NEITHER),
    ("#### 1 #### 2 #### 3 #### 18", "18", NEITHER),
    ("#### 16 #### 17 #### 18", "18", NEITHER),
    ("#### 18 #### 18.0 #### $18 #### 18.00", "18", BOTH),
]

MORE = [
    ("#### -18", "-18", BOTH),
    ("#### -$18", "-18", BOTH),
    ("#### $-18", "-18", BOTH),
    ("#### \u221218", "-18", BOTH),
    ("#### -18", "18", NEITHER),
    ("#### --18", "-18", LENIENT),
    ("#### 18%", "18", BOTH),
    ("#### €1,234.50", "1234.5", BOTH),
    ("#### 12,345,678", "12345678", BOTH),
    ("#### 10{,}000", "10000", BOTH),
    ("#### 18 apples", "18", BOTH),
    ("#### 18cm", "18", BOTH),
    ("#### **18**", "18", BOTH),
    ("#### **18** 5 apples", "18", BOTH),
    (r"#### $\boxed{18}$", "18", BOTH),
    (r"#### \(18\)", "18", BOTH),
    ("####18", "18", BOTH),
    ("####\n18", "18", BOTH),
    ("#####  18", "18", BOTH),
    ("#### 1/2", "0.5", BOTH),
    ("#### .5", "1/2", BOTH),
    ("#### 1.5e3", "1500", BOTH),
    ("#### 2E-2", "0.02", BOTH),
    ("#### 018", "18", BOTH),
    ("#### 18.5", "18", NEITHER),
    ("#### 0.1", "0.10000000000000000001", NEITHER),
    ("#### 3 * 6", "3", NEITHER),
    ("#### 9**9**9**9", "9", LENIENT),
    ("#### 18-20", "18", NEITHER),
    ("#### 17,18", "17", NEITHER),
    ("#### 1/0", "1", NEITHER),
    ("#### 1e999999999", "1", NEITHER),
    # A Markdown heading of fourth level is no answer.
    ("#### Final answer\nIt is 18.", "18", LENIENT),
    ("#### Step 1\n#### Step 2\n#### Step 3\n#### 18", "18", BOTH),
    (r"\boxed{3} or rather \boxed{18}", "18", LENIENT),
    (r"\boxed{\boxed{18}} in 2 steps", "18", LENIENT),
    (r"\boxed{x = 18 \text{ apples}} in 2 steps", "18", LENIENT),
    (r"\boxed{\$1,000} in 2 steps", "1000", LENIENT),
    (r"\boxed{18", "18", NEITHER),
    (r"5 + 13 = 18, so \boxed{eighteen}", "18", LENIENT),
    ("It costs 10-18", "18", LENIENT),
    ("x=-18", "-18", LENIENT),
    ("It is 1/2.", "0.5", LENIENT),
    ("From 1,000 to 2,000.", "2000", LENIENT),
    ("It is -$5.", "-5", LENIENT),
    ("#### 17\nThe answer is 18", "18", NEITHER),
    ("#### Paris", "Paris", BOTH),
    ("####  paris.\nBecause", "Paris", BOTH),
    (r"\boxed{Paris}", "Paris", LENIENT),
    ("I think:\nParis.", "Paris", LENIENT),
    ("#### Rome #### Oslo #### Paris", "Paris", NEITHER),
    ("#### Rome, no: #### Paris", "Paris", BOTH),
    ("", "", NEITHER),
]


@pytest.mark.parametrize(("text", "gold", "expected"), TABLE + MORE)
def test_both_grades(text: str, gold: str, expected: tuple[float, float]) -> None:
    result = grade(text, gold)
    assert (result.strict, result.lenient) == expected


def test_numbers_are_exact() -> None:
    assert number("$1,000.50") == Fraction(2001, 2)
    assert number(r"-\frac{1}{3}") == Fraction(-1, 3)
    assert number("18 apples") is None
    assert number("1,00") is None
    assert number("0.1") == Fraction(1, 10)
    assert lenient_number("3 then 4") == 4
    assert boxed(r"\boxed{a{b}c} d") == "a{b}c"


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet=st.sampled_from("#$-+0123456789.,/*eE{}\\boxedfrac \n%"), max_size=120))
def test_never_raises_and_strict_implies_lenient(text: str) -> None:
    for gold in ("1", "18", "-0.5", "Paris", ""):
        result = grade(text, gold)
        assert result.strict in (0.0, 1.0)
        assert result.lenient >= result.strict


@settings(max_examples=200, deadline=None)
@given(
    st.fractions(min_value=-(10**9), max_value=10**9).filter(lambda x: 10**4 % x.denominator == 0),
    st.text(alphabet="abc \n.", max_size=30),
)
def test_a_written_decimal_is_read_back(value: Fraction, before: str) -> None:
    written = f"{float(value):.4f}"
    assert grade(f"{before}#### {written}", str(value)).strict == 1.0
    assert grade(f"{before} {written}", str(value)).lenient == 1.0
    assert grade(f"{before}#### {written}", str(value + 1)).lenient == 0.0


@pytest.mark.parametrize(
    "unit",
    ["9", "#### ", "####1", "####1e300", "1,111", ",111", "$", "(", "\\boxed{", "{", "1/", "1e",
     "-", "- ", "*", "9**", ".", "\\frac{1}{", "#", " ", "\u0660", "\x00", "😀"],
)  # fmt: skip
def test_a_hundred_thousand_characters_take_bounded_time(unit: str) -> None:
    text = unit * (100_000 // len(unit))
    start = time.process_time()
    for gold in ("18", "Paris"):
        grade("#### " + text, gold)
        grade(text + "x", gold)
    assert time.process_time() - start < 4.0
