"""Sampling with vLLM in this process, beside the trainer, from weights handed over in memory.

The engine is started at the first sampling, from the model's config alone; its weights always come
from the policy, whenever those have changed since. Of a policy with an adapter the frozen base goes
over once, and after that the adapter alone. Log-probabilities are log softmax(z / T) of
the distribution that was drawn from (``processed_logprobs``).
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import CancelledError
from pathlib import Path
from threading import Event
from typing import Any, ClassVar

import torch

from zoo.errors import UserError
from zoo.rollouts.engine_adapter import MERGED, write_adapter
from zoo.rollouts.engine_process import leave_group, quiet, reason, states_kept
from zoo.rollouts.engine_requests import Completed, draw_seeds, refuse_longer, request, samples_of
from zoo.rollouts.engine_settings import (
    ENVIRONMENT,
    VLLMRolloutKnobs,
    engine_settings,
    length_limit,
    refuse_other_device,
    refuse_sleep,
    require_vllm,
)
from zoo.rollouts.engine_weights import checkpoint_weights, stamp, write_config, write_weights
from zoo.rollouts.sampling import Samples, SamplingParams

__all__ = ["VLLMSampler"]


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
        refuse_sleep(knobs.engine)
        self._set(knobs)

    def _set(self, knobs: VLLMRolloutKnobs) -> None:
        self.knobs = knobs
        #: set by another thread, it ends the sampling before the next token
        self.stop = Event()
        #: seconds and MiB that putting new weights into the engine took the last time
        self.metrics: dict[str, float] = {}
        self._llm: Any = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._limit = 0
        # Which weights the engine has: the whole model's or the base's, and the adapter's.
        self._holds: tuple[int, ...] | None = None
        self._holds_adapter: tuple[int, ...] | None = None
        self._held: Any = None  # whose they are; kept, so that no other policy gets its id
        self._adapter: Path | None = None  # its folder, by whose name the engine knows it
        self._adapters = 0  # so far
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
        with torch.autocast(policy.device.type, enabled=False), states_kept():
            if self._llm is None:
                self._start(policy)
            refuse_longer(prompts, params, self._limit)
            self._prepare(policy)
            seeds = draw_seeds(len(prompts), params, generator)
            asked = [
                request(params, samples_per_prompt, seed, len(ids))
                for seed, ids in zip(seeds, prompts, strict=True)
            ]
            groups = self._run(prompts, asked)
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
        self._llm.llm_engine.engine_core.shutdown()
        self._llm = self._holds = self._held = self._adapter = None
        leave_group()
        VLLMSampler._running = False
        if self._folder is not None:
            self._folder.cleanup()

    # Parts of the above.

    def _start(self, policy: Any) -> None:
        refuse_other_device("vllm", policy)
        if VLLMSampler._running:
            raise UserError("a process has room for one vLLM engine: close() the other run first.")
        self._folder = tempfile.TemporaryDirectory(prefix="zoo-vllm-")
        folder = Path(self._folder.name)
        write_config(policy.model, folder)
        self._limit = length_limit(self.knobs, policy)
        settings = engine_settings(self.knobs, policy, folder, self._limit)
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        with quiet():
            from vllm import LLM

            try:
                self._llm = LLM(**settings)
                VLLMSampler._running = True
            except Exception as error:  # of a model that it doesn't know it may stumble anywhere
                leave_group()
                apart = f" (of the adapter apart, {MERGED})" if "enable_lora" in settings else ""
                raise UserError(
                    f"vLLM can't start with {type(policy.model).__name__}: {reason(error)} Use"
                    f" rollout=hf where it doesn't know the architecture{apart}."
                ) from error

    def _prepare(self, policy: Any) -> None:
        """Wake the engine and give it the policy's weights, where it has others."""
        if self._asleep == 2:
            self._holds = None
        if self._asleep:
            self._llm.wake_up(["weights"])
        start, handed = time.perf_counter(), self._hand_over_changes(policy)
        if handed:
            seconds = time.perf_counter() - start
            self.metrics = {"sampler/sync_s": seconds, "sampler/sync_mib": handed / 2**20}
        if self._asleep:
            self._llm.wake_up(["kv_cache"])
        self._asleep = 0
        # Also without new weights: what an earlier call left there would change how prompts are
        # computed, and a resumed run doesn't have it.
        self._llm.reset_prefix_cache()

    def _hand_over_changes(self, policy: Any) -> int:
        """Give the engine the weights that it has not; return their bytes."""
        named = list(policy.model.named_parameters())
        apart, handed = self.knobs.apart(policy.model), 0
        adapter = stamp(policy, policy.version, [p for name, p in named if ".lora_" in name])
        if apart:  # copies of a policy share their base
            base = [p for name, p in named if ".lora_" not in name]
            holds = stamp(base[0], 0, base)
        else:
            holds = stamp(policy, policy.version, [p for _, p in named])
        if holds != self._holds:
            self._holds = None  # neither the old nor the new, should this fail midway
            self._drop_adapter()
            handed += self._hand_over(policy, merged=not apart)
            self._holds = holds
        if apart and (self._adapter is None or adapter != self._holds_adapter):
            handed += self._hand_over_adapter(policy)
            self._holds_adapter = adapter
        self._held = policy
        return handed

    def _hand_over(self, policy: Any, *, merged: bool) -> int:
        dtype = policy.sampling_dtype()
        if self.knobs.engine.tensor_parallel_size > 1:  # workers of their own read files
            assert self._folder is not None
            handed = write_weights(policy.model, dtype, Path(self._folder.name), merged=merged)
            self._llm.collective_rpc("read_weights", args=(self._folder.name,))
            return handed
        sizes = []

        def weights() -> Iterator[tuple[str, torch.Tensor]]:
            for name, value in checkpoint_weights(policy.model, dtype, merged=merged):
                sizes.append(value.nbytes)
                yield name, value

        try:
            self._llm.collective_rpc("take_weights", args=(weights(),))
        except (ValueError, RuntimeError, LookupError) as error:
            raise UserError(
                f"vLLM can't take the weights of {type(policy.model).__name__}: {reason(error)}"
                " Use rollout=hf."
            ) from error
        return sum(sizes)

    def _hand_over_adapter(self, policy: Any) -> int:
        assert self._folder is not None
        folder = Path(self._folder.name) / uuid.uuid4().hex
        handed = write_adapter(policy.model, folder)
        self._take_adapter(folder)
        self._drop_adapter()
        self._adapter = folder
        return handed

    def _take_adapter(self, folder: Path) -> None:
        """Let the engine load an adapter, which puts out the one before."""
        self._adapters += 1
        try:
            self._llm.llm_engine.add_lora(self._by_name(folder))
        except (ValueError, RuntimeError, OSError) as error:
            raise UserError(f"vLLM can't take the adapter: {reason(error)} {MERGED}.") from error

    def _drop_adapter(self) -> None:
        if self._adapter is not None:
            shutil.rmtree(self._adapter)
            self._adapter = None

    def _by_name(self, folder: Path) -> Any:
        from vllm.lora.request import LoRARequest

        return LoRARequest(folder.name, self._adapters, str(folder))

    def _run(self, prompts: list[list[int]], asked: list[dict[str, Any]]) -> list[list[Completed]]:
        from vllm import SamplingParams as EngineParams
        from vllm.sampling_params import RequestOutputKind

        settings = [
            EngineParams(**one, detokenize=False, output_kind=RequestOutputKind.FINAL_ONLY)
            for one in asked
        ]
        engine = self._llm.llm_engine
        inputs = [{"prompt_token_ids": ids} for ids in prompts]
        lora = None if self._adapter is None else self._by_name(self._adapter)
        names = self._llm.enqueue(inputs, settings, lora_request=lora, use_tqdm=False)
        done: list[Any] = []
        try:
            while engine.has_unfinished_requests():
                if self.stop.is_set():
                    raise CancelledError("the sampling was stopped")
                done += [output for output in engine.step() if output.finished]
        except BaseException:
            engine.abort_request(names, internal=True)
            raise
        done.sort(key=lambda output: int(output.request_id))
        return [[_completed(one) for one in output.outputs] for output in done]


def _completed(one: Any) -> Completed:
    found = zip(one.logprobs, one.token_ids, strict=True)
    return Completed(one.token_ids, [step[id_].logprob for step, id_ in found], one.finish_reason)
