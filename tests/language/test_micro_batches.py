"""Micro-batches by a token budget: what they hold, and that the update doesn't depend on it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from small_models import make_batch, make_policy, random_batch
from tensordict import TensorDict

from zoo.algorithms.grpo import GRPOKnobs
from zoo.core.algorithm import Algorithm
from zoo.core.learner import Learner
from zoo.core.protocols import Loss, Update
from zoo.policies.language_batches import cut, padded_tokens


class Reinforce(Algorithm):
    """−log π · advantage."""

    name = "reinforce"
    Knobs = GRPOKnobs

    def losses(self, batch: TensorDict, update: Update) -> Iterator[Loss]:
        out = self.evaluation(batch)
        yield Loss("policy", {"policy": -out.log_prob * batch["advantage"]}, batch["mask"])


def parts_of(lengths: list[tuple[int, int]], tokens: int | None) -> list[list[int]]:
    """Rows of each part, for (prompt, completion) lengths with a group for each prompt length."""
    prompts = sorted({p for p, _ in lengths})
    rows = [(prompts.index(p), [7] * c) for p, c in lengths]
    batch = make_batch([[5] * p for p in prompts], rows)
    return [index.tolist() for _, index in cut(batch, None, tokens)]


def test_parts_of_hand_counted_tokens() -> None:
    # Prompt of 2: completions 3, 3, 8. Two short rows are 2·(2+3) = 10 tokens, all three 3·10.
    lengths = [(2, 3), (2, 8), (2, 3)]
    assert parts_of(lengths, 30) == [[0, 2, 1]]
    assert parts_of(lengths, 29) == [[0, 2], [1]]
    assert parts_of(lengths, 10) == [[0, 2], [1]]
    assert parts_of(lengths, 9) == [[0], [2], [1]]
    assert parts_of(lengths, None) == [[0, 2, 1]]


def test_the_longest_prompt_and_the_longest_completion_count_even_of_different_rows() -> None:
    # Alone 1 + 6 and 6 + 1 tokens; together 2·(6 + 6) = 24.
    assert parts_of([(1, 6), (6, 1)], 24) == [[1, 0]]
    assert parts_of([(1, 6), (6, 1)], 23) == [[1], [0]]


def test_a_row_beyond_the_budget_goes_alone() -> None:
    assert parts_of([(4, 20), (4, 1), (4, 1)], 12) == [[1, 2], [0]]


@pytest.mark.parametrize("tokens", [1, 30, 64, 100, 300, 10_000])
def test_every_row_once_within_the_budget_and_groups_together(tokens: int) -> None:
    batch = random_batch(groups=6)
    parts = cut(batch, None, tokens)
    assert sorted(torch.cat([i for _, i in parts]).tolist()) == list(range(batch.batch_size[0]))
    for part, index in parts:
        assert padded_tokens(part) <= tokens or len(index) == 1
        width = part["prompt_ids"].shape[1] + part["action"].shape[1]
        assert padded_tokens(part) == len(index) * width  # nothing but counted columns is left
    if tokens == 300:
        owners = [set(part["group"].tolist()) for part, _ in parts]
        assert sum(len(o) for o in owners) == 6


@pytest.mark.parametrize("name", ["qwen3", "gpt2"])
def test_golden_23_an_update_is_the_same_under_every_token_budget(name: str) -> None:
    batch = random_batch()

    def gradients(**cutting: int) -> tuple[list[torch.Tensor], dict[str, float]]:
        policy = make_policy(name)
        knobs = GRPOKnobs(max_grad_norm=0.0, reduction="token-mean", **cutting)  # type: ignore[arg-type]
        learner = Learner(Reinforce.bind(knobs, policy), [], knobs, max_length=40)
        learner.optimizer.clear = lambda: None  # type: ignore[method-assign]  leave them to see
        metrics = learner.update(batch)
        found = [p.grad for p in policy.model.parameters() if p.grad is not None]
        return found, {k: float(v) for k, v in metrics.items()}

    whole, figures = gradients()
    assert "update/micro_batches" not in figures
    policy = make_policy(name)  # the batch as it is, uncut and in its own order
    loss = -policy.evaluate(batch).log_prob * batch["advantage"]
    (loss.sum() / batch["mask"].sum()).backward()
    plain = [p.grad for p in policy.model.parameters() if p.grad is not None]
    for a, b in zip(whole, plain, strict=True):
        assert float((a - b).abs().max()) < 1e-6 * max(1.0, float(b.abs().max()))
    for tokens in (1, 40, 150, 10_000):
        parts, cut_figures = gradients(max_tokens_per_micro_batch=tokens)
        rows = batch.batch_size[0]
        expected = {1: rows, 10_000: 1}.get(tokens, cut_figures["update/micro_batches"])
        assert cut_figures["update/micro_batches"] == expected
        assert cut_figures["loss/policy"] == pytest.approx(figures["loss/policy"], abs=1e-6)
        for a, b in zip(parts, whole, strict=True):
            assert float((a - b).abs().max()) < 1e-6 * max(1.0, float(b.abs().max()))
