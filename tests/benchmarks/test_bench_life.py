"""What the next `zoo bench` does with what an earlier one left."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from bench_suites import ROW, load, write_run

from zoo.benchmarks import life
from zoo.benchmarks.life import Ended, Step
from zoo.benchmarks.manifest import Record
from zoo.errors import UserError


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    return load(tmp_path_factory.mktemp("suite"), ROW).jobs[0]


@pytest.fixture
def folder(tmp_path) -> Path:
    return tmp_path / "out" / "seed-0"


def record(job, **known) -> Record:
    return Record(job.label, job.env, job.seed, job.folder, [], **known)


@pytest.mark.parametrize(
    ("summary", "saved", "manifest", "expected"),
    [
        (None, False, "running", Step.RESTART),
        (None, True, "running", Step.RESUME),
        ("interrupted", True, "interrupted", Step.RESUME),
        ("interrupted", False, "interrupted", Step.RESTART),
        ("finished", True, "finished", Step.SKIP),
        ("finished", True, "running", Step.SKIP),
        ("finished", True, "failed", Step.SKIP),
        ("failed", True, "running", Step.RETRY),
        ("interrupted", True, "failed", Step.RESUME),
        (None, True, "failed", Step.RESUME),
        (None, False, "failed", Step.RETRY),
    ],
)
def test_what_comes_next_follows_from_what_was_left(
    job, folder, summary, saved, manifest, expected
):
    write_run(folder, job, summary, saved)
    assert life.next_step(job, record(job, status=manifest, attempts=1), folder) is expected


def test_a_run_without_a_folder_is_started(job, folder):
    assert life.next_step(job, record(job), folder) is Step.START
    folder.mkdir(parents=True)
    assert life.next_step(job, record(job), folder) is Step.START


def test_a_finished_run_is_known_without_a_manifest(job, folder):
    write_run(folder, job, "finished", saved=True)
    assert life.next_step(job, record(job), folder) is Step.SKIP


def change(folder: Path, **values) -> None:
    tree = yaml.safe_load((folder / "config.yaml").read_text())
    tree["algo"] |= values.pop("algo", {})
    (folder / "config.yaml").write_text(yaml.safe_dump({**tree, **values}))


@pytest.mark.parametrize("status", ["finished", "interrupted"])
def test_settings_that_changed_are_named_with_both_values(job, folder, status):
    write_run(folder, job, status, saved=True)
    change(folder, algo={"lr": 0.5})
    with pytest.raises(UserError, match=r"was run with algo.lr=0.5, and the suite now says 0.001"):
        life.next_step(job, record(job, attempts=1), folder)


def test_settings_that_only_one_of_them_has_are_named(job, folder):
    write_run(folder, job, "finished", saved=True)
    change(folder, extra=1)
    with pytest.raises(UserError, match="was run with extra=1, and the suite now says nothing"):
        life.next_step(job, record(job), folder)


def test_a_knob_that_the_runs_version_did_not_have_stood_at_its_default(job, folder):
    write_run(folder, job, "finished", saved=True)
    tree = yaml.safe_load((folder / "config.yaml").read_text())
    del tree["algo"]["adam_eps"], tree["eval"]["final"]
    (folder / "config.yaml").write_text(yaml.safe_dump(tree))
    assert life.next_step(job, record(job), folder) is Step.SKIP


def test_logger_and_place_may_differ(job, folder):
    write_run(folder, job, "finished", saved=True)
    change(folder, logger={"wandb": {"project": "x"}}, run_dir="elsewhere", made_with={})
    assert life.next_step(job, record(job), folder) is Step.SKIP


@pytest.mark.parametrize("status", ["failed", None])
def test_a_run_that_starts_anew_may_have_had_other_settings(job, folder, status):
    write_run(folder, job, status)
    change(folder, algo={"lr": 0.5})
    assert life.next_step(job, record(job, attempts=1), folder) in (Step.RETRY, Step.RESTART)


@pytest.mark.parametrize("file", ["summary.json", "config.yaml"])
def test_a_damaged_file_is_named(job, folder, file):
    write_run(folder, job, "finished", saved=True)
    (folder / file).write_text("{")
    with pytest.raises(UserError, match=f"{file} is not the"):
        life.next_step(job, record(job), folder)


def test_what_no_run_wrote_is_left_alone(job, folder):
    folder.mkdir(parents=True)
    (folder / "thesis.tex").touch()
    with pytest.raises(UserError, match="holds what no run wrote"):
        life.next_step(job, record(job), folder)


def test_a_failed_runs_folder_is_kept_beside_the_next_attempts(folder):
    for text in ("first", "second"):
        folder.mkdir(parents=True)
        (folder / "errors.log").write_text(text)
        life.prepare(Step.RETRY, folder)
    assert not folder.exists()
    kept = sorted(folder.parent.glob("seed-0.failed-*"))
    assert [path.name for path in kept] == ["seed-0.failed-1", "seed-0.failed-2"]
    assert [(path / "errors.log").read_text() for path in kept] == ["first", "second"]


def test_a_failed_run_that_had_no_folder_can_be_retried(folder):
    life.prepare(Step.RETRY, folder)
    assert list(folder.parent.iterdir()) == []


def test_what_was_never_saved_makes_room(folder):
    (folder / "checkpoints").mkdir(parents=True)
    life.prepare(Step.RESTART, folder)
    assert not folder.exists()


def test_a_resumed_run_keeps_its_folder_and_gives_no_settings(job, tmp_path):
    folder = tmp_path / job.folder
    folder.mkdir(parents=True)
    life.prepare(Step.RESUME, folder)
    assert folder.is_dir()
    assert life.arguments(Step.RESUME, [job], tmp_path) == ["train", "--resume", str(folder)]


def test_a_new_runs_folder_may_hold_what_overrides_quote(job):
    command = life.arguments(Step.START, [job], Path("my runs/größe=1"))
    assert command == ["train", *job.overrides, f"run_dir='my runs/größe=1/{job.folder}'"]


def test_seeds_that_are_trained_at_once_are_one_command(job):
    jobs = [job, replace(job, seed=4)]
    others = [text for text in job.overrides if text != "seed=0"]
    assert len(others) == len(job.overrides) - 1
    parent = str(Path("out", job.folder).parent)
    assert life.arguments(Step.START, jobs, Path("out")) == [
        *("train", *others, "seeds=[0,4]", f"run_dir={parent}")
    ]
    command = life.arguments(Step.RESUME, jobs, Path("out"))
    assert command == ["train", "--resume", parent, "seeds=[0,4]"]


@pytest.mark.parametrize(
    ("summary", "ended", "stopped", "status", "error"),
    [
        ("finished", Ended(0), False, "finished", None),
        ("finished", Ended(-11), True, "finished", None),  # it crashed when all was written
        ("interrupted", Ended(130), True, "interrupted", None),
        ("interrupted", Ended(130), False, "interrupted", None),
        (None, Ended(-15), False, "interrupted", None),
        (None, Ended(-9), True, "interrupted", None),
        (None, Ended(1), True, "interrupted", None),
        (None, Ended(None, "its node is gone"), False, "interrupted", "its node is gone"),
        (None, Ended(None, "cancelled"), True, "interrupted", None),
        (None, Ended(-9), False, "failed", "killed by SIGKILL, perhaps for lack of memory"),
        (None, Ended(-11), False, "failed", "killed by SIGSEGV"),
        (None, Ended(-9, "too long"), False, "failed", "too long"),
        ("failed", Ended(1), False, "failed", "ValueError: the last line"),
        (None, Ended(2), False, "failed", "ValueError: the last line"),
        (None, Ended(0), False, "failed", "its process ended before its budget was spent"),
    ],
)
def test_how_a_run_ended_follows_from_its_process(
    job, folder, summary, ended, stopped, status, error
):
    write_run(folder, job, summary)
    log = folder.with_name("seed-0.log")
    log.write_text("Traceback (most recent call last):\nValueError: the last line\n\n")
    found, said = life.outcome(folder, log, ended, stopped)
    assert found == status
    assert said == error or (error and said.startswith(error))


def test_an_error_line_for_the_user_loses_its_mark(job, folder):
    log = folder.with_name("seed-0.log")
    log.parent.mkdir(parents=True)
    log.write_text("--- attempt 1\nerror: no model folder.\n")
    assert life.outcome(folder, log, Ended(2), False) == ("failed", "no model folder.")
