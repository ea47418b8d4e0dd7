"""The output layer is applied to completions alone: a prompt's tokens are never scored."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from small_models import VOCAB, make_policy, random_batch

from zoo.functional import token_log_prob as chunked


@pytest.fixture
def head_rows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows of hidden states each call of the chunked head multiplies out."""
    rows: list[int] = []
    log_softmax = chunked.OutputHead.log_softmax

    def counting(self: Any, which: slice, temperature: float) -> torch.Tensor:
        result = log_softmax(self, which, temperature)
        assert result.shape[1] == VOCAB
        rows.append(result.shape[0])
        return result

    monkeypatch.setattr(chunked.OutputHead, "log_softmax", counting)
    return rows


@pytest.mark.parametrize("name", ["qwen3", "gpt2"])
def test_training_scores_each_completion_token_once_and_no_prompt(
    name: str, head_rows: list[int]
) -> None:
    policy, batch = make_policy(name, chunk=16), random_batch()
    live = int(batch["mask"].sum())
    out = policy.evaluate(batch)
    assert sum(head_rows) == live and max(head_rows) <= 16
    out.log_prob.sum().backward()
    assert sum(head_rows) == 2 * live  # made again, not kept
    head_rows.clear()
    with torch.no_grad():
        policy.log_prob(batch, micro_batch_size=3)
    assert sum(head_rows) == live
    head_rows.clear()
    with torch.no_grad():
        policy.evaluate(batch, policy.reference_copy())
    assert sum(head_rows) == 2 * live  # the policy's and the reference's


@pytest.mark.parametrize("name", ["qwen3", "gpt2"])
def test_reading_prompts_multiplies_out_their_last_tokens_alone(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = make_policy(name)
    rows: list[int] = []
    head = policy.model.get_output_embeddings().weight.data_ptr()
    linear = torch.nn.functional.linear

    def counting(x: torch.Tensor, weight: torch.Tensor, *bias: Any) -> torch.Tensor:
        if weight.data_ptr() == head:
            rows.append(x.numel() // x.shape[-1])
        return linear(x, weight, *bias)

    monkeypatch.setattr(torch.nn.functional, "linear", counting)
    with torch.no_grad():
        decoder = policy.decoder()
        rows.clear()  # what finding out about the head took
        decoder.start([[5, 6, 7], [8, 9], [4]], repeats=4, capacity=3)
    assert rows == [3]
