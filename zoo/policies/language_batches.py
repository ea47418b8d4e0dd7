"""Cutting a text batch into micro-batches: prompts together, similar lengths, little padding."""

from __future__ import annotations

import torch
from tensordict import TensorDict
from torch import Tensor

__all__ = ["cut"]


def cut(batch: TensorDict, size: int | None) -> list[tuple[TensorDict, Tensor]]:
    """Cut into parts of at most ``size`` rows.

    Rows of one group stay together as far as ``size`` allows, since they share their prompt; groups
    of similar length stand side by side; padding that all rows of a part have is trimmed.

    Returns
    -------
    list of (TensorDict, Tensor)
        The parts, each with the indices [b] of its rows in the batch; every row occurs once.
    """
    rows = batch.batch_size[0]
    size = rows if size is None else max(1, size)
    group = torch.unique(batch["group"], return_inverse=True)[1]
    length = batch["completion_length"]
    longest = torch.zeros(int(group.max()) + 1, dtype=length.dtype, device=length.device)
    longest = longest.scatter_reduce(0, group, length, "amax")
    # Sorted by (longest of the group, group, length); stable sorts from the last key to the first.
    order = length.argsort(stable=True)
    order = order[group[order].argsort(stable=True)]
    order = order[longest[group[order]].argsort(stable=True)]

    parts: list[list[int]] = [[]]
    previous: list[int] = []
    members: list[list[int]] = []
    for row, owner in zip(order.tolist(), group[order].tolist(), strict=True):
        if not members or [owner] != previous:
            members.append([])
            previous = [owner]
        members[-1].append(row)
    for same in members:
        for start in range(0, len(same), size):
            piece = same[start : start + size]
            if parts[-1] and len(parts[-1]) + len(piece) > size:
                parts.append([])
            parts[-1] += piece
    index = [torch.tensor(part, device=length.device) for part in parts if part]
    return [(_trim(batch[i]), i) for i in index]


def _trim(part: TensorDict) -> TensorDict:
    """Drop columns in which no row has a token."""
    steps = part["action"].shape[1]
    keep = max(1, int(part["completion_length"].max()))
    width = part["prompt_ids"].shape[1]
    prompt = max(1, int(part["prompt_length"].max()))
    trimmed = {}
    for key, leaf in part.items():
        if key == "prompt_ids":
            leaf = leaf[:, width - prompt :]
        elif isinstance(leaf, Tensor) and leaf.dim() >= 2 and leaf.shape[1] == steps:
            leaf = leaf[:, :keep]
        trimmed[key] = leaf
    return TensorDict(trimmed, batch_size=part.batch_size)
