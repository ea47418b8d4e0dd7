"""Intervals from few runs: their limits by hand, their symmetries, and when there are none."""

import math

import numpy as np
import pytest

from zoo.benchmarks.bootstrap import (
    expanded_tail,
    interval,
    quantiles,
    rank_weights,
    stratified_indices,
)
from zoo.benchmarks.intervals import (
    Estimate,
    aggregate,
    band,
    detectable,
    difference,
    difference_band,
    fewest_runs,
    fewest_tasks,
    improvement,
    level,
    profile,
)
from zoo.benchmarks.statistics import iqm, mean, median
from zoo.benchmarks.student import t_probability, t_quantile


def runs(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


@pytest.mark.parametrize(
    ("df", "t"),
    [
        (1, 12.7062047362),
        (1.5, 6.0166631),
        (4, 2.7764451052),
        (9, 2.2621571629),
        (1e6, 1.9599663568),
    ],
)
def test_quantiles_of_students_t_are_those_of_the_tables(df, t):
    assert t_quantile(0.95, df) == pytest.approx(t, rel=1e-6)
    assert t_probability(t, df) == pytest.approx(0.95, abs=1e-8)


def test_expanded_tail_of_one_group_goes_by_n_minus_one():
    # t(4) = 2.77645, √(5/4) t = 3.10416, Φ(−3.10416) = 0.000954
    assert expanded_tail(np.array([3.0]), [5]) == pytest.approx(0.000954, abs=1e-6)


def test_expanded_tail_of_two_groups_has_welch_s_degrees_of_freedom():
    equal = expanded_tail(np.array([2.0, 2.0]), [5, 5])
    # t(8) = 2.30600, √(5/4) t = 2.57819
    assert equal == pytest.approx(0.004966, abs=1e-6)
    # 1/5 and 6/15: shares ⅓ and ⅔, df = 1 / (1/36 + 4/126) = 16.8, t = 2.11173,
    # factor 1 / √(⅓·4/5 + ⅔·14/15) = 1.06066
    unequal = expanded_tail(np.array([1.0, 6.0]), [5, 15])
    assert unequal == pytest.approx(0.012551, abs=1e-6)
    one_sided = expanded_tail(np.array([2.0, 0.0]), [5, 9])
    assert one_sided == pytest.approx(expanded_tail(np.array([2.0]), [5]))


def test_quantiles_are_those_of_numpy_at_a_tail_of_each_row():
    resampled, tail = runs(3, 101), np.array([0.0, 0.013, 0.2])
    low, high = quantiles(resampled, tail)
    for row, at, below, above in zip(resampled, tail, low, high):
        np.testing.assert_allclose([below, above], np.quantile(row, [at, 1 - at]))


def test_curves_are_resampled_as_the_bootstrap_does():
    values = np.sort(runs(7, 2), axis=0)
    drawn = stratified_indices(np.random.default_rng((0, 7)), 5000, 7, 1)
    found = band(values)
    for point in range(2):
        scores = values[:, point : point + 1]
        expected = interval(iqm, scores, method="expanded", indices=[drawn])
        limits = [found.centre[point], found.low[point], found.high[point]]
        np.testing.assert_allclose(limits, [expected.value, expected.low, expected.high])


def test_difference_is_resampled_as_the_bootstrap_of_two_groups_does():
    x, y = np.sort(runs(6)), np.sort(3 * runs(9, seed=1))
    drawn = [
        stratified_indices(np.random.default_rng((stream, n)), 5000, n, 1)
        for stream, n in enumerate((6, 9))
    ]
    expected = interval(
        lambda a, b: iqm(a) - iqm(b), x[:, None], y[:, None], method="expanded", indices=drawn
    )
    found = difference(x, y)
    np.testing.assert_allclose(
        [found.value, found.low, found.high], [expected.value, expected.low, expected.high]
    )


def test_resamples_of_two_groups_are_independent():
    same = np.array_equal(rank_weights(6, 1, 0), rank_weights(6, 1, 1))
    assert not same
    np.testing.assert_allclose(rank_weights(6, 1, 0).sum(axis=1), 1)


def test_five_runs_say_no_more_than_their_range():
    x = runs(5)
    found = level(x)
    assert (found.low, found.high) == pytest.approx((x.min(), x.max()))
    assert found.value == pytest.approx(np.sort(x)[1:4].mean())


def test_expanded_percentiles_are_wider_than_rliables_by_less_with_more_runs():
    def widening(n):
        scores = runs(n, 1)
        wide, narrow = (interval(iqm, scores, method=m) for m in ("expanded", "percentile"))
        return (wide.high - wide.low) / (narrow.high - narrow.low)

    assert widening(6) > widening(12) > widening(50) > 1
    assert widening(50) < 1.1


@pytest.mark.parametrize("method", ["percentile", "expanded"])
def test_interval_of_the_mean_has_the_width_that_theory_gives(method):
    scores = runs(20, 1)
    found = interval(mean, scores, method=method, reps=20_000)
    z = 1.96 if method == "percentile" else 2.093 * math.sqrt(20 / 19)
    expected = 2 * z * scores.std() / math.sqrt(20)
    assert found.high - found.low == pytest.approx(expected, rel=0.05)


def test_levels_move_and_stretch_with_the_scores():
    x = runs(8)
    plain, moved = level(x), level(100 - 3 * x)
    assert moved.value == pytest.approx(100 - 3 * plain.value)
    width = 3 * (plain.high - plain.low)
    assert moved.low == pytest.approx(100 - 3 * plain.high, abs=0.1 * width)
    assert moved.high - moved.low == pytest.approx(width, rel=0.1)


def test_difference_changes_its_sign_with_the_order():
    x, y = runs(7) + 5, runs(9, seed=1)
    forth, back = difference(x, y), difference(y, x)
    assert forth.low > 0 > back.high
    assert forth.value == pytest.approx(-back.value)
    assert forth.low == pytest.approx(-back.high, abs=0.2)


def test_pairing_takes_out_what_seeds_share():
    luck = 10 * runs(8)
    x, y = luck + runs(8, seed=1) + 2, luck + runs(8, seed=2)
    paired, unpaired = difference(x, y, paired=True), difference(x, y)
    assert paired == level(x - y)
    assert paired.excludes(0)
    assert not unpaired.excludes(0)


def test_aggregates_over_tasks_widen_the_stratified_bootstrap():
    x, y = runs(6, 5), runs(8, 5, seed=1)
    assert level(x) == interval(iqm, x, method="expanded")
    assert aggregate(median, x) == interval(median, x, method="expanded")
    assert difference(x, y) == interval(lambda a, b: iqm(a) - iqm(b), x, y, method="expanded")
    assert difference(x, y[:6], paired=True) == level(x - y[:6])


def test_same_scores_give_the_same_interval():
    x = runs(6)
    assert level(x) == level(x.copy()) == level(x[:, None]) == level(x[::-1])


def test_improvement_of_five_wins_of_five_leaves_room():
    found = improvement(runs(5) + 99, runs(5, seed=1))
    # Wilson: n / (n + z²) = 5 / 8.8415
    assert (found.value, found.high) == (1, 1)
    assert found.low == pytest.approx(0.56552, abs=1e-5)
    assert found.excludes(0.5)


def test_improvement_counts_as_many_duels_as_the_smaller_group_and_tasks():
    x = np.tile(np.arange(5.0)[:, None], (1, 4))
    found = improvement(x, np.repeat(x, 2, axis=0))
    # 20 duels, half won: 1/2 ∓ z √(1/4 / (20 + z²))
    assert found.low == pytest.approx(0.5 - 1.95996 / math.sqrt(4 * (20 + 3.84146)), abs=1e-5)
    assert found.high == pytest.approx(1 - found.low)


def test_profile_is_banded_by_wilsons_interval():
    found = profile(np.arange(10.0), [-1.0, 4.5, 9.0])
    np.testing.assert_allclose(found.centre, [1, 0.5, 0])
    np.testing.assert_allclose(found.low, [10 / 13.8415, 0.23659, 0], atol=1e-4)
    np.testing.assert_allclose(found.high, 1 - found.low[::-1])
    pooled = profile(np.arange(10.0).reshape(5, 2), [4.5])
    np.testing.assert_allclose([pooled.low[0], pooled.high[0]], [found.low[1], found.high[1]])


def test_bands_are_levels_at_each_point():
    values = runs(6, 3)
    found, means = band(values), band(values, statistic="mean")
    for point in range(3):
        one = level(values[:, point])
        assert found.centre[point] == one.value
        np.testing.assert_allclose([found.low[point], found.high[point]], [one.low, one.high])
    np.testing.assert_allclose(means.centre, values.mean(axis=0))
    assert difference_band(values, values + 1).centre == pytest.approx(-np.ones(3))


def test_bands_of_many_points_are_made_piece_by_piece():
    x, y = runs(5, 600), runs(7, 600, seed=1) * np.linspace(0.01, 10, 600)
    whole, last = difference_band(x, y), difference_band(x[:, 599:], y[:, 599:])
    np.testing.assert_allclose([whole.low[599], whole.high[599]], [last.low[0], last.high[0]])


def test_too_few_runs_give_no_interval():
    few, one = runs(4), runs(1)
    assert level(few) == Estimate(float(iqm(few[:, None])))
    assert level(one) == Estimate(float(one[0]))
    assert difference(few, runs(9)).low is None
    assert improvement(runs(9), few).low is None
    assert profile(few, [0.0]).low is None
    assert band(runs(4, 3)).low is None
    assert level(runs(4, 6)).low is None
    assert difference(runs(4, 6), runs(9, 6)).low is None
    assert interval(mean, runs(1, 3)).low is None
    assert not level(few).flat
    assert not level(few).excludes(99)


def test_five_shared_seeds_give_no_paired_interval():
    x, y = runs(5), runs(5, seed=1)
    assert fewest_runs(paired=True) == 6
    assert difference(x, y, paired=True) == Estimate(level(x - y).value)
    assert difference(x, y).low is not None


def test_few_tasks_give_no_interval_of_an_aggregate():
    assert fewest_tasks() == 5
    x, y = runs(9, 4), runs(9, 4, seed=1)
    assert level(x) == Estimate(float(iqm(x)))
    assert difference(x, y).low is None
    assert improvement(x, y).low is not None


@pytest.mark.parametrize("level_of_all", [0.1, 500.0, 0.0])
def test_equal_runs_give_a_flat_interval_without_rounding(level_of_all):
    five, six = np.full(5, level_of_all), np.full(6, level_of_all)
    assert level(five) == Estimate(level_of_all, level_of_all, level_of_all)
    assert level(five).flat
    assert not level(runs(5) / 100).flat
    for gap in (
        difference(five, six),
        difference(np.tile(five[:, None], 7), np.tile(six[:, None], 7)),
        difference(six, six, paired=True),
    ):
        assert gap == Estimate(0, 0, 0)
        assert not gap.excludes(0)


@pytest.mark.parametrize(
    "call", [level, band, lambda x: difference(x, x), lambda x: profile(x, [0])]
)
def test_scores_that_are_not_finite_are_refused(call):
    with pytest.raises(ValueError, match="not finite"):
        call(np.array([[1.0], [2.0], [np.nan], [3.0], [4.0], [5.0]]))


def test_what_cannot_be_compared_is_refused():
    with pytest.raises(ValueError, match="paired runs are as many"):
        difference(runs(5), runs(6), paired=True)
    with pytest.raises(ValueError, match="task by task"):
        difference(runs(5, 5), runs(5, 6))
    with pytest.raises(ValueError, match="iqm or mean"):
        band(runs(5, 2), statistic="median")
    with pytest.raises(ValueError, match="percentile or expanded"):
        interval(mean, runs(5, 2), method="bca")


def test_detectable_difference_is_half_the_width_of_a_typical_interval():
    for n in (5, 10):
        many = difference_band(runs(n, 400), runs(n, 400, seed=1))
        assert detectable(1.0, n) == pytest.approx(np.mean(many.high - many.low) / 2, rel=0.1)


def test_detectable_difference_shrinks_with_runs_and_grows_with_spread():
    found = [detectable(1.0, n) for n in (5, 10, 20, 40)]
    assert found == sorted(found, reverse=True)
    assert detectable(3.0, 10) == pytest.approx(3 * found[1])
    assert detectable(1.0, 4) == math.inf
