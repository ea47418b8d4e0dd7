"""The sampler draws what it says, under the policy's weights, and nothing else leaks in."""

from __future__ import annotations

import math
import weakref
from typing import Any

import pytest
import torch
from small_models import ARCHITECTURES, OWN_FORWARD, make_batch, make_policy

from zoo.errors import UserError
from zoo.policies.language import LanguagePolicy
from zoo.rollouts.hf import HFSampler
from zoo.rollouts.sampling import Samples, SamplingParams, choose, refuse_filters

PROMPTS = [[5, 6, 7], [8], [9, 10, 11, 12, 13, 14, 15, 16], [5, 6, 7]]


def sample(
    policy: LanguagePolicy,
    repeats: int = 4,
    seed: int = 0,
    prompts: list[list[int]] = PROMPTS,
    rows: int = 256,
    **params: object,
) -> Samples:
    settings = {"temperature": policy.temperature, "max_new_tokens": 40, "stop_ids": {1}}
    return HFSampler(rows).generate(
        policy,
        prompts,
        repeats,
        SamplingParams(**{**settings, **params}),  # type: ignore[arg-type]
        torch.Generator().manual_seed(seed),
    )


def completions(samples: Samples) -> list[list[int]]:
    return [row[:n] for row, n in zip(samples.token.tolist(), samples.length.tolist(), strict=True)]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_golden_39_greedy_equals_transformers_generate(name: str) -> None:
    policy = make_policy(name)
    ours = completions(sample(policy, repeats=2, greedy=True, stop_ids={1, 20}))
    for i, prompt in enumerate(PROMPTS):
        theirs = policy.model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
            do_sample=False,
            max_new_tokens=40,
            eos_token_id=[1, 20],
            pad_token_id=0,
        )[0, len(prompt) :].tolist()
        assert ours[2 * i] == ours[2 * i + 1] == theirs


