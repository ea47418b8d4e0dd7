"""Sampling from the training weights themselves, many rows at a time.

A prompt is read once however many samples it gets, the cache is the policy's decoder's, rows that
are done are dropped, and everything that decides what is drawn is in the `SamplingParams`.
"""

from __future__ import annotations

from concurrent.futures import CancelledError
from threading import Event
from typing import Any

import torch

from zoo.policies.layout import round_up
from zoo.rollouts.sampling import Samples, SamplingParams, choose

__all__ = ["HFSampler"]

# Rows are dropped down to multiples of these, so that few different shapes occur.
_STEPS = ((64, 16), (16, 8), (0, 4))


class HFSampler:
    """Cached decoding on the policy's own device.

    Parameters
    ----------
    max_rows : int
        Completions sampled together; more of them run one part after the other. A `TextRollout`
        sets it to its own knob.
    """

    def __init__(self, max_rows: int = 256) -> None:
        self.max_rows = max_rows
        #: set by another thread, it ends the sampling before the next token
        self.stop = Event()

    def generate(
        self,
        policy: Any,
        prompts: list[list[int]],
        samples_per_prompt: int,
        params: SamplingParams,
        generator: torch.Generator,
    ) -> Samples:
        """Continue each prompt ``samples_per_prompt`` times.

        Parameters
        ----------
        policy : LanguagePolicy
            Sampled under its present weights.
        prompts : list of list of int
            Token ids, at least one each.
        generator : torch.Generator
            On the CPU. It alone decides what is drawn: one number per row and token, whichever
            rows have ended by then.
        """
        rows = len(prompts) * samples_per_prompt
        device = policy.device
        token = torch.full((rows, params.max_new_tokens), policy.codec.pad_id, dtype=torch.int64)
        out = Samples(
            token=token.to(device),
            length=torch.zeros(rows, dtype=torch.int64, device=device),
            log_prob=torch.zeros(rows, params.max_new_tokens, device=device),
            finished=torch.zeros(rows, dtype=torch.bool, device=device),
        )
        together = max(1, self.max_rows // samples_per_prompt)
        # An autocast around the rollout would change the dtype that was asked for.
        with torch.inference_mode(), torch.autocast(device.type, enabled=False):
            decoder = policy.decoder()
            for start in range(0, len(prompts), together):
                part = prompts[start : start + together]
                first = start * samples_per_prompt
                _sample(decoder, part, samples_per_prompt, params, generator, out, first, self.stop)
        longest = max(1, int(out.length.max()))
        out.token, out.log_prob = out.token[:, :longest], out.log_prob[:, :longest]
        return out


def _sample(
    decoder: Any,
    prompts: list[list[int]],
    repeats: int,
    params: SamplingParams,
    generator: torch.Generator,
    out: Samples,
    first: int,
    stop: Event,
) -> None:
    """Write the completions of some prompts into the rows of ``out`` from ``first`` on."""
    device = out.token.device
    count = len(prompts) * repeats
    stop_ids = torch.tensor(sorted(params.stop_ids), device=device)
    rows = torch.arange(count, device=device)  # the decoder's rows, as rows of this part
    alive = torch.ones(count, dtype=torch.bool, device=device)
    logits = decoder.start(prompts, repeats, params.max_new_tokens)
    for step in range(params.max_new_tokens):
        if stop.is_set():
            raise CancelledError
        uniform = None
        if not params.greedy:
            uniform = torch.rand(count, generator=generator).to(device)[rows]
        token, log_prob = choose(logits, params, uniform)
        target = rows[alive] + first
        out.token[target, step] = token[alive]
        out.log_prob[target, step] = log_prob[alive]
        out.length[target] = step + 1
        ended = torch.isin(token, stop_ids) & alive
        out.finished[rows[ended] + first] = True
        alive = alive & ~ended
        living = int(alive.sum())
        if not living or step + 1 == params.max_new_tokens:
            break
        keep = _fewer(living, len(rows))
        if keep < len(rows):
            # The living and as many of the ended as make up a round number.
            index = (~alive).long().argsort(stable=True)[:keep].sort().values
            decoder.keep(index)
            rows, alive, token = rows[index], alive[index], token[index]
        logits = decoder.step(token)


def _fewer(living: int, rows: int) -> int:
    """Rows to go on with: ``rows`` unless at least an eighth of them can be dropped."""
    multiple = next(m for least, m in _STEPS if living > least)
    keep = round_up(living, multiple)
    return keep if keep <= rows - max(1, rows // 8) else rows
