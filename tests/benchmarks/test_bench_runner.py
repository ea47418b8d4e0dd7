"""Executing a suite's runs, without training any."""

from __future__ import annotations

import errno
import json
import os
import signal
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
from bench_suites import ROW, Pretender, load, write_run

from zoo.benchmarks import manifest as manifests
from zoo.benchmarks import runner as runners
from zoo.benchmarks.life import Ended
from zoo.benchmarks.live import Lines, LiveTable
from zoo.benchmarks.locks import holding
from zoo.benchmarks.manifest import Manifest
from zoo.benchmarks.processes import LocalProcesses, share
from zoo.benchmarks.progress import Progress, Tail
from zoo.benchmarks.runner import Runner, plan, wait_for_orphans
from zoo.errors import UserError


@pytest.fixture(autouse=True)
def _in_no_time(monkeypatch):
    monkeypatch.setattr(runners, "_POLL_S", 0.0)


@pytest.fixture(scope="module")
def suite(tmp_path_factory):
    return load(tmp_path_factory.mktemp("suite"), ROW, seeds=3)


@pytest.fixture
def bench(tmp_path, suite):
    """Return a function that executes a suite of one row and three seeds with a pretender."""
    out = tmp_path / "out"
    out.mkdir()

    def execute(play, slots=1, jobs=suite.jobs):
        manifest = Manifest(out, suite)
        execute.executor = executor = Pretender(play)
        with Lines(Progress(jobs, manifest.records, out, slots)) as view:
            steps = plan(jobs, manifest, out)
            Runner(jobs, steps, manifest, out, executor, slots, 1, None, view).run()
        return executor

    execute.jobs, execute.out = suite.jobs, out
    execute.folders = [job.folder for job in suite.jobs]
    return execute


def finishing(bench):
    """Return a play in which every run finishes at once."""

    def play(name, launch):
        write_run(bench.out / name, bench.jobs[bench.folders.index(name)], "finished", saved=True)
        return Ended(0)

    return play


def statuses(out: Path) -> list[str]:
    return [run["status"] for run in json.loads((out / "manifest.json").read_text())["runs"]]


def test_runs_are_executed_in_order_as_many_at_a_time_as_there_are_slots(bench):
    executor = bench(finishing(bench), slots=2)
    assert executor.order == bench.folders
    assert executor.most_at_once == 2
    assert statuses(bench.out) == ["finished"] * 3


def test_the_manifest_says_what_was_done(bench):
    bench(finishing(bench))
    manifest = json.loads((bench.out / "manifest.json").read_text())
    run = manifest["runs"][0]
    assert run["folder"] == "ppo/CartPole-v1/seed-0"
    assert (run["label"], run["env"], run["seed"], run["attempts"]) == ("ppo", "CartPole-v1", 0, 1)
    assert run["overrides"] == list(bench.jobs[0].overrides)
    assert run["started"] and run["ended"] and run["wall_s"] >= 0
    assert run["error"] is None
    assert manifest["suite"]["name"] == "own"
    assert len(manifest["suite"]["sha256"]) == 64


def test_finished_runs_are_left_alone(bench):
    bench(finishing(bench))
    assert bench(finishing(bench)).order == []
    assert statuses(bench.out) == ["finished"] * 3


def test_a_failed_run_does_not_stop_the_rest_and_is_tried_again(bench):
    def play(name, launch):
        if name != bench.folders[0]:
            return finishing(bench)(name, launch)
        launch.log.write_text("ValueError: no\n")
        write_run(bench.out / name, bench.jobs[0], "failed")
        return Ended(1)

    bench(play)
    assert statuses(bench.out) == ["failed", "finished", "finished"]
    run = json.loads((bench.out / "manifest.json").read_text())["runs"][0]
    assert run["error"] == "ValueError: no"
    assert (bench.out / run["log"]).read_text() == "ValueError: no\n"
    assert bench(finishing(bench)).order == bench.folders[:1]
    assert statuses(bench.out) == ["finished"] * 3
    assert (bench.out / f"{bench.folders[0]}.failed-1" / "summary.json").is_file()


def test_a_run_that_can_not_be_started_has_failed(bench):
    (bench.out / "ppo").write_text("in the way of the folder")
    bench(finishing(bench))
    assert statuses(bench.out) == ["failed"] * 3
    manifest = json.loads((bench.out / "manifest.json").read_text())
    assert "could not be started" in manifest["runs"][0]["error"]


