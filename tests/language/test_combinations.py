"""What may be asked for together on text: each combination trains, and resumes to the last bit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dialogues import CHAT, Echo
from small_models import Sums, make_model, make_tokenizer

from zoo.algorithms import DAPO, GRPO, PPO, ReinforcePP
from zoo.core import build
from zoo.core.protocols import Completion, Prompt, Scores
from zoo.core.run_folder import RunFolder, open_recorder
from zoo.policies.language import LanguagePolicy

ROUNDS, CUT = 5, 2
#: figures that measure the machine and not the run
CLOCKS = ("time/", "speed/", "memory/", "wall_s", "sampler/tokens_per_s", "run_dir")
SETTINGS = [
    f"updates={ROUNDS}",
    "rollout.max_new_tokens=24",
    "eval.at_start=false",
    "eval.at_end=false",
    "algo.lr=0.01",
    "model.temperature=2.0",
    "model.sampling_dtype=float32",
    "algo.precision=float32",
]
AHEAD = ["rollout.staleness=1"]
LORA = ["model.lora.rank=2"]
DYNAMIC = ["algo.refill.rounds=3", "algo.overlong_filter=false"]
SEVERAL = ["algo.epochs=2", "algo.minibatch_size=4"]
BUDGET = ["algo.max_tokens_per_micro_batch=100"]
SAVED = ["save.rollouts=true"]
#: turns of the environment's dialogues, the algorithm, its settings
COMBINATIONS: dict[str, tuple[int, Any, list[str]]] = {
    "ahead, dialogues": (3, GRPO, AHEAD),
    "ahead, adapter": (1, GRPO, [*AHEAD, *LORA]),
    "ahead, saved": (1, GRPO, [*AHEAD, *SAVED]),
    "ahead, refill": (1, DAPO, [*AHEAD, *DYNAMIC]),
    "ahead, critic": (1, PPO, AHEAD),
    "ahead, penalty in the reward": (1, ReinforcePP, AHEAD),
    "ahead, token budget": (1, GRPO, [*AHEAD, *BUDGET]),
    "ahead, several updates": (1, GRPO, [*AHEAD, *SEVERAL]),
    "ahead by two, dialogues, refill, saved, several updates": (
        3,
        DAPO,
        ["rollout.staleness=2", "rollout.prompts=5", *DYNAMIC, *SAVED, *SEVERAL],
    ),
    "ahead, dialogues, adapter, critic, token budget, saved": (
        3,
        PPO,
        [*AHEAD, *LORA, *BUDGET, *SAVED, "algo.kl.coefficient=0.1"],
    ),
    "dialogues, adapter, saved": (3, GRPO, [*LORA, *SAVED]),
}
#: the same of what is read again: turns, settings that collect, who learns from it, and how
STORED: dict[str, tuple[int, list[str], Any, list[str]]] = {
    "dialogues": (3, [], GRPO, BUDGET),
    "dialogues, critic": (3, [], PPO, SEVERAL),
    "adapter": (1, LORA, GRPO, LORA),
    "dialogues sampled ahead": (3, AHEAD, DAPO, [*SEVERAL, "algo.overlong_filter=false"]),
}


class Chance(Sums):
    """Right by the tokens' sum: groups of every kind come up."""

    def score(self, prompts: Sequence[Prompt], completions: Sequence[Completion]) -> Scores:
        right = [float(sum(c.token_ids) % 3 == 0) for c in completions]
        grades = {"accuracy_strict": right, "accuracy_lenient": right}
        return Scores(right, {"accuracy": right}, {}, grades)


class Talk(Chance, Echo):
    """The same of dialogues."""


def world(turns: int) -> Chance:
    return Talk(turns) if turns > 1 else Chance()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    make_model("qwen3").save_pretrained(folder)
    make_tokenizer(template=CHAT).save_pretrained(folder)
    return folder


def start(cls: Any, model: Path, turns: int, settings: Sequence[str], folder: Path) -> Any:
    """A run that no one has taken further yet."""
    if "model.lora.rank=2" in settings:
        pytest.importorskip("peft")
    knobs = {} if cls is PPO else {"group_size": 4}
    overrides = [*SETTINGS, *settings]
    if "rollout=stored" not in settings:
        overrides.insert(0, f"rollout.prompts={12 if cls is PPO else 3}")
    return cls(
        world(turns), model=str(model), seed=3, device="cpu", run_dir=folder,
        overrides=overrides, **knobs,
    ).trainer  # fmt: skip


def resumed(folder: Path, turns: int) -> Any:
    opened = RunFolder.open(folder)
    return build.load(folder, open_recorder(opened.config, opened), env=world(turns))


def figures(trainer: Any, rounds: int) -> list[dict[str, float]]:
    rows = [trainer.round() for _ in range(rounds)]
    return [{k: v for k, v in row.items() if not k.startswith(CLOCKS)} for row in rows]


def same(one: Any, other: Any, where: str = "state") -> None:
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other), where
    elif isinstance(one, dict):
        assert one.keys() == other.keys(), where
        for key in one:
            if not str(key).startswith(CLOCKS):
                same(one[key], other[key], f"{where}.{key}")
    elif isinstance(one, list | tuple):
        assert len(one) == len(other), where
        for i, (a, b) in enumerate(zip(one, other, strict=True)):
            same(a, b, f"{where}[{i}]")
    else:
        assert one == other or (one != one and other != other), where


