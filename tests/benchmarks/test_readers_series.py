"""Raw points to a curve: what is dropped, what stands, and what is said about it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from zoo.benchmarks.readers.series import clean, diverged, thin
from zoo.benchmarks.records import Curve

NAN = math.nan


def pairs(curve):
    return list(zip(curve.step.tolist(), curve.value.tolist(), strict=True))


def test_points_in_order_stay_as_they_are():
    series = clean([0, 10, 20], [1.0, 2.0, 3.0], [0.0, 0.5, 0.5])
    assert pairs(series.curve) == [(0, 1), (10, 2), (20, 3)]
    assert series.curve.wall_s.tolist() == [0.0, 0.5, 0.5]
    assert series.remarks == ()
    assert series.lost_from is None


def test_values_that_are_not_finite_in_the_middle_are_dropped_and_counted():
    series = clean([1, 2, 3, 4], [1.0, NAN, math.inf, 4.0])
    assert pairs(series.curve) == [(1, 1), (4, 4)]
    assert series.remarks == ("2 values that are no finite number left out",)
    assert series.lost_from is None


def test_values_that_are_not_finite_at_the_end_mean_that_the_run_was_lost():
    series = clean([1, 2, 3, 4], [1.0, 2.0, NAN, -math.inf])
    assert pairs(series.curve) == [(1, 1), (2, 2)]
    assert series.lost_from == 3
    assert series.remarks == ("no finite value from step 3 on, up to the end",)


def test_a_curve_without_any_finite_value_is_none_and_lost():
    series = clean([5, 6], [NAN, NAN])
    assert series.curve is None
    assert series.lost_from == 5


def test_of_a_resumed_run_the_later_segment_stands():
    series = clean([10, 20, 30, 15, 25], [1, 2, 3, 4, 5], [1, 2, 3, 2, 3])
    assert pairs(series.curve) == [(10, 1), (15, 4), (25, 5)]
    assert "go back 1 time" in series.remarks[0]
    assert "2 points of the earlier one went" in series.remarks[0]


def test_a_resumed_run_replaces_the_step_it_starts_from():
    assert pairs(clean([10, 20, 20, 30], [1, 2, 9, 3]).curve) == [(10, 1), (20, 9), (30, 3)]
    assert pairs(clean([10, 20, 30, 20, 30], [1, 2, 3, 8, 9]).curve) == [(10, 1), (20, 8), (30, 9)]


def test_the_end_of_a_superseded_segment_does_not_count_as_lost():
    assert clean([10, 20, 30, 20, 30], [1, 2, NAN, 8, 9]).lost_from is None


def test_rows_in_no_order_at_all_are_sorted_and_not_thrown_away():
    series = clean([50, 10, 40, 20, 30], [5, 1, 4, 2, 3])
    assert pairs(series.curve) == [(10, 1), (20, 2), (30, 3), (40, 4), (50, 5)]
    assert series.remarks == ("its rows are in no order of steps: sorted",)


def test_a_table_that_begins_with_the_newest_row_is_sorted():
    steps = list(range(100, 0, -10))
    assert pairs(clean(steps, steps).curve) == [(s, s) for s in reversed(steps)]


def test_the_same_point_twice_is_dropped_without_a_word():
    series = clean([1, 2, 2, 3], [1, 2, 2, 3])
    assert pairs(series.curve) == [(1, 1), (2, 2), (3, 3)]
    assert series.remarks == ()


def test_one_step_with_two_values_keeps_the_later_and_says_so():
    series = clean([1, 2, 2, 3], [1, 2, 5, 3])
    assert pairs(series.curve) == [(1, 1), (2, 5), (3, 3)]
    assert series.remarks == ("1 step with two different values: the later one stands",)


def test_a_number_takes_the_place_of_a_missing_value_at_the_same_step():
    series = clean([1, 2, 2], [1, NAN, 5])
    assert pairs(series.curve) == [(1, 1), (2, 5)]
    assert series.lost_from is None


def test_points_without_a_step_are_left_out():
    series = clean([1, NAN, 3], [1, 2, 3])
    assert pairs(series.curve) == [(1, 1), (3, 3)]
    assert series.remarks == ("1 point without a step left out",)


def test_a_clock_that_goes_back_is_not_used():
    series = clean([1, 2, 3], [1, 2, 3], [1.0, 5.0, 2.0])
    assert series.curve.wall_s is None
    assert "clock goes back" in series.remarks[0]


def test_a_clock_with_holes_is_not_used():
    assert clean([1, 2], [1, 2], [1.0, NAN]).curve.wall_s is None


def test_single_episodes_become_means_of_the_last_so_many():
    series = clean([1, 2, 3, 4], [1.0, 3.0, 5.0, 7.0], window=2)
    assert pairs(series.curve) == [(1, 1), (2, 2), (3, 4), (4, 6)]


def test_episodes_that_end_at_one_step_all_count():
    series = clean([5, 5, 9], [1.0, 3.0, 8.0], window=100)
    assert pairs(series.curve) == [(5, 2), (9, 4)]
    assert series.remarks == ()


def test_a_long_curve_of_episodes_is_thinned_and_keeps_its_last_point():
    steps = list(range(1, 5001))
    curve = clean(steps, steps, window=100).curve
    assert len(curve.step) <= 500
    assert curve.step[-1] == 5000
    assert curve.value[-1] == np.mean(range(4901, 5001))


def test_thinning_keeps_first_and_last_point_and_the_clock():
    steps = np.arange(1000.0)
    thinned = thin(Curve(steps, steps * 2, steps * 3), 50)
    assert len(thinned.step) == 50
    assert thinned.step[[0, -1]].tolist() == [0, 999]
    assert (thinned.value == 2 * thinned.step).all()
    assert (thinned.wall_s == 3 * thinned.step).all()


def test_thinning_is_even_over_the_steps_not_over_the_points():
    steps = np.concatenate([np.arange(900.0), np.arange(1000.0, 10001.0, 1000.0)])
    kept = thin(Curve(steps, steps), 11).step
    assert kept.tolist() == [0, *np.arange(1000.0, 10001.0, 1000.0)]


GOOD, LOST = clean([1, 2], [1, 2]), clean([1, 2], [1, NAN])


@pytest.mark.parametrize(
    ("series", "metric", "expected"),
    [
        ({"evaluation": GOOD, "training": GOOD}, "return", False),
        ({"evaluation": LOST, "training": GOOD}, "return", True),
        ({"training": LOST}, "return", True),
        # the evaluation at the end is finite, whatever the last training episode was
        ({"evaluation": GOOD, "training": LOST}, "return", False),
        ({"evaluation": clean([1], [1]), "training": LOST}, "return", True),
        # all gradings of the last round failed: unknown, not lost
        ({"evaluation": clean([1], [1]), "training": LOST}, "accuracy", False),
        ({}, "return", False),
    ],
)
def test_a_run_diverged_where_its_last_measurement_is_not_finite(series, metric, expected):
    assert diverged(series, metric) is expected
