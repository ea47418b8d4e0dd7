"""Cutting a text batch into micro-batches: prompts together, similar lengths, little padding."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import torch
from tensordict import TensorDict
from torch import Tensor

__all__ = ["cut", "padded_tokens"]


def cut(
    batch: TensorDict, size: int | None, tokens: int | None = None
) -> list[tuple[TensorDict, Tensor]]:
    """Cut into parts of at most ``size`` rows, or of at most ``tokens`` tokens.

    Rows of one group stay together as far as that allows, since they share their prompt; groups of
    similar length stand side by side; padding that all rows of a part have is trimmed. Tokens are
    counted by `padded_tokens`; a row that alone has more of them makes a part of its own.

    Returns
    -------
    list of (TensorDict, Tensor)
        The parts, each with the indices [b] of its rows in the batch; every row occurs once.
    """
    group = torch.unique(batch["group"], return_inverse=True)[1]
    length = batch["completion_length"]
    longest = torch.zeros(int(group.max()) + 1, dtype=length.dtype, device=length.device)
    longest = longest.scatter_reduce(0, group, length, "amax")
    # Sorted by (longest of the group, group, length); stable sorts from the last key to the first.
    order = length.argsort(stable=True)
    order = order[group[order].argsort(stable=True)]
    order = order[longest[group[order]].argsort(stable=True)]

    prompt, completion = batch["prompt_length"].tolist(), length.tolist()

    def fits(rows: Sequence[int]) -> bool:
        if len(rows) == 1:
            return True
        if tokens is not None:
            width = max(prompt[i] for i in rows) + max(completion[i] for i in rows)
            return len(rows) * width <= tokens
        return size is None or len(rows) <= size

    parts: list[list[int]] = []
    owner = group.tolist()
    for _, members in groupby(order.tolist(), key=owner.__getitem__):
        pieces: list[list[int]] = []
        for row in members:
            if pieces and fits([*pieces[-1], row]):
                pieces[-1].append(row)
            else:
                pieces.append([row])
        for piece in pieces:
            if parts and fits(parts[-1] + piece):
                parts[-1] += piece
            else:
                parts.append(piece)
    index = [torch.tensor(part, device=length.device) for part in parts]
    return [(_trim(batch[i]), i) for i in index]


def padded_tokens(part: TensorDict) -> int:
    """Rows times (longest prompt + longest completion): what transformers' forward computes.

    Ours computes at most as many, since it packs them and has each prompt once.
    """
    longest = int(part["prompt_length"].max()) + int(part["completion_length"].max())
    return part.batch_size[0] * longest


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
