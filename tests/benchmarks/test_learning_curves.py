"""Curves of groups over steps and time, thresholds, speeds."""

from __future__ import annotations

import numpy as np
import pytest
from hand_made import curve, group, run

from zoo.benchmarks.learning_curves import over_steps, over_time, passing, speed
from zoo.benchmarks.tasks import gather


def only(runs):
    (task,), _ = gather(runs)
    (found,) = task.groups
    return found


def test_shared_points_are_kept_as_they_are():
    series = over_steps(only([run("a", s, [s, 2.0 + s]) for s in range(5)]), "evaluation")
    assert series.x.tolist() == [100, 200]
    assert series.y.tolist() == [2, 4]  # IQM of 0..4 and 2..6
    assert (
        series.low is not None and (series.low < series.y).all() and (series.high > series.y).all()
    )


def test_few_runs_have_no_band():
    series = over_steps(only(group("a", [1, 2])), "evaluation")
    assert series.low is None and series.high is None
    assert series.y.tolist() == [0, 1.5]
    assert len(series.traces) == 2


def test_other_points_are_joined_by_lines_where_all_runs_are_known():
    runs = [run("a", 0, [0, 10], steps=[0, 1000]), run("a", 1, [0, 20], steps=[500, 1015])]
    series = over_steps(only(runs), "evaluation")
    assert (series.x[0], series.x[-1]) == (500, 1000)
    assert series.y[0] == pytest.approx((5 + 0) / 2)
    assert series.y[-1] == pytest.approx((10 + 20 * 500 / 515) / 2)


def test_runs_without_common_points_have_no_centre():
    runs = [run("a", 0, [0, 10], steps=[0, 10]), run("a", 1, [0, 20], steps=[10, 20])]
    series = over_steps(only(runs), "evaluation")
    assert series.x.size == 0 and len(series.traces) >= 1


def test_time_takes_only_runs_whose_times_are_known():
    runs = [run("a", 0, [1, 2]), run("a", 1, [3, 4], wall=None)]
    series = over_time(only(runs), "evaluation")
    assert series.x.tolist() == [1, 2] and series.y.tolist() == [1, 2]
    assert len(series.traces) == 1


def test_runs_that_do_not_count_are_drawn_and_not_averaged():
    runs = [run("a", 0, [1, 2]), run("a", 1, [100, 100], status="failed")]
    series = over_steps(only(runs), "evaluation")
    assert series.y.tolist() == [1, 2]
    assert [t.name for t in series.traces] == ["a seed 0", "a seed 1, failed"]


def test_noise_between_grid_points_is_averaged():
    steps, values = np.arange(1.0, 10_001), np.tile([0.0, 2.0], 5000)
    series = over_steps(
        only([run("a", 0, [], curves={"evaluation": curve(values, steps)})]), "evaluation"
    )
    assert len(series.x) == 80
    assert np.abs(series.y - 1).max() < 0.05


def passed(runs, threshold, at=None):
    (task,), _ = gather(runs, at)
    return passing(task.groups[0], threshold, task)


def test_a_threshold_is_passed_by_the_first_measurement_that_reaches_it():
    runs = [run("a", 0, [1, 5, 2]), run("a", 1, [1, 2, 5]), run("a", 2, [5, 1, 1])]
    found = passed(runs, 5)
    assert (found.reached, found.runs) == (3, 3)
    assert (found.step, found.seconds) == (200, 2)


def test_runs_that_never_reach_a_threshold_count_as_later_than_all():
    two_of_four = [run("a", s, [1, 5 if s < 2 else 2]) for s in range(4)]
    assert passed(two_of_four, 5).step is None
    found = passed(two_of_four[:3], 5)
    assert (found.reached, found.step) == (2, 200)


def test_runs_that_failed_or_diverged_count_among_those_that_did_not_reach_it():
    runs = [run("a", 0, [1, 5]), run("a", 1, [1, 2], status="failed")]
    runs += [run("a", 2, [], curves={}, status="diverged"), run("a", 3, [1], status="interrupted")]
    found = passed(runs, 5)
    assert (found.reached, found.runs, found.step) == (1, 3, None)


def test_a_threshold_is_looked_for_up_to_the_compared_step():
    runs = [run("a", 0, [1, 2, 5])]
    assert passed(runs, 5, at=200).reached == 0
    assert passed(runs, 5, at=300).reached == 1


def test_unknown_times_are_no_times_to_a_threshold():
    found = passed([run("a", 0, [1, 5], wall=None)], 5)
    assert (found.step, found.seconds) == (200, None)


def test_speed_is_in_one_unit_and_unknown_where_a_run_has_another():
    plain = curve([1, 2])
    tokens = run("a", 0, [1], facts={"wall_s": 4.0, "tokens": 100, "updates": 2}, unit="updates")
    assert speed(tokens, plain, "tokens/s") == 25
    assert speed(tokens, plain, "updates/s") == 0.5
    assert speed(tokens, plain, "steps/s") is None
    assert speed(run("a", 0, [1], unit="updates"), plain, "tokens/s") is None
    assert speed(run("a", 0, [1], facts={"wall_s": 4.0, "env_steps": 60}), plain, "steps/s") == 15
    assert speed(run("a", 0, [1]), plain, "steps/s") == 100
    assert speed(run("a", 0, [1]), curve([1, 2], wall=None), "steps/s") is None
