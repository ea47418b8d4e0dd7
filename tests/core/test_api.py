"""The Python interface does exactly what the command line does."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import torch
from tensordict import TensorDict

from zoo.algorithms import GRPO, PPO
from zoo.cli import main
from zoo.core import checkpoint
from zoo.core.algorithm import Algorithm
from zoo.core.build import build
from zoo.core.config import compose
from zoo.core.learner import OptimizerKnobs
from zoo.core.protocols import Loss, Update
from zoo.core.recorder import Recorder
from zoo.core.run_folder import RunFolder
from zoo.errors import UserError

SMALL = ["rollout.num_envs=4", "rollout.steps=32"]


def weights(trainer: Any) -> dict[str, torch.Tensor]:
    return {k: v.clone() for k, v in trainer.algorithm.policy.state_dict().items()}


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)


def test_the_api_and_the_command_line_give_the_same_weights(tmp_path: Path) -> None:
    settings = ["seed=5", "total_steps=512", "algo.lr=0.001", *SMALL]
    folder = tmp_path / "run"
    common = ["algo=ppo", "env=CartPole-v1", "logger=none", f"run_dir={folder}"]
    assert main(["train", *common, *settings]) == 0
    agent = PPO("CartPole-v1", seed=5, lr=1e-3, overrides=SMALL).train(512)
    stored = checkpoint.load(folder / "checkpoints/last.pt")["policy"]
    assert equal(stored, weights(agent.trainer))


def test_training_twice_continues_and_saving_restores(tmp_path: Path) -> None:
    whole = PPO("CartPole-v1", seed=2, overrides=SMALL).train(256)
    whole.save(tmp_path / "half.pt")
    assert whole.trainer.counters["env_steps"] == 256
    whole.train(256)
    other = PPO.load(tmp_path / "half.pt").train(256)
    assert other.trainer.counters["env_steps"] == 512
    assert equal(weights(whole.trainer), weights(other.trainer))
    assert whole.evaluate(episodes=3) == other.evaluate(episodes=3)


def test_golden_15_the_best_checkpoint_reproduces_its_evaluation(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    arguments = ["algo=ppo", "env=CartPole-v1", "total_steps=2048", "eval.every=256", *SMALL]
    arguments += ["model.normalize_observation=true", "eval.options.episodes=5", "logger=none"]
    assert main(["train", *arguments, f"run_dir={folder}"]) == 0
    logged = json.loads((folder / "summary.json").read_text())["eval_best"]
    again = PPO.load(folder / "checkpoints/best.pt").evaluate()
    assert {k: logged[k] for k in again} == again


def test_golden_15_holds_with_other_options_for_the_evaluation_at_the_end(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    arguments = ["algo=ppo", "env=CartPole-v1", "total_steps=768", "eval.every=256", *SMALL]
    arguments += ["eval.options.episodes=2", "eval.final={episodes: 5, seed: 3}", "logger=none"]
    assert main(["train", *arguments, f"run_dir={folder}"]) == 0
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").open()]
    assert [r["eval/episodes"] for r in rows if "eval/episodes" in r] == [2, 2, 5]
    summary = json.loads((folder / "summary.json").read_text())
    for name, key in (("last", "eval"), ("best", "eval_best")):
        agent = PPO.load(folder / f"checkpoints/{name}.pt")
        again = agent.evaluate()
        assert {k: summary[key][k] for k in again} == again
    assert PPO.load(folder).evaluate(episodes=1, seed=4)["episodes"] == 1


def test_golden_16_seeds_repeat_and_differ() -> None:
    def metrics(seed: int) -> list[float]:
        agent = PPO("CartPole-v1", seed=seed, overrides=SMALL)
        agent.trainer.total = 256
        rounds = [agent.trainer.round() for _ in range(2)]
        return [r["loss/policy"] for r in rounds] + [r["grad_norm"] for r in rounds]

    assert metrics(0) == metrics(0)
    assert metrics(0) != metrics(1)


def test_golden_22_one_environment_and_one_step_per_rollout_runs() -> None:
    agent = PPO("CartPole-v1", overrides=["rollout.num_envs=1", "rollout.steps=1"]).train(3)
    assert agent.trainer.counters["updates"] == 3
    assert all(bool(torch.isfinite(p).all()) for p in agent.policy.parameters())


def test_golden_19_the_budget_is_met_to_the_next_multiple_of_num_envs() -> None:
    agent = PPO("CartPole-v1", overrides=["rollout.num_envs=15", "rollout.steps=16"]).train(1000)
    assert agent.trainer.counters["env_steps"] == 1005  # 67 · 15


def test_golden_7_a_last_minibatch_of_one_step_gives_no_nan() -> None:
    overrides = ["rollout.num_envs=1", "rollout.steps=65"]
    agent = PPO("CartPole-v1", minibatch_size=64, overrides=overrides).train(65)
    assert all(bool(torch.isfinite(p).all()) for p in agent.policy.parameters())


def test_an_environment_of_ones_own_is_a_function() -> None:
    def make(**options: Any) -> gymnasium.Env[Any, Any]:
        return gymnasium.make("CartPole-v1", **options)

    agent = GRPO(make, group_size=2, overrides=["rollout.num_envs=4"]).train(200)
    assert agent.evaluate(episodes=2)["episodes"] == 2


def test_objects_must_be_given_again_when_loading(tmp_path: Path) -> None:
    def make(**options: Any) -> gymnasium.Env[Any, Any]:
        return gymnasium.make("CartPole-v1", **options)

    PPO(make, overrides=SMALL).train(128).save(tmp_path / "own.pt")
    own = re.escape(str(tmp_path / "own.pt"))
    how = rf"env \(make\): give them again there, PPO\.load\('{own}', env=…\), and then call"
    with pytest.raises(UserError, match=how):
        PPO.load(tmp_path / "own.pt")
    assert PPO.load(tmp_path / "own.pt", env=make).train(128).trainer.done == 256


def test_mistakes_are_named() -> None:
    with pytest.raises(UserError, match="PPO has no knob 'gama'. Did you mean 'gamma'"):
        PPO("CartPole-v1", gama=0.9)
    with pytest.raises(UserError, match="group_size ≥ 2"):
        GRPO("CartPole-v1", group_size=1)
    with pytest.raises(UserError, match="counts env"):
        PPO("CartPole-v1", overrides=SMALL).train(updates=3)
    with pytest.raises(UserError, match=r"\.train\(total_steps=500\)"):
        PPO("CartPole-v1", total_steps=500)
    with pytest.raises(UserError, match="0 or more"):
        PPO("CartPole-v1", overrides=SMALL).train(-1)
    with pytest.raises(UserError, match="no budget of a control task"):
        PPO("CartPole-v1", overrides=["updates=3"])
    with pytest.raises(UserError, match="can't import no_such_module"):
        PPO("no_such_module:Env-v0")
    with pytest.raises(UserError, match="env takes a name"):
        PPO(3)
    with pytest.raises(UserError, match="rewards= is for text"):
        PPO("CartPole-v1", rewards=[len])


def test_loading_as_another_algorithm_names_the_right_one(tmp_path: Path) -> None:
    PPO("CartPole-v1", overrides=SMALL).train(128).save(tmp_path / "a.pt")
    with pytest.raises(UserError, match="use PPO.load"):
        GRPO.load(tmp_path / "a.pt")


def test_a_fallback_is_said_before_anything_is_spent_on_it(tmp_path: Path) -> None:
    said: list[str] = []

    class Spy:
        def log(self, update: int, row: dict[str, Any], records: list[Any]) -> None:
            raise AssertionError("nothing has run yet")

        def notice(self, text: str) -> None:
            said.append(text)

        def close(self) -> None:
            pass

    config = compose(["algo=grpo", "env=gsm8k", "model=tiny", "env.heldout_size=8"])
    trainer = build(config, Recorder(None, [Spy()]))
    trainer.close()
    assert len(said) == 1
    assert "NOT GSM8K" in said[0]


TINY = ["model=tiny", "env.train_size=6", "env.heldout_size=6", "rollout.prompts=2"]
TINY += ["rollout.max_new_tokens=8", "eval.at_start=false", "eval.at_end=false"]


def has_equals(completion: str) -> float:
    return float("=" in completion)


def test_reward_functions_are_given_as_objects_and_names_are_stored(tmp_path: Path) -> None:
    agent = GRPO(env="gsm8k", rewards=["accuracy", has_equals], group_size=2, overrides=TINY)
    agent.train(updates=1)
    assert {"reward/accuracy", "reward/has_equals"} <= agent.trainer.round().keys()
    agent.save(tmp_path / "own.pt")
    agent.close()
    with pytest.raises(UserError, match=r"rewards \(accuracy, has_equals\): give them again"):
        GRPO.load(tmp_path / "own.pt")

    named = GRPO(env="gsm8k", rewards=["accuracy", "format"], group_size=2, overrides=TINY)
    named.train(updates=1).save(tmp_path / "named.pt")
    named.close()
    again = GRPO.load(tmp_path / "named.pt")
    assert "reward/format" in again.trainer.round()
    again.close()


def test_without_a_logger_notices_go_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    GRPO(env="gsm8k", group_size=2, overrides=TINY).close()
    assert "NOT GSM8K" in capsys.readouterr().err


def test_a_failed_build_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="rewards= is for text"):
        PPO("CartPole-v1", run_dir=tmp_path / "a", rewards=[len])
    assert not (tmp_path / "a").exists()


def test_plugins_need_names_of_their_own() -> None:
    class Rollout:
        name = "rollout"

    with pytest.raises(UserError, match="names of their own"):
        PPO("CartPole-v1", plugins=[Rollout()])  # type: ignore[list-item]


class Interrupter:
    """Press Ctrl-C, as the command line passes it on, when a round has been logged."""

    def __init__(self, after: int) -> None:
        self.after = after

    def log(self, update: int, row: dict[str, Any], records: list[Any]) -> None:
        if update >= self.after:
            self.trainer.interrupt()

    def notice(self, text: str) -> None:
        pass

    def close(self) -> None:
        pass


def interrupted_run(after: int) -> dict[str, Any]:
    overrides = [*SMALL, "total_steps=512", "eval.at_end=true", "eval.options.episodes=1"]
    agent = PPO("CartPole-v1", overrides=overrides)
    spy = Interrupter(after)
    spy.trainer = agent.trainer
    agent.trainer.recorder.loggers.append(spy)
    return agent.trainer.run()


def test_an_interrupt_in_the_last_round_still_ends_in_the_final_evaluation() -> None:
    early, late = interrupted_run(2), interrupted_run(4)
    assert (early["status"], early["env_steps"], early["eval"]) == ("interrupted", 256, None)
    assert (late["status"], late["env_steps"]) == ("finished", 512)
    assert late["eval"]["episodes"] == 1


def test_every_update_is_one_row_and_the_last_one_is_evaluated(tmp_path: Path) -> None:
    overrides = [*SMALL, "eval.every=256", "eval.options.episodes=1"]
    PPO("CartPole-v1", run_dir=tmp_path / "a", overrides=overrides).train(512).close()
    rows = [json.loads(line) for line in (tmp_path / "a/metrics.jsonl").open()]
    assert [row["updates"] for row in rows] == [1, 2, 3, 4]
    assert ["eval/return_mean" in row for row in rows] == [False, True, False, True]


def test_a_folder_in_which_a_run_is_going_on_is_not_taken_twice(tmp_path: Path) -> None:
    agent = PPO("CartPole-v1", run_dir=tmp_path / "a", overrides=SMALL).train(128)
    folder = RunFolder.open(tmp_path / "a")
    with pytest.raises(UserError, match="another process is training"):
        folder.lock()
    agent.close()
    folder.lock()
    folder.unlock()


def test_checkpoints_every_zero_seconds_come_every_round(tmp_path: Path) -> None:
    overrides = [*SMALL, "checkpoint.every_s=0", "eval.at_end=false"]
    agent = PPO("CartPole-v1", run_dir=tmp_path / "a", overrides=overrides)
    agent.trainer.total = 256
    saved: list[int] = []
    agent.trainer.save = lambda path=None: saved.append(agent.trainer.done)  # type: ignore[method-assign]
    agent.trainer.run()
    assert saved == [128, 256, 256]


@dataclass(frozen=True)
class PlainKnobs(OptimizerKnobs):
    """No plugins' knobs at all."""

    epochs: int = 1
    minibatch_size: int | None = None


class Plain(Algorithm):
    """Makes every action it took likelier."""

    name = "plain"
    Knobs = PlainKnobs

    def prepare(self, batch: TensorDict) -> TensorDict:
        return batch

    def losses(self, batch: TensorDict, update: Update) -> Iterator[Loss]:
        out = self.evaluation(batch)
        yield Loss("plain", {"policy": -out.log_prob}, batch["mask"], ("policy",), out)


def test_an_algorithm_without_plugins_knobs_has_no_plugins() -> None:
    agent = Plain("CartPole-v1", lr=1e-2, overrides=SMALL)
    assert agent.plugins == []
    agent.trainer.total = 512
    entropy = [agent.trainer.round()["loss/policy"] for _ in range(4)]
    assert entropy[-1] < entropy[0]  # what it did, it does more surely
