"""Charts: what they show of awkward data, and that nothing leaves them."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import numpy as np
import pytest

from zoo.benchmarks.report import charts, intervals
from zoo.benchmarks.report.page import Chart, Intervals, Level, Series, Trace, Whisker
from zoo.benchmarks.report.picture import standalone
from zoo.benchmarks.report.svg import text_width

X = np.linspace(0, 100_000, 30)
RISING = 500 / (1 + np.exp(-(X - 30_000) / 8000))
EMPTY = np.zeros(0)


def chart(*series, **options):
    options = {"x_label": "environment steps", "y_label": "return"} | options
    return Chart("c", "Title", series=series, **options)


def elements(drawn, kind, class_=""):
    """The elements of a picture, parsed as strictly as XML is."""
    root = ET.fromstring(f"<svg>{drawn.body}</svg>")
    found = [e for e in root.iter(kind) if class_ in e.get("class", "").split() or not class_]
    return found


def words(drawn):
    return ["".join(e.itertext()) for e in elements(drawn, "text")]


def heights(path):
    """The heights that a relative path passes, from its first point on."""
    numbers = [float(n) for n in re.findall(r"-?\d*\.?\d+", path.get("d"))]
    return np.cumsum(numbers[1::2])


def across(path):
    """The places from left to right that a relative path passes."""
    numbers = [float(n) for n in re.findall(r"-?\d*\.?\d+", path.get("d"))]
    return np.cumsum(numbers[0::2])


AWKWARD = {
    "no series": [],
    "empty series": [Series("a", 0, EMPTY, EMPTY), Series("b", 1, EMPTY, EMPTY)],
    "all missing": [Series("a", 0, X, np.full(30, np.nan))],
    "one point": [Series("a", 0, X[:1], RISING[:1])],
    "one x": [Series("a", 0, X[5:6], np.array([3.0])), Series("b", 1, X[5:6], np.array([4.0]))],
    "constant": [Series("a", 0, X, np.full(30, 1e9))],
    "zero": [Series("a", 0, X, np.zeros(30), np.zeros(30), np.zeros(30))],
    "huge": [Series("a", 0, X * 1e100, np.linspace(-1.7, 1.7, 30) * 1e308)],
    "tiny": [Series("a", 0, X * 1e-300, RISING * 1e-300)],
    "negative": [Series("a", 0, X - 1e9, -RISING)],
    "infinite": [Series("a", 0, X, np.where(X > 5e4, np.inf, RISING))],
    "whole numbers": [Series("a", 0, np.arange(5), np.arange(5))],
    "only single runs": [Series("a", 0, EMPTY, EMPTY, traces=(Trace("s1", X, RISING),))],
    "gaps": [Series("a", 0, X, np.where(np.arange(30) % 3 == 1, np.nan, RISING), RISING, RISING)],
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("form", ["number", "percent"])
@pytest.mark.parametrize("name", AWKWARD)
def test_awkward_data_makes_a_whole_picture(name, form):
    drawn = charts.draw(chart(*AWKWARD[name], y_format=form, levels=(Level("l", 3),)), legend=True)
    assert "nan" not in drawn.body
    assert "inf" not in drawn.body
    for text in elements(drawn, "text"):
        assert -1 <= float(text.get("x")) <= drawn.width
        assert 0 <= float(text.get("y")) <= drawn.height
    numbers = [float(n) for e in elements(drawn, "path") for n in re.findall(r"[\d.]+", e.get("d"))]
    assert max(numbers, default=0) < 1000


def test_a_chart_without_values_says_so():
    drawn = charts.draw(chart(Series("a", 0, EMPTY, EMPTY)), legend=False)
    assert "no values" in words(drawn)
    assert "no values" in drawn.words
    assert "no values" not in words(charts.draw(chart(Series("a", 0, X, RISING)), legend=False))


def test_lines_rise_where_values_do_and_bands_surround_them():
    drawn = charts.draw(chart(Series("a", 0, X, RISING, RISING - 20, RISING + 20)), legend=False)
    (centre,) = elements(drawn, "path", "centre")
    line = heights(centre)
    assert line[0] > line[-1]  # downwards is positive
    band = heights(elements(drawn, "path", "band")[0])
    assert band.min() < line.min()
    assert band.max() > line.max()
    edges = across(elements(drawn, "path", "band")[0])
    assert edges[0] == pytest.approx(edges[-1], abs=0.05)  # there along its foot, back on its top


def test_a_gap_is_left_open_and_a_lonely_point_is_drawn():
    y = np.array([1.0, 2.0, np.nan, 4.0, np.nan, 6.0, 7.0])
    drawn = charts.draw(chart(Series("a", 3, X[:7], y, y - 1, y + 1)), legend=False)
    (centre,) = elements(drawn, "path", "centre")
    assert centre.get("d").count("M") == 2
    (dot,) = elements(drawn, "circle")
    assert dot.get("class") == "full c3"
    (whisker,) = elements(drawn, "path", "whisker")
    top, bottom = sorted(float(n) for n in re.findall(r"[\d.]+", whisker.get("d"))[1:])
    assert top < float(dot.get("cy")) < bottom


def test_curves_are_thinned_and_the_more_runs_the_more():
    x = np.arange(5000.0)
    noise = np.random.default_rng(0)

    def longest(count):
        traces = tuple(Trace(str(i), x, noise.normal(size=5000)) for i in range(count))
        drawn = charts.draw(chart(Series("a", 0, x, 0 * x, traces=traces)), legend=False)
        return max(len(heights(path)) for path in elements(drawn, "path", "trace"))

    assert longest(1) in range(150, 201)
    assert longest(100) in range(90, 121)
    assert longest(300) in range(40, 61)


def test_a_run_far_off_does_not_flatten_the_others_and_is_told():
    runs = (Trace("good", X, RISING), Trace("lost", X, np.where(X > 5e4, -1e6, 0)))
    drawn_chart = chart(Series("a", 0, X, RISING, traces=runs))
    drawn = charts.draw(drawn_chart, legend=False)
    assert np.ptp(heights(elements(drawn, "path", "centre")[0])) > 50
    assert charts.leaves_out(drawn_chart) == (
        "Single runs reach from −1.0M to 500, further than the picture shows."
    )


def test_runs_near_the_rest_are_shown_whole():
    runs = (Trace("low", X, RISING - 400), Trace("high", X, RISING + 300))
    near = chart(Series("a", 0, X, RISING, traces=runs))
    assert charts.leaves_out(near) == ""
    for path in elements(charts.draw(near, legend=False), "path", "trace"):
        assert heights(path).min() > 26
        assert heights(path).max() < 248


def test_an_axis_of_shares_ends_at_all_of_them():
    drawn = charts.draw(chart(Series("a", 0, X, RISING / 500), y_format="percent"), legend=False)
    ticks = ["".join(e.itertext()) for e in elements(drawn, "text", "end")]
    assert (ticks[0], ticks[-1]) == ("0\xa0%", "100\xa0%")
    assert drawn.axes["data-y"].startswith("0.0 1.0 ")


LEVELS = (
    Level("solved", 475),
    Level("published", 480),
    Level("best of 500", 500),
    Level("random", 20),
)


def test_names_of_levels_do_not_meet_and_hold_their_values_once():
    drawn = charts.draw(chart(Series("a", 0, X, RISING), levels=LEVELS), legend=False)
    names = elements(drawn, "text", "halo")
    assert [n.text for n in names] == ["475 solved", "480 published", "best of 500", "20 random"]
    boxes = []
    for name in names:
        width, x = text_width(name.text, 14), float(name.get("x"))
        left = x - width if "end" in name.get("class") else x
        boxes.append((left, left + width, float(name.get("y"))))
    for i, (left, right, y) in enumerate(boxes):
        assert left >= 0
        assert right <= 440
        for other_left, other_right, other_y in boxes[:i]:
            apart = other_right <= left or right <= other_left
            assert apart or abs(y - other_y) >= 14 - 0.2


def test_a_level_is_named_at_the_end_where_no_curve_is():
    drawn = charts.draw(chart(Series("a", 0, X, RISING), levels=LEVELS), legend=False)
    classes = {n.text: n.get("class") for n in elements(drawn, "text", "halo")}
    assert classes["475 solved"] == "halo"
    assert classes["20 random"] == "halo end"


def test_no_line_runs_through_the_name_of_another():
    near = tuple(Level(f"level {i}", 470 + 2 * i) for i in range(4))
    drawn = charts.draw(chart(Series("a", 0, X, RISING), levels=near), legend=False)
    names = [
        (float(n.get("x")), float(n.get("y")) - 4, n.text) for n in elements(drawn, "text", "halo")
    ]
    lines = [
        [float(n) for n in re.findall(r"[\d.]+", p.get("d"))]
        for p in elements(drawn, "path", "level")
    ]
    assert len(names) == len(lines) == 4
    for x, place, text in names:
        through = [start for start, height, _ in lines if abs(height - place) < 7]
        assert all(start > x + text_width(text, 12) for start in through)


def test_too_many_levels_are_lines_without_names():
    many = tuple(Level(f"level {i}", 470 + i / 10) for i in range(40))
    drawn = charts.draw(chart(Series("a", 0, X, RISING), levels=many), legend=False)
    assert len(elements(drawn, "path", "level")) == 40
    assert elements(drawn, "text", "halo") == []
    assert "473.9 level 39" in drawn.words or "474 level 39" in drawn.words


def labels_at_ends(*series):
    drawn = charts.draw(chart(*series), legend=False)
    return [e.text for e in elements(drawn, "text") if e.get("data-series")]


def test_lines_are_labelled_at_their_ends_where_that_fits():
    ppo, grpo = Series("ppo", 0, X, RISING), Series("grpo", 1, X, RISING / 2)
    assert labels_at_ends(ppo, grpo) == ["ppo", "grpo"]
    assert labels_at_ends(ppo) == []
    assert labels_at_ends(ppo, replace(grpo, label="grpo with a very long name")) == []
    assert labels_at_ends(ppo, replace(grpo, x=X / 2)) == []
    alike = [Series(f"s{i}", i, X, RISING + i) for i in range(6)]
    assert labels_at_ends(*alike) == []


def test_a_legend_is_drawn_where_it_is_needed():
    two = chart(Series("a <b>", 0, X, RISING), Series("b" * 30, 9, X, RISING / 2))
    assert "a <b>" in words(charts.draw(two, legend=True))
    assert "a <b>" not in words(charts.draw(two, legend=False))
    assert charts.draw(two, legend=True).height > charts.draw(two, legend=False).height
    short = chart(Series("a", 0, X, RISING), Series("b", 9, X, RISING / 2))  # named at the ends
    assert charts.draw(short, legend=True) == charts.draw(short, legend=False)


def test_a_chart_is_told_in_words():
    shares = chart(
        Series("ppo", 0, X, RISING / 500, RISING / 500 - 0.1, RISING / 500 + 0.1),
        Series("grpo", 1, X[:10], RISING[:10] / 500),
        levels=(Level("solved", 0.8),),
        y_format="percent",
    )
    assert charts.in_words(shares).replace("\xa0", " ") == (
        "return over environment steps. Last values: ppo: 100.0 [90.0, 110.0] % at 100k; "
        "grpo: 53.2 % at 31.0k. Levels: 80 % solved."
    )


ROWS = (Whisker("ppo", 0, 4.1, 1.2, 6.9), Whisker("grpo", 1, -3.0), Whisker("<a>", 9, 0.5, -2, 3))


def test_intervals_are_drawn_to_scale_with_the_line_of_no_difference():
    drawn = intervals.draw(Intervals("i", "t", "points", ROWS, zero=True))
    x = [float(dot.get("cx")) for dot in elements(drawn, "circle")]
    assert (x[0] - x[1]) / (x[2] - x[1]) == pytest.approx(7.1 / 3.5, abs=0.01)
    (zero,) = elements(drawn, "path", "level")
    at_zero = float(re.match(r"M([\d.]+)", zero.get("d"))[1])
    assert x[1] < at_zero < x[2]
    assert len(elements(drawn, "path", "whisker")) == 2
    assert {"+4.1 [1.2, 6.9]", "−3.0", "+0.5 [−2.0, 3.0]"} <= set(words(drawn))


def test_the_line_of_no_difference_is_shown_far_from_all_values():
    drawn = intervals.draw(
        Intervals("i", "t", "points", (Whisker("a", 0, 90.0, 80, 99),), zero=True)
    )
    at_zero = float(re.match(r"M(-?[\d.]+)", elements(drawn, "path", "level")[0].get("d"))[1])
    assert 0 < at_zero < float(elements(drawn, "circle")[0].get("cx")) - 100


def test_figures_are_written_as_they_are_given():
    chart = Intervals("i", "t", "points", (Whisker("ppo", 0, 4.123, 1.2, 6.9, text="+4.12 <a>"),))
    assert "+4.12 <a>" in words(intervals.draw(chart))
    assert intervals.rows_in_words(chart) == ["ppo: +4.12 <a>"]


def test_long_labels_stand_over_their_whiskers():
    long = tuple(replace(row, label=row.label + " with a very long name") for row in ROWS)
    drawn = intervals.draw(Intervals("i", "t", "points", long))
    beside = intervals.draw(Intervals("i", "t", "points", ROWS))
    assert drawn.height > beside.height
    first = next(e for e in elements(drawn, "text") if e.text.startswith("ppo with"))
    assert float(first.get("y")) < float(elements(drawn, "circle")[0].get("cy")) - 10


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "rows",
    [
        (),
        (Whisker("a", 0, np.nan),),
        (Whisker("a", 0, 1.0, 0.5, np.inf), Whisker("b", 1, 2.0, -np.inf, 3.0)),
        (Whisker("a", -1, 1e300, -1e300, 1e300),),
        (Whisker("a", 0, 0.0, 0.0, 0.0),),
    ],
)
def test_awkward_intervals_make_a_whole_picture(rows):
    drawn = intervals.draw(Intervals("i", "t", "points", rows, "seconds"))
    assert "nan" not in drawn.body
    assert all(-1 <= float(e.get("cx")) <= 441 for e in elements(drawn, "circle"))


def test_a_picture_of_its_own_has_both_themes_written_out():
    text = standalone(charts.draw(chart(Series("a", 0, X, RISING)), legend=True))
    ET.fromstring(text)
    light, dark = text.split("@media (prefers-color-scheme:dark)")
    assert "#1d4fe0" in light
    assert "#8fb0f5" in dark
    assert "var(" not in text
