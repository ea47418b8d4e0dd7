"""How an adapter goes over to an engine apart from its base: no engine needed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from small_models import make_model, make_tokenizer

from zoo.core.config import compose
from zoo.errors import UserError
from zoo.policies.adapters import LoraKnobs, adapt
from zoo.policies.language import LanguageKnobs, LanguagePolicy
from zoo.rollouts import vllm
from zoo.rollouts.asynchronous import _copied, _update
from zoo.rollouts.engine_adapter import adapter_settings, has_room, write_adapter
from zoo.rollouts.engine_settings import EngineKnobs, VLLMRolloutKnobs, engine_settings
from zoo.rollouts.engine_weights import checkpoint_weights
from zoo.rollouts.vllm import VLLMSampler

peft = pytest.importorskip("peft")


def adapted(rank: int = 2, **lora: Any) -> LanguagePolicy:
    model = make_model("qwen3")
    adapt(model, LoraKnobs(rank=rank, **lora), "base")
    return LanguagePolicy(model, make_tokenizer(), LanguageKnobs(sampling_dtype="float32"))


def turned(policy: LanguagePolicy) -> None:
    with torch.no_grad():
        for name, parameter in policy.model.named_parameters():
            if ".lora_" in name:
                parameter.add_(0.5)
    policy.version += 1


@pytest.mark.parametrize(("rank", "room"), [(1, 1), (2, 8), (8, 8), (9, 16), (32, 32)])
def test_an_engine_is_started_with_room_for_the_adapter_alone(rank: int, room: int) -> None:
    policy = adapted(rank, targets="attention")
    expected = {
        "enable_lora": True,
        "max_loras": 1,
        "max_lora_rank": room,
        "lora_target_modules": ["k_proj", "o_proj", "q_proj", "v_proj"],
    }
    assert adapter_settings(policy.model, torch.float32) == expected
    settings = engine_settings(VLLMRolloutKnobs(), policy, Path("x"), 16)
    assert settings.items() >= expected.items()
    merged = engine_settings(VLLMRolloutKnobs(adapter="merged"), policy, Path("x"), 16)
    assert not expected.keys() & merged.keys()


def test_the_largest_of_several_ranks_counts() -> None:
    model = make_model("qwen3")
    config = peft.LoraConfig(
        r=2, target_modules=["q_proj", "down_proj"], rank_pattern={"down_proj": 17}
    )
    peft.inject_adapter_in_model(config, model)
    assert adapter_settings(model, torch.float32)["max_lora_rank"] == 32


def test_what_the_engine_has_no_room_for_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for extra, message in [
        ({"r": 600}, r"rank 512 at most, and this one's is 600: rollout\.adapter=merged"),
        ({"r": 2, "use_dora": True}, r"lora_magnitude_vector.*DoRA.*rollout=hf"),
        ({"r": 2, "lora_bias": True}, r"lora_B\.default\.bias.*rollout=hf"),
    ]:
        model = make_model("qwen3")
        peft.inject_adapter_in_model(peft.LoraConfig(target_modules=["q_proj"], **extra), model)
        with pytest.raises(UserError, match=message):
            adapter_settings(model, torch.float32)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    adapter_settings(adapted().model, torch.bfloat16)
    with pytest.raises(UserError, match=r"sampling_dtype=bfloat16, or rollout\.adapter=merged"):
        adapter_settings(adapted().model, torch.float32)


def test_a_server_has_room_for_ranks_and_layers_of_its_own_or_fewer() -> None:
    needed = {"max_lora_rank": 8, "lora_target_modules": ["q_proj"]}
    assert has_room({"max_lora_rank": 8, "lora_target_modules": None}, needed)
    assert has_room({"max_lora_rank": 16, "lora_target_modules": ["q_proj", "k_proj"]}, needed)
    assert not has_room(None, needed)
    assert not has_room({"max_lora_rank": 1, "lora_target_modules": None}, needed)
    assert not has_room({"max_lora_rank": 8, "lora_target_modules": ["k_proj"]}, needed)


def test_the_base_goes_over_as_it_was_before_the_adapter() -> None:
    before = dict(checkpoint_weights(make_model("qwen3"), torch.bfloat16))
    policy = adapted()
    turned(policy)
    after = dict(checkpoint_weights(policy.model, torch.bfloat16, merged=False))
    assert after.keys() == before.keys()
    for name, value in before.items():
        assert torch.equal(after[name], value), name


def test_a_written_adapter_is_read_by_peft(tmp_path: Path) -> None:
    policy = adapted(rank=3, alpha=5.0)
    turned(policy)
    size = write_adapter(policy.model, tmp_path / "new")
    own = sum(p.nbytes for n, p in policy.model.named_parameters() if ".lora_" in n)
    assert own < size < own + 8000
    ids = torch.tensor([[5, 6, 7]])
    read = peft.PeftModel.from_pretrained(make_model("qwen3"), str(tmp_path / "new"))
    assert torch.allclose(read(ids).logits, policy.model(ids).logits, atol=1e-6)


class _Engine:
    """Writes down what it is told, and what the folders of adapters held."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.llm_engine = self
        self.fails = False

    def collective_rpc(self, method: str, args: tuple[Any, ...]) -> None:
        self.told.append((method, len(dict(args[0]))))

    def add_lora(self, asked: tuple[str, int, Path]) -> None:
        if self.fails:
            raise ValueError("no such layer")
        assert asked[2].is_dir()
        self.told.append(asked)

    def sleep(self, level: int) -> None:
        self.told.append("sleep")

    def wake_up(self, tags: list[str]) -> None:
        self.told.append(tags[0])

    def reset_prefix_cache(self) -> None:
        """Nothing is kept."""


