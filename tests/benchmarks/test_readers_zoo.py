"""Our own run folders: curves, status, facts, and what a broken one gives."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys

import pytest
from made_runs import CONTROL, ROWS, TEXT, only, points, texts, zoo_run

from zoo.benchmarks.readers import read
from zoo.errors import UserError


def test_a_control_run_has_returns_over_environment_steps(tmp_path):
    run = only(zoo_run(tmp_path / "run"))
    assert (run.label, run.env, run.seed, run.kind) == ("ppo", "CartPole-v1", 3, "zoo")
    assert (run.unit, run.metric, run.status) == ("environment steps", "return", "finished")
    assert points(run) == [(100, 12), (300, 32)]
    assert points(run, "training") == [(100, 10), (200, 20), (300, 30)]
    assert run.curves["evaluation"].wall_s.tolist() == [1, 3]
    assert not run.named


def test_settings_are_flat_and_without_what_was_there_at_the_time(tmp_path):
    run = only(zoo_run(tmp_path / "run"))
    assert run.settings["algo.lr"] == 0.001
    assert run.settings["algo.betas"] == [0.9, 0.999]
    assert run.settings["env.options"] == {}
    assert not any(key.startswith("made_with") for key in run.settings)
    assert run.facts == {
        "env_steps": 300,
        "updates": 3,
        "tokens": 0,
        "wall_s": 3.0,
        "peak_rss_gib": 0.5,
        "model": "mlp",
        "budget": 300,
        "evaluation": {"episodes": 10},
        "versions": {"torch": "2.9"},
        "hardware": {"cpus": 2},
        "revision": "abc",
        "time": "2026-01-02T03:04:05+0000",
    }


def test_a_text_run_has_accuracies_over_updates(tmp_path):
    rows = [
        {"updates": 0, "wall_s": 0.0, "eval/accuracy_strict": 0.1},
        {"updates": 1, "wall_s": 2.0, "train/accuracy_strict": 0.2, "reward/mean": 0.9},
        {"updates": 2, "wall_s": 3.0, "train/accuracy_strict": 0.3, "eval/accuracy_strict": 0.4},
    ]
    run = only(zoo_run(tmp_path / "run", rows, config=TEXT))
    assert (run.unit, run.metric, run.facts["budget"]) == ("updates", "accuracy", 3)
    assert points(run) == [(0, 0.1), (2, 0.4)]
    assert points(run, "training") == [(1, 0.2), (2, 0.3)]


def test_rewards_stand_in_only_where_nothing_is_graded(tmp_path):
    ungraded = [{"updates": 1, "wall_s": 1.0, "reward/mean": 2.5}]
    run = only(zoo_run(tmp_path / "a", ungraded, config=TEXT))
    assert (run.metric, points(run, "training")) == ("return", [(1, 2.5)])
    graded = [{"updates": 1, "wall_s": 1.0, "reward/mean": 2.5, "eval/accuracy_strict": 0.5}]
    run = only(zoo_run(tmp_path / "b", graded, config=TEXT))
    assert (run.metric, list(run.curves)) == ("accuracy", ["evaluation"])


def test_a_run_that_was_killed_is_interrupted(tmp_path):
    run = only(zoo_run(tmp_path / "run", status=None))
    assert run.status == "interrupted"
    assert run.facts["env_steps"] == 300


def test_a_run_whose_folder_is_locked_goes_on_and_is_not_disturbed(tmp_path):
    folder = zoo_run(tmp_path / "run", status=None)
    hold = (
        "import fcntl, os, sys; f = os.open(sys.argv[1], os.O_RDONLY);"
        " fcntl.flock(f, fcntl.LOCK_EX); print('held', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", hold, str(folder)]
    trainer = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert trainer.stdout.readline() == b"held\n"
        assert only(folder).status == "running"
        file = os.open(folder, os.O_RDONLY)  # it is still held afterwards
        with pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(file)
    finally:
        trainer.communicate()
    assert only(folder).status == "interrupted"
    file = os.open(folder, os.O_RDONLY)  # and reading left no lock behind
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(file)


def test_a_resumed_run_that_was_killed_does_not_count_as_finished(tmp_path):
    folder = zoo_run(tmp_path / "run")
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"env_steps": 400, "updates": 4, "wall_s": 4.0, "return/mean": 4.0}))
        file.write("\n")
    run = only(folder)
    assert run.status == "interrupted"
    assert (run.facts["env_steps"], run.facts["wall_s"]) == (400, 4.0)


@pytest.mark.parametrize("status", ["interrupted", "failed", "finished"])
def test_the_status_is_that_of_the_summary(tmp_path, status):
    assert only(zoo_run(tmp_path / "run", status=status)).status == status


def test_a_run_that_ends_in_null_diverged_whatever_its_summary_says(tmp_path):
    rows = [*ROWS, {"env_steps": 400, "updates": 4, "wall_s": 4.0, "eval/return_mean": None}]
    collection = read([str(zoo_run(tmp_path / "run", rows))])
    (run,) = collection.runs
    assert run.status == "diverged"
    assert points(run) == [(100, 12), (300, 32)]
    assert "no finite value from step 400 on" in texts(collection)


def test_null_in_the_middle_is_dropped_with_a_note(tmp_path):
    rows = [ROWS[0], {**ROWS[1], "return/mean": None}, ROWS[2]]
    collection = read([str(zoo_run(tmp_path / "run", rows))])
    assert points(collection.runs[0], "training") == [(100, 10), (300, 30)]
    assert collection.runs[0].status == "finished"
    assert "training: 1 value that" in texts(collection)


def test_an_integer_beyond_all_floats_is_not_finite(tmp_path):
    rows = [{**ROWS[0], "eval/return_mean": 10**400}]
    assert only(zoo_run(tmp_path / "run", rows)).status == "diverged"


def test_a_half_written_last_line_is_left_out_with_a_note(tmp_path):
    folder = zoo_run(tmp_path / "run", status=None)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"env_steps": 400, "eval/return_mean": 9')
    collection = read([str(folder)])
    assert points(collection.runs[0])[-1] == (300, 32)
    assert "half-written" in texts(collection)


def test_a_line_that_is_no_json_is_left_out_with_a_note(tmp_path):
    folder = zoo_run(tmp_path / "run")
    file = folder / "metrics.jsonl"
    first, *rest = file.read_bytes().split(b"\n")
    file.write_bytes(b"\n".join([first, b"\xff\x00junk", b"[1, 2]", *rest]))
    collection = read([str(folder)])
    assert len(points(collection.runs[0], "training")) == 3
    assert "2 lines of metrics.jsonl that are no JSON" in texts(collection)


@pytest.mark.parametrize("empty", [True, False])
def test_a_run_that_recorded_nothing_is_a_note_beside_others(tmp_path, empty):
    zoo_run(tmp_path / "good")
    bad = zoo_run(tmp_path / "bad", [], status=None)
    if not empty:
        (bad / "metrics.jsonl").unlink()
    collection = read([str(tmp_path)])
    assert [run.source.name for run in collection.runs] == ["good"]
    assert "bad recorded nothing" in texts(collection)
    with pytest.raises(UserError, match="bad recorded nothing"):
        read([str(bad)])


def test_a_run_in_which_no_episode_ended_yet_is_a_note(tmp_path):
    zoo_run(tmp_path / "good")
    zoo_run(tmp_path / "new", [{"env_steps": 1, "updates": 1, "wall_s": 0.1}], status=None)
    collection = read([str(tmp_path)])
    assert len(collection.runs) == 1
    assert "/new: no evaluation and no finished episode" in texts(collection)


@pytest.mark.parametrize(
    ("text", "message"),
    [("world: [", "is not YAML"), ("a: 1", "is not the configuration of a run of ours")],
)
def test_a_broken_configuration_is_one_sentence(tmp_path, text, message):
    folder = zoo_run(tmp_path / "run")
    (folder / "config.yaml").write_text(text)
    with pytest.raises(UserError, match=message):
        read([str(folder)])


def test_a_run_without_its_configuration_is_one_sentence(tmp_path):
    folder = zoo_run(tmp_path / "run")
    (folder / "config.yaml").unlink()
    with pytest.raises(UserError, match=r"has metrics\.jsonl but no config\.yaml"):
        read([str(folder)])


def test_a_broken_summary_leaves_the_rows(tmp_path):
    folder = zoo_run(tmp_path / "run")
    (folder / "summary.json").write_text("{")
    collection = read([str(folder)])
    assert collection.runs[0].status == "interrupted"
    assert "summary.json can't be read" in texts(collection)


def bench(tmp_path, **entry):
    zoo_run(tmp_path / "bench" / "runs" / "a")
    listed = {"label": "PPO", "env": "CartPole-v1", "seed": 3, "folder": "runs/a", **entry}
    manifest = {"suite": "smoke", "runs": [{"status": "finished", **listed}]}
    (tmp_path / "bench" / "manifest.json").write_text(json.dumps(manifest))
    return manifest


def test_runs_of_a_bench_folder_are_called_what_its_manifest_calls_them(tmp_path):
    bench(tmp_path)
    for path in (tmp_path, tmp_path / "bench", tmp_path / "bench" / "runs" / "a"):
        run = only(path)
        assert (run.label, run.named) == ("PPO", False)
    named = only(f"mine={tmp_path}")
    assert (named.label, named.named) == ("mine", True)


def test_a_manifest_without_labels_leaves_the_algorithm_s_name(tmp_path):
    bench(tmp_path, label=None)
    assert only(tmp_path).label == "ppo"


def test_a_run_that_failed_before_it_had_a_folder_is_a_note(tmp_path):
    manifest = bench(tmp_path)
    lost = {"label": "GRPO", "env": "gsm8k", "seed": 1, "folder": "runs/b", "status": "failed"}
    manifest["runs"].append(lost)
    (tmp_path / "bench" / "manifest.json").write_text(json.dumps(manifest))
    assert "GRPO on gsm8k, seed 1, failed and left no run folder." in texts(read([str(tmp_path)]))
    lost["error"] = "Traceback …\nerror: no such model."
    (tmp_path / "bench" / "manifest.json").write_text(json.dumps(manifest))
    assert "left no run folder (error: no such model)." in texts(read([str(tmp_path)]))


def test_runs_that_have_not_begun_are_counted(tmp_path):
    manifest = bench(tmp_path)
    for seed, status in ((5, "waiting"), (6, "interrupted")):
        manifest["runs"].append({"label": "A", "seed": seed, "folder": f"{seed}", "status": status})
    (tmp_path / "bench" / "manifest.json").write_text(json.dumps(manifest))
    assert texts(read([str(tmp_path)])) == "bench: 2 runs not begun yet."


@pytest.mark.parametrize("text", ["", "[]", '{"suite": 1}', '{"suite": 1, "runs": 5}'])
def test_a_broken_manifest_is_as_none(tmp_path, text):
    bench(tmp_path)
    (tmp_path / "bench" / "manifest.json").write_text(text)
    assert only(tmp_path).label == "ppo"


def test_two_runs_of_one_seed_with_the_same_settings_count_once(tmp_path):
    zoo_run(tmp_path / "short", ROWS[:2], status="interrupted")
    os.utime(zoo_run(tmp_path / "whole", run_dir="elsewhere"), (1, 1))  # older, but further
    collection = read([str(tmp_path)])
    assert [run.source.name for run in collection.runs] == ["whole"]
    assert "short is left out" in texts(collection)


def test_of_two_runs_that_got_equally_far_the_newest_counts(tmp_path):
    old, new = zoo_run(tmp_path / "b"), zoo_run(tmp_path / "a")
    os.utime(old, (1, 1))
    assert [run.source.name for run in read([str(tmp_path)]).runs] == [new.name]


def test_two_runs_of_one_seed_with_other_settings_both_count(tmp_path):
    zoo_run(tmp_path / "a")
    zoo_run(tmp_path / "b", algo={**CONTROL["algo"], "lr": 0.01})
    assert len(read([str(tmp_path)]).runs) == 2
