"""Chunked log-probabilities equal the naive ones, and so do their gradients."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from zoo.functional.token_log_prob import OutputHead, statistics_of_logits, token_log_prob


def tensors(n: int = 7, vocab: int = 11, size: int = 5) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    return {
        "hidden": normal(n, size).requires_grad_(),
        "weight": normal(vocab, size).requires_grad_(),
        "bias": normal(vocab).requires_grad_(),
        "token": torch.randint(0, vocab, (n,), generator=g),
        "reference_hidden": normal(n, size),
        "reference_weight": normal(vocab, size),
    }


def test_log_prob_and_entropy_of_hand_worked_logits() -> None:
    # One feature, weights 0, 0, ln 2: z/T = (0, 0, ln 2) at h = T, so p = (1/4, 1/4, 1/2).
    out = token_log_prob(
        torch.tensor([[0.5], [0.5]]),
        torch.tensor([[0.0], [0.0], [math.log(2)]]),
        torch.tensor([0, 2]),
        temperature=0.5,
    )
    assert out.log_prob.tolist() == pytest.approx([-math.log(4), -math.log(2)])
    assert out.entropy.tolist() == pytest.approx([1.5 * math.log(2)] * 2)
    assert out.kl is None


def test_kl_of_hand_worked_distributions() -> None:
    # p = (1/4, 1/4, 1/2) against the uniform one: Σ p log 3p.
    weight = torch.tensor([[0.0], [0.0], [math.log(2)]])
    uniform = OutputHead(torch.ones(1, 1), torch.zeros(3, 1))
    out = token_log_prob(torch.ones(1, 1), weight, torch.tensor([0]), reference=uniform)
    assert out.kl.item() == pytest.approx(0.5 * math.log(0.75) + 0.5 * math.log(1.5))


@pytest.mark.parametrize("chunk", [1, 3, 100])
def test_equals_the_naive_form_for_any_chunk(chunk: int) -> None:
    t = tensors()
    reference = OutputHead(t["reference_hidden"], t["reference_weight"])
    out = token_log_prob(
        t["hidden"],
        t["weight"],
        t["token"],
        temperature=0.6,
        bias=t["bias"],
        reference=reference,
        chunk=chunk,
    )
    log_p = ((t["hidden"] @ t["weight"].t() + t["bias"]) / 0.6).log_softmax(-1)
    log_r = (t["reference_hidden"] @ t["reference_weight"].t() / 0.6).log_softmax(-1)
    naive = (
        log_p.gather(-1, t["token"][:, None]).squeeze(-1),
        -(log_p.exp() * log_p).sum(-1),
        (log_p.exp() * (log_p - log_r)).sum(-1),
    )
    coefficients = torch.linspace(-1, 2, 7, dtype=torch.float64)
    for ours, theirs in zip(out, naive, strict=True):
        torch.testing.assert_close(ours, theirs)
    leaves = [t["hidden"], t["weight"], t["bias"]]
    for power in range(
        1, 4
    ):  # each statistic with other weights, so that none can stand for another
        loss = [sum((o * coefficients**power).sum() for o in s) for s in (out, naive)]
        ours, theirs = (torch.autograd.grad(x, leaves, retain_graph=True) for x in loss)
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b)


@pytest.mark.parametrize("trained", ["hidden", "weight", "bias"])
def test_each_gradient_is_the_same_where_the_other_inputs_are_frozen(trained: str) -> None:
    def gradient(names: tuple[str, ...]) -> Tensor:
        t = tensors()
        inputs = {n: t[n].detach().requires_grad_(n in names) for n in ("hidden", "weight", "bias")}
        token_log_prob(**inputs, token=t["token"], chunk=3).log_prob.sum().backward()
        assert {name for name, x in inputs.items() if x.grad is not None} == set(names)
        return inputs[trained].grad

    torch.testing.assert_close(gradient((trained,)), gradient(("hidden", "weight", "bias")))


@pytest.mark.parametrize("which", [0, 1, 2])
def test_gradcheck_of_each_statistic(which: int) -> None:
    t = tensors()
    reference = OutputHead(t["reference_hidden"], t["reference_weight"])

    def statistic(hidden: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return token_log_prob(
            hidden, weight, t["token"], temperature=1.7, bias=bias, reference=reference, chunk=3
        )[which]

    assert torch.autograd.gradcheck(statistic, (t["hidden"], t["weight"], t["bias"]))


def test_half_precision_is_reduced_in_float32() -> None:
    t = tensors()
    out = token_log_prob(t["hidden"].bfloat16(), t["weight"].float(), t["token"])
    assert out.log_prob.dtype == out.entropy.dtype == torch.float32
    inputs = [t["hidden"], t["weight"]]
    found = torch.autograd.grad(out.log_prob.sum(), inputs)
    exact = torch.autograd.grad(token_log_prob(*inputs, t["token"]).log_prob.sum(), inputs)
    for narrow, wide in zip(found, exact, strict=True):
        torch.testing.assert_close(narrow, wide, atol=0.05, rtol=0.05)


def test_logits_form_agrees() -> None:
    t = tensors()
    logits = t["hidden"] @ t["weight"].t()
    reference = t["reference_hidden"] @ t["reference_weight"].t()
    chunked = token_log_prob(
        t["hidden"],
        t["weight"],
        t["token"],
        temperature=0.6,
        reference=OutputHead(t["reference_hidden"], t["reference_weight"]),
    )
    whole = statistics_of_logits(logits, t["token"], temperature=0.6, reference=reference)
    for a, b in zip(chunked, whole, strict=True):
        torch.testing.assert_close(a.float(), b, atol=1e-5, rtol=1e-5)


def peak_bytes(function: Callable[[], object]) -> int:
    """The most that the CPU allocator gave out at one time, above what it had given before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        function()
    events = record.profiler.kineto_results.events()
    given = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    return max(itertools.accumulate(size for _, size in given))


@pytest.mark.parametrize("chunk", [16, 50, 1000])
@pytest.mark.parametrize("entropy", [False, True])
@pytest.mark.parametrize("reference", [False, True])
@pytest.mark.parametrize("half", [False, True])
def test_the_peak_of_memory_is_the_documented_formula(
    chunk: int, entropy: bool, reference: bool, half: bool
) -> None:
    n, vocab, size = 200, 5000, 24
    dtype = torch.bfloat16 if half else torch.float32
    g = torch.Generator().manual_seed(0)
    hidden = torch.randn(n, size, generator=g).to(dtype).requires_grad_()
    weight = torch.randn(vocab, size, generator=g).requires_grad_()
    token = torch.randint(0, vocab, (n,), generator=g)
    other = None
    if reference:
        other = OutputHead(torch.randn(n, size).to(dtype), torch.randn(vocab, size))

    def run() -> None:
        out = token_log_prob(hidden, weight, token, reference=other, chunk=chunk)
        loss = out.log_prob.sum()
        if entropy:
            loss = loss + out.entropy.sum()
        if out.kl is not None:
            loss = loss + out.kl.sum()
        loss.backward()

    rows, numbers = min(chunk, n), 2 if half else 4
    logits = vocab * max((12 if reference else 8) * rows, half * (2 * rows + 6 * size))
    copies = half * (1 + reference)
    formula = logits + n * (size * numbers + 12) + vocab * size * (4 + copies * numbers)
    assert peak_bytes(run) == pytest.approx(formula, rel=0.1)


def test_no_positions() -> None:
    out = token_log_prob(torch.zeros(0, 4), torch.zeros(9, 4), torch.zeros(0, dtype=torch.int64))
    assert out.log_prob.shape == out.entropy.shape == (0,)
