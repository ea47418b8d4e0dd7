"""What is asked of an engine that is not ours, in the words that vLLM and its server share.

Every parameter that decides what is drawn is sent, so that none is taken from a model's
generation_config; and every prompt is sent a seed of its own, drawn from the rollout's generator.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from zoo.errors import UserError
from zoo.rollouts.sampling import Samples, SamplingParams

__all__ = ["Completed", "draw_seeds", "refuse_longer", "request", "samples_of"]


@dataclass(frozen=True)
class Completed:
    """One completion, as an engine returns it.

    Attributes
    ----------
    token : sequence of int
        Its stop token included.
    log_prob : sequence of float
        Of each token, by the distribution that it was drawn from.
    reason : str or None
        ``"stop"`` or ``"length"``.
    """

    token: Sequence[int]
    log_prob: Sequence[float]
    reason: str | None


def draw_seeds(count: int, params: SamplingParams, generator: torch.Generator) -> list[int | None]:
    """Draw a seed per prompt; none is drawn where nothing is left to chance."""
    if params.greedy:
        return [None] * count
    # The engine adds a row's place in its group, so the upper bound leaves room for that.
    return torch.randint(2**62, (count,), generator=generator).tolist()


def request(
    params: SamplingParams, repeats: int, seed: int | None, prompt_tokens: int
) -> dict[str, Any]:
    """Return every sampling parameter by its name, for ``repeats`` samples of one prompt."""
    return {
        "n": 1 if params.greedy else repeats,  # all are the same, and engines refuse more
        "temperature": 0.0 if params.greedy else params.temperature,
        "top_p": 1.0 if params.greedy else params.top_p,
        "top_k": 0 if params.greedy else params.top_k,
        "min_p": 0.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
        "min_tokens": 0,
        "max_tokens": params.needed_after(prompt_tokens),
        "stop_token_ids": sorted(params.stop_ids),
        "ignore_eos": True,  # the config's own end token; the stop tokens above are all there are
        "seed": seed,
        "logprobs": 0,  # of the token drawn, and of no others
    }


def refuse_longer(
    prompts: Sequence[Sequence[int]], params: SamplingParams, max_model_len: int
) -> None:
    """Refuse prompts that don't leave room for a completion.

    Raises
    ------
    UserError
        With the lengths and the setting.
    """
    longest = max(map(len, prompts), default=0)  # with what follows, none is longer than it
    following = params.needed_after(longest)
    if longest + following > max_model_len:
        raise UserError(
            f"a prompt of {longest} tokens and {following} new ones don't fit into the"
            f" {max_model_len} that vLLM was started for: raise rollout.engine.max_model_len as far"
            " as the model allows, or lower rollout.max_new_tokens."
        )


def samples_of(
    completed: Sequence[Sequence[Completed]],
    repeats: int,
    params: SamplingParams,
    pad_id: int,
    device: torch.device,
) -> Samples:
    """Put completions, prompt by prompt, into padded rows.

    Log-probabilities are NaN where the engine tells another distribution's than that of the logits
    over the temperature: it tells the filtered one's under ``top_p`` and ``top_k``, and that at
    temperature 1 of greedy decoding.

    Raises
    ------
    RuntimeError
        Where the engine gave up a completion.
    """
    rows = [
        one for group in completed for one in (list(group) * repeats if params.greedy else group)
    ]
    wrong = next((row.reason for row in rows if row.reason not in ("stop", "length")), "")
    if wrong != "":
        raise RuntimeError(f"vLLM ended a completion for another reason than its end: {wrong}")
    longest = max(1, max((len(row.token) for row in rows), default=1))
    token = torch.full((len(rows), longest), pad_id, dtype=torch.int64)
    log_prob = torch.zeros(len(rows), longest)
    filtered = params.top_p < 1.0 or params.top_k > 0
    unknown = params.temperature != 1.0 if params.greedy else filtered
    for i, row in enumerate(rows):
        end = len(row.token)
        token[i, :end] = torch.tensor(row.token, dtype=torch.int64)
        log_prob[i, :end] = float("nan") if unknown else torch.tensor(row.log_prob)
    return Samples(
        token=token.to(device),
        length=torch.tensor([len(row.token) for row in rows], device=device),
        log_prob=log_prob.to(device),
        finished=torch.tensor([row.reason == "stop" for row in rows], device=device),
    )
