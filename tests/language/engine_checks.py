"""What every engine's tests ask of it: prompts, samples, and their gap to the trainer."""

from __future__ import annotations

import torch
from small_models import make_batch

from zoo.policies.language import LanguageKnobs, LanguagePolicy
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
