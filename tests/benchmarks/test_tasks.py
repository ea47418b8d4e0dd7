"""Who is compared with whom, on what, and at which step."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hand_made import curve, group, run

from zoo.benchmarks.tasks import gather


def texts(notes):
    return " ".join(note.text for note in notes)


def test_runs_are_compared_at_the_last_step_that_all_have_reached():
    long = run("a", 0, [1, 2, 3, 4], steps=[100, 200, 300, 400])
    short = run("b", 0, [5, 6], steps=[100, 200])
    (task,), notes = gather([long, short])
    assert task.at == 200
    assert [g.values.tolist() for g in task.groups] == [[2], [6]]
    assert "compared at 200, where b seed 0 ends" in texts(notes)


def test_a_step_asked_for_is_taken():
    (task,), _ = gather([run("a", 0, [1, 2, 3])], at=200)
    assert task.groups[0].values.tolist() == [2]


def test_ends_that_differ_by_a_round_are_the_same_end():
    runs = [run("a", 0, [1, 2], steps=[50, 1000]), run("b", 0, [3, 4], steps=[50, 1015])]
    (task,), notes = gather(runs)
    assert [g.values.tolist() for g in task.groups] == [[2], [4]]
    assert not notes


def test_a_run_not_measured_by_then_is_left_out_and_said():
    runs = [run("a", 0, [1, 2]), run("b", 0, [9], steps=[900])]
    (task,), notes = gather(runs)
    assert [g.label for g in task.compared] == ["a"]
    assert "b seed 0 was first measured after 200, and left out" in texts(notes)


def test_a_run_that_ends_long_before_the_step_asked_for_is_left_out():
    runs = [run("a", 0, [1, 2]), run("b", 0, [9], steps=[100])]
    (task,), notes = gather(runs, at=200)
    assert [g.label for g in task.compared] == ["a"]
    assert "b seed 0 was last measured before 200, and left out" in texts(notes)


def test_between_measurements_the_line_that_joins_them_counts_and_that_is_said():
    runs = [run("a", 0, [1, 2], steps=[100, 1000]), run("b", 0, [3, 4, 5], steps=[1, 500, 2000])]
    (task,), notes = gather(runs)
    assert [g.values.tolist() for g in task.groups] == [[2], [pytest.approx(4 + 1 / 3)]]
    assert "b seed 0 was not measured near 1,000: the value there is on the line" in texts(notes)


def test_groups_on_one_line_are_equal_wherever_they_are_evaluated():
    a = run("a", 0, [4, 8, 12, 16, 20], steps=[4000, 8000, 12_000, 16_000, 20_000])
    b = run("b", 0, [5, 10, 15], steps=[5000, 10_000, 15_000])
    (task,), _ = gather([a, b])
    assert [g.values.tolist() for g in task.groups] == [[pytest.approx(15)], [15]]


def test_remarks_on_many_runs_are_one_note():
    runs = [run("a", 0, [1, 2], steps=[100, 1000])]
    runs += [run("b", s, [3, 4, 5], steps=[1, 500, 2000]) for s in range(9)]
    _, notes = gather(runs)
    assert sum("on the line" in note.text for note in notes) == 1


def test_several_programs_under_one_chosen_name_are_said():
    runs = [run("x", 0, [1], named=True), run("x", 0, [2], kind="csv", named=True)]
    (task,), notes = gather(runs)
    assert [len(g.members) for g in task.groups] == [2]
    assert "The runs named x are of several programs" in texts(notes)


@pytest.mark.parametrize("status", ["failed", "diverged", "interrupted", "running"])
def test_runs_that_did_not_finish_are_named_and_not_counted(status):
    runs = [*group("a", [1, 2]), run("a", 2, [0, 99], status=status)]
    (task,), notes = gather(runs)
    (only,) = task.groups
    assert only.values.tolist() == [1, 2]
    assert [r.seed for r in only.others] == [2]
    assert "1 of the 3 runs of a on CartPole-v1 is" in texts(notes)
    assert ("flatters" in texts(notes)) == (status in ("failed", "diverged"))


def test_a_short_run_that_failed_does_not_move_the_compared_step():
    runs = [run("a", 0, [1, 2, 3]), run("a", 1, [1], status="failed")]
    (task,), _ = gather(runs)
    assert task.at == 300


def test_runs_trained_with_other_settings_are_told_apart_by_those():
    settings = [{"algo.name": "ppo", "algo.lr": lr, "seed": s} for lr in (0.1, 0.2) for s in (0, 1)]
    runs = [run("ppo", s["seed"], [0, 1], settings=s) for s in settings]
    (task,), _ = gather(runs)
    assert [g.label for g in task.groups] == ["PPO (lr=0.1)", "PPO (lr=0.2)"]
    assert [len(g.members) for g in task.groups] == [2, 2]


def test_runs_that_other_programs_wrote_under_the_same_name_are_told_apart():
    ours = run("ppo", 0, [1, 2], settings={"algo.name": "ppo"})
    theirs = run("PPO", 0, [3, 4], kind="csv", status="unknown")
    chosen = run("PPO", 1, [5, 6], kind="csv", status="unknown", named=True)
    assert [g.label for g in gather([ours, theirs])[0][0].groups] == ["PPO", "PPO (CSV)"]
    assert [g.label for g in gather([ours, chosen])[0][0].groups] == ["PPO"]
    assert [g.label for g in gather([theirs])[0][0].groups] == ["PPO"]


def test_settings_that_change_nothing_learned_do_not_split_a_group():
    settings = [
        {"algo.name": "ppo", "seed": s, "run_dir": f"r{s}", "eval.every": s + 1, "threads": s}
        for s in (0, 1)
    ]
    (task,), _ = gather([run("ppo", s["seed"], [0, 1], settings=s) for s in settings])
    assert [g.label for g in task.groups] == ["PPO"]


def test_one_seed_run_twice_counts_once_and_that_is_said():
    settings = [{"algo.name": "ppo", "eval.options.episodes": n, "log_every": n} for n in (10, 20)]
    runs = [run("ppo", s, [0, n + s], settings=x) for s in (0, 1) for n, x in enumerate(settings)]
    (task,), notes = gather(runs)
    assert [len(g.members) for g in task.groups] == [2]
    assert texts(notes).count("twice with the same settings") == 2


def test_one_seed_under_names_that_become_one_counts_once():
    settings = {"algo.name": "ppo"}
    runs = [run("ppo", 0, [0, 1], settings=settings)]
    runs += [run("PPO", 0, [0, 1], settings=settings, named=True, source=Path("b"))]
    (task,), _ = gather(runs)
    assert [len(g.members) for g in task.groups] == [1]


def test_the_evaluation_nearest_to_the_step_counts_not_the_last_one_before_its_margin():
    many = run("b", 0, range(1, 111), steps=[10 * i for i in range(1, 111)])
    (task,), _ = gather([run("a", 0, [1, 2], steps=[500, 1000]), many])
    assert task.group("b").values.tolist() == [100]


def test_labels_that_a_person_chose_stand_and_their_mixture_is_said():
    runs = [
        run("mine", s, [0, 1], settings={"algo.lr": lr}, named=True)
        for s, lr in ((0, 0.1), (1, 0.2))
    ]
    (task,), notes = gather(runs)
    assert [g.label for g in task.groups] == ["mine"]
    assert "differ in algo.lr" in texts(notes)


def test_settings_of_more_than_three_keys_never_share_a_label():
    runs = [
        run(
            "a",
            0,
            [0, 1],
            settings={"k1": i, "k2": 0 if i < 2 else 1, "k3": 0, "k4": i % 2, "k5": i},
        )
        for i in range(3)
    ]
    (task,), _ = gather(runs)
    assert len({g.label for g in task.groups}) == 3


def test_other_libraries_values_stand_beside_ours():
    theirs = run("SB3 PPO", 0, [3, 4], kind="sb3", status="unknown")
    (task,), notes = gather([run("a", 0, [1, 2]), theirs])
    assert [g.label for g in task.compared] == ["a", "SB3 PPO"]
    assert not notes


def test_without_evaluations_everywhere_training_is_compared_and_said():
    both = {"evaluation": curve([1, 2]), "training": curve([10, 20])}
    runs = [run("a", 0, [], curves=both), run("b", 0, [], curves={"training": curve([30, 40])})]
    (task,), notes = gather(runs)
    assert task.kind == "training"
    assert [g.values.tolist() for g in task.groups] == [[20], [40]]
    assert "b seed 0 has no evaluations" in texts(notes)


def test_what_has_nothing_in_common_is_left_out_and_said():
    runs = [run("a", 0, [1, 2]), run("b", 0, [], curves={"training": curve([30, 40])})]
    (task,), notes = gather(runs)
    assert [g.label for g in task.compared] == ["a"]
    assert "b seed 0 has no evaluation curve" in texts(notes)


def test_the_value_of_training_is_the_mean_of_the_last_tenth():
    steps = np.arange(1, 101) * 10.0  # to 1,000; the last tenth are the eleven from 900 on
    values = np.where(steps < 900, 0.0, 22.0)
    values[-1] = 0.0
    training = {"training": curve(values, steps)}
    (task,), _ = gather([run("a", 0, [], curves=training)])
    assert task.groups[0].values[0] == pytest.approx(20.0)


def test_steps_of_two_kinds_have_no_common_step():
    runs = [run("a", 0, [1, 2]), run("b", 0, [3, 4], unit="updates", steps=[1, 2])]
    (task,), notes = gather(runs)
    assert task.at is None
    assert [g.values.tolist() for g in task.groups] == [[2], [4]]
    assert "each run is taken at its own end" in texts(notes)


def test_steps_of_an_unknown_kind_are_taken_for_the_others_and_that_is_said():
    runs = [run("a", 0, [1, 2]), run("b", 0, [3, 4], unit="steps")]
    (task,), notes = gather(runs)
    assert (task.unit, task.at) == ("environment steps", 200)
    assert "taken for environment steps" in texts(notes)


def test_accuracies_and_returns_are_not_compared():
    runs = [*group("a", [1, 2]), run("b", 0, [0.1, 0.2], metric="accuracy")]
    (task,), notes = gather(runs)
    assert [g.label for g in task.compared] == ["a"]
    assert "measured accuracy and not return" in texts(notes)


def test_seeds_that_are_unknown_or_stand_twice_can_not_be_paired():
    (known,), _ = gather(group("a", [1, 2]))
    (unknown,), _ = gather([run("a", None, [1]), run("a", None, [2])])
    mixed = [run("a", 0, [1], settings={"lr": lr}, named=True) for lr in (1, 2)]
    (twice,), _ = gather(mixed)
    assert known.groups[0].seeds == (0, 1)
    assert unknown.groups[0].seeds is None
    assert twice.groups[0].seeds is None


def test_members_stand_in_the_order_of_their_seeds():
    (task,), _ = gather([run("a", s, [float(s)]) for s in (10, 2, 1)])
    assert task.groups[0].values.tolist() == [1, 2, 10]


def test_a_label_has_one_colour_on_all_tasks():
    runs = [run("a", 0, [1]), run("b", 0, [1]), run("b", 0, [1], env="Pendulum-v1")]
    tasks, _ = gather(runs)
    assert [(g.label, g.colour) for t in tasks for g in t.groups] == [("a", 0), ("b", 1), ("b", 1)]


def test_tasks_whose_names_look_alike_have_anchors_of_their_own():
    tasks, _ = gather([run("a", 0, [1], env=env) for env in ("A/b", "A-b", "a b")])
    assert len({t.anchor for t in tasks}) == 3
