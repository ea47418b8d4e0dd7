"""What is said of figures, and that it is right."""

from __future__ import annotations

import numpy as np
import pytest
from hand_made import curve, group, run

from zoo.benchmarks.tasks import gather
from zoo.benchmarks.verdicts import chance, gains, levels, pairs, sentence, speeds


def task_of(*runs):
    (task,), _ = gather([r for rs in runs for r in (rs if isinstance(rs, list) else [rs])])
    return task


def said(*runs, baseline=None):
    task = task_of(*runs)
    return [sentence(pair, task) for pair in pairs(task, baseline)]


def test_the_better_one_is_named_first_whatever_the_order():
    worse, better = group("w", range(1, 7)), group("b", range(101, 107))
    for runs in ((worse, better), (better, worse)):
        (text,) = said(*runs)
        assert text.startswith("b beats w on [CartPole-v1](#task-cartpole-v1): +100.0 [+")
        assert "probability of improvement 1 (6 seeds each, paired" in text
        assert "at 200 environment steps" in text


def test_a_difference_within_noise_is_no_verdict_and_says_what_would_be_seen():
    (text,) = said(group("a", [1, 5, 9, 2, 8]), group("b", [2, 8, 1, 9, 5.5]))
    assert text.startswith("No difference outside noise between b and a")
    assert "a difference is seen from about" in text


def test_groups_that_are_equal_in_every_run_are_called_equal():
    (text,) = said(group("a", [500] * 5), group("b", [500] * 5))
    assert text.startswith("a and b are equal on") and "500.0 in every run" in text


def test_runs_that_are_equal_by_pairs_only_are_not_called_equal_in_every_run():
    (text,) = said(group("a", range(6)), group("b", range(6)))
    assert text.startswith("No difference between") and "every run" not in text
    (text,) = said(group("a", [100, *[500] * 9]), group("b", [500] * 10))
    assert "every run" not in text


def test_a_verdict_follows_the_paired_difference_not_the_two_levels():
    b, a = [0] * 10 + [100] * 10, [100] + [-1] * 9 + [99] * 10
    (pair,) = pairs(task_of(group("a", a), group("b", b)))
    assert pair.difference.value >= 0
    assert pair.better.label == "b"


def test_levels_of_training_episodes_say_so_and_stand_beside_no_evaluation():
    training = {"training": curve([0, 500], [50_000, 100_000])}
    runs = [run("ppo", s, [], curves=training, settings={"algo.name": "ppo"}) for s in range(5)]
    (text,) = levels(task_of(runs))
    assert "by training episodes" in text and "published" not in text


def test_a_published_result_of_another_version_of_the_task_says_which():
    runs = [
        run(
            "ppo",
            s,
            [0, 242.0 + s],
            steps=[1, 1_000_000],
            env="LunarLander-v3",
            settings={"algo.name": "ppo"},
        )
        for s in range(5)
    ]
    (text,) = levels(task_of(runs))
    assert "on LunarLander-v2" in text


def test_speeds_are_compared_on_one_machine_and_one_clock_only():
    fast, slow = {"wall_s": 1.0, "env_steps": 3}, {"wall_s": 2.0, "env_steps": 3}
    runs = [group("a", range(3), facts=fast), group("b", range(3), facts=slow)]
    (text,) = speeds(task_of(*runs), "b")
    assert text.startswith("a takes 2.00 times the steps/s of b") and ": 3 against 1.50 (" in text
    other = [group("b", range(3), facts={**slow, "hardware": {"cpus": 64}})]
    assert speeds(task_of(runs[0], *other), "b") == []
    at_once = [group("b", range(3), facts={**slow, "seeds_together": 3})]
    assert speeds(task_of(runs[0], *at_once), "b") == []
    theirs = [group("b", range(3), facts=slow, kind="sb3")]
    assert speeds(task_of(runs[0], *theirs), "b") == []


def test_few_seeds_give_no_verdict():
    (text,) = said(group("a", [1, 2]), group("b", [100, 101]))
    assert text.startswith("Nothing follows yet for b against a")
    assert "2 seeds each" in text


def test_one_seed_against_many_gives_no_verdict():
    (text,) = said(group("a", [1, 2, 1, 2, 1]), group("b", [100]))
    assert "1 against 5 seeds" in text


