"""The page as a whole: averages over tasks, origins, notes, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
from hand_made import group, run

from zoo.benchmarks.aggregate import average
from zoo.benchmarks.comparison import Options, compare
from zoo.benchmarks.records import Collection, Note
from zoo.benchmarks.references import reference
from zoo.benchmarks.report.page import Cell, Chart, Table
from zoo.benchmarks.tasks import gather
from zoo.errors import UserError

CARTPOLE, PENDULUM = np.array([480, 490, 500, 500, 500.0]), np.array([-150, -160, -155, -170, -165])


def tasks_of(*groups):
    return gather([r for g in groups for r in g])[0]


def page_of(*groups, notes=(), **options):
    runs = tuple(r for g in groups for r in g)
    return compare(Collection(runs, tuple(notes)), Options(**options))


def tables(page, section):
    (found,) = [s for s in page.sections if s.title == section]
    return [b for b in found.blocks if isinstance(b, Table)]


def column(table, name):
    place = table.columns.index(name)
    return [row.cells[place].text for row in table.rows]


def test_scores_are_put_on_the_scale_from_random_to_best():
    averaged = average(
        tasks_of(group("a", CARTPOLE), group("a", PENDULUM, env="Pendulum-v1", kind="zoo"))
    )
    assert averaged is not None
    scores = averaged.overall[0].scores
    assert scores[:, 0] == pytest.approx((CARTPOLE - 22.2) / (500 - 22.2))
    assert scores[:, 1] == pytest.approx((PENDULUM + 1230.7) / (1230.7 - 151.855))
    assert averaged.overall[0].figures["mean"].value == pytest.approx(scores.mean())
    assert averaged.overall[0].figures["optimality gap"].value == pytest.approx(
        1 - np.minimum(scores, 1).mean()
    )


def test_one_task_or_tasks_without_a_scale_are_not_averaged():
    assert average(tasks_of(group("a", CARTPOLE))) is None
    assert average(tasks_of(group("a", CARTPOLE), group("a", CARTPOLE, env="Own-v0"))) is None


def test_a_label_missing_on_a_task_is_left_out_of_averages_and_that_is_said():
    averaged = average(
        tasks_of(
            *(group(label, CARTPOLE) for label in "abc"),
            *(group(label, PENDULUM, env="Pendulum-v1") for label in "ab"),
        )
    )
    assert averaged is not None
    assert [o.label for o in averaged.overall] == ["a", "b"]
    assert "Averages leave out c, not run on all" in averaged.notes[0]


def test_averages_take_as_many_runs_as_every_cell_has():
    averaged = average(tasks_of(group("a", CARTPOLE), group("a", PENDULUM[:3], env="Pendulum-v1")))
    assert averaged is not None
    assert averaged.overall[0].scores.shape == (3, 2)
    assert "the first 3 runs by seed" in averaged.notes[0]


def test_averages_over_few_tasks_have_no_intervals_and_say_so():
    page = page_of(group("a", CARTPOLE), group("a", PENDULUM, env="Pendulum-v1"))
    (section,) = [s for s in page.sections if s.title == "All tasks"]
    assert "from 5 tasks and 5 runs of each on" in section.blocks[0]
    assert not any("over 2 tasks" in v for v in page.verdicts)


def test_averages_over_enough_tasks_give_the_first_verdict():
    envs = ("CartPole-v1", "Acrobot-v1", "Pendulum-v1", "MountainCar-v0", "LunarLander-v3")
    page = page_of(
        *(group("good", np.full(6, 400.0) + np.arange(6), env=env) for env in envs),
        *(group("bad", np.full(6, 100.0) + np.arange(6), env=env) for env in envs),
    )
    assert page.verdicts[0].startswith("good beats bad over 5 tasks: +")
    assert "(6 seeds each, paired)" in page.verdicts[0]


def test_every_value_stands_in_the_table_of_runs_with_its_folder():
    page = page_of(group("a", CARTPOLE), group("b", CARTPOLE - 100))
    (table,) = tables(page, "Runs")
    assert column(table, "value") == [f"{v:.1f}" for v in (*CARTPOLE, *(CARTPOLE - 100))]
    assert column(table, "files") == [
        str(r.source) for r in (*group("a", CARTPOLE), *group("b", CARTPOLE - 100))
    ]


def test_a_run_that_went_on_past_the_compared_step_shows_both_values():
    short = group("a", CARTPOLE)
    long = [run("b", seed, [0.0, 7.0, 400.0 + seed]) for seed in range(6)]
    (table,) = tables(page_of(short, long), "Runs")
    assert column(table, "value")[len(short) :] == ["7.00"] * 6
    assert column(table, "at its end")[len(short) :] == [f"{400 + seed:.1f}" for seed in range(6)]
    (table,) = tables(page_of(short), "Runs")
    assert "at its end" not in table.columns


def test_runs_link_to_their_folder_or_to_the_file_that_kept_them(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "kept.results.json").write_text("{}")
    places = [tmp_path / "folder", tmp_path / "kept.results.json" / "a" / "seed-0", tmp_path / "no"]
    page = page_of([run("a", seed, [1, 2], source=place) for seed, place in enumerate(places)])
    (table,) = tables(page, "Runs")
    targets = [row.cells[table.columns.index("files")].target for row in table.rows]
    assert targets == [places[0], tmp_path / "kept.results.json", None]
    assert column(table, "files")[1] == "kept.results.json/a/seed-0"


def test_labels_in_tables_lead_to_their_runs():
    page = page_of(group("a", CARTPOLE), group("b", CARTPOLE - 100))
    scores = tables(page, "CartPole-v1")[0]
    (runs,) = tables(page, "Runs")
    anchors = {row.anchor for row in runs.rows if row.anchor}
    assert {row.cells[0].target for row in scores.rows} == {f"#{a}" for a in anchors}


def test_the_verdicts_come_decided_first():
    close = group("c", CARTPOLE + np.array([1, -1, 0, 0, 0]))
    page = page_of(group("a", CARTPOLE), close, group("b", CARTPOLE - 100))
    assert [" beats " in v for v in page.verdicts] == [True, True, False]


def test_a_baseline_gives_speeds_relative_to_it():
    fast = group("a", CARTPOLE, facts={"wall_s": 1.0, "env_steps": 3000})
    slow = group("b", CARTPOLE - 1, facts={"wall_s": 2.0, "env_steps": 3000})
    page = page_of(fast, slow, baseline="b")
    costs = next(t for t in tables(page, "CartPole-v1") if "against b" in t.columns)
    assert column(costs, "steps/s (median)") == ["3,000", "1,500"]
    assert column(costs, "against b") == ["2.00 ×", "1.00 ×"]
    said = "a takes 2.00 times the steps/s of b on [CartPole-v1](#task-cartpole-v1): 3,000 against"
    assert any(v.startswith(said) for v in page.verdicts)


def test_thresholds_are_known_or_given():
    page = page_of(group("a", [400, 480, 490, 480, 480]))
    assert any("reached 475.0" in t.columns for t in tables(page, "CartPole-v1"))
    page = page_of(group("a", CARTPOLE), thresholds={"CartPole-v1": 495.0})
    costs = next(t for t in tables(page, "CartPole-v1") if "reached 495.0" in t.columns)
    assert column(costs, "reached 495.0") == ["3 of 5"]


def test_settings_that_differ_between_groups_are_listed_and_no_others():
    a = group(
        "a", CARTPOLE, settings={"algo.name": "a", "algo.lr": 0.1, "algo.gamma": 0.9, "seed": 1}
    )
    b = group(
        "b", CARTPOLE, settings={"algo.name": "b", "algo.lr": 0.2, "algo.gamma": 0.9, "seed": 2}
    )
    (table,) = tables(page_of(a, b), "Settings that differ")
    assert [[c.text for c in row.cells] for row in table.rows] == [
        ["algo.name", "a", "b"],
        ["algo.lr", "0.1", "0.2"],
    ]


def test_origins_that_bear_on_a_comparison_are_noted():
    a = group("a", CARTPOLE, facts={"hardware": {"cpus": 2}, "versions": {"torch": "2.9"}})
    b = group("b", CARTPOLE, facts={"hardware": {"cpus": 64}, "versions": {"torch": "2.13"}})
    notes = " ".join(page_of(a, b).notes)
    assert "differ in hardware (2 CPUs and 64 CPUs). Times and speeds are not comparable" in notes
    assert "differ in the version of torch (2.9 and 2.13)" in notes
    alone = " ".join(page_of(a).notes)
    assert "differ" not in alone


def test_unequal_evaluations_and_questions_are_noted():
    a = group("a", CARTPOLE / 1000, settings={"eval.options.episodes": 10}, metric="accuracy")
    b = group("b", CARTPOLE / 1000, settings={"eval.options.episodes": 99}, metric="accuracy")
    assert any("evaluated with different eval.options.episodes" in n for n in page_of(a, b).notes)
    b = group("b", CARTPOLE / 1000, settings={"eval.options.episodes": 10, "eval.final": {}})
    assert not any("evaluated with different" in n for n in page_of(a, b).notes)
    a = group("a", CARTPOLE / 1000, facts={"dataset": "x"}, metric="accuracy")
    b = group("b", CARTPOLE / 1000, facts={"dataset": "y"}, metric="accuracy")
    assert any("different questions (x and y)" in n for n in page_of(a, b).notes)


def test_what_the_choice_of_questions_adds_is_said():
    facts = {"evaluation": {"accuracy_ci95": 0.045, "n": 200}, "dataset": "gsm-symbolic"}
    notes = page_of(group("a", CARTPOLE / 1000, facts=facts, metric="accuracy")).notes
    assert any("adds about ± 4.50 points" in n for n in notes)
    assert "The questions of CartPole-v1 are gsm-symbolic." in notes


def test_few_runs_are_warned_of():
    page = page_of(group("a", CARTPOLE[:3]), group("b", CARTPOLE[:1]))
    assert any(n.startswith("Groups of 1 or 3 runs have no intervals") for n in page.notes)
    assert not any(n.startswith("Groups of") for n in page_of(group("a", CARTPOLE)).notes)


def test_notes_of_the_readers_are_on_the_page():
    assert "half a line" in page_of(group("a", CARTPOLE), notes=[Note("half a line")]).notes


def test_runs_without_a_common_step_have_no_chart_over_steps():
    page = page_of(group("a", CARTPOLE), [run("b", 0, [1, 2], unit="updates", steps=[1, 2])])
    names = [b.name for s in page.sections for b in s.blocks if isinstance(b, Chart)]
    assert names == ["task-cartpole-v1-time"]


def test_names_of_charts_are_unique():
    page = page_of(*(group("a", CARTPOLE, env=env) for env in ("A/b", "A-b", "CartPole-v1")))
    names = [b.name for s in page.sections for b in s.blocks if not isinstance(b, Table | str)]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"baseline": "A"}, "no runs are labelled 'A': there are a and b."),
        (
            {"thresholds": {"Pong": 1.0}},
            "a threshold names 'Pong', but the runs are on CartPole-v1",
        ),
    ],
)
def test_options_that_name_what_is_not_there_are_refused(options, message):
    with pytest.raises(UserError, match=message):
        page_of(group("a", CARTPOLE), group("b", CARTPOLE), **options)


def test_nothing_to_report_on_is_refused_with_the_reason():
    with pytest.raises(UserError, match="no run can be reported on.*interrupted"):
        page_of([run("a", 0, [1], status="interrupted")])
    with pytest.raises(UserError, match="there is no run to report on"):
        page_of([])


def test_every_reference_has_a_source_and_a_scale_that_points_up():
    for env in ("CartPole-v1", "Acrobot-v1", "Pendulum-v1", "MountainCar-v0", "LunarLander-v3"):
        found = reference(env)
        assert found.random is not None and found.best is not None and found.threshold is not None
        assert found.random < found.threshold <= found.best
        assert all(p.url.startswith("https://") for p in found.published)


def test_tasks_outside_the_table_have_gymnasiums_threshold_or_none():
    assert reference("FrozenLake-v1").threshold == 0.7
    assert reference("Own-v0").threshold is None
    assert not reference("Own-v0").scaled


def test_cells_are_texts():
    page = page_of(group("a", CARTPOLE), group("b", CARTPOLE - 100))
    for section in page.sections:
        for block in section.blocks:
            if isinstance(block, Table):
                assert all(len(row.cells) == len(block.columns) for row in block.rows)
                assert all(isinstance(c, Cell) and c.text for row in block.rows for c in row.cells)
