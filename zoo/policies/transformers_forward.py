"""Forward pass and cached decoding of any transformers causal LM, by transformers' own code.

Slower than `zoo.policies.llama` (prompts are repeated, padding is computed), but it asks nothing of
the architecture beyond transformers' usual signature.
"""

from __future__ import annotations

import contextlib
import inspect
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.policies.layout import TextRows

__all__ = ["TransformersDecoder", "TransformersForward", "left_pad"]


def left_pad(sequences: list[list[int]], pad_id: int) -> tuple[Tensor, Tensor]:
    """[n, longest] int64 with the padding on the left, and the lengths [n]."""
    longest = max(len(s) for s in sequences)
    rows = [[pad_id] * (longest - len(s)) + list(s) for s in sequences]
    return torch.tensor(rows, dtype=torch.int64), torch.tensor([len(s) for s in sequences])


class TransformersForward:
    """Hidden states (or logits) of completions under any causal LM.

    ``plain_head`` says whether the logits are a plain matrix product of the last hidden states;
    where they aren't (a soft cap, a scale), whole logits have to be made.

    Parameters
    ----------
    model : nn.Module
        A transformers causal LM.
    dtype : torch.dtype
        Of the computation; other than the parameters' own, it runs under autocast.
    plain_head : bool, optional
        What an earlier instance found out; by default a three-token input tells.
    """

    def __init__(self, model: Any, dtype: torch.dtype, *, plain_head: bool | None = None) -> None:
        self.model, self.dtype = model, dtype
        self.arguments = set(inspect.signature(model.forward).parameters)
        self.plain_head = self._has_plain_head() if plain_head is None else plain_head

    def head(self) -> tuple[Tensor, Tensor | None]:
        """Weight [V, D] and bias of the output layer."""
        layer = self.model.get_output_embeddings()
        return layer.weight, layer.bias

    def hidden(self, rows: TextRows) -> Tensor:
        """[L, D] last hidden state before each live completion token."""
        with self.precision():
            if self.plain_head:
                out = self.model.base_model(**self._inputs(rows), use_cache=False)
                hidden = out.last_hidden_state
            else:
                out = self.model(**self._inputs(rows), use_cache=False, output_hidden_states=True)
                hidden = out.hidden_states[-1]
        return self._live(hidden, rows)

    def logits(self, rows: TextRows) -> Tensor:
        """[L, V] logits before each live completion token."""
        with self.precision():
            logits = self.model(**self._inputs(rows), use_cache=False).logits
        return self._live(logits, rows)

    def precision(self) -> contextlib.AbstractContextManager[Any]:
        """Autocast to the compute dtype, where that isn't the parameters' own."""
        parameter = next(self.model.parameters())
        if parameter.dtype == self.dtype:
            return contextlib.nullcontext()
        return torch.autocast(parameter.device.type, self.dtype)

    def _inputs(self, rows: TextRows) -> dict[str, Tensor]:
        tokens = torch.cat([rows.prompt_ids, rows.token], 1)
        width = rows.prompt_ids.shape[1]
        column = torch.arange(tokens.shape[1], device=tokens.device)
        live = (column >= (width - rows.prompt_length)[:, None]) & (
            column < (width + rows.length)[:, None]
        )
        inputs = {"input_ids": tokens, "attention_mask": live.long()}
        if "position_ids" in self.arguments:
            inputs["position_ids"] = (live.cumsum(1) - 1).clamp_min_(0)
        return inputs

    @staticmethod
    def _live(values: Tensor, rows: TextRows) -> Tensor:
        start = rows.prompt_ids.shape[1] - 1
        values = values[:, start : start + rows.token.shape[1]]
        return values.reshape(-1, values.shape[-1]).index_select(0, rows.live)

    def _has_plain_head(self) -> bool:
        head = self.model.get_output_embeddings()
        if type(head) is not nn.Linear:
            return False
        tokens = torch.tensor([[0, 1, 2]], device=head.weight.device)
        training = self.model.training
        self.model.eval()
        with torch.no_grad():
            logits = self.model(tokens, use_cache=False).logits
            hidden = self.model.base_model(tokens, use_cache=False).last_hidden_state
            plain = F.linear(hidden, head.weight, head.bias)
        self.model.train(training)
        return logits.shape == plain.shape and torch.allclose(
            logits, plain.to(logits.dtype), rtol=1e-3, atol=1e-3
        )


class TransformersDecoder:
    """Cached decoding with a cache of transformers' own, whose rows can be repeated and dropped."""

    def __init__(self, forward: TransformersForward, pad_id: int) -> None:
        self.forward, self.pad_id = forward, pad_id
        self.cache: Any = None
        self.mask = self.position = torch.empty(0)

    def start(self, prompts: list[list[int]], repeats: int, capacity: int) -> Tensor:
        """Read the prompts once each; [n · repeats, V] float32 logits of what comes next."""
        model = self.forward.model
        device = next(model.parameters()).device
        tokens, length = left_pad(prompts, self.pad_id)
        tokens, length = tokens.to(device), length.to(device)
        column = torch.arange(tokens.shape[1], device=device)
        self.mask = (column >= (tokens.shape[1] - length)[:, None]).long()
        self.position = length
        positions = (self.mask.cumsum(1) - 1).clamp_min_(0)
        logits = self._run(tokens, positions, None)
        self.cache.batch_repeat_interleave(repeats)
        self.mask = self.mask.repeat_interleave(repeats, 0)
        self.position = self.position.repeat_interleave(repeats)
        return logits.repeat_interleave(repeats, 0)

    def step(self, token: Tensor) -> Tensor:
        """Append one token [n] to every row; [n, V] float32 logits of the next."""
        self.mask = F.pad(self.mask, (0, 1), value=1)
        logits = self._run(token[:, None], self.position[:, None], self.cache)
        self.position = self.position + 1
        return logits

    def keep(self, index: Tensor) -> None:
        """Drop all rows but these."""
        self.cache.batch_select_indices(index)
        self.mask, self.position = self.mask[index], self.position[index]

    def _run(self, tokens: Tensor, positions: Tensor, cache: Any) -> Tensor:
        known = self.forward.arguments
        inputs: dict[str, Any] = {"input_ids": tokens, "attention_mask": self.mask}
        if "position_ids" in known:
            inputs["position_ids"] = positions
        if cache is not None:
            # transformers renamed the argument; the old name goes away in 5.40.
            inputs["cache" if "cache" in known else "past_key_values"] = cache
        if "logits_to_keep" in known:
            inputs["logits_to_keep"] = 1
        with self.forward.precision():
            out = self.forward.model(**inputs, use_cache=True)
        self.cache = getattr(out, "cache", None) or out.past_key_values
        return out.logits[:, -1].float()
