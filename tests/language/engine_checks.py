"""What every engine's tests ask of it: prompts, samples, and their gap to the trainer."""

from __future__ import annotations

import torch
from small_models import make_batch

from zoo.policies.adapters import LoraKnobs
from zoo.policies.language import LanguageKnobs, LanguagePolicy
from zoo.rollouts.hf import HFSampler
from zoo.rollouts.sampling import Sampler, Samples, SamplingParams

QUESTIONS = ["What is 2 + 3?", "Tom has 4 apples and eats 1. How many are left?", "7 * 8 ="]


def prompts(policy: LanguagePolicy) -> list[list[int]]:
    return policy.codec.encode_all([[{"role": "user", "content": q}] for q in QUESTIONS])


def sample(
    sampler: Sampler,
    policy: LanguagePolicy,
    repeats: int = 8,
    seed: int = 0,
    asked: list[list[int]] | None = None,
    **params: object,
) -> Samples:
    settings = {"temperature": policy.temperature, "max_new_tokens": 32}
    settings |= {"stop_ids": policy.codec.stop_ids, **params}
    return sampler.generate(
        policy,
        prompts(policy) if asked is None else asked,
        repeats,
        SamplingParams(**settings),  # type: ignore[arg-type]
        torch.Generator().manual_seed(seed),
    )


def completions(samples: Samples) -> list[list[int]]:
    return [row[:n] for row, n in zip(samples.token.tolist(), samples.length.tolist(), strict=True)]


def gap(policy: LanguagePolicy, samples: Samples, asked: list[list[int]] | None = None) -> float:
    """Largest gap between the engine's log-probabilities and the trainer's."""
    asked, rows = prompts(policy) if asked is None else asked, completions(samples)
    repeats = len(rows) // len(asked)
    batch = make_batch(asked, [(i // repeats, row) for i, row in enumerate(rows)])
    trainer = policy.log_prob(batch)
    assert trainer.shape == samples.log_prob.shape
    return float((trainer - samples.log_prob).abs().max())


def changed(policy: LanguagePolicy, seed: int) -> None:
    """What an optimizer step does: other weights, in place, and the next version."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in policy.model.parameters():
            noise = torch.randn(weight.shape, generator=generator)
            weight.add_(noise * weight.abs().mean() * 0.5)
    policy.version += 1


def agrees_at(temperature: float, sampler: Sampler, policy: LanguagePolicy) -> Samples:
    """Golden 24: the log-probabilities of what is drawn are the trainer's at the temperature."""
    policy = LanguagePolicy(
        policy.model,
        policy.codec.tokenizer,
        LanguageKnobs(temperature=temperature, sampling_dtype="float32"),
    )
    samples = sample(sampler, policy, repeats=16)
    assert len(set(samples.length.tolist())) > 2
    assert gap(policy, samples) < 1e-4
    return samples


def any_stop_finishes(sampler: Sampler, policy: LanguagePolicy) -> None:
    """Golden 29: a completion that ended on any of the stop tokens is finished."""
    first = sample(sampler, policy, 32, stop_ids=set(), temperature=2.0).token[:, 0].bincount()
    stops = set(first.topk(3).indices.tolist())
    samples = sample(sampler, policy, 32, stop_ids=stops, temperature=2.0, max_new_tokens=6)
    rows = list(zip(completions(samples), samples.finished.tolist(), strict=True))
    assert {tokens[-1] for tokens, finished in rows if finished} == stops
    assert not samples.finished.all()
    for tokens, finished in rows:
        assert finished == (tokens[-1] in stops)
        assert not stops & set(tokens[:-1])
        assert finished or len(tokens) == 6


def adapted(path: str = "tiny", rank: int = 6, temperature: float = 1.0) -> LanguagePolicy:
    """A model with an adapter; a fresh one adds nothing until `turned`."""
    knobs = LanguageKnobs(
        temperature=temperature, sampling_dtype="float32", lora=LoraKnobs(rank=rank)
    )
    return LanguagePolicy.load(path, knobs)


def turned(policy: LanguagePolicy, seed: int) -> None:
    """What an optimizer step does to an adapter, but further: other A and B, the next version."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in policy.model.named_parameters():
            if ".lora_" in name:
                size = 0.02 if ".lora_A" in name else 0.1
                weight.add_(torch.randn(weight.shape, generator=generator) * size)
    policy.version += 1


def base_gap(policy: LanguagePolicy, samples: Samples) -> float:
    """Largest gap between the engine's log-probabilities and those without the adapter."""
    knobs = LanguageKnobs(temperature=policy.temperature, sampling_dtype="float32")
    return gap(LanguagePolicy.load("tiny", knobs), samples)


def follows_an_adapter(sampler: Sampler, policy: LanguagePolicy) -> list[float]:
    """Golden 24 and 39 of an adapted policy, from a fresh adapter on; MiB of each hand-over."""
    handed, seen = [], []
    for step in range(3):
        samples = sample(sampler, policy)
        handed.append(sampler.metrics["sampler/sync_mib"])  # type: ignore[attr-defined]
        assert gap(policy, samples) < 1e-4
        sampler.metrics.clear()  # type: ignore[attr-defined]
        theirs = completions(sample(sampler, policy, 2, greedy=True))
        assert sampler.metrics == {}  # type: ignore[attr-defined]  # nothing has changed
        assert theirs == completions(sample(HFSampler(), policy, 2, greedy=True))
        assert (base_gap(policy, samples) < 1e-4) == (step == 0)  # golden 40, and a real change
        seen.append(theirs)
        turned(policy, step)
    assert seen[0] != seen[1] != seen[2]
    return handed
