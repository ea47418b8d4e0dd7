"""What a sampler is asked for and what it gives back, whichever engine runs it."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from zoo.errors import UserError

__all__ = ["Sampler", "Samples", "SamplingParams", "choose", "refuse_filters"]


@dataclass(frozen=True)
class SamplingParams:
    """Everything that decides what is sampled; a model's generation_config is never asked.

    Attributes
    ----------
    temperature : float
        Logits are divided by it.
    max_new_tokens : int
        Tokens after which a completion is cut, its stop token included.
    stop_ids : set of int
        Each of these ends a completion, and belongs to it.
    greedy : bool
        Take the likeliest token instead of drawing.
    top_p, top_k : float, int
        Draw from the likeliest tokens only; 1 and 0 are off. Evaluation only, see
        `refuse_filters`.
    max_length : int or None
        Tokens of a prompt and its completion beyond which none is needed, so that an engine with a
        limit on both doesn't refuse them.
    """

    temperature: float
    max_new_tokens: int
    stop_ids: Set[int]
    greedy: bool = False
    top_p: float = 1.0
    top_k: int = 0
    max_length: int | None = None

    def needed_after(self, prompt_tokens: int) -> int:
        """Return how many tokens are needed at most after a prompt of so many."""
        room = self.max_new_tokens if self.max_length is None else self.max_length - prompt_tokens
        return min(self.max_new_tokens, room)


@dataclass
class Samples:
    """N completions, in the order of their prompts, the samples of one prompt side by side.

    Attributes
    ----------
    token : Tensor
        [N, T] int64, right-padded; T is the longest length.
    length : Tensor
        [N] int64, the stop token included.
    log_prob : Tensor
        [N, T] float32: log softmax(z / temperature) of each token drawn, before any filter, in the
        sampler's dtype. 0 in the padding.
    finished : Tensor
        [N] bool: ended on a stop token.
    own : Tensor or None
        [N, T] bool, of dialogues: which tokens were sampled and are not the environment's. None
        where all are, as always from a `Sampler`.
    """

    token: Tensor
    length: Tensor
    log_prob: Tensor
    finished: Tensor
    own: Tensor | None = None

    @property
    def sampled(self) -> Tensor:
        """[N] int64: how many tokens the policy sampled."""
        return self.length if self.own is None else self.own.sum(1)


class Sampler(Protocol):
    """An engine that continues prompts."""

    def generate(
        self,
        policy: Any,
        prompts: list[list[int]],
        samples_per_prompt: int,
        params: SamplingParams,
        generator: torch.Generator,
    ) -> Samples:
        """Sample under the policy's present weights; the same generator state, the same samples."""
        ...


def refuse_filters(top_p: float, top_k: int) -> None:
    """Refuse training on filtered samples.

    Raises
    ------
    UserError
        With the reason.
    """
    if top_p < 1.0 or top_k > 0:
        raise UserError(
            f"training samples need top_p=1 and top_k=0 (got top_p={top_p}, top_k={top_k}): tokens"
            " drawn from a filtered distribution have another probability than the one the"
            " importance ratio divides by, so the gradient is biased. Filter in evaluation only."
        )


def choose(logits: Tensor, params: SamplingParams, uniform: Tensor | None) -> tuple[Tensor, Tensor]:
    """Draw one token per row by inverting the cumulative distribution.

    Parameters
    ----------
    logits : Tensor
        [n, V] float32; overwritten.
    uniform : Tensor or None
        [n] in [0, 1), not needed when greedy.

    Returns
    -------
    tuple
        [n] int64 tokens and their [n] float32 log-probabilities at the temperature.
    """
    if params.temperature != 1.0:
        logits.div_(params.temperature)
    if params.greedy:
        token = logits.argmax(-1)
        chosen = logits.gather(-1, token[:, None]) - logits.logsumexp(-1, keepdim=True)
        return token, chosen.squeeze(-1)
    assert uniform is not None
    log_prob = logits.log_softmax(-1)
    probs = log_prob.exp()
    if params.top_k > 0 or params.top_p < 1.0:
        _filter(probs, params)
    cumulative = probs.cumsum(-1)
    # Rounding may end the sum off 1; and `right` never lands on a token of probability 0, whose
    # cumulative value equals its predecessor's.
    threshold = uniform[:, None] * cumulative[:, -1:]
    token = torch.searchsorted(cumulative, threshold, right=True)
    token = token.clamp_max_(logits.shape[-1] - 1)
    return token.squeeze(-1), log_prob.gather(-1, token).squeeze(-1)


def _filter(probs: Tensor, params: SamplingParams) -> None:
    ordered, index = probs.sort(-1, descending=True)
    drop = ordered.cumsum(-1) - ordered >= params.top_p
    if params.top_k > 0:
        drop[:, params.top_k :] = True
    drop[:, 0] = False
    probs.masked_fill_(torch.zeros_like(drop).scatter_(-1, index, drop), 0.0)