@pytest.fixture
def sampler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> VLLMSampler:
    monkeypatch.setattr(vllm, "require_vllm", lambda choice: None)
    monkeypatch.setattr(vllm, "refuse_sleep", lambda engine: None)
    made = VLLMSampler(VLLMRolloutKnobs(engine=EngineKnobs(sleep_level=2)))
    made._llm = _Engine()
    made._folder = SimpleNamespace(name=str(tmp_path))  # type: ignore[assignment]
    monkeypatch.setattr(made, "_by_name", lambda folder: (folder.name, made._adapters, folder))
    return made


def test_the_base_goes_over_once_and_then_each_version_under_a_name_of_its_own(
    sampler: VLLMSampler,
) -> None:
    policy, names = adapted(), set()
    for step in range(3):
        sampler._prepare(policy)
        told, sampler._llm.told = sampler._llm.told, []
        base = [("take_weights", 24)] if step == 0 else []
        assert told[:-1] == base
        name, number, folder = told[-1]
        assert number == step + 1
        names.add(name)
        assert [folder] == list(Path(sampler._folder.name).iterdir())  # the one before is gone
        before = sampler.metrics
        sampler._prepare(policy)
        assert sampler._llm.told == [] and sampler.metrics is before
        turned(policy)
    assert len(names) == 3


def test_copies_that_are_sampled_ahead_share_the_base_that_went_over(sampler: VLLMSampler) -> None:
    policy = adapted()
    twin = _copied(policy)
    for round_ in range(3):
        _update(twin, policy)
        sampler._prepare(twin)
        sampler._prepare(policy)  # an evaluation
        turned(policy)
        assert len([one for one in sampler._llm.told if one[0] == "take_weights"]) == 1
        assert len(sampler._llm.told) == 1 + 2 * (round_ + 1)


def test_what_sleep_dropped_comes_back_with_the_adapter(sampler: VLLMSampler) -> None:
    policy = adapted()
    sampler._prepare(policy)
    sampler.rest()
    sampler._llm.told.clear()
    sampler._prepare(policy)
    kinds = [one if isinstance(one, str) else one[0] for one in sampler._llm.told]
    assert kinds == ["weights", "take_weights", sampler._adapter.name, "kv_cache"]  # type: ignore[union-attr]


def test_another_base_puts_the_adapter_out(sampler: VLLMSampler) -> None:
    policy = adapted()
    sampler._prepare(policy)
    before = sampler._adapter
    plain = LanguagePolicy(make_model("qwen3"), make_tokenizer(), policy.knobs)
    sampler._prepare(plain)
    assert sampler._adapter is None and before is not None and not before.exists()
    sampler._prepare(policy)
    assert sampler._adapter is not None


def test_an_adapter_that_the_engine_refuses_is_one_sentence_and_asked_again(
    sampler: VLLMSampler,
) -> None:
    policy = adapted()
    sampler._llm.fails = True
    for _ in range(2):
        with pytest.raises(UserError, match=r"no such layer\. rollout\.adapter=merged"):
            sampler._prepare(policy)
    assert [one[0] for one in sampler._llm.told] == ["take_weights"]


def test_merged_hands_over_the_sum_each_time(
    sampler: VLLMSampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampler.knobs = VLLMRolloutKnobs(adapter="merged")
    policy = adapted()
    for _ in range(2):
        sampler._prepare(policy)
        turned(policy)
    assert sampler._llm.told == [("take_weights", 24)] * 2


def test_a_way_that_is_none_is_refused() -> None:
    run = ["algo=grpo", "env=gsm8k", "model=tiny", "rollout=vllm"]
    assert compose([*run, "rollout.adapter=merged"]).settings("rollout").adapter == "merged"
    with pytest.raises(UserError, match="adapter"):
        compose([*run, "rollout.adapter=beside"])
