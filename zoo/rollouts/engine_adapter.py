"""A LoRA adapter apart from its base, as vLLM takes one: the base once, and after that A and B.

vLLM loads adapters from folders in peft's format and goes by their names, also where it looks up
keys and values of earlier prompts. So each version of an adapter gets a folder and a name of its
own.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from zoo.errors import UserError
from zoo.policies.adapters import adapted_layers, refuse_beyond_low_rank, save_adapter

__all__ = ["MERGED", "adapter_settings", "has_room", "write_adapter"]

#: what to do where an adapter can't go over apart
MERGED = "rollout.adapter=merged hands the whole model over, the adapter added"
#: sizes that vLLM has room for adapters in
_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)


def adapter_settings(model: Any, dtype: torch.dtype) -> dict[str, Any]:
    """Return the arguments, by vLLM's names, of an engine with room for a model's adapter.

    Parameters
    ----------
    model : PreTrainedModel
        With an adapter.
    dtype : torch.dtype
        Of the engine, and there of the adapter too.

    Raises
    ------
    UserError
        Where vLLM has no room for adapters like this one.
    """
    refuse_beyond_low_rank(model)
    layers = adapted_layers(model)
    rank = max(layers.values())
    if rank > _RANKS[-1]:
        raise UserError(
            f"vLLM takes adapters of rank {_RANKS[-1]} at most, and this one's is {rank}: {MERGED}."
        )
    if dtype is torch.float32 and torch.cuda.is_available():
        raise UserError(
            "vLLM's kernels for adapters compute in 16 bits on an accelerator:"
            f" model.sampling_dtype=bfloat16, or {MERGED}."
        )
    return {
        "enable_lora": True,
        "max_loras": 1,
        "max_lora_rank": next(room for room in _RANKS if room >= rank),
        # Of all layers, vLLM would make room in the embedding and the output layer, too.
        "lora_target_modules": sorted({name.rpartition(".")[2] for name in layers}),
    }


def has_room(offered: Mapping[str, Any] | None, needed: Mapping[str, Any]) -> bool:
    """Return whether an engine that runs takes adapters like the one that settings were made for.

    Parameters
    ----------
    offered : mapping or None
        Its ``max_lora_rank`` and ``lora_target_modules``, where null stands for all; None of an
        engine that takes none.
    needed : mapping
        From `adapter_settings`.
    """
    if offered is None or offered["max_lora_rank"] < needed["max_lora_rank"]:
        return False
    layers = offered["lora_target_modules"]
    return layers is None or set(layers) >= set(needed["lora_target_modules"])


def write_adapter(model: Any, folder: Path) -> int:
    """Write a model's adapter into a new folder; return how many bytes it has."""
    save_adapter(model, folder)
    return sum(file.stat().st_size for file in folder.iterdir())
