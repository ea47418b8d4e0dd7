"""Adapters: our forward against peft's own, the reference, what is trained, saved and merged."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import OWN_FORWARD, make_batch, make_model, make_policy, make_tokenizer
from torch import Tensor

from zoo.core.targets import Target
from zoo.errors import UserError
from zoo.policies import adapters
from zoo.policies.adapters import LoraKnobs
from zoo.policies.export import save, save_merged
from zoo.policies.language import LanguageKnobs, LanguagePolicy

peft = pytest.importorskip("peft")

PROMPTS = [[5, 6, 7], [8, 9, 10, 11, 12]]
ROWS = [(0, [20, 21, 22, 1]), (0, [23, 1]), (1, [24, 25, 26, 27, 28]), (1, [29, 30, 1])]


def adapted(
    name: str = "qwen3", trained: bool = True, critic: bool = False, **settings: Any
) -> LanguagePolicy:
    """A policy with an adapter, of which B is not 0 where it is ``trained``."""
    model = make_model(name)
    targets = "all-linear" if name == "gpt2" else "attention+mlp"
    adapters.adapt(model, LoraKnobs(rank=3, alpha=5.0, targets=targets), "base")
    generator = torch.Generator().manual_seed(1)
    for key, parameter in model.named_parameters():
        if ".lora_" in key:
            parameter.data = torch.randn(parameter.shape, generator=generator) * 0.3
        if ".lora_B" in key and not trained:
            parameter.data.zero_()
    knobs = LanguageKnobs(sampling_dtype="float32", **settings)
    return LanguagePolicy(model, make_tokenizer(), knobs, critic=critic)


def trainable(policy: LanguagePolicy) -> dict[str, Tensor]:
    return {name: p for name, p in policy.named_parameters() if p.requires_grad}


def peft_log_prob(policy: LanguagePolicy) -> Tensor:
    """Log-probabilities of `ROWS` by the module's own forward, which is peft's, row by row."""
    rows = []
    for prompt, completion in ROWS:
        tokens = torch.tensor([PROMPTS[prompt] + completion])
        logits = policy.model(tokens, use_cache=False).logits.log_softmax(-1)
        start = len(PROMPTS[prompt]) - 1
        rows.append(logits[0, start:-1].gather(-1, tokens[0, start + 1 :, None]).squeeze(-1))
    return torch.cat(rows)


@pytest.mark.parametrize("name", [*OWN_FORWARD, "gpt2", "gemma2"])
def test_log_probs_and_gradients_equal_those_of_peft(name: str) -> None:
    policy = adapted(name)
    assert policy.is_llama == (name in OWN_FORWARD)
    batch = make_batch(PROMPTS, ROWS)
    own = policy.evaluate(batch).log_prob[batch["mask"]]
    theirs = peft_log_prob(policy)
    assert torch.allclose(own, theirs, atol=1e-5)
    weights = torch.linspace(-1, 1, len(own))
    parameters = trainable(policy)
    assert parameters and all(".lora_" in key for key in parameters)
    mine = torch.autograd.grad((own * weights).sum(), list(parameters.values()))
    its = torch.autograd.grad((theirs * weights).sum(), list(parameters.values()))
    for a, b in zip(mine, its, strict=True):
        assert torch.allclose(a, b, atol=1e-5 * float(b.abs().max() + 1))


def test_an_adapter_of_another_kind_is_left_to_peft() -> None:
    model = make_model("qwen3")
    config = peft.LoraConfig(r=2, target_modules=["q_proj"], use_dora=True)
    peft.inject_adapter_in_model(config, model)
    assert not LanguagePolicy(model, make_tokenizer()).is_llama


def test_the_decoder_samples_from_the_adapted_weights() -> None:
    policy = adapted()
    decoder = policy.decoder()
    logits = decoder.start([PROMPTS[1]], 1, 4)
    tokens = list(PROMPTS[1])
    for _ in range(3):
        with torch.no_grad():
            expected = policy.model(torch.tensor([tokens]), use_cache=False).logits[0, -1]
        assert torch.allclose(logits[0], expected, atol=1e-4)
        tokens.append(int(logits.argmax()))
        logits = decoder.step(logits.argmax(-1))


@pytest.mark.parametrize("name", ["qwen3", "gpt2"])
def test_golden_25_no_ratio_moves_before_the_first_step_with_dropout_and_checkpointing(
    name: str,
) -> None:
    model = make_model(name)
    config = peft.LoraConfig(r=2, target_modules="all-linear", lora_dropout=0.1)
    peft.inject_adapter_in_model(config, model)
    knobs = LanguageKnobs(sampling_dtype="float32", gradient_checkpointing=True)
    policy = LanguagePolicy(model, make_tokenizer(), knobs)
    for key, parameter in model.named_parameters():
        if ".lora_B" in key:
            parameter.data.normal_()
    batch = make_batch(PROMPTS, ROWS)
    old = policy.log_prob(batch)
    out = policy.evaluate(batch)
    assert float(((out.log_prob.detach() - old).exp() - 1).abs().max()) < 1e-5


@pytest.mark.parametrize("name", ["qwen3", "gpt2"])
def test_golden_38_every_lora_b_moves_under_checkpointing(name: str) -> None:
    policy = adapted(name, trained=False, gradient_checkpointing=True)
    optimizer = torch.optim.SGD(policy.parameter_groups()["policy"], lr=1.0)
    batch = make_batch(PROMPTS, ROWS)
    policy.evaluate(batch).log_prob[batch["mask"]].sum().backward()
    optimizer.step()
    moved = {key: bool(p.any()) for key, p in trainable(policy).items() if ".lora_B" in key}
    assert moved and all(moved.values())


def test_golden_40_the_reference_of_a_fresh_adapter_is_the_base_and_shares_it() -> None:
    policy = adapted(trained=False)
    reference, batch = policy.reference_copy(), make_batch(PROMPTS, ROWS)
    base = make_policy("qwen3")
    assert torch.equal(reference.log_prob(batch), policy.log_prob(batch))
    assert torch.equal(reference.log_prob(batch), base.log_prob(batch))
    for (key, own), its in zip(policy.named_parameters(), reference.parameters(), strict=True):
        assert (own is its) == (".lora_" not in key), key
    for parameter in trainable(policy).values():
        parameter.data.add_(0.1)
    assert torch.equal(reference.log_prob(batch), base.log_prob(batch))
    assert not torch.equal(policy.log_prob(batch), base.log_prob(batch))


def test_an_averaged_reference_follows_the_adapter_and_leaves_the_base() -> None:
    policy = adapted()
    target = Target(policy, 0.25, policy.reference_copy())
    before = {key: p.clone() for key, p in target.module.named_parameters()}
    for parameter in trainable(policy).values():
        parameter.data.add_(1.0)
    target.update()
    for key, parameter in target.module.named_parameters():
        moved = 0.25 if ".lora_" in key else 0.0
        assert torch.allclose(parameter, before[key] + moved, atol=1e-6), key


def test_a_checkpoint_holds_the_adapter_and_the_value_head_only() -> None:
    policy = adapted(critic=True)
    state = policy.state_dict()
    assert state and all(".lora_" in k or k.startswith("value_head.") for k in state)
    other = adapted(trained=False, critic=True)
    other.load_state_dict(copy.deepcopy(state))
    batch = make_batch(PROMPTS, ROWS)
    assert torch.equal(other.log_prob(batch), policy.log_prob(batch))
    state.popitem()
    with pytest.raises(RuntimeError, match="Missing"):
        other.load_state_dict(state)


def saved_base(folder: Path, **sizes: int) -> Path:
    import transformers

    model = make_model("qwen3")
    if sizes:
        model = transformers.Qwen3ForCausalLM(
            model.config.from_dict(model.config.to_dict() | sizes)
        )
    model.save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder


def loaded(path: Path, **knobs: Any) -> LanguagePolicy:
    return LanguagePolicy.load(LanguageKnobs(str(path), sampling_dtype="float32", **knobs))


def test_a_saved_adapter_is_read_by_peft_and_trained_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = saved_base(tmp_path / "base")
    monkeypatch.chdir(tmp_path)  # a name that holds here only is written as one that holds anywhere
    policy, batch = loaded(Path("base"), lora=LoraKnobs(rank=2)), make_batch(PROMPTS, ROWS)
    assert policy.model.peft_config["default"].base_model_name_or_path == str(base)
    for parameter in trainable(policy).values():
        parameter.data.normal_(std=0.3)
    assert save(policy, tmp_path / "adapter") == "adapter"
    model = peft.AutoPeftModelForCausalLM.from_pretrained(tmp_path / "adapter")
    theirs = LanguagePolicy(model.base_model.model, make_tokenizer(), policy.knobs)
    assert torch.allclose(theirs.log_prob(batch), policy.log_prob(batch), atol=1e-6)
    again = loaded(tmp_path / "adapter")
    assert torch.equal(again.log_prob(batch), policy.log_prob(batch))
    assert trainable(again).keys() == trainable(policy).keys()
    assert torch.equal(again.reference_copy().log_prob(batch), policy.log_prob(batch))
    with pytest.raises(UserError, match="already is an adapter"):
        loaded(tmp_path / "adapter", lora=LoraKnobs(rank=2))


@pytest.mark.parametrize("name", ["qwen3", "qwen3-untied", "gpt2"])
def test_a_merged_model_says_the_same(tmp_path: Path, name: str) -> None:
    policy, batch = adapted(name), make_batch(PROMPTS, ROWS)
    save_merged(policy, tmp_path / "merged")
    merged = loaded(tmp_path / "merged")
    assert not adapters.is_adapted(merged.model)
    assert torch.allclose(merged.log_prob(batch), policy.log_prob(batch), atol=1e-5)
    save_merged(policy, tmp_path / "half", torch.bfloat16)
    assert next(loaded(tmp_path / "half", dtype="bfloat16").model.parameters()).dtype is (
        torch.bfloat16
    )
    with pytest.raises(UserError, match="not empty"):
        save_merged(policy, tmp_path / "half")


def test_a_model_that_was_trained_as_a_whole_is_saved_whole(tmp_path: Path) -> None:
    policy, batch = make_policy("qwen3"), make_batch(PROMPTS, ROWS)
    assert save(policy, tmp_path / "model") == "model"
    assert torch.equal(loaded(tmp_path / "model").log_prob(batch), policy.log_prob(batch))


def test_a_base_in_four_bits_is_trained_and_merged(tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes")
    pytest.importorskip("accelerate")
    base = saved_base(tmp_path / "base", hidden_size=64, intermediate_size=128)
    policy = loaded(base, lora=LoraKnobs(rank=2), quantize="nf4")
    batch = make_batch(PROMPTS, ROWS)
    kinds = {type(m).__name__ for m in policy.model.modules()}
    assert "Linear4bit" in kinds and not policy.is_llama
    assert type(policy.model.get_output_embeddings()) is torch.nn.Linear
    optimizer = torch.optim.SGD(policy.parameter_groups()["policy"], lr=0.5)
    for _ in range(2):
        policy.evaluate(batch).log_prob[batch["mask"]].sum().backward()
        optimizer.step()
    assert all(bool(p.any()) for k, p in trainable(policy).items() if ".lora_B" in k)
    reference = policy.reference_copy()
    assert torch.equal(reference.log_prob(batch), policy.log_prob(batch))
    frozen = [p for p in policy.parameters() if not p.requires_grad]
    assert {id(p) for p in frozen} <= {id(p) for p in reference.parameters()}
    save_merged(policy, tmp_path / "merged")
    merged = loaded(tmp_path / "merged")
    assert torch.allclose(merged.log_prob(batch), policy.log_prob(batch), atol=2e-3)


@pytest.mark.parametrize("extra", [{"use_dora": True}, {"lora_bias": True}])
def test_what_is_more_than_low_rank_is_not_merged(extra: dict[str, Any]) -> None:
    model = make_model("llama-biases")
    peft.inject_adapter_in_model(peft.LoraConfig(target_modules=["q_proj"], **extra), model)
    with pytest.raises(UserError, match=r"an adapter with .*q_proj.*rollout=hf samples"):
        dict(adapters.merged_tensors(model))
    base = dict(adapters.base_tensors(model))
    plain = make_model("llama-biases").state_dict()
    assert base.keys() == plain.keys()
    assert all(torch.equal(base[name], plain[name]) for name in plain)


@pytest.mark.parametrize(
    ("extra", "name"),
    [
        ({"modules_to_save": ["lm_head"]}, "lm_head.modules_to_save"),
        ({"trainable_token_indices": [1, 2]}, "trainable_tokens_delta"),
        ({"bias": "all"}, "bias"),
    ],
)
def test_an_adapter_with_whole_weights_is_refused_as_no_checkpoint_would_hold_them(
    tmp_path: Path, extra: dict[str, Any], name: str
) -> None:
    config = peft.LoraConfig(target_modules=["q_proj"], task_type="CAUSAL_LM", **extra)
    peft.get_peft_model(make_model("llama-biases"), config).save_pretrained(tmp_path)
    with pytest.raises(UserError, match=rf"such as \S*{name}.*merge_and_unload"):
        adapters.continue_adapter(make_model("llama-biases"), tmp_path)


def test_what_cannot_be_adapted_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="rank"):
        LoraKnobs(rank=-1)
    with pytest.raises(UserError, match="targets"):
        LoraKnobs(rank=1, targets="heads")
    with pytest.raises(UserError, match="give a rank"):
        LoraKnobs(alpha=16.0)
    with pytest.raises(UserError, match=r"rank=1000 is more than the 32"):
        adapters.adapt(make_model("qwen3"), LoraKnobs(rank=1000), "base")
    with pytest.raises(UserError, match=r"q_proj.*GPT2LMHeadModel"):
        adapters.adapt(make_model("gpt2"), LoraKnobs(rank=1), "base")
    with pytest.raises(UserError, match=r"model\.lora\.rank"):
        LanguageKnobs(path="tiny", quantize="nf4")
    with pytest.raises(UserError, match="GGUF"):
        loaded(Path("smollm2-135m"), lora=LoraKnobs(rank=1), quantize="nf4")
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "IA3"}')
    with pytest.raises(UserError, match="IA3"):
        loaded(tmp_path)
    gone = '{"peft_type": "LORA", "base_model_name_or_path": "/no/where"}'
    (tmp_path / "adapter_config.json").write_text(gone)
    with pytest.raises(UserError, match=r"base of the adapter.*put it back"):
        loaded(tmp_path)
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    with pytest.raises(UserError, match="base_model_name_or_path"):
        loaded(tmp_path)
