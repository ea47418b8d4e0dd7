"""Aggregates of scores: values worked out by hand, and rliable's own on the same arrays."""

import json
from pathlib import Path

import numpy as np
import pytest

from zoo.benchmarks import statistics
from zoo.benchmarks.bootstrap import interval
from zoo.benchmarks.peers.rliable_reference import CASES
from zoo.benchmarks.statistics import (
    as_scores,
    iqm,
    mean,
    median,
    optimality_gap,
    performance_profile,
    probability_of_improvement,
)

REFERENCE = json.loads(Path(__file__).with_name("rliable_reference.json").read_text("utf-8"))
AGGREGATES = ("iqm", "mean", "median", "optimality_gap")
TWO_TASKS = np.array([[0.0, 10.0], [2.0, 20.0], [7.0, 90.0]])


def drawn_as_rliable(seed, reps, *shapes):
    """rliable draws each resample of each array in turn from NumPy's global generator."""
    state = np.random.RandomState(seed)
    drawn = [[state.choice(shape[0], shape) for shape in shapes] for _ in range(reps)]
    return [np.stack(side) for side in zip(*drawn)]


def test_iqm_leaves_out_a_quarter_of_the_pooled_scores_at_each_end():
    # 0 2 7 10 20 90: ⌊6/4⌋ = 1 is cut at each end, (2 + 7 + 10 + 20) / 4
    assert iqm(TWO_TASKS) == pytest.approx(9.75)


@pytest.mark.parametrize(
    ("scores", "expected"), [([1, 2, 9], 4), ([1, 2, 4, 9], 3), ([0, 1, 2, 4, 9, 9, 9], 5)]
)
def test_iqm_cuts_whole_scores_only(scores, expected):
    assert iqm(np.array(scores)[:, None]) == expected


def test_mean_and_median_are_over_tasks_of_means_over_runs():
    three = np.column_stack([TWO_TASKS, [5.0, 5.0, 5.0]])
    assert mean(three) == pytest.approx((3 + 40 + 5) / 3)
    assert median(three) == 5


def test_optimality_gap_counts_what_is_missing_and_forgives_nothing():
    # missing from 5: 5, 3, 0; 0, 0, 0
    assert optimality_gap(TWO_TASKS, gamma=5.0) == pytest.approx(8 / 6)
    assert optimality_gap([[0.25], [3.0]]) == pytest.approx(0.75 / 2)


def test_improvement_counts_wins_and_half_of_ties_by_task():
    x, y = np.array([[1.0, 5.0], [3.0, 5.0]]), np.array([[1.0, 9.0], [2.0, 9.0], [4.0, 9.0]])
    # task 1: 1 wins against {1: tie}, 3 beats 1 and 2: 2.5 of 6; task 2: none
    assert probability_of_improvement(x, y) == pytest.approx(2.5 / 6 / 2)
    assert probability_of_improvement(y, x) == pytest.approx(1 - 2.5 / 6 / 2)
    assert probability_of_improvement(x, x) == 0.5


def test_profile_counts_runs_strictly_above_or_tasks_by_their_mean():
    np.testing.assert_allclose(performance_profile(TWO_TASKS, [0, 7, 100]), [5 / 6, 3 / 6, 0])
    np.testing.assert_allclose(
        performance_profile(TWO_TASKS, [3, 2, 40], average=True), [0.5, 1, 0]
    )


@pytest.mark.parametrize("name", AGGREGATES)
def test_leading_axes_hold_resamples(name):
    statistic = getattr(statistics, name)
    many = np.random.default_rng(0).normal(size=(2, 3, 5, 4))
    found = statistic(many)
    assert found.shape == (2, 3)
    assert found[1, 2] == statistic(many[1, 2])


def test_leading_axes_hold_resamples_of_two_groups_and_of_profiles():
    x, y = np.random.default_rng(0).normal(size=(2, 3, 5, 4))
    expected = [probability_of_improvement(a, b) for a, b in zip(x, y)]
    np.testing.assert_allclose(probability_of_improvement(x, y), expected)
    expected = [performance_profile(a, [0.0, 1.0]) for a in x]
    np.testing.assert_allclose(performance_profile(x, [0.0, 1.0]), expected)


