"""Reading saved rollouts again: order, budgets, what is refused, resume, and that they teach."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from tensordict import TensorDict

from zoo.algorithms import DQN, GRPO, PPO, SAC
from zoo.core.algorithm import Algorithm
from zoo.core.learner import OptimizerKnobs
from zoo.envs.control import ControlEnv
from zoo.errors import UserError
from zoo.functional.returns import gae
from zoo.policies.mlp import MLPKnobs, MLPPolicy
from zoo.rollouts.rollout_files import as_arrays, laid_end_to_end, read, write
from zoo.rollouts.stored import StoredRollout
from zoo.rollouts.stored_checks import Returns

QUIET = ["eval.every=null", "eval.at_end=false"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """4,608 steps of PPO on CartPole in three files."""
    folder = tmp_path_factory.mktemp("data") / "run"
    overrides = [*QUIET, "save.rollouts=true", "rollout.num_envs=4", "rollout.steps=32"]
    PPO("CartPole-v1", seed=4, run_dir=folder, overrides=overrides).train(4608).close()
    return folder


def stored(path: Path, name: str = "CartPole-v1", **knobs: Any) -> tuple[StoredRollout, MLPPolicy]:
    rollout = StoredRollout(ControlEnv(name), path=str(path), **knobs)
    torch.manual_seed(0)
    return rollout, MLPPolicy(rollout.observation_space, rollout.action_space)


def learner(path: Path, cls: type[Algorithm] = PPO, *more: str, **given: Any) -> Any:
    overrides = [*QUIET, "rollout=stored", f"rollout.path={path}", *more]
    return cls("CartPole-v1", overrides=overrides, **given)


# What is read.


def test_in_order_it_yields_the_files_as_they_were_written(data: Path) -> None:
    rollout, policy = stored(data, shuffle=False)
    batches = [rollout.collect(policy) for _ in range(4)]
    assert [b["mask"].shape[1] for b in batches] == [2048, 2048, 512, 2048]
    first = read(data / "rollouts/000001.npz")[1]
    assert torch.equal(batches[0]["observation"][0], first["observation"].flatten(0, 1))
    assert torch.equal(batches[0]["observation"], batches[3]["observation"])
    assert rollout.report().metrics == {"stored/passes": pytest.approx(4 / 3)}


def test_a_shuffled_pass_yields_every_file_once_in_an_order_of_the_seeds(data: Path) -> None:
    def order(seed: int) -> list[float]:
        rollout, policy = stored(data, seed=seed)
        return [float(rollout.collect(policy)["observation"].sum()) for _ in range(12)]

    one = order(0)
    assert all(sorted(one[i : i + 3]) == sorted(one[:3]) for i in (3, 6, 9))
    assert len({tuple(one[i : i + 3]) for i in (0, 3, 6, 9)}) > 1
    assert order(0) == one
    assert order(1) != one


def test_rows_laid_end_to_end_have_the_advantages_they_had(data: Path) -> None:
    _, batch = read(data / "rollouts/000001.npz")
    generator = torch.Generator().manual_seed(0)
    batch["mask"][1, 300:] = False  # a padded episode, as groups have
    value, following = torch.randn(2, *batch["mask"].shape, generator=generator)
    batch["value"], batch["next_value"] = value, following
    row = laid_end_to_end(batch)
    names = ("reward", "value", "next_value", "terminated", "truncated", "mask")
    expected, _ = gae(**{name: batch[name] for name in names})
    got, _ = gae(**{name: row[name] for name in names})
    assert row["mask"].all()
    torch.testing.assert_close(got[0], expected[batch["mask"]], atol=1e-5, rtol=1e-5)


def test_golden_19_a_budget_is_met_to_the_step(data: Path) -> None:
    made = learner(data).train(3001)
    assert made.trainer.counters["env_steps"] == 3001


def test_the_normaliser_sees_every_observation_once_however_many_the_passes(data: Path) -> None:
    rollout, _ = stored(data)
    config = MLPKnobs(normalize_observation=True)
    policy = MLPPolicy(rollout.observation_space, rollout.action_space, config)
    assert policy.normalizer is not None
    for _ in range(3):
        batch = rollout.collect(policy)
    assert float(policy.normalizer.count) == 4608
    mean = policy.normalizer.mean.clone()
    batch = rollout.collect(policy)
    assert torch.equal(policy.normalizer.mean, mean)
    files = sorted((data / "rollouts").glob("*.npz"))
    raw = torch.cat([read(f)[1]["observation"].flatten(0, 1) for f in files])
    torch.testing.assert_close(mean, raw.double().mean(0))
    assert abs(float(batch["observation"].mean())) < 1  # normalised: raw velocities drift further


def test_evaluation_plays_the_real_environment(data: Path) -> None:
    made = learner(data)
    fresh = PPO("CartPole-v1", overrides=QUIET)
    fresh.policy.load_state_dict(made.policy.state_dict())
    assert made.evaluate(episodes=3) == fresh.evaluate(episodes=3)


def test_returns_are_those_of_whole_episodes_over_the_borders_of_files() -> None:
    def fragment(observation: list[int], ended: list[bool]) -> TensorDict:
        place = torch.tensor([observation], dtype=torch.float32)[..., None]
        flags = torch.tensor([ended])
        return TensorDict(
            {
                "observation": place,
                "next_observation": place + 1,
                "reward": torch.ones(flags.shape),
                "terminated": flags,
                "truncated": torch.zeros_like(flags),
                "mask": torch.ones_like(flags),
            },
            batch_size=[1],
        )

    seen = Returns()
    seen.add(fragment([0, 1, 2, 3], [False, False, True, False]), whole_rows=False)  # 3
    seen.add(fragment([4, 5, 6, 7], [False, True, False, False]), whole_rows=False)  # 1 + 2
    seen.add(fragment([20, 21, 22, 23], [True, False, True, False]), whole_rows=False)  # ?, 2
    seen.add(fragment([0, 1], [False, True]), whole_rows=True)  # 2
    assert seen.whole == [3.0, 3.0, 2.0, 2.0]


def test_the_notice_says_what_the_data_are(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    learner(data).train(10)
    assert f"saved rollouts of {data}: 4,608 steps in 3 files, " in capsys.readouterr().err


# What is refused.


def edited(data: Path, folder: Path, edit: Callable[[dict[str, np.ndarray]], Any]) -> Path:
    """A folder with one of the files, changed."""
    about, batch = read(data / "rollouts/000001.npz")
    arrays = as_arrays(batch)
    edit(arrays)
    write(folder / "000001.npz", arrays, about)
    return folder


def test_a_missing_path_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"rollout=stored needs rollout.path=: the folder of a run"):
        PPO("CartPole-v1", overrides=["rollout=stored"])
    with pytest.raises(UserError, match="nowhere does not exist: give a run folder"):
        learner(tmp_path / "nowhere")
    (tmp_path / "config.yaml").write_text("a: 1")
    with pytest.raises(
        UserError, match=r"config.yaml is no saved rollout, whose files end in .npz"
    ):
        learner(tmp_path / "config.yaml")
    with pytest.raises(UserError, match="has no saved rollouts: train the run with save.rollouts"):
        learner(tmp_path)


@pytest.mark.parametrize("kept", [0, 100, 30_000])
def test_a_file_that_was_not_written_to_its_end_is_refused(
    data: Path, tmp_path: Path, kept: int
) -> None:
    content = (data / "rollouts/000001.npz").read_bytes()
    (tmp_path / "000001.npz").write_bytes(content[:kept])
    with pytest.raises(UserError, match=r"000001.npz can't be read \(\w+\): it is damaged"):
        learner(tmp_path)


def test_a_file_with_a_byte_turned_is_refused(data: Path, tmp_path: Path) -> None:
    content = bytearray((data / "rollouts/000001.npz").read_bytes())
    content[len(content) // 2] ^= 0xFF
    (tmp_path / "000001.npz").write_bytes(content)
    with pytest.raises(UserError, match=r"000001.npz can't be read"):
        learner(tmp_path)


def test_pickled_objects_are_never_loaded(tmp_path: Path) -> None:
    np.savez(tmp_path / "000001.npz", about=np.array([{"format": 1}], dtype=object))
    with pytest.raises(UserError, match="can't be read"):
        learner(tmp_path)


def test_other_files_are_refused(data: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros(3))
    with pytest.raises(UserError, match=r"a.npz is no saved rollout \('about'\)"):
        learner(tmp_path / "a.npz")
    for name, edit in {
        "key": lambda a: a.pop("reward"),
        "shape": lambda a: a.update(reward=a["reward"][:, :5]),
        "flags": lambda a: a.update(terminated=a["mask"], truncated=a["mask"]),
        "finals": lambda a: a.update(final_observation=a["final_observation"][:2]),
    }.items():
        (tmp_path / name).mkdir()
        with pytest.raises(UserError, match="is no saved rollout"):
            learner(edited(data, tmp_path / name, edit))
    about, batch = read(data / "rollouts/000001.npz")
    write(tmp_path / "b.npz", as_arrays(batch), {**about, "format": 2})
    with pytest.raises(UserError, match="has format 2 and this version reads 1"):
        learner(tmp_path / "b.npz")


def test_another_environments_rollouts_are_refused(data: Path) -> None:
    overrides = [*QUIET, "rollout=stored", f"rollout.path={data}"]
    with pytest.raises(UserError, match="holds rollouts of env=CartPole-v1 .*about env=Acrobot-v1"):
        PPO("Acrobot-v1", overrides=overrides)


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (
            lambda a: a.update(
                observation=a["observation"][..., :3],
                final_observation=a["final_observation"][..., :3],
            ),
            r"has observations of shape \[3\] and type torch.float32, and those of .* are Box",
        ),
        (
            lambda a: a.update(action=a["action"].astype(np.float32)[..., None]),
            r"has actions of shape \[1\] and type torch.float32",
        ),
        (lambda a: a["action"].__setitem__((0, 0), 2), "has actions from 0 to 2, which Discrete"),
    ],
    ids=["observation", "kind", "range"],
)
def test_spaces_of_another_variant_are_refused(
    data: Path, tmp_path: Path, edit: Callable[[dict[str, np.ndarray]], Any], words: str
) -> None:
    with pytest.raises(UserError, match=words):
        learner(edited(data, tmp_path, edit))


def test_several_choices_at_once_and_images_come_back(tmp_path: Path) -> None:
    class Parts(gymnasium.Env[np.ndarray, np.ndarray]):
        observation_space = gymnasium.spaces.Box(0, 255, (3, 2), np.uint8)
        action_space = gymnasium.spaces.MultiDiscrete([2, 3])

        def reset(self, **options: Any) -> Any:
            self.count = 0
            return np.zeros((3, 2), np.uint8), {}

        def step(self, action: np.ndarray) -> Any:
            self.count += 1
            return np.full((3, 2), self.count, np.uint8), 1.0, self.count == 5, False, {}

    common: dict[str, Any] = {"env": Parts, "seed": 1}
    saving = [*QUIET, "save.rollouts=true", "rollout.num_envs=2", "rollout.steps=20"]
    PPO(**common, run_dir=tmp_path / "run", overrides=saving).train(200).close()
    made = PPO(**common, overrides=[*QUIET, "rollout=stored", f"rollout.path={tmp_path}/run"])
    assert made.train(300).trainer.counters["env_steps"] == 300
    edited(tmp_path / "run", tmp_path, lambda a: a["action"].__setitem__((0, 0, 1), 3))
    with pytest.raises(UserError, match="has actions from 0 to 3, which MultiDiscrete"):
        PPO(**common, overrides=[*QUIET, "rollout=stored", f"rollout.path={tmp_path}/000001.npz"])


def test_groups_are_asked_for_where_rows_are_compared(data: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"holds no groups, and algo.group_size=8 rows"):
        learner(data, GRPO)
    overrides = [*QUIET, "save.rollouts=true", "rollout.num_envs=8", "algo.group_size=4"]
    GRPO("CartPole-v1", run_dir=tmp_path / "run", overrides=overrides).train(300).close()
    with pytest.raises(UserError, match="holds groups of 4, and algo.group_size=8 rows"):
        learner(tmp_path / "run", GRPO)
    made = learner(tmp_path / "run", GRPO, "algo.group_size=4").train(400)
    assert made.trainer.counters["env_steps"] >= 400
    assert learner(tmp_path / "run", PPO).train(50).trainer.counters["env_steps"] == 50


def test_actions_without_a_probability_serve_replay_only(data: Path, tmp_path: Path) -> None:
    path = edited(data, tmp_path, lambda a: a["log_prob"].fill(np.nan))
    with pytest.raises(UserError, match="actions without a probability"):
        learner(path).train(100)
    knobs = ["model.hidden_sizes=[8]", "algo.replay.learning_starts=0", "log_every=null"]
    made = learner(path, DQN, *knobs, "algo.replay.updates_per_step=0.01").train(3000)
    assert made.trainer.learner.updates == 30


def test_an_algorithm_that_corrects_nothing_is_refused(data: Path) -> None:
    @dataclass(frozen=True)
    class Knobs(OptimizerKnobs):
        epochs: int = 1
        minibatch_size: int | None = None

    class Plain(Algorithm):
        name = "plain"

        def prepare(self, batch: TensorDict) -> TensorDict:
            return batch

    Plain.Knobs = Knobs
    with pytest.raises(
        UserError, match="Plain learns from its own rollouts, and has no importance"
    ):
        learner(data, Plain)


def test_saved_rollouts_are_not_saved_again(data: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="goes with new rollouts; these are saved ones already"):
        learner(data, PPO, "save.rollouts=true", run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_setting_of_stepping_is_unknown_here(data: Path) -> None:
    with pytest.raises(UserError, match="no setting 'rollout.num_envs'"):
        learner(data, PPO, "rollout.num_envs=4")


# Going on, and being evaluated.


@pytest.mark.parametrize("cls", [PPO, SAC])
def test_golden_14_a_resumed_run_equals_the_uninterrupted_one(
    data: Path, tmp_path: Path, cls: type[Algorithm]
) -> None:
    more = ["model.hidden_sizes=[8]", "model.normalize_observation=true"]
    if cls is SAC:
        more += ["algo.replay={learning_starts: 10, updates_per_step: 0.01, batch_size: 8}"]
    half = learner(data, cls, *more, seed=3).train(6000)
    half.save(tmp_path / "half.pt")
    half.train(7000)
    again = cls.load(tmp_path / "half.pt").train(7000)
    assert half.trainer.rollout.state_dict() == again.trainer.rollout.state_dict()
    for one, other in zip(
        half.policy.state_dict().values(), again.policy.state_dict().values(), strict=True
    ):
        assert torch.equal(one, other)


def test_an_evaluation_does_without_the_files_and_going_on_asks_for_them(
    data: Path, tmp_path: Path
) -> None:
    files = tmp_path / "data"
    files.mkdir()
    for file in (data / "rollouts").glob("*.npz"):
        (files / file.name).write_bytes(file.read_bytes())
    learner(files).train(100).save(tmp_path / "run.pt")
    (files / "000003.npz").unlink()
    made = PPO.load(tmp_path / "run.pt")
    assert made.evaluate(episodes=1)["episodes"] == 1
    with pytest.raises(UserError, match="had 3 files when this run was saved and there are 2 now"):
        made.train(100)
    for file in files.iterdir():
        file.unlink()
    with pytest.raises(UserError, match="has no saved rollouts"):
        PPO.load(tmp_path / "run.pt").train(100)


def test_the_run_says_whose_rollouts_it_learned_from(data: Path, tmp_path: Path) -> None:
    learner(data, PPO, run_dir=tmp_path / "run").train(3000).close()
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert summary["dataset"] == f"saved rollouts of {data}"
    row = json.loads((tmp_path / "run/metrics.jsonl").read_text().splitlines()[-1])
    assert 0 < row["importance/effective"] <= 1
    assert row["importance/ratio_max"] >= row["importance/ratio_mean"] > 0


@pytest.mark.slow
def test_ppo_learns_more_from_twenty_thousand_steps_than_the_run_that_made_them(
    tmp_path: Path,
) -> None:
    overrides = [*QUIET, "save.rollouts=true"]
    source = PPO("CartPole-v1", seed=1, run_dir=tmp_path / "run", overrides=overrides)
    source.train(20_000).close()
    seen = Returns()
    for file in sorted((tmp_path / "run/rollouts").glob("*.npz")):
        seen.add(read(file)[1], whole_rows=False)
    made = learner(tmp_path / "run", seed=2).train(80_000)
    assert made.evaluate(episodes=50)["return_mean"] > 2 * np.mean(seen.whole)
    assert made.evaluate(episodes=50)["return_mean"] > 300
