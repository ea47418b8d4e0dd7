"""Several short rounds in one row of figures."""

from __future__ import annotations

import pytest

from zoo.core.protocols import Report
from zoo.core.recorder import Recorder
from zoo.core.rows import Row


class Folder:
    """Keeps what a run folder would write."""

    def __init__(self):
        self.rows, self.records = [], []

    def append_metrics(self, row):
        self.rows.append(row)

    def append_records(self, file, records):
        self.records.append((file, list(records)))

    def read_summary(self):
        return {}

    def write_summary(self, summary):
        return summary


def log(recorder, step, metrics, records=()):
    counters = {"env_steps": step, "updates": step, "tokens": 0, "wall_s": 0.0}
    recorder.log(counters, metrics, Report(records=list(records)), "episodes.jsonl")


def test_times_add_up_speeds_are_over_their_time_and_the_rest_are_means():
    row = Row()
    row.add({"time/collect": 1.0, "speed/steps_per_s": 10.0, "loss/a": 1.0, "episode/count": 1}, [])
    row.add({"time/collect": 3.0, "speed/steps_per_s": 2.0, "loss/a": 2.0, "episode/count": 2}, [])
    row.add({"time/collect": 0.0, "return/mean": 7.0}, [])
    assert row.figures() == {
        "time/collect": 4.0,
        "speed/steps_per_s": pytest.approx(4.0),
        "loss/a": 1.5,
        "episode/count": 3,
        "return/mean": 7.0,
    }


def test_figures_of_episodes_are_over_all_episodes():
    row = Row()
    row.add({"episode/count": 1, "return/mean": 10.0, "return/std": 0.0}, [])
    row.add({"episode/count": 0}, [])
    row.add({"episode/count": 3, "return/mean": 2.0, "return/std": 1.0}, [])
    figures = row.figures()
    assert figures["return/mean"] == pytest.approx(4.0)
    # (1·6² + 3·(1 + 2²)) / 4
    assert figures["return/std"] == pytest.approx((51 / 4) ** 0.5)


def test_of_counters_the_last_and_of_maxima_the_largest_stands():
    row = Row()
    row.add({"update/skipped": 0.0, "completion/length_max": 9.0, "reward/failed/a": 1}, [])
    row.add({"update/skipped": 3.0, "completion/length_max": 5.0, "reward/failed/a": 2}, [])
    assert row.figures() == {
        "update/skipped": 3.0,
        "completion/length_max": 9.0,
        "reward/failed/a": 3,
    }


def test_a_run_that_fails_right_after_its_resume_keeps_its_own_error():
    first = Recorder(Folder(), every=10)
    log(first, 1, {"x": 1.0})
    folder = Folder()
    resumed = Recorder(folder, every=10)
    resumed.load_state_dict(first.state_dict())
    resumed.summarise("failed", {"env_steps": 1, "updates": 1})
    assert folder.rows == [{"env_steps": 1, "updates": 1, "x": 1.0}]


def test_a_row_is_written_whenever_the_budget_passes_a_multiple():
    folder = Folder()
    recorder = Recorder(folder, every=10)
    for step in range(4, 33, 4):
        log(recorder, step, {"x": float(step)}, [{"at": step}])
    assert [(r["env_steps"], r["x"]) for r in folder.rows] == [(12, 8.0), (20, 18.0), (32, 28.0)]
    assert [[r["at"] for r in records] for _, records in folder.records] == [
        [4, 8, 12],
        [16, 20],
        [24, 28, 32],
    ]


def test_an_evaluation_is_written_at_once_and_the_rest_at_the_end():
    folder = Folder()
    recorder = Recorder(folder, every=100)
    log(recorder, 1, {"x": 1.0})
    log(recorder, 2, {"x": 3.0, "eval/return_mean": 5.0})
    log(recorder, 3, {"x": 9.0})
    assert [r["x"] for r in folder.rows] == [2.0]
    recorder.summarise("finished", {"env_steps": 3})
    assert [r["x"] for r in folder.rows] == [2.0, 9.0]


def test_without_a_size_every_round_is_a_row():
    folder = Folder()
    recorder = Recorder(folder)
    for step in (1, 2, 3):
        log(recorder, step, {"x": float(step)})
    assert [r["x"] for r in folder.rows] == [1.0, 2.0, 3.0]


def test_a_resumed_recorder_goes_on_with_the_row_it_was_in():
    whole, parts = Folder(), Folder()
    one, first = Recorder(whole, every=10), Recorder(parts, every=10)
    for step in range(1, 15):
        log(one, step, {"x": float(step)})
        if step < 6:
            log(first, step, {"x": float(step)})
    first.summarise("interrupted", {"env_steps": 5})
    assert parts.rows == []
    second = Recorder(parts, every=10)
    second.load_state_dict(first.state_dict())
    for step in range(6, 15):
        log(second, step, {"x": float(step)})
    assert parts.rows == whole.rows