def test_seeds_of_a_row_that_says_together_share_a_process(bench, tmp_path):
    jobs = load(tmp_path, {**ROW, "together": True}, seeds=3).jobs
    write_run(bench.out / jobs[1].folder, jobs[1], "interrupted", saved=True)

    def play(name, launch):
        for job in jobs if "run_dir=" in launch.arguments[-1] else jobs[1:2]:
            if not (bench.out / job.folder).exists() or job is jobs[1]:
                write_run(bench.out / job.folder, job, "finished", saved=True)
        return Ended(0)

    executor = bench(play, jobs=jobs)
    assert executor.order == [jobs[0].folder, jobs[1].folder]  # what goes on starts apart
    assert "seeds=[0,2]" in executor.launches[jobs[0].folder].arguments
    assert statuses(bench.out) == ["finished"] * 3
    log = [run["log"] for run in json.loads((bench.out / "manifest.json").read_text())["runs"]]
    assert log == [f"{jobs[0].folder}.log", f"{jobs[1].folder}.log", f"{jobs[0].folder}.log"]


def test_a_process_of_several_seeds_that_dies_has_failed_for_each(bench, tmp_path):
    jobs = load(tmp_path, {**ROW, "together": True}, seeds=2).jobs

    def play(name, launch):
        launch.log.write_text("error: no\n")
        return Ended(2)

    assert bench(play, jobs=jobs).order == [jobs[0].folder]
    assert statuses(bench.out)[:2] == ["failed", "failed"]


def test_the_first_interrupt_lets_runs_save_and_starts_no_more(bench):
    told = []

    def play(name, launch):
        if not told:
            told.append(os.kill(os.getpid(), signal.SIGINT))
            return None
        if bench.executor.stopped:
            write_run(bench.out / name, bench.jobs[0], "interrupted", saved=True)
            return Ended(130)
        return None

    executor = bench(play)
    assert executor.order == bench.folders[:1]
    assert (executor.stopped, executor.killed) == (1, 0)
    assert statuses(bench.out) == ["interrupted", "waiting", "waiting"]
    again = bench(finishing(bench))
    assert again.order == bench.folders
    assert again.launches[bench.folders[0]].arguments[:2] == ("train", "--resume")


def test_the_second_interrupt_kills(bench):
    def play(name, launch):
        executor = bench.executor
        if executor.killed:
            return Ended(-signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGTERM)
        return None

    executor = bench(play)
    assert (executor.stopped, executor.killed) == (1, 1)
    assert statuses(bench.out) == ["interrupted", "waiting", "waiting"]


def test_on_a_full_disk_runs_under_way_are_stopped_and_awaited(bench, monkeypatch):
    first, second, _ = bench.folders
    full = OSError(errno.ENOSPC, "No space left on device")

    def play(name, launch):
        if name == first:
            monkeypatch.setattr(manifests, "replacing", Mock(side_effect=full))
            return Ended(2)
        return Ended(130) if bench.executor.stopped else None

    with pytest.raises(UserError, match=r"can't write .*manifest.json: No space left"):
        bench(play, slots=2)
    assert bench.executor.order == [first, second]
    assert bench.executor.running == {}
    assert statuses(bench.out) == ["running", "running", "waiting"]  # as the disk has it


def test_a_run_whose_bench_was_killed_is_resumed(bench):
    def die(name, launch):
        write_run(bench.out / name, bench.jobs[0], None, saved=True)
        raise SystemError

    with pytest.raises(SystemError):
        bench(die)
    assert statuses(bench.out) == ["running", "waiting", "waiting"]
    bench(finishing(bench), jobs=bench.jobs[1:])
    assert statuses(bench.out) == ["interrupted", "finished", "finished"]
    executor = bench(finishing(bench))
    assert executor.launches[bench.folders[0]].arguments[:2] == ("train", "--resume")
    assert json.loads((bench.out / "manifest.json").read_text())["runs"][0]["attempts"] == 2


def test_a_run_that_finished_though_nobody_noted_it_counts_as_ended(bench, capsys):
    write_run(bench.out / bench.folders[0], bench.jobs[0], "finished", saved=True)
    bench(finishing(bench))
    assert "2 of 3 runs ended" in capsys.readouterr().out
    assert statuses(bench.out) == ["finished"] * 3


def test_a_manifest_keeps_the_runs_of_an_earlier_selection(bench):
    bench(finishing(bench), jobs=bench.jobs[:1])
    bench(finishing(bench), jobs=bench.jobs[2:])
    assert statuses(bench.out) == ["finished", "waiting", "finished"]


def test_another_suites_folder_is_refused(bench, suite):
    bench(finishing(bench))
    with pytest.raises(UserError, match="holds the results of the suite own: .* for other"):
        Manifest(bench.out, replace(suite, name="other"))


@pytest.mark.parametrize("text", ["", "{", "[]", '{"suite": {"name": "own"}, "runs": [1]}'])
def test_a_damaged_manifest_is_named(bench, text):
    (bench.out / "manifest.json").write_text(text)
    with pytest.raises(UserError, match=r"can't read .*manifest.json"):
        bench(finishing(bench))


