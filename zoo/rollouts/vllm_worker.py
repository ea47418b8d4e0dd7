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

    def take_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Put weights, by a checkpoint's names, into the model in place."""
        self.model_runner.reload_weights(weights_iterator=weights)
        _refresh_tied_heads(self.model_runner.get_model())

    def read_weights(self, folder: str) -> None:
        """Take what ``model.safetensors`` in a folder holds."""
        from safetensors.torch import load_file

        self.take_weights(load_file(Path(folder) / "model.safetensors").items())


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
