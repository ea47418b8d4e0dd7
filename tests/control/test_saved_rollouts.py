"""Saving what a run collects: the files hold what happened, and nothing else is lost over them."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from zoo.algorithms import DQN, GRPO, PPO, SAC
from zoo.core.algorithm import Algorithm
from zoo.errors import UserError
from zoo.policies.mlp import MLPKnobs, MLPPolicy
from zoo.rollouts import saving
from zoo.rollouts.gymnasium import GymnasiumRollout
from zoo.rollouts.rollout_files import as_arrays, as_batch, joined, read
from zoo.rollouts.saving import SavingRollout

QUIET = ["eval.every=null", "eval.at_end=false", "save.rollouts=true", "checkpoint.every_s=null"]
SMALL = [*QUIET, "rollout.num_envs=4", "rollout.steps=32"]


def files(folder: Path) -> list[Path]:
    return sorted((folder / "rollouts").glob("*.npz"))


def whole(folder: Path) -> TensorDict:
    """What all files hold, fragments joined in time."""
    batches = [read(path)[1] for path in files(folder)]
    keys = [k for k, _ in batches[0].items() if k not in ("group", "version")]
    return TensorDict({k: torch.cat([b[k] for b in batches], 1) for k in keys})


def train(folder: Path, steps: int, *more: str, cls: type[Algorithm] = PPO) -> Algorithm:
    made = cls("CartPole-v1", seed=4, run_dir=folder, overrides=[*SMALL, *more])
    made.train(steps)
    made.close()
    return made


def collected(normalize: bool, rounds: int, **knobs: Any) -> list[TensorDict]:
    torch.manual_seed(0)
    rollout = GymnasiumRollout("CartPole-v1", num_envs=3, seed=1, **knobs)
    rollout.keep_raw = True
    config = MLPKnobs(normalize_observation=normalize)
    policy = MLPPolicy(rollout.observation_space, rollout.action_space, config)
    return [rollout.collect(policy) for _ in range(rounds)]


@pytest.mark.parametrize("knobs", [{"steps": 40}, {"steps": 1}, {"group_size": 3}], ids=str)
def test_a_batch_comes_back_as_it_was(knobs: dict[str, int]) -> None:
    (batch,) = collected(False, 1, **knobs)
    again = as_batch(as_arrays(batch))
    live = batch["mask"]
    for key, _ in batch.items():
        if key == "version":
            assert (again[key] == -1).all()
        elif key == "next_observation":
            assert torch.equal(again[key][live], batch[key][live])
        else:
            assert torch.equal(again[key], batch[key])


def test_observations_are_stored_once_and_those_that_ended_an_episode_besides() -> None:
    (batch,) = collected(False, 1, steps=60)
    arrays = as_arrays(batch)
    ended = (batch["terminated"] | batch["truncated"]).sum()
    last = (~(batch["terminated"] | batch["truncated"])[:, -1]).sum()
    assert len(arrays["final_observation"]) == ended + last > 3
    assert "next_observation" not in arrays


def test_fragments_that_follow_one_another_are_joined_in_time() -> None:
    batches = collected(False, 3, steps=30)
    again = as_batch(joined([as_arrays(batch) for batch in batches]))
    for key in ("observation", "next_observation", "action", "log_prob", "reward", "terminated"):
        assert torch.equal(again[key], torch.cat([b[key] for b in batches], 1))
    assert again["group"].tolist() == [0, 1, 2]


def test_raw_observations_are_saved_where_the_policy_sees_normalised_ones() -> None:
    # the streams of episodes and actions are the same ones; the policies are not, after step 0
    (normalised,) = collected(True, 1, steps=30)
    again = as_batch(as_arrays(normalised))
    assert not torch.equal(again["observation"], normalised["observation"])
    inside = ~(again["terminated"] | again["truncated"])[:, :-1]
    moved = again["next_observation"][:, :-1][inside]
    assert torch.equal(moved, again["observation"][:, 1:][inside])
    # CartPole moves its cart by .02·velocity, whatever the policy sees
    start, after = again["observation"], again["next_observation"]
    torch.testing.assert_close(after[..., 0], start[..., 0] + 0.02 * start[..., 1])


def test_a_run_saves_every_step_in_files_of_two_thousand(tmp_path: Path) -> None:
    made = train(tmp_path / "run", 4608)
    assert [read(f)[1]["mask"].numel() for f in files(tmp_path / "run")] == [2048, 2048, 512]
    about, _ = read(files(tmp_path / "run")[0])
    assert about == {
        "format": 1,
        "world": "control",
        "env": "CartPole-v1",
        "algo": "ppo",
        "model": "mlp",
        "seed": 4,
        "groups": False,
    }
    twin = PPO("CartPole-v1", seed=4, overrides=SMALL[:2] + SMALL[4:]).train(4608)
    for one, other in zip(
        made.policy.state_dict().values(), twin.policy.state_dict().values(), strict=True
    ):
        assert torch.equal(one, other)


def test_rewards_are_saved_raw(tmp_path: Path) -> None:
    train(tmp_path / "run", 512, "algo.reward_scale={mode: constant, factor: 0.1}")
    assert (whole(tmp_path / "run")["reward"] == 1.0).all()


def test_an_interrupted_run_leaves_the_files_of_an_uninterrupted_one(tmp_path: Path) -> None:
    expected = whole_run = tmp_path / "whole"
    train(whole_run, 4608)
    made = PPO("CartPole-v1", seed=4, run_dir=tmp_path / "parts", overrides=SMALL)
    made.trainer.total = 4608
    for _ in range(20):  # 2,560 steps: one file, and a quarter of the next pending
        made.trainer.round()
    made.save(tmp_path / "parts/checkpoints/last.pt")
    for _ in range(16):  # what is killed after the checkpoint was written already
        made.trainer.round()
    made.close()
    assert len(files(tmp_path / "parts")) == 3
    from zoo.core.build import load
    from zoo.core.run_folder import RunFolder, open_recorder

    folder = RunFolder.open(tmp_path / "parts")
    trainer = load(folder.path, open_recorder(folder.config, folder))
    assert len(files(tmp_path / "parts")) == 1
    trainer.run()
    trainer.close()
    one, other = whole(expected), whole(tmp_path / "parts")
    assert one["mask"].numel() == 4608
    for key, leaf in one.items():
        assert torch.equal(leaf, other[key])


def test_a_full_disk_ends_the_saving_with_one_sentence_and_not_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written, write = [], saving.write

    def full(path: Path, *arguments: Any) -> int:
        if len(written) == 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        written.append(path)
        return write(path, *arguments)

    monkeypatch.setattr(saving, "write", full)
    made = train(tmp_path / "run", 6400)
    assert made.trainer.done == 6400
    said = capsys.readouterr().err
    assert said.count("no space left on the disk for") == 1
    assert "later rollouts are not saved; the 1 files before are complete" in said
    assert [f.name for f in files(tmp_path / "run")] == ["000001.npz"]


def test_saving_ends_at_its_bound_and_says_what_it_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = train(tmp_path / "run", 8192, "save.max_gib=5e-5")  # 52 KiB: a file has 43
    assert made.trainer.done == 8192
    assert len(files(tmp_path / "run")) == 2
    said = capsys.readouterr().err
    assert "bytes a step, about 0.1" in said
    assert said.count("save.max_gib=5e-05 is reached: later rollouts are not saved") == 1


def test_without_a_run_folder_saving_is_refused() -> None:
    with pytest.raises(UserError, match="writes into the run's folder: give run_dir="):
        PPO("CartPole-v1", overrides=SMALL)


def test_an_evaluation_of_a_saving_run_writes_nothing(tmp_path: Path) -> None:
    train(tmp_path / "run", 512)
    before = {f: f.stat().st_mtime_ns for f in files(tmp_path / "run")}
    assert PPO.load(tmp_path / "run").evaluate(episodes=1)["episodes"] == 1
    assert {f: f.stat().st_mtime_ns for f in files(tmp_path / "run")} == before


def test_groups_are_saved_as_they_are_collected(tmp_path: Path) -> None:
    overrides = [*QUIET, "rollout.num_envs=8", "algo.group_size=4"]
    made = GRPO("CartPole-v1", run_dir=tmp_path / "run", overrides=overrides).train(300)
    made.close()
    about, batch = read(files(tmp_path / "run")[0])
    assert about["groups"]
    assert batch["group"].tolist() == [0] * 4 + [1] * 4
    assert not batch["mask"].all()


def test_rounds_of_one_step_share_a_file(tmp_path: Path) -> None:
    overrides = [*QUIET, "model.hidden_sizes=[8]", "algo.replay.learning_starts=10_000"]
    made = DQN("CartPole-v1", run_dir=tmp_path / "run", overrides=overrides).train(2500)
    made.close()
    assert [read(f)[1]["mask"].shape[1] for f in files(tmp_path / "run")] == [2048, 452]


def test_squashed_actions_are_saved_with_their_density_per_unit(tmp_path: Path) -> None:
    overrides = [*QUIET, "model.hidden_sizes=[8]", "algo.replay.learning_starts=500"]
    made = SAC("Pendulum-v1", run_dir=tmp_path / "run", overrides=overrides).train(50)
    made.close()
    _, batch = read(files(tmp_path / "run")[0])  # of the warm-up: uniform over [−2, 2]
    assert batch["log_prob"].exp().numpy() == pytest.approx(np.full((1, 50), 0.25), rel=1e-5)


def test_what_the_rollout_within_has_is_had() -> None:
    inner = GymnasiumRollout("CartPole-v1", num_envs=2)
    outer = SavingRollout(inner, None, {}, 1.0)
    assert outer.action_space is inner.action_space
    assert not hasattr(outer, "env")
    outer.close()