def test_runs_that_are_still_being_saved_are_awaited_shortly(bench, monkeypatch, capsys):
    folder = bench.out / bench.folders[1]
    folder.mkdir(parents=True)
    monkeypatch.setattr(runners, "_ORPHANS_S", 0.0)
    wait_for_orphans(bench.jobs, bench.out)
    with holding(folder), pytest.raises(UserError, match="another process is training in"):
        wait_for_orphans(bench.jobs, bench.out)
    assert "still being saved" in capsys.readouterr().out


def test_two_can_not_hold_one_folder(tmp_path):
    with holding(tmp_path), pytest.raises(UserError, match="another zoo bench is working in"):
        with holding(tmp_path):
            pass
    with holding(tmp_path):
        pass


def test_cores_are_shared_among_runs(tmp_path):
    executor = LocalProcesses()
    executor.cores = executor.most = 8
    control = load(tmp_path, ROW).jobs
    assert share(control, executor, None) == (8, 1)
    assert share(control, executor, 2) == (2, 4)
    assert share(control, executor, 1000) == (1000, 1)
    wide = load(tmp_path, {**ROW, "overrides": ["threads=3"]}).jobs
    assert share([*control, *wide], executor, None) == (2, 4)
    text = load(tmp_path, {"algo": "grpo", "env": "gsm8k", "model": "tiny"}).jobs
    assert share(text, executor, None) == (8, 1)  # it is tuned to one
    any_number = load(
        tmp_path,
        {"algo": "grpo", "env": "gsm8k", "model": "tiny", "overrides": ["threads=null"]},
    ).jobs
    assert share(any_number, executor, None) == (1, 8)


def test_on_a_cluster_a_run_gets_no_more_cores_than_a_node_has(tmp_path):
    executor = LocalProcesses()
    executor.cores, executor.most = 64, 16
    assert share(load(tmp_path, ROW).jobs, executor, 2) == (2, 16)
    wide = load(tmp_path, {**ROW, "overrides": ["threads=1000"]}).jobs
    assert share(wide, executor, None) == (4, 16)


def test_the_tail_of_the_metrics_says_how_far_a_run_is(tmp_path, bench):
    job = bench.jobs[0]  # 256 steps
    tail = Tail(job, tmp_path)
    tail.look()
    assert (tail.spent, tail.evaluation) == (0.0, None)
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"env_steps": 64, "eval/return_mean": 9.5}\n{"env_steps": 128}\n{"env_st')
    tail.look()
    assert (tail.spent, tail.evaluation) == (0.5, 9.5)
    with file.open("a") as f:
        f.write('eps": 192, "eval/return_mean": 20.0}\nnonsense\n')
    tail.look()
    assert (tail.spent, tail.evaluation) == (0.75, 20.0)
    tail.look()
    assert (tail.spent, tail.evaluation) == (0.75, 20.0)


def test_the_time_left_is_what_finished_runs_took(bench, suite, monkeypatch):
    clock = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    manifest = Manifest(bench.out, suite)
    progress = Progress(bench.jobs, manifest.records, bench.out, 1)
    first, second, _ = bench.jobs
    records = manifest.records
    assert progress.left() is None
    records[first.folder].status = "running"
    progress.changed(first)
    clock[0] = 110.0
    records[first.folder].status = "finished"
    progress.changed(first)
    assert progress.left() == 20.0
    records[second.folder].status = "running"
    progress.changed(second)
    clock[0] = 114.0
    assert progress.left() == 16.0
    records[second.folder].status = "failed"
    progress.changed(second)
    assert progress.left() == 10.0


def test_the_live_table_says_how_far_each_group_is(bench, suite, capsys):
    first, second, third = bench.jobs
    records = Manifest(bench.out, suite).records
    records[third.folder].status, records[third.folder].error = "failed", "ValueError: [bold]no"
    write_run(bench.out / second.folder, second, None)
    with LiveTable(Progress(bench.jobs, records, bench.out, 2)) as table:
        records[second.folder].status = "running"
        table.changed(second)
        metrics = bench.out / second.folder / "metrics.jsonl"
        metrics.write_text('{"env_steps": 64, "eval/return_mean": 12.5}\n')
        records[first.folder].status = "finished"
        table.changed(first)
        table.changed(third)
    said = capsys.readouterr().out
    assert "failed       ppo CartPole-v1 seed 2 in 0s: ValueError: [bold]no" in said
    for cell in ("ppo", "CartPole-v1", "1/3", "12.5 (mean of 1)", "seed 1 25%"):
        assert cell in said
    assert "2 of 3 runs ended" in said
