"""What is written on the command line, and what is found below a folder."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from made_runs import ROWS, evaluations, monitor, only, texts, zoo_run

from zoo.benchmarks.readers import read
from zoo.benchmarks.readers.arguments import natural, parse
from zoo.benchmarks.readers.naming import algorithm_in, env_in, identify, run_name, seed_in
from zoo.benchmarks.readers.repeats import drop_repeats
from zoo.benchmarks.records import Curve, Run
from zoo.errors import UserError


@pytest.mark.parametrize(
    ("text", "label", "env"),
    [
        ("{}", None, None),
        ("SB3 PPO={}", "SB3 PPO", None),
        ("SB3@CartPole-v1={}", "SB3", "CartPole-v1"),
        ("me@home@ALE/Pong-v5={}", "me@home", "ALE/Pong-v5"),
        ("@CartPole-v1={}", None, "CartPole-v1"),
        ("={}", None, None),
    ],
)
def test_label_and_task_go_before_the_path(tmp_path, text, label, env):
    argument = parse(text.format(tmp_path))
    assert (argument.label, argument.env, argument.paths) == (label, env, (tmp_path,))


def test_a_path_that_exists_may_hold_an_equals_sign(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = Path("lr=3/seed=1")
    folder.mkdir(parents=True)
    assert parse("lr=3/seed=1").paths == (folder,)
    assert parse("lr=3/*").label is None
    assert parse("A=lr=3/seed=1").label == "A"
    assert parse("A=lr=3/seed=1").paths == (folder,)


def test_a_pattern_is_expanded_behind_a_label_in_natural_order(tmp_path):
    for seed in (10, 2, 1):
        (tmp_path / f"seed-{seed}").mkdir()
    names = [path.name for path in parse(f"A={tmp_path}/seed-*").paths]
    assert names == ["seed-1", "seed-2", "seed-10"]


def test_two_stars_reach_into_all_folders(tmp_path):
    zoo_run(tmp_path / "a" / "b" / "run")
    assert len(read([f"A={tmp_path}/**/run"]).runs) == 1


def test_a_folder_whose_name_holds_brackets_is_taken_as_it_stands(tmp_path):
    (tmp_path / "run[1]").mkdir()
    assert parse(f"{tmp_path}/run[1]").paths == (tmp_path / "run[1]",)


@pytest.mark.parametrize("text", ["nowhere", "A=nowhere", "A@B=nowhere", "", "A=", "x" * 5000])
def test_what_does_not_exist_is_one_sentence(text):
    with pytest.raises(UserError, match="there is no file or folder"):
        read([text])


def test_a_pattern_that_matches_nothing_is_one_sentence(tmp_path):
    with pytest.raises(UserError, match="no file or folder matches"):
        read([f"A={tmp_path}/none-*"])


def test_a_folder_without_runs_is_named_with_what_was_looked_for(tmp_path):
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(UserError, match=rf"no run found under {tmp_path}: looked for .*npz"):
        read([str(tmp_path)])


def test_checkpoints_hidden_and_failed_folders_are_not_looked_into(tmp_path):
    zoo_run(tmp_path / "good")
    for name in (".trash", "checkpoints", "b.failed-1"):
        zoo_run(tmp_path / name / "run", seed=len(name))
    assert [run.source.name for run in read([str(tmp_path)]).runs] == ["good"]


def test_a_run_that_two_arguments_name_counts_once(tmp_path):
    run = zoo_run(tmp_path / "run")
    (tmp_path / "link").symlink_to(run)
    again = [str(tmp_path), str(run), str(tmp_path), str(tmp_path / "link"), f"{run}/metrics.jsonl"]
    collection = read(again)
    assert len(collection.runs) == 1
    assert collection.notes == ()


def test_a_label_counts_wherever_it_stands_among_the_arguments(tmp_path):
    run = zoo_run(tmp_path / "run")
    zoo_run(tmp_path / "other", seed=4)
    collection = read([str(tmp_path), f"best={run}"])
    assert [(r.label, r.source.name) for r in collection.runs] == [
        ("ppo", "other"),
        ("best", "run"),
    ]


def test_two_labels_for_one_run_are_noted(tmp_path):
    run = zoo_run(tmp_path / "run")
    collection = read([f"A={run}", f"B={run}"])
    assert [r.label for r in collection.runs] == ["A"]
    assert "is named twice; it stands under A" in texts(collection)


def test_a_task_that_a_run_of_ours_does_not_say_is_noted(tmp_path):
    collection = read([f"A@Other-v1={zoo_run(tmp_path / 'run')}"])
    assert collection.runs[0].env == "Other-v1"
    assert "its own files say CartPole-v1" in texts(collection)


def test_loops_of_links_end(tmp_path):
    zoo_run(tmp_path / "a" / "run")
    (tmp_path / "a" / "loop").symlink_to(tmp_path)
    (tmp_path / "a" / "self").symlink_to(tmp_path / "a" / "self")
    assert len(read([str(tmp_path)]).runs) == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root may look into everything")
def test_a_folder_without_permission_is_a_note(tmp_path):
    zoo_run(tmp_path / "good")
    closed = zoo_run(tmp_path / "closed", seed=4)
    closed.chmod(0)
    try:
        collection = read([str(tmp_path)])
    finally:
        closed.chmod(0o700)
    assert len(collection.runs) == 1
    assert "can't look into" in texts(collection)


def test_a_folder_that_cannot_be_listed_is_a_note(tmp_path, monkeypatch):
    zoo_run(tmp_path / "good")
    (tmp_path / "closed").mkdir()
    scandir = os.scandir

    def refuse(path):
        if Path(path).name == "closed":
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    assert "can't look into" in texts(read([str(tmp_path)]))


def test_a_broken_file_is_an_error_where_it_is_named_and_a_note_where_it_is_found(tmp_path):
    zoo_run(tmp_path / "good")
    bad = tmp_path / "bad.csv"
    bad.write_text("algo,env,seed,step,value\nA,E,0,x,1\n")
    with pytest.raises(UserError, match="line 2"):
        read([str(tmp_path / "good"), str(bad)])
    collection = read([str(tmp_path)])
    assert len(collection.runs) == 1
    assert "left out: " in texts(collection)
    with pytest.raises(UserError, match=r"not a number\.$"):
        read([f"A={tmp_path}/*.csv"])


def test_a_file_of_no_known_kind_is_one_sentence(tmp_path):
    (tmp_path / "paper.pdf").write_text("x")
    with pytest.raises(UserError, match="paper.pdf is none of what is read"):
        read([str(tmp_path / "paper.pdf")])


def test_what_else_a_pattern_matches_is_passed_over(tmp_path):
    zoo_run(tmp_path / "run")
    (tmp_path / "README.md").write_text("x")
    assert len(read([f"A={tmp_path}/*"]).runs) == 1


def test_natural_order_compares_numbers_as_numbers():
    names = ["a-10", "a-9", "a", "b-1"]
    assert sorted(names, key=natural) == ["a", "a-9", "a-10", "b-1"]


@pytest.mark.parametrize(
    ("path", "env", "seed", "algorithm"),
    [
        ("logs/ppo/CartPole-v1_1", "CartPole-v1", None, "PPO"),
        ("logs/ppo_CartPole-v1_seed3", "CartPole-v1", 3, "PPO"),
        ("logs/PPO-CartPole-v1-3", "CartPole-v1", 3, "PPO"),
        ("phys2d/CartPole-v1/x", "phys2d/CartPole-v1", None, None),
        ("sac/Pendulum-v1/seed=12/eval", "Pendulum-v1", 12, "SAC"),
        ("tqc_BreakoutNoFrameskip-v4_s2", "BreakoutNoFrameskip-v4", 2, "TQC"),
        ("CartPole-v1/td3-5/logs", "CartPole-v1", 5, "TD3"),
        ("PPO-v2", None, None, "PPO"),
        ("my-project-v2/x", None, None, None),
        ("supposed3/x", None, None, None),
    ],
)
def test_task_seed_and_algorithm_are_read_from_a_path(path, env, seed, algorithm):
    path = Path("/r") / path
    assert (env_in(path), seed_in(path), algorithm_in(path)) == (env, seed, algorithm)


def test_a_number_that_a_library_counts_up_is_no_seed():
    assert seed_in(Path("/r/PPO_2"), counted=True) is None
    assert seed_in(Path("/r/seed-7/PPO_2"), counted=True) == 7


def test_parts_of_a_run_are_not_its_name():
    assert run_name(Path("/r/mine/eval/logs")) == "mine"


@pytest.mark.parametrize(
    ("path", "label"),
    [
        ("ppo/CartPole-v1_1", "SB3 PPO"),
        ("mine/CartPole-v1/seed-0", "mine"),
        ("mine_CartPole-v1_s3", "mine"),
        ("mine/eval", "mine"),
    ],
)
def test_without_a_label_the_algorithm_or_the_folder_names_the_group(path, label):
    argument = parse(".")
    said = {"env": "CartPole-v1"}
    assert identify(Path("/r") / path, argument, library="SB3", said=said).label == label


def test_without_a_task_the_error_shows_how_to_name_it(tmp_path):
    with pytest.raises(UserError, match=r"'mine@CartPole-v1=/r/x'"):
        identify(Path("/r/x"), parse(f"mine={tmp_path}"))


def test_runs_of_many_libraries_are_found_below_one_folder(tmp_path):
    zoo_run(tmp_path / "ours")
    evaluations(tmp_path / "ppo" / "CartPole-v1" / "seed-0", [10], [[1.0]])
    monitor(tmp_path / "sac" / "CartPole-v1" / "seed-0" / "monitor.csv", [(1, 10, 0.1)])
    (tmp_path / "table.csv").write_text("algo,env,seed,step,value\nA,CartPole-v1,0,1,2\n")
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    found = {(run.label, run.kind) for run in read([str(tmp_path)]).runs}
    assert found == {("ppo", "zoo"), ("SB3 PPO", "sb3"), ("SB3 SAC", "sb3"), ("A", "csv")}


def test_runs_without_seeds_are_noted_once_for_each_group(tmp_path):
    for name in ("x", "y"):
        evaluations(tmp_path / name / "ppo" / "CartPole-v1", [10], [[1.0]])
    collection = read([str(tmp_path)])
    assert [run.seed for run in collection.runs] == [None, None]
    assert texts(collection).count("the seeds of 2 runs are not known") == 1


def run_of(kind, steps, **settings):
    curve = Curve(np.array([1.0, steps]), np.array([0.0, 0.0]))
    fields = {"unit": "steps", "metric": "return", "curves": {"evaluation": curve}}
    source = Path(f"/nowhere/{kind}-{steps}")
    return Run("A", "E", 1, source, kind, settings=settings, **fields)


def test_runs_whose_settings_are_not_known_cannot_be_told_apart():
    short, whole = run_of("csv", 10.0), run_of("csv", 20.0, lr=1)
    for runs in ((short, whole), (whole, short)):
        kept, notes = drop_repeats(runs)
        assert kept == [whole]
        assert "/nowhere/csv-10.0 is left out" in notes[0].text


def test_what_two_programs_made_is_never_the_same_run():
    runs = [run_of("csv", 10.0), run_of("sb3", 20.0, lr=1)]
    assert drop_repeats(runs) == (runs, [])


def test_settings_that_are_incidental_do_not_tell_runs_apart():
    one, two = run_of("zoo", 10.0, lr=1, threads=1), run_of("zoo", 20.0, lr=1, threads=2)
    assert drop_repeats([one, two])[0] == [two]
    other = run_of("zoo", 20.0, lr=2, threads=1)
    assert drop_repeats([one, other])[0] == [one, other]


def test_clocks_that_count_other_things_are_noted(tmp_path):
    ours = zoo_run(tmp_path / "ours")
    theirs = tmp_path / "ppo" / "CartPole-v1" / "seed-0"
    monitor(theirs / "monitor.csv", [(1, 10, 0.1)])
    assert "Stable-Baselines3's files go on while" in texts(read([str(ours), str(theirs)]))
    assert read([str(ours)]).notes == read([str(theirs)]).notes == ()


def test_seconds_of_seeds_that_were_trained_at_once_are_said_to_be_shared(tmp_path):
    rows = [{**row, "seeds_together": 10} for row in ROWS]
    found = read([str(zoo_run(tmp_path / "one", rows=rows))])
    assert "trained 10 seeds at once" in texts(found)
    assert found.runs[0].facts["seeds_together"] == 10


def test_one_run_is_read_by_the_name_of_its_file(tmp_path):
    folder = zoo_run(tmp_path / "run")
    assert only(folder / "summary.json").source == folder
