"""Composition: who wins, what is refused and in which words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from zoo.core import choices, config
from zoo.core.config import Config, as_overrides, compose, default_text_model
from zoo.core.overrides import parse
from zoo.errors import UserError

CONTROL = ["algo=ppo", "env=CartPole-v1"]


def refusal(*overrides: str) -> str:
    with pytest.raises(UserError) as caught:
        compose([*CONTROL, *overrides])
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_a_choice_brings_its_class_and_its_dataclass_defaults() -> None:
    from zoo.algorithms import PPO

    composed = compose(CONTROL)
    assert composed.world == "control"
    assert composed.target("algo") is PPO
    assert composed.knobs.kl == PPO.Knobs().kl  # no tuned file touches these
    assert composed["env.id"] == "CartPole-v1"


def test_overrides_win_and_take_the_types_of_the_dataclass() -> None:
    composed = compose([*CONTROL, "algo.lr=1", "algo.betas=[0.5,0.6]", "total_steps=1e4", "seed=7"])
    assert composed.knobs.lr == 1.0
    assert isinstance(composed.knobs.lr, float)
    assert composed.knobs.betas == (0.5, 0.6)
    assert composed["total_steps"] == 10_000
    assert isinstance(composed["total_steps"], int)
    assert composed.run.seed == 7


def test_nested_knobs_are_set_one_by_one_or_as_a_mapping() -> None:
    one = compose([*CONTROL, "algo.entropy.coefficient=0.01", "algo.entropy.mode=scheduled"])
    both = compose([*CONTROL, "algo.entropy={coefficient: 0.01, mode: scheduled}"])
    assert one.knobs.entropy == both.knobs.entropy
    assert one.knobs.entropy.coefficient == 0.01


def test_later_files_win_in_the_documented_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import shutil

    conf = tmp_path / "conf"
    shutil.copytree(choices.CONF, conf)
    tuned = conf / "tuned" / "ppo"
    shutil.rmtree(tuned, ignore_errors=True)
    tuned.mkdir(parents=True)
    knobs = ("lr", "gamma", "gae_lambda", "epochs", "weight_decay")

    def write(path: Path, value: float, count: int) -> None:
        numbers = {k: (int(value * 10) if k == "epochs" else value) for k in knobs[:count]}
        path.write_text(yaml.safe_dump({"algo": numbers, "total_steps": int(value * 1000)}))

    write(tuned / "control.yaml", 0.1, 5)
    write(tuned / "CartPole-v1.yaml", 0.2, 4)
    write(tuned / "CartPole-v1@mlp.yaml", 0.3, 3)
    (conf / "preset" / "fast.yaml").write_text(
        yaml.safe_dump({"_about_": {"serves": ["ppo"]}, "algo": {"lr": 0.4, "gamma": 0.4}})
    )
    monkeypatch.setattr(choices, "CONF", conf)
    choices.read.cache_clear()
    composed = compose([*CONTROL, "preset=fast", "algo.lr=0.5"])
    choices.read.cache_clear()
    got = composed.knobs
    assert (got.lr, got.gamma, got.gae_lambda, got.epochs, got.weight_decay) == (
        0.5,
        0.4,
        0.3,
        2,
        0.1,
    )
    assert composed["total_steps"] == 300
    assert composed["preset"] == "fast"


def test_a_config_survives_yaml_exactly() -> None:
    composed = compose([*CONTROL, "algo.lr=1.2345678901234567e-05", "run_dir='1e-4'"])
    text = yaml.safe_dump(composed.to_dict(), sort_keys=False)
    again = Config.from_dict(yaml.safe_load(text))
    assert again.tree == composed.tree
    assert again.knobs == composed.knobs
    assert again["algo.lr"] == 1.2345678901234567e-05
    assert again["run_dir"] == "1e-4"


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("algo.lrr=1", "no setting 'algo.lrr'. Did you mean 'algo.lr'?"),
        ("lr=1", "no setting 'lr'. Did you mean 'algo.lr'?"),
        ("algo.learning_rate=1", "Did you mean 'algo.lr'?"),
        ("algo.entropy.coef=1", "Did you mean 'algo.entropy.coefficient'?"),
        ("sed=1", "Did you mean 'seed'?"),
        ("rollout.num_env=1", "Did you mean 'rollout.num_envs'?"),
        ("eval.options.episode=3", "Did you mean 'eval.options.episodes'?"),
        ("algo._target_=os.system", "no setting 'algo._target_'"),
        ("algo=pppo", "unknown algorithm 'pppo': there is"),
        ("env=Cartpole-v1", "Did you mean 'CartPole-v1'?"),
        ("model=mlpp", "Did you mean 'mlp'?"),
        ("rollout=gymnasiun", "Did you mean 'gymnasium'?"),
        ("logger=tensorbord", "Did you mean 'tensorboard'?"),
        ("preset=qwen3-0.6b-ful", "Did you mean 'qwen3-0.6b-full'?"),
        ("preset=qwen3-0.6b-full", "is made for algo=grpo"),
        ("model=tiny", "doesn't go with env=CartPole-v1, which is a control environment"),
        ("rollout=hf", "doesn't go with env=CartPole-v1"),
        ("model=./nowhere", f"no model folder at '{Path.cwd()}/nowhere'"),
        ("algo.lr=fast", "algo.lr takes a number, not 'fast'"),
        ("algo.lr=true", "algo.lr takes a number, not true"),
        ("algo.epochs=1.5", "algo.epochs takes a whole number, not 1.5"),
        ("algo.betas=[0.9]", "algo.betas takes 2 values, not 1"),
        ("algo.normalize_advantage=2", "takes true or false, not 2"),
        ("algo.entropy=0.1", "algo.entropy is a group of settings (mode, coefficient"),
        ("algo.entropy.mode=fixd", "not one of fixed, scheduled, auto. Did you mean 'fixed'?"),
        ("rollout.num_envs=many", "rollout.num_envs takes a whole number, not 'many'"),
        ("eval.options.episodes=few", "eval.options.episodes takes a whole number"),
        ("eval.final.episodes=few", "eval.final.episodes takes a whole number"),
        ("eval.final.episodes=0", "eval.final.episodes must be 1 or more (got 0)"),
        ("eval.final={episode: 3}", "no setting 'eval.final.episode'. Did you mean"),
        ("total_steps=0", "total_steps must be 1 or more (got 0)"),
        ("total_steps=1e99", "total_steps must be less than 2**63."),
        ("rollout.num_envs=1e12", "needs 1 ≤ num_envs ≤ 65536 (got 1000000000000)"),
        ("seed=-1", "seed must be from 0 to 2**63 - 1 (got -1)"),
        ("seed=1,2,3", "names several values and a run takes one"),
        ("~seed", "deletes a setting: set it to null instead"),
        ("seed", "is no override: write it as key=value"),
        ("algo.gamma=2", "gamma"),
        ("algo.betas=[0.9", "a list is [1,2] and a mapping {a: 1}, whose keys are plain words"),
    ],
)
def test_mistakes_are_one_sentence(override: str, words: str) -> None:
    assert words in refusal(override)


def test_free_mappings_take_any_name() -> None:
    composed = compose([*CONTROL, "env.options.gravity=3.5", "env.options.a.b=x"])
    assert composed["env.options"] == {"gravity": 3.5, "a": {"b": "x"}}


def test_values_the_grammar_cannot_hold_are_text() -> None:
    assert compose([*CONTROL, "run_dir=~/runs (1)/a=b"])["run_dir"] == "~/runs (1)/a=b"


def test_environment_and_algorithm_have_to_be_named() -> None:
    with pytest.raises(UserError, match="no algorithm given: add algo=NAME"):
        compose(["env=CartPole-v1"])
    with pytest.raises(UserError, match="no environment given: add env=NAME"):
        compose(["algo=ppo"])


def test_reasoning_gym_tasks_are_environments() -> None:
    pytest.importorskip("reasoning_gym")
    composed = compose(["algo=grpo", "env=countdown", "model=tiny"])
    assert composed["env.task"] == "countdown"
    assert composed["env.name"] == "countdown"
    assert composed.world == "text"


def test_an_algorithm_is_refused_where_its_file_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import shutil

    conf = tmp_path / "conf"
    shutil.copytree(choices.CONF, conf)
    about: dict[str, Any] = {"serves": ["continuous"], "refuses": {"discrete": "it has no argmax"}}
    (conf / "algo" / "smooth.yaml").write_text(
        yaml.safe_dump({"_target_": "zoo.algorithms.ppo.PPO", "_about_": about})
    )
    monkeypatch.setattr(choices, "CONF", conf)
    choices.read.cache_clear()
    with pytest.raises(UserError) as caught:
        compose(["algo=smooth", "env=CartPole-v1"])
    assert "algo=smooth can't train on env=CartPole-v1 (discrete): it has no argmax" in str(
        caught.value
    )
    assert "Use algo=dqn or algo=grpo or algo=ppo or algo=sac." in str(caught.value)
    compose(["algo=smooth", "env=Pendulum-v1"])
    choices.read.cache_clear()


def test_the_console_stays_unless_none_is_chosen() -> None:
    def loggers(value: str) -> list[str]:
        return list(compose([*CONTROL, f"logger={value}"])["logger"])

    assert list(compose(CONTROL)["logger"]) == ["console"]
    assert loggers("tensorboard") == ["console", "tensorboard"]
    assert loggers("[wandb,tensorboard]") == ["console", "wandb", "tensorboard"]
    assert loggers("none") == []
    assert loggers("[none,tensorboard]") == ["tensorboard"]


class Card:
    def __init__(self, gib: float) -> None:
        self.total_memory = int(gib * 2**30)


@pytest.mark.parametrize(
    ("gib", "unreachable", "device", "expected"),
    [
        (32.0, "", "auto", ("Qwen/Qwen3-0.6B", "qwen3-0.6b-full")),
        (32.0, "the hub is out of reach", "auto", ("tiny", None)),
        (12.0, "", "auto", ("tiny", None)),
        (32.0, "", "cpu", ("tiny", None)),
        (None, "", "auto", ("tiny", None)),
    ],
)
def test_the_default_text_model_is_what_the_machine_can_train(
    monkeypatch: pytest.MonkeyPatch,
    gib: float | None,
    unreachable: str,
    device: str,
    expected: tuple[str, str | None],
) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: gib is not None)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: Card(gib or 0))
    monkeypatch.setattr(config, "_unreachable", lambda _: unreachable)
    model, preset, reason = default_text_model(device)
    assert (model, preset) == expected
    assert reason


def test_a_model_that_was_named_is_not_second_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "default_text_model", lambda _: pytest.fail("was asked"))
    composed = compose(["algo=grpo", "env=gsm8k", "model=tiny"])
    assert composed["model.name"] == "tiny"
    assert composed.notes == ()


def test_the_choice_of_a_text_model_is_told_with_its_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    offer = ("Qwen/Qwen3-0.6B", "qwen3-0.6b-full", "accelerator with 32 GiB")
    monkeypatch.setattr(config, "default_text_model", lambda _: offer)
    composed = compose(["algo=grpo", "env=gsm8k"])
    assert composed["preset"] == "qwen3-0.6b-full"
    assert composed["algo.clip_high"] == 0.28
    assert composed.notes == (
        "model: Qwen/Qwen3-0.6B, preset qwen3-0.6b-full (accelerator with 32 GiB)",
    )


def test_overrides_written_from_values_read_as_written() -> None:
    assert as_overrides({"seed": 1, "env": "a b", "algo": {"lr": 0.1}}) == [
        "seed=1",
        "env='a b'",
        "algo.lr=0.1",
    ]


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**9), 10**9),
    st.floats(allow_nan=False),
    st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=12),
    st.sampled_from(["true", "NULL", "1e3", "nan", "'", "\\'", "a\\", "${x}", "[a]", "a,b", "~/x"]),
)
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3), max_leaves=6)


@given(values)
def test_any_plain_value_comes_back_from_its_override(value: Any) -> None:
    (written,) = as_overrides({"key": value})
    _, ((key, read),) = parse([written])
    assert (key, read) == ("key", value)
    assert type(read) is type(value)


def test_numpy_scalars_and_arrays_are_written_as_plain_numbers() -> None:
    settings = {"seed": np.int64(3), "lr": np.float64(1e-3), "on": np.bool_(True)}
    settings |= {"sizes": np.array([8, 16]), "name": np.str_("a")}
    assert as_overrides(settings) == ["seed=3", "lr=0.001", "on=true", "sizes=[8,16]", "name=a"]


def test_relative_paths_are_stored_absolute_where_the_run_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("data", "weights", "judge"):
        (tmp_path / folder).mkdir()
    (tmp_path / "rw.py").write_text("def f(completion): return 1.0\n")
    rewards = "[accuracy, 'rw.py:f', 'no.py:f', {function: 'rw.py:f', name: g}]"
    composed = compose(
        ["algo=grpo", "env=gsm8k", "env.path=data", "model=weights", f"env.rewards={rewards}"]
    )
    assert composed["env.path"] == str(tmp_path / "data")
    assert composed["model.path"] == str(tmp_path / "weights")
    assert composed["model.name"] == "weights"  # as it was said, for people
    own = f"{tmp_path}/rw.py:f"
    assert composed["env.rewards"] == ["accuracy", own, "no.py:f", {"function": own, "name": "g"}]
    (tmp_path / "tiny").mkdir()
    judged = "env.rewards={reward_model: {path: judge}}"
    composed = compose(["algo=grpo", "env=gsm8k", "model=tiny", judged])
    assert composed["env.rewards"] == {"reward_model": {"path": str(tmp_path / "judge")}}
    assert composed["model.path"] == "tiny"  # the shipped one, whatever lies here
    assert composed["env.path"] is None