def waiting(state: dict[str, Any]) -> Any:
    """The groups that dynamic sampling left over, whatever the rollout is wrapped in."""
    inner = state["rollout"]
    while "rollout" in inner:
        inner = inner["rollout"]
    return inner["refill"]["left"]


def saved(folder: Path) -> list[dict[str, torch.Tensor]]:
    files = sorted((folder / "rollouts").glob("*.npz"))
    arrays = [{k: a for k, a in np.load(file).items() if k != "about"} for file in files]
    return [{k: torch.from_numpy(a) for k, a in file.items()} for file in arrays]


def resumes(
    make: Callable[[Path], Any], turns: int, folder: Path, *, refilled: bool = False
) -> list[dict[str, float]]:
    """Return a run's rows, having held one that was interrupted against it."""
    whole, first = make(folder / "whole"), make(folder / "parts")
    before = [p.detach().clone() for p in whole.algorithm.policy.parameters()]
    rows = figures(whole, ROUNDS)
    figures(first, CUT)
    if refilled:  # a group waits for the batch that is asked for next
        assert waiting(first.state_dict()) is not None
    first.save()
    first.close()
    second = resumed(folder / "parts", turns)
    assert figures(second, ROUNDS - CUT) == rows[CUT:]
    same(whole.state_dict(), second.state_dict())
    after = whole.algorithm.policy.parameters()
    assert any(not torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert rows[-1]["update/steps"] > 0 == rows[-1]["update/skipped"]
    whole.close()
    second.close()
    return rows


@pytest.mark.parametrize("name", COMBINATIONS)
def test_golden_14_a_combination_trains_and_resumes_to_the_last_bit(
    name: str, model: Path, tmp_path: Path
) -> None:
    turns, cls, settings = COMBINATIONS[name]
    rows = resumes(
        lambda folder: start(cls, model, turns, settings, folder),
        turns,
        tmp_path,
        refilled="refill" in name,
    )
    if "ahead" in name:
        assert rows[0]["rollout/age_mean"] == 0 and "importance/effective" not in rows[0]
        assert rows[1]["rollout/age_mean"] == pytest.approx(rows[0]["update/steps"])
        assert all(0 < row["importance/effective"] <= 1 for row in rows[1:])
    if turns > 1:
        assert any(row["dialogue/turns_mean"] > 1.1 for row in rows)
    if "saved" in name:
        files = saved(tmp_path / "whole")
        assert len(files) == ROUNDS and all(("own" in file) == (turns > 1) for file in files)
        same(files, saved(tmp_path / "parts"))


@pytest.mark.parametrize("name", STORED)
def test_saved_rollouts_of_a_combination_teach_and_resume_to_the_last_bit(
    name: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    turns, settings, cls, learning = STORED[name]
    made = start(GRPO, model, turns, [*settings, *SAVED], tmp_path / "data")
    figures(made, 3)
    made.close()
    capsys.readouterr()
    read = ["rollout=stored", f"rollout.path={tmp_path / 'data'}", "rollout.shuffle=false"]
    rows = resumes(
        lambda folder: start(cls, model, turns, [*read, *learning], folder), turns, tmp_path
    )
    # what collected is what begins to learn: both started from the same weights
    assert rows[0]["importance/ratio_max"] == pytest.approx(1.0, abs=1e-4)
    assert all(0 < row["importance/effective"] < 1 for row in rows[1:])
    assert rows[-1]["stored/passes"] == pytest.approx(ROUNDS / 3)
    said = capsys.readouterr().err.count("dynamic sampling (algo.refill) has nothing to sample")
    assert said == (2 if cls is DAPO else 0)  # by both that begin, and not by the one that goes on


@pytest.mark.parametrize("settings", [[*AHEAD, *BUDGET], ["algo.importance.sampler=true"]])
def test_a_single_update_weighs_by_its_own_forward_pass(
    settings: list[str], model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And does what it does where the weights are made before: figures and weights are the same."""
    calls: list[int] = []
    before = LanguagePolicy.log_prob

    def counted(self: LanguagePolicy, batch: Any, **options: Any) -> torch.Tensor:
        calls.append(len(batch))
        return before(self, batch, **options)

    monkeypatch.setattr(LanguagePolicy, "log_prob", counted)
    once, twice = (start(GRPO, model, 1, settings, tmp_path / name) for name in ("once", "twice"))
    (plugin,) = (p for p in twice.plugins if p.name == "importance")
    plugin.one_update = False
    rows, passes = [], []
    for trainer in (once, twice):
        calls.clear()
        rows.append(figures(trainer, ROUNDS))
        passes.append(len(calls))
        trainer.close()
    weighed = sum("importance/effective" in row for row in rows[0])
    assert passes == [2, 2 + weighed] and weighed >= ROUNDS - 1  # two: the checks of round 1
    for one, other in zip(*rows, strict=True):
        assert one == pytest.approx(other, rel=1e-3, abs=1e-5)
    pairs = zip(*(t.algorithm.policy.parameters() for t in (once, twice)), strict=True)
    assert all(torch.allclose(a, b, atol=1e-4) for a, b in pairs)
