"""TensorBoard event files of several libraries, whole and damaged."""

from __future__ import annotations

import sys

import pytest
import yaml
from made_runs import CONTROL, evaluations, monitor, only, points, texts, zoo_run

from zoo.benchmarks.readers import read
from zoo.errors import UserError

pytest.importorskip("tensorboard")

from tensorboard.compat.proto import event_pb2, summary_pb2
from tensorboard.summary.writer.record_writer import RecordWriter
from tensorboard.util.tensor_util import make_tensor_proto

NAN = float("nan")


def write(folder, rows, number=1, table=None, begun=1000.0):
    """Write an event file; a row is a tag, a step, a value and the seconds since it began."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"events.out.tfevents.{number}.host"
    with file.open("wb") as raw:
        writer = RecordWriter(raw)
        head = event_pb2.Event(wall_time=begun, file_version="brain.Event:2")
        writer.write(head.SerializeToString())
        if table is not None:
            text = summary_pb2.Summary.Value(
                tag="hyperparameters/text_summary", tensor=make_tensor_proto([table.encode()])
            )
            event = event_pb2.Event(wall_time=begun, summary=summary_pb2.Summary(value=[text]))
            writer.write(event.SerializeToString())
        for tag, step, value, seconds in rows:
            one = summary_pb2.Summary.Value(tag=tag, simple_value=value)
            event = event_pb2.Event(
                wall_time=begun + seconds, step=step, summary=summary_pb2.Summary(value=[one])
            )
            writer.write(event.SerializeToString())
    return file


SB3 = [
    ("rollout/ep_rew_mean", 100, 5.0, 1.0),
    ("eval/mean_reward", 150, 8.0, 1.5),
    ("rollout/ep_rew_mean", 200, 10.0, 2.0),
]


def test_stable_baselines3_s_figures_are_read_over_steps_and_time(tmp_path):
    write(tmp_path / "CartPole-v1" / "PPO_2", SB3)
    run = only(tmp_path)
    assert (run.label, run.env, run.seed) == ("SB3 PPO", "CartPole-v1", None)
    assert (run.kind, run.unit, run.metric) == ("tensorboard", "environment steps", "return")
    assert points(run) == [(150, 8)]
    assert points(run, "training") == [(100, 5), (200, 10)]
    assert run.curves["training"].wall_s.tolist() == [1, 2]


def test_cleanrl_s_episodes_are_averaged_and_its_table_is_read(tmp_path):
    table = "|param|value|\n|-|-|\n|env_id|CartPole-v1|\n|seed|5|\n|exp_name|ppo|\n|gamma|0.99|"
    rows = [("charts/episodic_return", step, float(step), step) for step in (1, 2, 2, 3)]
    write(tmp_path / "anything", rows, table=table)
    run = only(tmp_path)
    assert (run.label, run.env, run.seed) == ("CleanRL ppo", "CartPole-v1", 5)
    assert points(run, "training") == [(1, 1), (2, 5 / 3), (3, 2)]
    assert run.settings["gamma"] == 0.99


def test_cleanrl_s_folder_names_the_run_where_its_table_is_missing(tmp_path):
    rows = [("charts/episodic_return", 1, 1.0, 1.0)]
    write(tmp_path / "CartPole-v1__ppo__7__1700000000", rows)
    run = only(tmp_path)
    assert (run.label, run.env, run.seed) == ("CleanRL ppo", "CartPole-v1", 7)


def ours(steps=(1, 2), values=(10.0, 20.0)):
    rows = []
    for update, value in zip(steps, values, strict=True):
        rows += [("env_steps", update, update * 64.0, 9.0), ("wall_s", update, update / 2, 9.0)]
        rows += [("eval/episodes", update, 10.0, 9.0)]
        rows += [("eval/return_mean", update, value, 9.0)] if value is not None else []
    return rows


def test_our_own_figures_stand_over_environment_steps_not_over_updates(tmp_path):
    write(tmp_path / "ppo" / "CartPole-v1-3", ours())
    run = only(tmp_path)
    assert (run.unit, points(run)) == ("environment steps", [(64, 10), (128, 20)])
    assert run.curves["evaluation"].wall_s.tolist() == [0.5, 1.0]


def test_our_logger_leaves_out_what_is_not_finite_and_that_still_means_diverged(tmp_path):
    write(tmp_path / "ppo" / "CartPole-v1-3", ours(values=(10.0, None)))
    run = only(tmp_path)
    assert (run.status, points(run)) == ("diverged", [(64, 10)])


def test_our_event_files_stand_in_where_metrics_jsonl_is_gone(tmp_path):
    folder = zoo_run(tmp_path / "run", status=None)
    write(folder / "tensorboard", ours())
    assert only(folder).kind == "zoo"  # and the same is not read twice
    (folder / "metrics.jsonl").unlink()
    run = only(folder)
    assert (run.kind, run.label, run.env, run.seed) == ("tensorboard", "ppo", "CartPole-v1", 3)
    assert run.settings["algo.lr"] == CONTROL["algo"]["lr"]


def test_a_run_that_evaluations_npz_describes_is_not_read_again(tmp_path):
    folder = evaluations(tmp_path / "ppo" / "CartPole-v1" / "seed-1", [100], [[1.0]])
    write(folder, SB3)
    write(folder / "tb" / "PPO_1", SB3)
    assert [run.kind for run in read([str(tmp_path)]).runs] == ["sb3"]


def test_events_complete_a_run_of_which_there_is_only_a_monitor(tmp_path):
    folder = tmp_path / "ppo" / "CartPole-v1" / "seed-1"
    monitor(folder / "monitor.csv", [(1.0, 100, 1.0)])
    write(folder / "tb" / "PPO_1", SB3)
    run = only(tmp_path)
    assert (run.kind, points(run), points(run, "training")) == ("sb3", [(150, 8)], [(100, 1)])


def test_event_files_of_several_folders_below_a_run_are_not_guessed_at(tmp_path):
    monitor(tmp_path / "monitor.csv", [(1.0, 100, 1.0)])
    write(tmp_path / "PPO_1", SB3)
    write(tmp_path / "PPO_2", SB3)
    collection = read([str(tmp_path)])
    assert [(run.kind, list(run.curves)) for run in collection.runs] == [("sb3", ["training"])]
    assert "event files in 2 folders below it are not read" in texts(collection)
    assert len(read([f"A@CartPole-v1={tmp_path}/PPO_*"]).runs) == 2


def test_hparams_are_no_run(tmp_path):
    folder = tmp_path / "CartPole-v1" / "PPO_1"
    write(folder, SB3)
    write(folder / "1700000000.123", [("eval/mean_reward", 0, 0.0, 0.0)])
    assert len(read([str(tmp_path)]).runs) == 1


def test_one_event_file_is_read_by_its_name(tmp_path):
    file = write(tmp_path / "CartPole-v1" / "SAC_1", SB3)
    run = only(file)
    assert (run.label, run.env, run.source) == ("SB3 SAC", "CartPole-v1", file)
    assert not run.named
    run = only(f"A={file}")
    assert (run.label, run.named) == ("A", True)


def test_a_resumed_run_has_its_later_segment_and_its_pause_does_not_count(tmp_path):
    folder = tmp_path / "CartPole-v1" / "PPO_1"
    first = [("rollout/ep_rew_mean", s, float(s), s / 100) for s in (100, 200, 300)]
    later = [("rollout/ep_rew_mean", s, s + 0.5, s / 100 - 1) for s in (200, 300, 400)]
    write(folder, first, number=1)
    write(folder, later, number=2, begun=90000.0)
    collection = read([str(folder)])
    run = collection.runs[0]
    assert points(run, "training") == [(100, 100), (200, 200.5), (300, 300.5), (400, 400.5)]
    assert run.curves["training"].wall_s.tolist() == [1, 4, 5, 6]
    assert "go back" in texts(collection)


def test_nan_at_the_end_is_a_run_that_diverged(tmp_path):
    write(tmp_path / "CartPole-v1" / "PPO_1", [*SB3, ("eval/mean_reward", 300, NAN, 3.0)])
    assert only(tmp_path).status == "diverged"


def test_scalars_in_tensorflow_s_newer_form_are_read(tmp_path):
    folder = tmp_path / "CartPole-v1" / "PPO_1"
    folder.mkdir(parents=True)
    with (folder / "events.out.tfevents.1.host").open("wb") as raw:
        one = summary_pb2.Summary.Value(tag="eval/mean_reward", tensor=make_tensor_proto(2.5))
        summary = summary_pb2.Summary(value=[one])
        event = event_pb2.Event(wall_time=1.0, step=10, summary=summary)
        RecordWriter(raw).write(event.SerializeToString())
    assert points(only(folder)) == [(10, 2.5)]


@pytest.mark.parametrize("kept", [-7, -60])
def test_a_file_that_is_cut_is_read_up_to_there_with_a_note(tmp_path, kept):
    file = write(tmp_path / "CartPole-v1" / "PPO_1", SB3)
    file.write_bytes(file.read_bytes()[:kept])
    collection = read([str(tmp_path)])
    assert points(collection.runs[0], "training") == [(100, 5)]
    assert "can't be read on after its event" in texts(collection)


def test_a_file_that_is_damaged_in_the_middle_is_read_up_to_there_with_a_note(tmp_path):
    file = write(tmp_path / "CartPole-v1" / "PPO_1", SB3)
    data = bytearray(file.read_bytes())
    data[data.index(b"eval/mean_reward")] ^= 0xFF
    file.write_bytes(data)
    collection = read([str(tmp_path)])
    assert list(collection.runs[0].curves) == ["training"]
    assert "can't be read on after its event 2 of 4" in texts(collection)


@pytest.mark.parametrize("junk", [b"", bytes(range(1, 200)), b"x"])
def test_an_empty_file_or_junk_is_a_note_beside_others(tmp_path, junk):
    zoo_run(tmp_path / "good")
    folder = tmp_path / "CartPole-v1" / "PPO_1"
    folder.mkdir(parents=True)
    (folder / "events.out.tfevents.1.host").write_bytes(junk)
    collection = read([str(tmp_path)])
    assert [run.kind for run in collection.runs] == ["zoo"]
    assert "PPO_1 is left out" in texts(collection)
    with pytest.raises(UserError, match="PPO_1"):
        read([str(folder)])


def test_figures_that_mean_nothing_here_are_listed(tmp_path):
    write(tmp_path / "CartPole-v1" / "x", [("loss", 1, 1.0, 1.0)])
    with pytest.raises(UserError, match="none of the figures that are read.*it has loss"):
        read([str(tmp_path)])


def test_without_the_package_the_error_says_how_to_get_it(tmp_path, monkeypatch):
    file = write(tmp_path / "CartPole-v1" / "PPO_1", SB3)
    monkeypatch.setitem(sys.modules, "tensorboard.backend.event_processing", None)
    name = "tensorboard.backend.event_processing.event_file_loader"
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UserError, match="pip install tensorboard"):
        read([str(file)])


def test_what_our_own_logger_writes_is_read(tmp_path):
    from zoo.core.config import Config
    from zoo.core.loggers import TensorBoard

    (tmp_path / "config.yaml").write_text(yaml.safe_dump(CONTROL))
    logger = TensorBoard(Config.from_dict(dict(CONTROL)), tmp_path)
    for update in (1, 2):
        row = {"env_steps": 64 * update, "updates": update, "wall_s": 1.0 * update}
        logger.log(update, {**row, "return/mean": 7.0 * update}, [])
    logger.close()
    run = only(tmp_path)
    assert (run.label, run.env, run.seed) == ("ppo", "CartPole-v1", 3)
    assert points(run, "training") == [(64, 7), (128, 14)]
    assert run.curves["training"].wall_s.tolist() == [1, 2]
