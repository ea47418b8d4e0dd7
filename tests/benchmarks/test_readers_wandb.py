"""W&B's offline logs, made by hand from its own record definitions and by W&B itself."""

from __future__ import annotations

import json
import struct
import sys
import zlib

import pytest
from made_runs import CONTROL, only, points, texts, zoo_run

from zoo.benchmarks.readers import read
from zoo.errors import UserError

pytest.importorskip("wandb")

from wandb.proto import wandb_internal_pb2 as pb

BLOCK = 32768


def framed(records):
    """Return the bytes of a log in LevelDB's framing."""
    data = bytearray(struct.pack("<4sHB", b":W&B", 0xBEE1, 0))
    for record in records:
        content, first = record.SerializeToString(), True
        while first or content:
            left = BLOCK - len(data) % BLOCK
            if left < 7:
                data += bytes(left)
                left = BLOCK
            part, content = content[: left - 7], content[left - 7 :]
            kind = {(True, True): 1, (True, False): 2, (False, False): 3, (False, True): 4}[
                first, not content
            ]
            checksum = zlib.crc32(bytes([kind]) + part)
            data += struct.pack("<IHB", checksum, len(part), kind) + part
            first = False
    return bytes(data)


def beginning(config, start=1000):
    run = pb.RunRecord(run_id="abc", project="mine")
    run.start_time.seconds = start
    for key, value in config.items():
        run.config.update.add(key=key, value_json=json.dumps(value))
    return pb.Record(run=run)


def row(step, when=None, **values):
    history = pb.HistoryRecord()
    history.step.num = step
    if when is not None:
        values["_timestamp"] = when
    for key, value in values.items():
        history.item.add(nested_key=[key.replace("__", "/")], value_json=json.dumps(value))
    return pb.Record(history=history)


def ended(code=0):
    return pb.Record(exit=pb.RunExitRecord(exit_code=code))


def log(tmp_path, records, name="offline-run-20260101_000000-abc", run="abc"):
    folder = tmp_path / "wandb" / name
    folder.mkdir(parents=True)
    file = folder / f"run-{run}.wandb"
    file.write_bytes(framed(records))
    return file


SB3 = {"env_name": "CartPole-v1", "seed": 7, "algo": "PPO", "_last_obs": "[1]", "gamma": 0.9}
ROWS = [
    row(0, 1001, global_step=64, rollout__ep_rew_mean=5.0),
    row(1, 1003, global_step=128, rollout__ep_rew_mean=6.0, eval__mean_reward=8.0),
]


def test_stable_baselines3_s_history_stands_over_its_own_steps(tmp_path):
    run = only(log(tmp_path, [beginning(SB3), *ROWS, ended()]).parent)
    assert (run.label, run.env, run.seed) == ("SB3 PPO", "CartPole-v1", 7)
    assert (run.kind, run.unit, run.status) == ("wandb", "environment steps", "finished")
    assert points(run, "training") == [(64, 5), (128, 6)]
    assert points(run) == [(128, 8)]
    assert run.curves["training"].wall_s.tolist() == [1, 3]
    assert run.settings["gamma"] == 0.9
    assert "_last_obs" not in run.settings
    assert not run.named
    run = only(f"A={tmp_path}")
    assert (run.label, run.named) == ("A", True)


def test_settings_that_were_set_later_count(tmp_path):
    later = pb.ConfigRecord()
    later.update.add(key="gamma", value_json="0.5")
    run = only(log(tmp_path, [beginning(SB3), pb.Record(config=later), *ROWS]))
    assert run.settings["gamma"] == 0.5


@pytest.mark.parametrize(
    ("end", "status"), [([], "running"), ([ended()], "finished"), ([ended(1)], "failed")]
)
def test_the_status_is_how_the_log_ends(tmp_path, end, status):
    assert only(log(tmp_path, [beginning(SB3), *ROWS, *end])).status == status


def test_our_own_history_is_read_with_its_budget(tmp_path):
    rows = [row(u, env_steps=64 * u, wall_s=u / 2, eval__return_mean=10.0 * u) for u in (1, 2)]
    run = only(log(tmp_path, [beginning(CONTROL), *rows, ended()]))
    assert (run.label, run.env, run.seed) == ("ppo", "CartPole-v1", 3)
    assert points(run) == [(64, 10), (128, 20)]
    assert run.curves["evaluation"].wall_s.tolist() == [0.5, 1.0]
    assert run.status == "interrupted"  # 128 of 300 steps


def test_a_log_inside_a_run_folder_of_ours_is_not_read_again(tmp_path):
    folder = zoo_run(tmp_path / "run")
    log(folder, [beginning(CONTROL), row(1, env_steps=64, eval__return_mean=1.0)])
    assert [run.kind for run in read([str(tmp_path)]).runs] == ["zoo"]