def test_tasks_stand_side_by_side():
    np.testing.assert_array_equal(as_scores([[1, 2], [3, 4]]), [[1, 3], [2, 4]])


def test_tasks_with_unequal_numbers_of_runs_are_refused():
    with pytest.raises(ValueError, match=r"equally many runs of each \(got \[2, 3\]\)"):
        as_scores([[1, 2], [3, 4, 5]])


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("name", AGGREGATES)
def test_scores_that_are_not_finite_are_refused(name, bad):
    with pytest.raises(ValueError, match="not finite"):
        getattr(statistics, name)([[1.0, 2.0], [3.0, bad]])


@pytest.mark.parametrize("shape", [(3,), (0, 2), (2, 0)])
def test_scores_are_tables(shape):
    with pytest.raises(ValueError, match=r"\[runs, tasks\]"):
        iqm(np.zeros(shape))


def test_groups_with_different_tasks_are_refused():
    with pytest.raises(ValueError, match="task by task"):
        probability_of_improvement(np.zeros((2, 2)), np.zeros((2, 3)))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", AGGREGATES)
def test_aggregates_agree_with_rliable(case, name):
    stored = REFERENCE["cases"][case]
    x = np.array(stored["x"])
    value, limits = stored["aggregates"][name]
    indices = drawn_as_rliable(REFERENCE["seed"], REFERENCE["reps"], x.shape)
    found = interval(getattr(statistics, name), x, indices=indices)
    np.testing.assert_allclose([found.value, found.low, found.high], [value, *limits], atol=1e-9)


@pytest.mark.parametrize("case", CASES)
def test_improvement_agrees_with_rliable(case):
    stored = REFERENCE["cases"][case]
    x, y = np.array(stored["x"]), np.array(stored["y"])
    value, limits = stored["improvement"]
    indices = drawn_as_rliable(REFERENCE["seed"], REFERENCE["reps"], x.shape, y.shape)
    found = interval(probability_of_improvement, x, y, indices=indices)
    np.testing.assert_allclose([found.value, found.low, found.high], [value, *limits], atol=1e-9)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("average", [False, True])
def test_profiles_agree_with_rliable(case, average):
    stored = REFERENCE["cases"][case]
    expected = stored["average_profile" if average else "profile"]
    x = np.array(stored["x"])
    thresholds = REFERENCE["thresholds"]
    np.testing.assert_allclose(
        performance_profile(x, thresholds, average), expected["value"], atol=1e-9
    )
    indices = drawn_as_rliable(REFERENCE["seed"], REFERENCE["reps"], x.shape)
    for place, tau in enumerate(thresholds):
        found = interval(
            lambda s, tau=tau: performance_profile(s, [tau], average)[..., 0], x, indices=indices
        )
        limits = [side[place] for side in expected["limits"]]
        np.testing.assert_allclose([found.low, found.high], limits, atol=1e-9)


def test_aggregates_agree_with_rliable_that_is_installed():
    library = pytest.importorskip("rliable.library")
    metrics = pytest.importorskip("rliable.metrics")
    x, y = np.random.default_rng(3).normal(size=(2, 6, 5))
    theirs = {
        iqm: metrics.aggregate_iqm,
        mean: metrics.aggregate_mean,
        median: metrics.aggregate_median,
        optimality_gap: metrics.aggregate_optimality_gap,
        probability_of_improvement: metrics.probability_of_improvement,
    }
    for ours, their in theirs.items():
        groups = (x, y) if ours is probability_of_improvement else (x,)
        np.random.seed(11)
        value, limits = library.get_interval_estimates(
            {"x": groups if len(groups) > 1 else x}, lambda *a, f=their: np.array([f(*a)]), reps=300
        )
        indices = drawn_as_rliable(11, 300, *(g.shape for g in groups))
        found = interval(ours, *groups, indices=indices)
        expected = [value["x"][0], *limits["x"][:, 0]]
        np.testing.assert_allclose([found.value, found.low, found.high], expected, atol=1e-9)
