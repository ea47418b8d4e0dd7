"""Write a trained language model as a folder that transformers, peft and vLLM read."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from zoo.errors import UserError
from zoo.policies import adapters

__all__ = ["save", "save_merged"]


def save(policy: Any, folder: Path, dtype: torch.dtype | None = None) -> str:
    """Write the model and its tokenizer, of an adapted model the adapter only.

    Parameters
    ----------
    policy : LanguagePolicy
        A value head is not written: what reads such folders has no use for it.
    folder : Path
        New or empty.
    dtype : torch.dtype, optional
        Of a whole model's weights; by default that of its parameters.

    Returns
    -------
    str
        What was written: ``"model"`` or ``"adapter"``.

    Raises
    ------
    UserError
        Where the folder holds something, or a dtype is asked for of an adapter.
    """
    if not adapters.is_adapted(policy.model):
        save_merged(policy, folder, dtype)
        return "model"
    if dtype is not None:
        raise UserError("an adapter is written in float32, as it was trained: leave --dtype out.")
    _empty(folder)
    adapters.save_adapter(policy.model, folder)
    policy.codec.tokenizer.save_pretrained(folder)
    return "adapter"


@torch.no_grad()
def save_merged(policy: Any, folder: Path, dtype: torch.dtype | None = None) -> None:
    """Write the whole model with its adapter added to the weights, and nothing quantised.

    Parameters
    ----------
    policy, folder
        As for `save`.
    dtype : torch.dtype, optional
        Of the weights; by default that of the base's parameters.
    """
    _empty(folder)
    model = policy.model
    own = next(model.parameters()).dtype
    config = copy.deepcopy(model.config)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    config.dtype = dtype or own
    state: dict[str, Tensor] = {
        name: tensor.to("cpu", dtype or own) if tensor.is_floating_point() else tensor.cpu()
        for name, tensor in adapters.merged_tensors(model)
    }
    with torch.device("meta"):  # shapes alone; the weights are put into their places
        whole = type(model)(config)
    whole.load_state_dict(state, assign=True)
    whole.tie_weights()
    whole.generation_config = model.generation_config
    folder.mkdir(parents=True, exist_ok=True)
    whole.save_pretrained(folder)
    policy.codec.tokenizer.save_pretrained(folder)


def _empty(folder: Path) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} is not empty: choose another --out.")
