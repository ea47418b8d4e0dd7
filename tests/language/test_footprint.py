"""The memory that a run takes at the least, and the presets that were made by it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import make_model

from zoo.core.config import compose
from zoo.core.optimizer import FusedAdamW
from zoo.errors import UserError
from zoo.policies import adapters
from zoo.policies.footprint import Footprint, footprint, refuse_too_large
from zoo.rollouts.engine_settings import EngineKnobs, VLLMRolloutKnobs

QWEN3: dict[str, dict[str, Any]] = {
    "qwen3-0.6b-full": {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28},
    "qwen3-1.7b-lora": {"hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28},
    "qwen3-8b-qlora": {
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "tie_word_embeddings": False,
    },
}
COMMON = {
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151_936,
    "tie_word_embeddings": True,
}
TOO_MUCH = [
    ("qwen3-0.6b-full", ["rollout.prompts=512", "rollout.max_rows=4096"], "cache"),
    ("qwen3-1.7b-lora", ["model.lora.rank=0", "model.dtype=float32"], "Adam's moments"),
    ("qwen3-8b-qlora", ["model.quantize=null", "model.lora.rank=0"], "Adam's moments"),
    ("qwen3-8b-qlora", ["model.quantize=null", "model.dtype=float32"], "weights"),
]


def outline(preset: str) -> Any:
    import transformers

    with torch.device("meta"):
        return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**COMMON | QWEN3[preset]))


def counted(model: Any, *overrides: str) -> Footprint:
    run = compose(["algo=grpo", "env=gsm8k", "model=tiny", *overrides])
    return footprint(model, run.settings("model"), run.knobs, run.settings("rollout"))


@pytest.mark.parametrize("lora", [0, 3])
def test_weights_gradients_and_moments_are_those_of_a_real_run(lora: int) -> None:
    model, rank = make_model("qwen3"), f"model.lora.rank={lora}"
    parts = counted(make_model("qwen3"), rank)
    if lora:
        pytest.importorskip("peft")
        adapters.adapt(model, adapters.LoraKnobs(rank=lora), "base")
    own = list(model.parameters())
    trained = [p for p in own if p.requires_grad]
    assert parts.weights == sum(p.nbytes for p in own)
    assert parts.gradients == sum(p.nbytes for p in trained)
    optimizer = FusedAdamW([{"params": trained}], lr=0.1)
    for p in trained:
        p.grad = torch.ones_like(p)
    optimizer.advance(1.0)
    moments = [t for s in optimizer.state.values() for t in s.values() if t.numel() > 1]
    assert parts.moments == sum(t.nbytes for t in moments)


def test_each_part_by_hand() -> None:
    # two layers, keys and values of 2 heads of 16 numbers, 2 bytes each; 4 × 8 rows of 10 tokens
    parts = counted(make_model("qwen3"), "rollout.prompts=4", "rollout.max_new_tokens=10")
    assert parts.cache == 32 * 10 * 2 * 2 * 2 * 16 * 2
    assert counted(
        make_model("qwen3"), "rollout.max_rows=8", "rollout.max_new_tokens=10"
    ).cache == (parts.cache / 4)
    assert parts.logits == 512 * 64 * 4
    assert parts.reference == parts.gradients
    assert counted(make_model("qwen3"), "algo.kl.monitor_every=0").reference == 0
    assert counted(make_model("qwen3"), "algo.adam_state=8bit").moments == parts.moments / 4
    assert counted(make_model("qwen3"), "algo.adam_state=host").moments == 0
    ahead = counted(make_model("qwen3"), "rollout.staleness=2", "algo.importance.sampler=true")
    assert ahead.reference == 3 * parts.reference
    assert Footprint(1, 2, 4, 8, 16, 32, 64).total == 1 + 2 + 4 + 32 + 64
    assert Footprint(1, 2, 4, 80, 16, 32, 6).total == 1 + 2 + 4 + 80 + 16


def test_four_bits_take_a_quarter_of_sixteen() -> None:
    settings = ("model.lora.rank=2", "model.dtype=bfloat16")
    wide = counted(make_model("qwen3-untied"), *settings)
    packed = counted(make_model("qwen3-untied"), *settings, "model.quantize=nf4")
    model = make_model("qwen3-untied")
    products = sum(m.weight.numel() for n, m in model.named_modules() if n.endswith("_proj"))
    assert wide.weights - packed.weights == pytest.approx(products * (2 - 4.127 / 8))
    assert packed.sampled == 0 and wide.sampled == 2 * products


@pytest.mark.parametrize(("preset", "gib"), zip(QWEN3, (13.2, 9.6, 7.4), strict=True))
def test_a_preset_takes_what_its_page_says_and_leaves_room_for_activations(
    preset: str, gib: float
) -> None:
    parts = counted(outline(preset), f"preset={preset}")
    assert round(parts.total / 2**30, 1) == gib  # docs/presets.md
    refuse_too_large(parts, 32, preset)


@pytest.mark.parametrize(("preset", "overrides", "most"), TOO_MUCH)
def test_what_a_card_cannot_hold_is_refused_with_the_reason(
    preset: str, overrides: list[str], most: str
) -> None:
    parts = counted(outline(preset), f"preset={preset}", *overrides)
    with pytest.raises(UserError, match=rf"of a card's 32 \(GiB of {most}"):
        refuse_too_large(parts, 32, preset)


def test_an_engine_takes_its_share_and_gives_it_back_asleep() -> None:
    run = compose(["algo=grpo", "env=gsm8k", "preset=qwen3-1.7b-lora"])
    model = outline("qwen3-1.7b-lora")

    def beside(share: float, asleep: int) -> Footprint:
        engine = EngineKnobs(gpu_memory_utilization=share, sleep_level=asleep)
        rollout = VLLMRolloutKnobs(engine=engine)
        return footprint(model, run.settings("model"), run.knobs, rollout, 32)

    awake, asleep = beside(0.35, 0), beside(0.35, 1)
    share = 0.35 * 32 * 2**30
    assert awake.total - asleep.total == pytest.approx(asleep.gradients + asleep.logits)
    assert (awake.engine, awake.cache, asleep.engine, asleep.sampled) == (share, 0, 0.0, share)
    refuse_too_large(awake, 32, "it")
    with pytest.raises(UserError, match=r"sleep_level=1"):
        refuse_too_large(beside(0.95, 0), 32, "it")
    with pytest.raises(UserError, match=r"gpu_memory_utilization=0\.1 gives it 3\.2"):
        beside(0.1, 1)


def test_an_engine_holds_the_base_in_sixteen_bits_and_an_adapter_that_is_apart() -> None:
    run = compose(["algo=grpo", "env=gsm8k", "preset=qwen3-8b-qlora"])
    model = outline("qwen3-8b-qlora")
    # 8.19e9 weights, 36 layers of rank 16 in seven matrices, and the cache of a token
    adapter = 36 * 16 * (2 * (4096 + 4096) + 2 * (4096 + 1024) + 3 * (4096 + 12288))
    base = sum(p.numel() for p in model.parameters())
    cache = 512 * 2 * 36 * 8 * 128 * 2
    for way, weights in [("apart", base + adapter), ("merged", base)]:
        for spare, fits in [(2**20, True), (-(2**20), False)]:
            share = (2 * weights + cache + spare) / (32 * 2**30)
            engine = EngineKnobs(gpu_memory_utilization=share, sleep_level=1)
            rollout = VLLMRolloutKnobs(engine=engine, adapter=way, max_new_tokens=512)  # type: ignore[arg-type]
            if fits:
                footprint(model, run.settings("model"), run.knobs, rollout, 32)
                continue
            with pytest.raises(UserError, match="gpu_memory_utilization"):
                footprint(model, run.settings("model"), run.knobs, rollout, 32)


def test_a_run_is_refused_before_weights_are_looked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from zoo.cli import main

    shape = COMMON | QWEN3["qwen3-8b-qlora"] | {"model_type": "qwen3"}
    (tmp_path / "config.json").write_text(json.dumps(shape))
    run = ["train", "algo=grpo", "env=gsm8k", f"model={tmp_path}", f"run_dir={tmp_path / 'run'}"]
    preset = ["preset=qwen3-8b-qlora", "model.quantize=null", "model.lora.rank=0"]
    assert main([*run, *preset]) == 2
    error = capsys.readouterr().err
    assert "at least 7" in error and "model.quantize=nf4" in error
    assert not (tmp_path / "run").exists()
