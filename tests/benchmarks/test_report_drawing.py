"""The parts of pictures: paths, thinned curves, and words that must not meet."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zoo.benchmarks.report.labels import flow, marks_below, spread
from zoo.benchmarks.report.scales import Scale
from zoo.benchmarks.report.svg import element, line, pieces, shorten, text_width, thin


def points_of(path: str) -> np.ndarray:
    """The points of a path, [N, 2], read as a browser does."""
    start, _, steps = path.removeprefix("M").removesuffix("h0").partition("l")
    numbers = [re.findall(r"-?\d*\.?\d+", text) for text in (start, steps)]
    first, rest = (np.array(n, float).reshape(-1, 2) for n in numbers)
    return np.concatenate([first, rest]).cumsum(axis=0)


def test_a_path_is_relative_to_a_tenth():
    assert line(np.array([10, 12.5, 12.5, 20]), np.array([100, 99.96, 90.04, 90])) == (
        "M10 100l2.5 0 0-10 7.5 0"
    )


@given(st.lists(st.tuples(st.floats(-999, 999), st.floats(-999, 999)), min_size=2, max_size=50))
def test_rounding_errors_do_not_add_up(points):
    x, y = np.array(points).T
    path = line(x, y)
    assert np.allclose(points_of(path)[0], [x[0], y[0]], atol=0.0501)
    assert np.allclose(points_of(path)[-1], [x[-1], y[-1]], atol=0.0501)


def test_a_thinned_curve_keeps_its_ends_and_its_one_collapse():
    x, y = np.arange(5000.0), np.sin(np.arange(5000) / 700)
    y[3217] = -9.0
    kept_x, kept_y = thin(x, y, 200)
    assert len(kept_x) <= 200
    assert (kept_x[0], kept_x[-1]) == (0, 4999)
    assert (np.diff(kept_x) > 0).all()
    assert (kept_x[kept_y.argmin()], kept_y.min()) == (3217, -9.0)
    assert kept_y.max() == y.max()


def test_a_short_curve_is_left_as_it_is():
    x = np.arange(200.0)
    assert thin(x, x, 200)[0] is x


def test_a_curve_breaks_where_any_value_is_missing():
    a = np.array([1, np.nan, 3, 4, 5, np.inf])
    b = np.array([1, 2, 3, np.nan, 5, 6])
    assert list(pieces(a, b)) == [slice(0, 1), slice(2, 3), slice(4, 5)]
    assert list(pieces(b)) == [slice(0, 3), slice(4, 6)]
    assert list(pieces(np.zeros(0))) == []


def test_attributes_are_escaped_and_rounded():
    written = element("text", "a", x=1.25, class_='a"<', text_anchor=None, r=3, y=-0.04)
    assert written == '<text x="1.2" class="a&quot;&lt;" r="3" y="0">a</text>'


def test_a_long_label_is_cut_in_its_middle():
    cut = shorten("ppo with algo.lr=0.0003 and algo.clip=0.2", 160, 12)
    assert text_width(cut, 12) <= 160
    assert cut.startswith("ppo with")
    assert cut.endswith("clip=0.2")
    assert "…" in cut
    assert shorten("ppo", 160, 12) == "ppo"
    assert shorten("ppo", 1, 12) == "…"


def test_wide_letters_take_room_and_accents_none():
    assert text_width("漢", 10) == 10
    assert text_width("e\u0301", 10) == text_width("e", 10)
    assert text_width("iii", 10) < text_width("mmm", 10)


@given(st.lists(st.floats(-50, 250), max_size=12))
def test_words_stand_apart_inside_and_in_order(wanted):
    places = spread(wanted, gap=14, low=0, high=200)
    assert places is not None
    ordered = [place for _, place in sorted(zip(wanted, places), key=lambda pair: pair[0])]
    assert all(0 <= place <= 200 for place in places)
    assert (np.diff(np.sort(places)) >= 14 - 1e-9).all()
    assert np.sort(ordered).tolist() == ordered or len(set(wanted)) < len(wanted)


@pytest.mark.parametrize(
    ("wanted", "places"),
    [
        ([10, 100], [10, 100]),
        ([50, 50], [43, 57]),
        ([199, 200], [186, 200]),
        ([0, 4, 100], [0, 14, 100]),
        ([60, 50, 55], [69, 41, 55]),
    ],
)
def test_words_move_no_further_than_they_must(wanted, places):
    assert spread(wanted, gap=14, low=0, high=200) == pytest.approx(places)


def test_too_many_words_have_no_places():
    assert spread([1.0] * 16, gap=14, low=0, high=200) is None
    assert spread([1.0] * 15, gap=14, low=0, high=200) is not None


def test_a_legend_flows_into_rows():
    assert flow([60, 30, 50, 120], room=100, gap=10) == [(0, 0), (70, 0), (0, 1), (0, 2)]


def test_a_narrow_axis_has_fewer_figures():
    def count(width):
        return len(marks_below(Scale(0, 1e6, 0, width), "count")[0])

    assert [count(400), count(150), count(40)] == [6, 3, 2]
