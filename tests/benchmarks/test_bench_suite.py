"""From a suite's file to its runs."""

from __future__ import annotations

import pytest
from bench_suites import ROW, SHORT, load, write_suite

from zoo.benchmarks import suite as suites
from zoo.core.config import compose
from zoo.errors import UserError

HUGE = 10**30


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (3, (0, 1, 2)),
        ("3", (0, 1, 2)),
        ("2..4", (2, 3, 4)),
        ("7..7", (7,)),
        ("0,3,5", (0, 3, 5)),
        ([4, 1], (4, 1)),
    ],
)
def test_seeds_are_a_count_a_range_or_a_list(asked, expected):
    assert suites.seeds(asked) == expected


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (0, "1 to 10,000 seeds"),
        ("3..1", "1 to 10,000 seeds"),
        (-1, "1 to 10,000 seeds"),
        ([], "1 to 10,000 seeds"),
        (f"0..{HUGE}", "1 to 10,000 seeds"),
        (HUGE, "1 to 10,000 seeds"),
        ("-2..3", "from 0 to"),
        ("0,0", "names 0 twice"),
        ([1, 2.5], "whole numbers"),
        ([True], "whole numbers"),
        ("", "a range as in 0..4"),
        ("1..", "a range as in 0..4"),
        ("many", "a range as in 0..4"),
        (True, "a range as in 0..4"),
        (None, "a range as in 0..4"),
    ],
)
def test_seeds_that_name_none_or_one_twice_are_refused(asked, said):
    with pytest.raises(UserError, match=said):
        suites.seeds(asked)


def test_every_row_and_environment_has_its_turn_before_the_next_seed(tmp_path):
    rows = [{**ROW, "env": ["CartPole-v1", "Acrobot-v1"]}, {**ROW, "name": "second"}]
    jobs = load(tmp_path, *rows, seeds=2).jobs
    assert [job.folder for job in jobs] == [
        "ppo/CartPole-v1/seed-0",
        "ppo/Acrobot-v1/seed-0",
        "second/CartPole-v1/seed-0",
        "ppo/CartPole-v1/seed-1",
        "ppo/Acrobot-v1/seed-1",
        "second/CartPole-v1/seed-1",
    ]


def test_a_dear_row_has_fewer_seeds_of_its_own(tmp_path):
    rows = [{**ROW, "name": "dear", "seeds": [7]}, {**ROW, "seeds": "0..1"}, {**ROW, "name": "b"}]
    folders = [job.folder for job in load(tmp_path, *rows, seeds=3).jobs]
    first = ["dear/CartPole-v1/seed-7", "ppo/CartPole-v1/seed-0", "b/CartPole-v1/seed-0"]
    second = ["ppo/CartPole-v1/seed-1", "b/CartPole-v1/seed-1"]
    assert folders == [*first, *second, "b/CartPole-v1/seed-2"]
    asked = load(tmp_path, *rows, seeds=3, only_seeds="5..6").jobs
    assert [job.seed for job in asked] == [5, 5, 5, 6, 6, 6]


def test_a_runs_overrides_make_the_settings_it_was_checked_with(tmp_path):
    for job in load(tmp_path, ROW, seeds="3..4").jobs:
        assert compose(job.overrides).to_dict() == job.config.to_dict()
        assert job.config["seed"] == job.seed


def test_a_model_that_is_chosen_for_the_user_is_written_down(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "zoo.core.config.default_text_model", lambda device: ("tiny", None, "because")
    )
    suite = load(tmp_path, {"algo": "grpo", "env": "gsm8k"})
    assert "model=tiny" in suite.jobs[0].overrides
    assert suite.notes == ("model: tiny (because)",)


def test_overrides_for_all_runs_win_over_a_rows(tmp_path):
    (job,) = load(tmp_path, ROW, overrides=["total_steps=999"]).jobs
    assert job.config["total_steps"] == 999


def test_names_that_no_file_can_have_are_replaced(tmp_path):
    rows = [{**ROW, "name": "../PPO: größer/λ"}, {**ROW, "name": ".."}]
    folders = [job.folder.split("/")[0] for job in load(tmp_path, *rows).jobs]
    assert folders == ["PPO-größer-λ", "unnamed"]


@pytest.mark.parametrize(
    ("only", "kept"),
    [
        (["ppo/Acrobot-v1"], ["ppo/Acrobot-v1/seed-0"]),
        (["grpo"], ["grpo/CartPole-v1/seed-0"]),
        (["CartPole-v1"], ["ppo/CartPole-v1/seed-0", "grpo/CartPole-v1/seed-0"]),
        (["grpo", "Acrobot-v1"], ["ppo/Acrobot-v1/seed-0", "grpo/CartPole-v1/seed-0"]),
    ],
)
def test_only_keeps_what_it_names(tmp_path, only, kept):
    rows = [
        {"algo": "ppo", "env": ["CartPole-v1", "Acrobot-v1"]},
        {"algo": "grpo", "env": "CartPole-v1"},
    ]
    assert [job.folder for job in load(tmp_path, *rows, only=only).jobs] == kept


