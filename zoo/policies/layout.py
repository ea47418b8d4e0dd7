"""Where the tokens of a batch lie: packed for the matrix products, grouped for the attention.

A batch holds B rows, each a left-padded prompt and a right-padded completion, and every prompt
appears once per completion sampled from it. The forward pass wants neither the padding nor the
copies: it sees one *packed* stream ::

    prompt 0 | prompt 1 | … | completion 0 | completion 1 | … | filler

with every different prompt once and of each completion the tokens that are read, all but the last.
Attention alone needs rectangles: prompts [G, P] and completions [G, C, T], with the completions of
one prompt side by side. Unused places in a rectangle point at a filler token, whose output nothing
reads, so no gradient comes from there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from tensordict import TensorDict
from torch import Tensor

__all__ = ["Packing", "TextRows", "round_up"]

# Shapes are rounded up: few different ones keep the allocator and the matrix library's cache of
# kernels small, for which a new shape costs as much as two products.
TOKENS, PACKED = 16, 64  # columns of rectangles; tokens of the stream, at least


def round_up(size: int, multiple: int) -> int:
    """The least multiple of ``multiple`` that is ≥ ``size``, and at least one of it."""
    return max(multiple, -(-size // multiple) * multiple)


@dataclass
class TextRows:
    """The token fields of a batch, and which positions are live.

    Attributes
    ----------
    prompt_ids : Tensor
        [B, P] int64, left-padded.
    prompt_length, length : Tensor
        [B] int64: tokens of the prompt and of the completion. Padding is known from these alone:
        the pad token may be a token that also occurs live.
    token : Tensor
        [B, T] int64, the completion, right-padded.
    live : Tensor
        [L] positions of the live completion tokens in the flattened [B · T]; an environment's
        tokens in between are context like the prompt, and not among them.
    target : Tensor
        [L] those tokens.
    """

    prompt_ids: Tensor
    prompt_length: Tensor
    token: Tensor
    length: Tensor
    live: Tensor
    target: Tensor

    @classmethod
    def of(cls, batch: TensorDict | Mapping[str, Tensor]) -> TextRows:
        """Read the fields of a text batch."""
        token, length = batch["action"], batch["completion_length"]
        live = torch.arange(token.shape[1], device=token.device) < length[:, None]
        own = batch.get("own", None)
        if own is not None:
            live &= own
        flat = live.flatten().nonzero().squeeze(-1)
        return cls(
            prompt_ids=batch["prompt_ids"],
            prompt_length=batch["prompt_length"],
            token=token,
            length=length,
            live=flat,
            target=token.flatten()[flat],
        )

    def spread(self, values: Tensor) -> Tensor:
        """[L] per live token to [B, T], zero elsewhere."""
        zeros = values.new_zeros(self.token.numel())
        return zeros.index_copy(0, self.live, values).view(self.token.shape)


@dataclass
class Packing:
    """The packed stream of a batch and the rectangles in it.

    Attributes
    ----------
    token, position : Tensor
        [N] int64: the stream and each token's distance from its row's first token.
    prompts : Tensor
        [G, P] places in the stream of the different prompts, right-padded.
    prompt_mask : Tensor
        [G, P] bool, True on the prompts' tokens.
    completions : Tensor
        [G, C, T] places of the completions, right-padded; T is 0 where nothing is read.
    prompt_inverse, completion_inverse : Tensor
        Places of the stream's prompt tokens in the flattened ``prompts``, and of its completion
        tokens in the flattened ``completions``.
    predict : Tensor
        [L] places of the tokens after which each live completion token comes.
    """

    token: Tensor
    position: Tensor
    prompts: Tensor
    prompt_mask: Tensor
    completions: Tensor
    prompt_inverse: Tensor
    completion_inverse: Tensor
    predict: Tensor

    @classmethod
    def of(cls, rows: TextRows) -> Packing:
        """Pack a batch. Prompts are told apart by their tokens."""
        device = rows.token.device
        prompt_ids, prompt_length, group = _distinct(rows.prompt_ids, rows.prompt_length)
        groups = prompt_ids.shape[0]
        read = (rows.length - 1).clamp_min(0)  # tokens of a completion that the model reads

        # Prompts, shifted from left-padded to right-padded.
        width = round_up(int(prompt_length.max()), TOKENS)
        column = torch.arange(width, device=device)
        prompt_mask = column < prompt_length[:, None]
        prompt_inverse = prompt_mask.flatten().nonzero().squeeze(-1)
        prompt_row, prompt_column = prompt_inverse // width, prompt_inverse % width
        start = prompt_ids.shape[1] - prompt_length
        prompt_token = prompt_ids[prompt_row, start[prompt_row] + prompt_column]

        # Completions, each at (its group, how many of that group came before it).
        one_hot = torch.nn.functional.one_hot(group, groups)
        rank = (one_hot.cumsum(0) - 1).gather(1, group[:, None]).squeeze(-1)
        per_group = int(one_hot.sum(0).max())
        longest = int(read.max())
        length = round_up(longest, TOKENS) if longest else 0
        row, offset = _ragged(read)
        completion_token = rows.token[row, offset]
        completion_inverse = (group[row] * per_group + rank[row]) * length + offset

        n_prompt, n_completion = prompt_token.shape[0], completion_token.shape[0]
        used = n_prompt + n_completion
        total = round_up(used + 1, max(PACKED, 2 ** (used.bit_length() - 5)))  # at most 6 % more
        filler = prompt_token.new_zeros(total - used)
        place = torch.arange(used, device=device)
        prompts = place.new_full((groups * width,), total - 1)
        prompts[prompt_inverse] = place[:n_prompt]
        completions = place.new_full((groups * per_group * length,), total - 1)
        completions[completion_inverse] = place[n_prompt:]

        # Token 0 of a completion follows its prompt's last token, token j its own token j − 1.
        last = prompt_length.cumsum(0) - 1
        live_row, live_offset = rows.live // rows.token.shape[1], rows.live % rows.token.shape[1]
        first_read = n_prompt + read.cumsum(0) - read
        predict = torch.where(
            live_offset == 0, last[group[live_row]], first_read[live_row] + live_offset - 1
        )
        return cls(
            token=torch.cat([prompt_token, completion_token, filler]),
            position=torch.cat([prompt_column, prompt_length[group[row]] + offset, filler]),
            prompts=prompts.view(groups, width),
            prompt_mask=prompt_mask,
            completions=completions.view(groups, per_group, length),
            prompt_inverse=prompt_inverse,
            completion_inverse=completion_inverse,
            predict=predict,
        )


def _distinct(prompt_ids: Tensor, prompt_length: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The different prompts in order of appearance, and which of them each row has."""
    key = torch.cat([prompt_length[:, None], prompt_ids], 1)
    _, inverse = torch.unique(key, dim=0, return_inverse=True)
    index = torch.arange(len(inverse), device=inverse.device)
    first = torch.full_like(index, len(index)).scatter_reduce(0, inverse, index, "amin")
    first = first[: int(inverse.max()) + 1]
    order = first.argsort()
    return prompt_ids[first[order]], prompt_length[first[order]], order.argsort()[inverse]


def _ragged(length: Tensor) -> tuple[Tensor, Tensor]:
    """Row and offset of each of Σ length items."""
    row = torch.repeat_interleave(torch.arange(len(length), device=length.device), length)
    return row, torch.arange(len(row), device=length.device) - (length.cumsum(0) - length)[row]