def test_shared_seeds_are_paired_and_others_are_not():
    a, b = group("a", range(6)), group("b", range(6))
    other = [run("c", s + 10, [0, 3]) for s in range(6)]
    theirs = group("d", range(6), kind="sb3")
    assert [p.paired for p in pairs(task_of(a, b))] == [True]
    assert [p.paired for p in pairs(task_of(a, other))] == [False]
    assert [p.paired for p in pairs(task_of(a, theirs))] == [False]


def test_too_few_shared_seeds_for_a_paired_interval_are_compared_as_groups():
    (found,) = pairs(task_of(group("a", range(5)), group("b", range(50, 55))))
    assert not found.paired and found.decided


def test_pairing_removes_what_seeds_share():
    noise = np.array([-300.0, 250.0, 10.0, -120.0, 90.0, 30.0])
    better = noise + np.array([5, 6, 5, 6, 5, 7])
    (paired,) = pairs(task_of(group("a", noise), group("b", better)))
    assert paired.paired and paired.decided and paired.better.label == "b"


def test_accuracies_are_compared_in_points():
    a = group("a", [0.40, 0.41, 0.39, 0.40, 0.40], metric="accuracy", env="gsm8k", unit="updates")
    b = group("b", [0.45, 0.46, 0.44, 0.45, 0.45], metric="accuracy", env="gsm8k", unit="updates")
    (text,) = said(a, b)
    assert "b beats a on [gsm8k](#task-gsm8k): +5.00 [+" in text
    assert "] points, probability of improvement 1" in text


def test_a_baseline_is_compared_with_all_others_only():
    runs = [group(label, np.array([1, 2, 3, 4, 5]) + i) for i, label in enumerate("abc")]
    found = pairs(task_of(*runs), "b")
    assert [(p.better.label, p.worse.label) for p in found] == [("c", "b"), ("b", "a")]


def test_of_many_groups_the_best_is_compared_with_the_rest():
    runs = [group(label, np.array([1, 2, 3, 4, 5]) + i) for i, label in enumerate("abcde")]
    assert [(p.better.label, p.worse.label) for p in pairs(task_of(*runs))] == [
        ("e", "d"),
        ("e", "c"),
        ("e", "b"),
        ("e", "a"),
    ]


def test_a_gain_is_told_from_where_each_run_started():
    runs = [
        run("a", s, [0.4 + s / 100, 0.7 + s / 100], steps=[0, 100], metric="accuracy", env="g")
        for s in range(5)
    ]
    (text,) = gains(task_of(runs))
    assert text == (
        "a on [g](#task-g): 42.0 % → 72.0 %, +30.0 [+30.0, +30.0] points (5 seeds, at 100"
        " environment steps)."
    )


def test_a_gain_of_few_runs_has_no_interval():
    runs = [run("a", s, [0.4, 0.7], steps=[0, 100], metric="accuracy", env="g") for s in range(2)]
    (text,) = gains(task_of(runs))
    assert "70.0 %, +30.0 points (2 seeds" in text


def test_no_gain_is_told_where_the_start_was_not_measured():
    runs = [run("a", s, [0.4, 0.7], metric="accuracy", env="g") for s in range(5)]
    assert gains(task_of(runs)) == []


@pytest.mark.parametrize(
    ("reached", "place"),
    [(500.0, "which the interval holds"), (400.0, "which is above"), (600.0, "which is below")],
)
def test_what_was_published_after_as_many_steps_stands_beside_it(reached, place):
    values = reached + np.array([-1, 0, 1, -1, 1])
    settings = {"algo.name": "ppo"}
    runs = [
        run("ppo", s, [0, v], steps=[50_000, 100_000], settings=settings)
        for s, v in enumerate(values)
    ]
    (text,) = levels(task_of(runs))
    assert "RL Baselines3 Zoo published 500.0" in text and place in text


def test_what_was_published_after_other_budgets_or_for_other_algorithms_does_not():
    early = [run("ppo", 0, [0, 400], settings={"algo.name": "ppo"})]
    other = [run("grpo", 0, [0, 400], steps=[1, 100_000], settings={"algo.name": "grpo"})]
    for runs in (early, other):
        (text,) = levels(task_of(runs))
        assert "published" not in text


def test_comparisons_by_training_episodes_say_so():
    runs = [
        run(label, s, [], curves={"training": curve([0, value + s])})
        for label, value in (("a", 0), ("b", 100))
        for s in range(5)
    ]
    (text,) = said(runs)
    assert "by training episodes" in text


def test_many_comparisons_are_warned_of():
    assert chance(5) == []
    (text,) = chance(40)
    assert "about 2 of them" in text
    (text,) = chance(4, picked=5)
    assert "The best of 5 groups" in text
