"""What vLLM's workers are taught (``--worker-extension-cls``): to take a policy's weights.

Imported by vLLM in the processes of its workers, with or without the rest of a run around it.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torch import Tensor

__all__ = ["TakesWeights"]


class TakesWeights:
    """Mixed into the worker, whose ``model_runner`` holds the model."""

    model_runner: Any
    vllm_config: Any
    #: what the weights that it has were called, None before the first
    weights_name: str | None = None

    def take_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Put weights, by a checkpoint's names, into the model in place."""
        self.model_runner.reload_weights(weights_iterator=weights)
        _refresh_tied_heads(self.model_runner.get_model())

    def read_weights(self, folder: str, name: str | None = None) -> None:
        """Take what ``model.safetensors`` in a folder holds, and go by a name from then on."""
        from safetensors.torch import load_file

        self.weights_name = None  # of neither the old nor the new, should this fail midway
        self.take_weights(load_file(Path(folder) / "model.safetensors").items())
        self.weights_name = name

    def what_is_served(self) -> dict[str, Any]:
        """Return whose weights these are, and the settings that decide what is drawn from them."""
        model = self.vllm_config.model_config
        return {
            "weights_name": self.weights_name,
            "architecture": model.hf_config.architectures[0],
            "vocab_size": model.hf_config.vocab_size,
            "dtype": str(model.dtype).removeprefix("torch."),
            "logprobs_mode": str(model.logprobs_mode),
            "generation_config": model.generation_config,
            "adapters": self._adapters(),
        }

    def _adapters(self) -> dict[str, Any] | None:
        """Return which adapters there is room for, where a server lets them be loaded."""
        from vllm import envs

        lora = self.vllm_config.lora_config
        if lora is None or not envs.VLLM_ALLOW_RUNTIME_LORA_UPDATING:
            return None
        return {"max_lora_rank": lora.max_lora_rank, "lora_target_modules": lora.target_modules}


def _refresh_tied_heads(model: Any) -> None:
    """Let heads that share the embedding's weights see the new ones.

    Where weights are packed for the CPU's kernels, a reload packs them anew for the layer that the
    checkpoint names, and leaves a tied head with its old copy.
    """
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

    modules = list(model.modules())
    for head in modules:
        if not isinstance(head, ParallelLMHead):
            continue
        if any(
            other is not head and getattr(other, "weight", 0) is head.weight for other in modules
        ):
            head.quant_method.process_weights_after_loading(head)
