"""Where ticks stand and how figures are written."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zoo.benchmarks.report.scales import (
    Scale,
    domain,
    figure,
    interval,
    resolution,
    short,
    tick_labels,
    ticks,
)


@pytest.mark.parametrize(
    ("low", "high", "form", "most", "labels"),
    [
        (0, 500, "number", 7, ["0", "100", "200", "300", "400", "500"]),
        (-1300, -100, "number", 7, ["−1,200", "−1,000", "−800", "−600", "−400", "−200"]),
        (0, 1, "percent", 6, ["0 %", "20 %", "40 %", "60 %", "80 %", "100 %"]),
        (0.41, 0.43, "percent", 4, ["41 %", "41.5 %", "42 %", "42.5 %", "43 %"]),
        (0, 100_000, "count", 5, ["0", "20k", "40k", "60k", "80k", "100k"]),
        (0, 2_000_000, "count", 4, ["0", "500k", "1M", "1.5M", "2M"]),
        (0, 12, "seconds", 3, ["0", "5 s", "10 s"]),
        (0, 600, "seconds", 5, ["0", "2 min", "4 min", "6 min", "8 min", "10 min"]),
        (0, 9000, "seconds", 5, ["0", "0.5 h", "1 h", "1.5 h", "2 h", "2.5 h"]),
        (0, 4e-9, "number", 4, ["0", "1e−9", "2e−9", "3e−9", "4e−9"]),
        (0, 2e17, "number", 2, ["0", "1e17", "2e17"]),
    ],
)
def test_an_axis_has_round_figures(low, high, form, most, labels):
    shown = [text.replace("\xa0", " ") for text in tick_labels(ticks(low, high, form, most), form)]
    assert shown == labels


@given(
    st.floats(-1e200, 1e200),
    st.floats(1e-6, 1e6),
    st.sampled_from(["number", "count", "percent", "seconds"]),
    st.integers(1, 8),
)
def test_ticks_lie_within_the_axis_evenly_and_are_not_too_many(low, part, form, most):
    high = low + max(abs(low), 1e-9) * part
    places = ticks(low, high, form, most)
    slack = 1e-8 * (high - low)
    assert len(places) <= most + 2
    assert all(low - slack <= place <= high + slack for place in places)
    assert np.allclose(np.diff(places, 2), 0, atol=1e-6 * (high - low))


@pytest.mark.parametrize(
    ("value", "form", "step", "text"),
    [
        (475.3, "number", 1, "475"),
        (475.3, "number", 0.1, "475.3"),
        (-0.04, "number", 0.1, "0.0"),
        (-12_345.6, "number", 1, "−12,346"),
        (1_234_567, "number", 1000, "1.235M"),
        (12_345, "count", 100, "12.3k"),
        (999, "count", 1, "999"),
        (0.4136, "percent", 0.001, "41.4 %"),
        (90, "seconds", 1, "90 s"),
        (90_000, "seconds", 360, "25.0 h"),
        (2.5e-7, "number", 1e-8, "2.5e−7"),
        (math.nan, "percent", 0.1, "–"),
        (-math.inf, "count", 1, "−∞"),
    ],
)
def test_a_figure_is_as_fine_as_asked_for(value, form, step, text):
    assert figure(value, form, step).replace("\xa0", " ") == text


def test_an_interval_names_its_unit_once():
    texts = [
        interval(0.414, 0.38, 0.449, "percent", 0.001),
        interval(5400, 3600, 9000, "seconds", 360),
        interval(-4.1, -6.9, -1.2, "number", 0.1),
        interval(200_000, 100_000, math.inf, "count", 1000),
    ]
    assert [text.replace("\xa0", " ") for text in texts] == [
        "41.4 [38.0, 44.9] %",
        "1.5 [1.0, 2.5] h",
        "−4.1 [−6.9, −1.2]",
        "200k [100k, ∞]",
    ]


def test_without_an_interval_the_value_stands_alone():
    assert interval(3.0, None, None, "number", 1) == "3"
    assert interval(3.0, math.nan, 4.0, "number", 1) == "3"


def test_three_digits_of_the_width_are_shown():
    steps = [resolution(width, "number") for width in (500, 10, 0.8)]
    assert steps == pytest.approx([1, 0.1, 0.001])


def test_percents_have_one_decimal_or_more():
    assert [resolution(width, "percent") for width in (1.05, 0.02)] == pytest.approx([1e-3, 1e-4])


@pytest.mark.parametrize(
    ("long", "brief"),
    [("1.50M", "1.5M"), ("100", "100"), ("2.000\xa0h", "2\xa0h"), ("0.05", "0.05")],
)
def test_zeros_are_dropped_behind_the_point_only(long, brief):
    assert short(long) == brief


@pytest.mark.parametrize(
    ("values", "options", "ends"),
    [
        ([2.0, 8.0, math.nan, math.inf], {}, (2.0, 8.0)),
        ([0.0, 100.0], {"pad": 0.05}, (-5.0, 105.0)),
        ([10.0, 100.0], {"whole": True}, (0.0, 100.0)),
        ([90.0, 100.0], {"whole": True}, (90.0, 100.0)),
        ([5.0, 5.0], {}, (4.5, 5.5)),
        ([0.0], {}, (-1.0, 1.0)),
        ([-3.0], {}, (-3.3, -2.7)),
        ([], {}, (0.0, 1.0)),
        ([-1.7e308, 1.7e308], {}, (-1e300, 1e300)),
    ],
)
def test_an_axis_has_a_width_whatever_the_values(values, options, ends):
    assert domain(np.array(values), **options) == pytest.approx(ends)


def test_values_are_mapped_linearly_upside_down_too():
    places = Scale(low=0, high=10, start=200, end=100)(np.array([0.0, 2.5, 10.0, 20.0]))
    assert places.tolist() == [200, 175, 100, 0]
