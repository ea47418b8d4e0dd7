"""Our own forward equals transformers', packed, shared and checkpointed as it is."""

from __future__ import annotations

import pytest
import torch
from small_models import (
    ARCHITECTURES,
    OWN_FORWARD,
    make_batch,
    make_model,
    make_policy,
    naive_log_prob,
    random_batch,
)
from torch import Tensor

from zoo.policies.language import LanguagePolicy
from zoo.policies.layout import Packing, TextRows
from zoo.policies.llama import LlamaForward
from zoo.policies.llama_ops import attend, rms_norm, rotate, swiglu


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_log_probs_and_gradients_equal_transformers(name: str) -> None:
    policy = make_policy(name, temperature=0.6)
    assert policy.is_llama == (name in OWN_FORWARD)
    batch = random_batch()
    weights = torch.linspace(-1, 1, batch["mask"].numel()).view(batch["mask"].shape)
    out = policy.evaluate(batch)
    naive = naive_log_prob(policy, batch)
    for i, expected in enumerate(naive):
        torch.testing.assert_close(out.log_prob[i, : len(expected)], expected, atol=2e-5, rtol=1e-5)
    assert (out.log_prob[~batch["mask"]] == 0).all()
    parameters = list(policy.model.parameters())
    expected = torch.autograd.grad(
        sum((x * weights[i, : len(x)]).sum() for i, x in enumerate(naive)), parameters
    )
    ours = torch.autograd.grad((out.log_prob * weights).sum(), parameters)
    for a, b in zip(ours, expected, strict=True):
        torch.testing.assert_close(a, b, atol=float(b.abs().max()) * 3e-5 + 1e-6, rtol=0)


@pytest.mark.parametrize("name", ["llama-biases", "qwen3"])
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_every_attention_and_checkpointing_agree(
    name: str, fused: bool, checkpointing: bool
) -> None:
    model = make_model(name)
    rows = TextRows.of(random_batch(seed=1))
    parameters = list(model.model.parameters())
    plain = LlamaForward(model, torch.float32, fused_attention=False).hidden(rows)
    weight = torch.randn(plain.shape, generator=torch.Generator().manual_seed(3))
    expected = torch.autograd.grad((plain * weight).sum(), parameters)
    other = LlamaForward(model, torch.float32, fused_attention=fused, checkpointing=checkpointing)
    hidden = other.hidden(rows)
    torch.testing.assert_close(hidden, plain, atol=2e-5, rtol=1e-5)
    for a, b in zip(torch.autograd.grad((hidden * weight).sum(), parameters), expected):
        torch.testing.assert_close(a, b, atol=float(b.abs().max()) * 3e-5 + 1e-6, rtol=0)


def test_tiny_is_computed_by_our_own_forward(tiny: LanguagePolicy) -> None:
    assert tiny.is_llama
    prompt = tiny.codec.encode([{"role": "user", "content": "What is 2 + 3?"}])
    batch = make_batch([prompt], [(0, prompt[:9]), (0, [1])])
    out = tiny.evaluate(batch)
    for i, expected in enumerate(naive_log_prob(tiny, batch)):
        torch.testing.assert_close(out.log_prob[i, : len(expected)], expected, atol=5e-5, rtol=1e-5)


def test_sliding_windows_and_changed_layers_are_left_to_transformers() -> None:
    import transformers as hf
    from small_models import SHAPE

    sliding = hf.Qwen2ForCausalLM(
        hf.Qwen2Config(**SHAPE, use_sliding_window=True, sliding_window=8, max_window_layers=0)
    )
    assert not LlamaForward.supports(sliding)
    model = make_model("llama")
    assert LlamaForward.supports(model)
    layer = model.model.layers[0].self_attn

    class Adapted(torch.nn.Linear):
        pass

    layer.q_proj = Adapted(32, 32)
    assert not LlamaForward.supports(model)


def test_packing_holds_each_prompt_once_and_no_last_token() -> None:
    batch = make_batch([[5, 6, 7], [8]], [(0, [10, 11]), (1, [12]), (0, [13, 14, 15])], pad=9)
    packing = Packing.of(TextRows.of(batch))
    assert packing.token[:7].tolist() == [5, 6, 7, 8, 10, 13, 14]
    assert packing.position[:7].tolist() == [0, 1, 2, 0, 3, 3, 4]
    # Live tokens by row: 10, 11 | 12 | 13, 14, 15; each is predicted by what stands before it.
    assert packing.predict.tolist() == [2, 4, 3, 2, 5, 6]


def test_padding_content_changes_nothing() -> None:
    policy = make_policy()
    batch = random_batch(seed=2)
    out = policy.evaluate(batch)
    width, steps = batch["prompt_ids"].shape[1], batch["action"].shape[1]
    padding = torch.arange(width) < (width - batch["prompt_length"])[:, None]
    batch["prompt_ids"] = batch["prompt_ids"].masked_fill(padding, 33)
    after = torch.arange(steps) >= batch["completion_length"][:, None]
    batch["action"] = batch["action"].masked_fill(after, 44)
    again = policy.evaluate(batch)
    torch.testing.assert_close(again.log_prob, out.log_prob)
    torch.testing.assert_close(again.entropy, out.entropy)


def double(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def test_gradcheck_of_the_layer_functions() -> None:
    torch.manual_seed(0)
    dtype = torch.float64
    check = torch.autograd.gradcheck
    assert check(lambda x, w: rms_norm(x, w, 1e-6, dtype), (double(3, 4), double(4)))
    angle = torch.rand(3, 2, dtype=dtype)
    assert check(lambda x: rotate(x, angle.cos(), angle.sin(), 0.5, dtype), (double(3, 2, 4),))
    assert check(swiglu, (double(3, 4), double(3, 4)))
    own = (double(2, 2, 2, 3, 3, 2), double(2, 2, 2, 3, 2), double(2, 2, 2, 3, 2))
    assert check(attend, own)
    mask = torch.tensor([[0.0, 0.0], [0.0, -torch.inf]], dtype=dtype)
    assert check(lambda *x: attend(*x, mask), (*own, double(2, 2, 2, 2), double(2, 2, 2, 2)))