def test_only_that_names_nothing_is_refused(tmp_path):
    with pytest.raises(UserError, match="Did you mean 'ppo/CartPole-v1'"):
        load(tmp_path, ROW, only=["ppo/CartPol-v1"])


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"algo": "pppo"}, r"row 1 \(pppo on CartPole-v1\): unknown algorithm 'pppo'.*'ppo'"),
        ({"env": "CartPol-v1"}, r"row 1 \(ppo on CartPol-v1\): unknown environment.*'CartPole-v1'"),
        ({"overrides": ["algo.lrr=1"]}, "row 1 .*no setting 'algo.lrr'. Did you mean 'algo.lr'"),
        ({"overrides": ["seed=1"]}, "row 1 .*seed= is set by the suite: use the suite's seeds:"),
        ({"overrides": ["run_dir=x"]}, "row 1 .*run_dir= is set by the suite: use --out"),
        ({"overrides": ["env=Acrobot-v1"]}, "row 1 .*env= is set by the suite"),
        ({"overrides": [1]}, "row 1: overrides lists texts"),
        ({"overrides": "algo.lr=1"}, "row 1: overrides takes a list"),
        ({"overides": []}, "row 1: no key 'overides'.*Did you mean 'overrides'"),
        ({"env": []}, "row 1: env lists nothing"),
        ({"env": 3}, "row 1: env takes a text or a list"),
        ({"env": ["CartPole-v1", None]}, "row 1: env lists texts"),
        ({"model": "tiny"}, "row 1 .*model=tiny doesn't go with"),
        ({"name": 3}, "row 1: name takes a text"),
        ({"env": ["CartPole-v1", "CartPole-v1"]}, "two rows would write the folder ppo/CartPole"),
    ],
)
def test_a_row_that_can_not_run_is_named_and_refused(tmp_path, row, said):
    with pytest.raises(UserError, match=said):
        load(tmp_path, {"algo": "ppo", "env": "CartPole-v1", **row})


def test_rows_that_would_share_a_folder_are_refused(tmp_path):
    with pytest.raises(UserError, match="a b on CartPole-v1, A:B on CartPole-v1.*another name"):
        load(tmp_path, {**ROW, "name": "a b"}, {**ROW, "name": "A:B"})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "must be a mapping with about, seeds, runs"),
        ("- a", "must be a mapping"),
        ("seeds: 1", "runs is missing"),
        ("runs: [{algo: ppo, env: CartPole-v1}]", "seeds is missing"),
        ("seeds: 1\nruns: []", "has no runs"),
        ("seeds: 1\nruns: 3", "runs takes a list"),
        ("seeds: true\nruns: [a]", "seeds takes a whole number or a text or a list"),
        ("seeds: 1\nruns: [a]", "row 1 must be a mapping with algo"),
        ("seeds: 1\nruns: [{env: a}]", "row 1: algo is missing"),
        ("seeds: 1\nrun: [a]", "no key 'run'.*Did you mean 'runs'"),
        ("seeds: [1\nruns", "is not YAML"),
        ("seeds: 0\nruns: [{algo: ppo, env: CartPole-v1}]", "bad.yaml: seeds must name"),
    ],
)
def test_a_file_that_is_no_suite_is_refused_in_one_sentence(tmp_path, text, said):
    file = tmp_path / "bad.yaml"
    file.write_text(text)
    with pytest.raises(UserError, match=said) as caught:
        suites.load(str(file))
    assert "\n" not in str(caught.value)


def test_a_file_that_is_no_text_is_refused(tmp_path):
    file = tmp_path / "bad.yaml"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="can't read the suite"):
        suites.load(str(file))


def test_a_missing_suite_names_the_nearest():
    with pytest.raises(UserError, match="no suite 'clasic'.*Did you mean 'classic'"):
        suites.load("clasic")


@pytest.mark.parametrize("name", suites.names())
def test_a_suite_that_ships_can_run_and_evaluates_a_task_alike_for_all(name):
    suite = suites.load(name)
    assert suite.about
    for env in {job.env for job in suite.jobs}:
        jobs = [job for job in suite.jobs if job.env == env]
        kept = ("updates", "eval.every", "eval.options")
        assert len({str([job.config[key] for key in kept]) for job in jobs}) == 1


def test_the_seeds_on_the_command_line_replace_the_suites(tmp_path):
    file = write_suite(tmp_path, {**ROW, "overrides": SHORT}, seeds=5)
    assert [job.seed for job in suites.load(file, only_seeds="8,2").jobs] == [8, 2]
