"""A policy's present weights as an engine outside it reads them: a checkpoint's names and shapes.

transformers keeps some architectures in memory otherwise than in their files (experts of a mixture
fused into one tensor, say); engines know the files' form, so that is what is handed out.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from zoo.policies.adapters import base_tensors, is_adapted, merged_tensors

__all__ = ["checkpoint_weights", "stamp", "write_config", "write_weights"]


def checkpoint_weights(
    model: Any, dtype: torch.dtype, *, merged: bool = True
) -> Iterator[tuple[str, Tensor]]:
    """Yield name and value of every weight, one at a time in the dtype asked for.

    Weights that are tied have one name, as in files: the first.

    Parameters
    ----------
    model : PreTrainedModel
        Its weights are neither changed nor, where they have the dtype already, copied.
    merged : bool
        Whether adapters are added to the weights that they adapt, or left out.
    """
    tied = _tied(model)
    if is_adapted(model):
        for name, value in (merged_tensors if merged else base_tensors)(model):
            if name not in tied:
                yield name, value.detach().to(dtype) if value.is_floating_point() else value
        return
    named = {name: value for name, value in model.state_dict().items() if name not in tied}
    try:
        from transformers.core_model_loading import revert_weight_conversion
    except ImportError:  # before transformers 5 memory and files agreed
        pass
    else:
        named = revert_weight_conversion(model, named)
    for name, value in named.items():
        yield name, value.detach().to(dtype) if value.is_floating_point() else value.detach()


def stamp(owner: Any, version: int, parameters: Iterable[Tensor]) -> tuple[int, ...]:
    """Return numbers that change with the values of an owner's parameters, while it lives."""
    return id(owner), version, sum(p._version for p in parameters)


def _tied(model: Any) -> set[str]:
    """Return the names of weights that an earlier name stands for as well."""
    seen: set[int] = set()
    tied = set()
    for name, value in model.state_dict().items():
        if value.numel() and value.data_ptr() in seen:
            tied.add(name.replace(".base_layer.", "."))
        seen.add(value.data_ptr())
    return tied


def write_config(model: Any, folder: Path) -> None:
    """Write the config.json of a model that may have no folder of its own."""
    config = copy.deepcopy(model.config)
    config.architectures = [type(model).__name__]
    if hasattr(config, "quantization_config"):  # of the file that it was unpacked from
        del config.quantization_config
    config.save_pretrained(folder)


def write_weights(model: Any, dtype: torch.dtype, folder: Path, *, merged: bool = True) -> int:
    """Write ``model.safetensors`` into a folder, under its final name only once it is whole.

    Returns
    -------
    int
        Its bytes.
    """
    from safetensors.torch import save_file

    weights = checkpoint_weights(model, dtype, merged=merged)
    partial, whole = folder / "model.safetensors.part", folder / "model.safetensors"
    named = {name: value.contiguous() for name, value in weights}
    save_file(named, partial, metadata={"format": "pt"})
    partial.rename(whole)
    return whole.stat().st_size