def test_golden_39_tiny_greedy_equals_transformers_generate(tiny: LanguagePolicy) -> None:
    questions = ["What is 2 + 3?", "Tom has 4 apples and eats 1. How many are left?"]
    prompts = [tiny.codec.encode([{"role": "user", "content": q}]) for q in questions]
    ours = completions(sample(tiny, 1, prompts=prompts, greedy=True, stop_ids=tiny.codec.stop_ids))
    for mine, prompt in zip(ours, prompts, strict=True):
        theirs = tiny.model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
            do_sample=False,
            max_new_tokens=40,
        )
        assert mine == theirs[0, len(prompt) :].tolist()


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_golden_25_log_probs_equal_the_trainers_in_float32(name: str, temperature: float) -> None:
    policy = make_policy(name, temperature=temperature)
    samples = sample(policy, repeats=8, stop_ids=set(range(1, 60, 9)))
    assert len(set(samples.length.tolist())) > 3  # rows were dropped on the way
    rows = [(i // 8, c) for i, c in enumerate(completions(samples))]
    trainer = policy.log_prob(make_batch(PROMPTS, rows))
    for i, (_, tokens) in enumerate(rows):
        n = len(tokens)
        gap = (samples.log_prob[i, :n] - trainer[i, :n]).abs().max()
        assert float(gap) < 1e-4
        assert (samples.log_prob[i, n:] == 0).all()


@pytest.mark.parametrize("name", ["qwen3", "gpt2"])
def test_golden_26_generation_config_does_not_leak_in(name: str) -> None:
    policy = make_policy(name)
    before = sample(policy)
    config = policy.model.generation_config
    config.repetition_penalty, config.top_k, config.top_p = 1.1, 20, 0.5
    config.temperature, config.do_sample, config.num_beams = 0.3, False, 4
    after = sample(policy)
    assert torch.equal(before.token, after.token)
    assert torch.equal(before.log_prob, after.log_prob)


def test_golden_27_filtered_training_samples_are_refused() -> None:
    with pytest.raises(UserError, match="importance ratio"):
        refuse_filters(0.9, 0)
    with pytest.raises(UserError, match="top_k=50"):
        refuse_filters(1.0, 50)
    refuse_filters(1.0, 0)


@pytest.mark.parametrize("name", ["qwen3", "gpt2"])
def test_golden_29_any_stop_token_finishes(name: str) -> None:
    policy = make_policy(name)
    samples = sample(policy, repeats=16, stop_ids={1, 30, 31})
    ended = {c[-1] for c, f in zip(completions(samples), samples.finished, strict=True) if f}
    assert ended == {1, 30, 31}
    for tokens, finished in zip(completions(samples), samples.finished.tolist(), strict=True):
        assert finished == (tokens[-1] in {1, 30, 31})
        assert not {1, 30, 31} & set(tokens[:-1])
        assert finished or len(tokens) == 40


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_the_generator_alone_decides(name: str) -> None:
    policy = make_policy(name)
    torch.manual_seed(1)
    a = sample(policy, seed=3)
    state = torch.get_rng_state()
    torch.manual_seed(2)
    b = sample(policy, seed=3)
    assert torch.equal(a.token, b.token)
    assert torch.equal(a.log_prob, b.log_prob)
    torch.manual_seed(1)
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.equal(a.token, sample(policy, seed=4).token)


def test_autocast_around_the_rollout_changes_nothing() -> None:
    policy = make_policy("qwen3")
    expected = sample(policy)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(sample(policy).log_prob, expected.log_prob)


def test_a_row_does_not_depend_on_when_others_end() -> None:
    policy = make_policy("qwen3")
    together = completions(sample(policy, stop_ids={1}))
    longer = completions(sample(policy, stop_ids=set()))
    for a, b in zip(together, longer, strict=True):
        assert b[: len(a)] == a


@pytest.mark.parametrize("name", ["qwen3", "gpt2"])
def test_many_rows_run_in_parts(name: str) -> None:
    policy = make_policy(name)
    greedy = completions(sample(policy, 3, greedy=True))
    assert completions(sample(policy, 3, rows=4, greedy=True)) == greedy
    assert len(completions(sample(policy, 3, rows=4))) == 12


def test_draws_follow_the_distribution() -> None:
    probs = torch.tensor([0.5, 0.0, 0.3, 0.2])
    n = 20_000
    logits = probs.log().expand(n, 4).clone()
    uniform = torch.rand(n, generator=torch.Generator().manual_seed(0))
    params = SamplingParams(1.0, 1, set())
    token, log_prob = choose(logits.clone(), params, uniform)
    counts = torch.bincount(token, minlength=4) / n
    assert counts[1] == 0
    torch.testing.assert_close(counts, probs, atol=0.01, rtol=0)
    torch.testing.assert_close(log_prob, probs.log()[token])


def test_inverse_distribution_by_hand() -> None:
    logits = torch.tensor([[0.25, 0.25, 0.5]]).log().expand(4, 3).clone()
    uniform = torch.tensor([0.0, 0.2499, 0.2501, 0.99999])
    token, _ = choose(logits.clone(), SamplingParams(1.0, 1, set()), uniform)
    assert token.tolist() == [0, 0, 1, 2]
    # T = 1/2 squares the probabilities: 1/6, 1/6, 4/6.
    token, log_prob = choose(
        logits.clone(), SamplingParams(0.5, 1, set()), torch.tensor([0.1, 0.2, 0.34, 0.9])
    )
    assert token.tolist() == [0, 1, 2, 2]
    expected = [math.log(p) for p in (1 / 6, 1 / 6, 4 / 6, 4 / 6)]
    assert log_prob.tolist() == pytest.approx(expected, abs=1e-5)


def test_a_token_of_probability_zero_is_never_drawn() -> None:
    logits = torch.tensor([[0.0, 0.5, 0.0, 0.5]]).log().expand(2, 4)
    uniform = torch.tensor([0.0, 0.5])  # on the edges of what has no width
    token, log_prob = choose(logits.clone(), SamplingParams(1.0, 1, set()), uniform)
    assert token.tolist() == [1, 3]
    assert log_prob.isfinite().all()


def test_filters_of_evaluation() -> None:
    logits = torch.tensor([[0.1, 0.4, 0.3, 0.2]]).log().expand(5000, 4)
    uniform = torch.rand(5000, generator=torch.Generator().manual_seed(0))
    token, _ = choose(logits.clone(), SamplingParams(1.0, 1, set(), top_k=2), uniform)
    assert set(token.tolist()) == {1, 2}
    token, _ = choose(logits.clone(), SamplingParams(1.0, 1, set(), top_p=0.75), uniform)
    assert set(token.tolist()) == {1, 2, 3}
    token, log_prob = choose(logits.clone(), SamplingParams(1.0, 1, set(), top_p=0.3), uniform)
    assert set(token.tolist()) == {1}
    assert float(log_prob[0]) == pytest.approx(math.log(0.4))


@pytest.mark.parametrize("name", OWN_FORWARD)
def test_bfloat16_sampling_is_close(name: str) -> None:
    policy = make_policy(name, sampling_dtype="bfloat16")
    samples = sample(policy, repeats=2)
    rows = [(i // 2, c) for i, c in enumerate(completions(samples))]
    trainer = policy.log_prob(make_batch(PROMPTS, rows))
    mask = make_batch(PROMPTS, rows)["mask"]
    gap = (samples.log_prob - trainer)[mask].abs()
    assert 0 < float(gap.mean()) < 0.2


def test_a_growing_cache_is_replaced_tensor_by_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = make_policy().decoder()
    with torch.no_grad():
        decoder.start([[5, 6, 7]], 2, 64)
    old = [weakref.ref(tensor) for tensor in (*decoder.keys, *decoder.values)]
    alive, pad = [], torch.nn.functional.pad

    def counting(*arguments: Any, **settings: Any) -> torch.Tensor:
        alive.append(sum(reference() is not None for reference in old))
        return pad(*arguments, **settings)

    monkeypatch.setattr(torch.nn.functional, "pad", counting)
    decoder._grow()
    assert alive == [4, 3, 2, 1, 0]  # two layers' keys and values, then the mask
