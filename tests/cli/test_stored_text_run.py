"""Completions that one run saved teach another one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from zoo.algorithms import GRPO, PPO
from zoo.errors import UserError
from zoo.policies.language import LanguagePolicy
from zoo.rollouts.rollout_files import read

pytest.importorskip("transformers")

SHORT = ["eval.at_start=false", "eval.at_end=false", "algo.lr=1e-3"]


def paid(completion: str, answer: str) -> float:
    """Differ within every group, without a right answer by luck."""
    return float(sum(map(ord, completion)) % 101)


def run(cls: Any, questions: Path, *overrides: str, **given: Any) -> Any:
    arguments = [f"env.path={questions}", *SHORT, *overrides]
    return cls("gsm8k", model="tiny", device="cpu", overrides=arguments, **given)


@pytest.fixture(scope="module")
def questions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("questions")
    for split, numbers in (("train", range(8)), ("test", range(8, 12))):
        rows = [{"question": f"What is {n} + 2?", "answer": f"#### {n + 2}"} for n in numbers]
        (folder / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    return folder


@pytest.fixture(scope="module")
def data(questions: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved") / "run"
    settings = ["save.rollouts=true", "rollout.prompts=2", "rollout.max_new_tokens=8"]
    made = run(GRPO, questions, *settings, run_dir=folder, group_size=2, rewards=[paid])
    made.train(updates=2).close()
    return folder


def test_a_file_holds_prompts_completions_and_rewards(data: Path) -> None:
    about, batch = read(data / "rollouts/000001.npz")
    assert (about["world"], about["env"], about["groups"]) == ("text", "gsm8k", True)
    assert batch["group"].tolist() == [0, 0, 1, 1]
    assert {"prompt_ids", "prompt_length", "completion_length"} <= set(batch.keys())
    total = (batch["reward"] * batch["mask"]).sum(1)
    assert torch.equal(total, batch["reward_items", "paid"])
    assert len(total.unique()) > 1


@pytest.mark.parametrize("cls", [GRPO, PPO])
def test_they_teach_another_model_of_the_same_tokens(questions: Path, data: Path, cls: Any) -> None:
    knobs = {"group_size": 2} if cls is GRPO else {}
    settings = ["rollout=stored", f"rollout.path={data}", "rollout.shuffle=false"]
    made = run(cls, questions, *settings, rewards=[paid], **knobs)
    before = [p.detach().clone() for p in made.policy.parameters()]
    metrics = [made.trainer.round() for _ in range(3)]
    assert 0.9 < metrics[0]["importance/ratio_mean"] < 1.1  # the same weights as sampled them
    assert metrics[0]["importance/effective"] > 0.9
    assert metrics[2]["stored/passes"] == 1.5
    assert any(not torch.equal(a, b) for a, b in zip(before, made.policy.parameters()))
    assert made.evaluate(prompts=2, samples=0)["n"] == 2
    assert "saved rollouts of" in made.trainer.rollout.dataset


def test_other_tokens_are_refused(
    questions: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = run(GRPO, questions, "rollout=stored", f"rollout.path={data}", group_size=2)
    tokenizer = type(made.policy.codec.tokenizer)
    monkeypatch.setattr(tokenizer, "get_vocab", lambda self: {"a": 0})
    with pytest.raises(UserError, match="of a model with other tokens: give model= the one"):
        made.trainer.round()
    assert isinstance(made.policy, LanguagePolicy)