def test_other_names_are_read_over_steps_that_are_not_known(tmp_path):
    config = {"env": "CartPole-v1", "seed": 1}
    rows = [row(step, train__reward=1.0 * step) for step in (1, 2)]
    run = only(log(tmp_path, [beginning(config), *rows]))
    assert (run.label, run.unit, points(run, "training")) == ("mine", "steps", [(1, 1), (2, 2)])


def test_the_parts_of_a_resumed_run_are_one_run(tmp_path):
    log(tmp_path, [beginning(SB3), *ROWS])
    again = [
        beginning(SB3, 5000),
        row(1, 5001, global_step=128, rollout__ep_rew_mean=7.0),
        row(2, 5002, global_step=192, rollout__ep_rew_mean=9.0),
        ended(),
    ]
    log(tmp_path, again, name="offline-run-20260102_000000-abc")
    collection = read([str(tmp_path)])
    (run,) = collection.runs
    assert points(run, "training") == [(64, 5), (128, 7), (192, 9)]
    assert run.curves["training"].wall_s.tolist() == [1, 4, 5]
    assert run.status == "finished"


def test_a_link_to_the_latest_run_is_not_a_second_run(tmp_path):
    file = log(tmp_path, [beginning(SB3), *ROWS])
    (tmp_path / "wandb" / "latest-run").symlink_to(file.parent)
    run = only(tmp_path)
    assert run.source == file


def test_event_files_that_were_synced_into_it_are_not_read_again(tmp_path):
    log(tmp_path, [beginning(SB3), *ROWS])
    folder = tmp_path / "tb" / "abc" / "PPO_1"
    folder.mkdir(parents=True)
    (folder / "events.out.tfevents.1.host").write_bytes(b"junk")
    collection = read([str(tmp_path)])
    assert len(collection.runs) == 1
    assert collection.notes == ()


def test_nan_at_the_end_is_a_run_that_diverged(tmp_path):
    lost = row(2, 1004, global_step=192, eval__mean_reward=float("nan"))
    run = only(log(tmp_path, [beginning(SB3), *ROWS, lost, ended()]))
    assert (run.status, points(run)) == ("diverged", [(128, 8)])


def test_records_over_several_blocks_are_put_together(tmp_path):
    text = {"note": "x" * 100_000}
    filler = [row(s, 1000 + s, global_step=s, **{f"loss{i}": 1.0 for i in range(50)})
              for s in range(1, 60)]  # fmt: skip
    file = log(tmp_path, [beginning({**SB3, **text}), *filler, *ROWS, ended()])
    assert file.stat().st_size > 3 * BLOCK
    assert points(only(file)) == [(128, 8)]


def test_a_log_that_is_cut_is_read_up_to_there_with_a_note(tmp_path):
    file = log(tmp_path, [beginning(SB3), *ROWS])
    file.write_bytes(file.read_bytes()[:-5])
    collection = read([str(file)])
    assert points(collection.runs[0], "training") == [(64, 5)]
    assert "cut or damaged" in texts(collection)


def test_a_log_that_is_damaged_is_read_up_to_there_with_a_note(tmp_path):
    file = log(tmp_path, [beginning(SB3), *ROWS])
    data = bytearray(file.read_bytes())
    data[data.index(b"eval/mean_reward")] ^= 0xFF
    file.write_bytes(data)
    collection = read([str(file)])
    assert list(collection.runs[0].curves) == ["training"]
    assert "cut or damaged" in texts(collection)


@pytest.mark.parametrize(
    ("junk", "message"),
    [(b"", "is empty"), (b"junk" * 99, "no log of a W&B run"), (framed([]), "no history")],
)
def test_junk_and_empty_logs_are_one_sentence(tmp_path, junk, message):
    file = log(tmp_path, [])
    file.write_bytes(junk)
    with pytest.raises(UserError, match=message):
        read([str(file)])


def test_a_history_of_other_figures_lists_them(tmp_path):
    with pytest.raises(UserError, match="none of the figures that are read.*it has loss"):
        read([str(log(tmp_path, [beginning(SB3), row(1, loss=1.0)]))])


def test_without_the_package_the_error_says_how_to_get_it(tmp_path, monkeypatch):
    file = log(tmp_path, [beginning(SB3), *ROWS])
    monkeypatch.setitem(sys.modules, "wandb.proto", None)
    with pytest.raises(UserError, match="pip install wandb"):
        read([str(file)])


@pytest.mark.slow
def test_what_wandb_writes_offline_is_read(tmp_path, monkeypatch):
    import wandb

    monkeypatch.setenv("WANDB_SILENT", "true")
    run = wandb.init(mode="offline", dir=str(tmp_path), config=SB3, project="p")
    for step in (1, 2):
        run.log({"global_step": 64 * step, "eval/mean_reward": 10.0 * step})
    run.finish()
    wandb.teardown()  # the process that writes the file may still have some of it
    run = only(tmp_path)
    assert (run.label, run.env, run.seed) == ("SB3 PPO", "CartPole-v1", 7)
    assert (points(run), run.status) == ([(64, 10), (128, 20)], "finished")
