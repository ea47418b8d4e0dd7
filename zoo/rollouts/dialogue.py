"""Dialogues: an environment answers completions, and the row goes on.

A row holds everything that follows its prompt, token by token as the policy saw it: its own turns
as sampled, between them the environment's messages as the chat template renders them. It is cut at
``max_new_tokens``, both sides counted. A sampler knows nothing of turns: each turn continues the
dialogues that are still open, as prompts of their own. Nothing outlives a `converse`, so there is
nothing to resume in the middle of a dialogue.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from zoo.core.protocols import Completion, DialogueEnv, Prompt, Turn
from zoo.rollouts.sampling import Sampler, Samples, SamplingParams
from zoo.rollouts.text_checks import check_replies

if TYPE_CHECKING:
    from zoo.policies.language import LanguagePolicy
    from zoo.policies.text_codec import TextCodec

__all__ = ["POLICY", "converse", "transcript"]

#: role of the policy's turns
POLICY = "assistant"


@dataclass
class _Row:
    """A dialogue as far as it has come."""

    prompt: Prompt
    prompt_ids: list[int]
    token: list[int] = field(default_factory=list)
    log_prob: list[float] = field(default_factory=list)
    own: list[bool] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    finished: bool = False

    def say(self, codec: TextCodec, token: list[int], log_prob: list[float]) -> None:
        """Add a turn of the policy's."""
        (text,) = codec.answers([self.prompt_ids + self.token], [token])
        self._add(Turn(POLICY, text, token), log_prob, own=True)

    def hear(self, message: dict[str, str], token: list[int]) -> None:
        """Add a message of the environment's."""
        turn = Turn(message["role"], message["content"], token)
        self._add(turn, [0.0] * len(token), own=False)

    def _add(self, turn: Turn, log_prob: list[float], *, own: bool) -> None:
        self.turns.append(turn)
        self.token += turn.token_ids
        self.log_prob += log_prob
        self.own += [own] * len(turn.token_ids)

    def completion(self) -> Completion:
        """Return the dialogue as the environment and its rewards see it."""
        said = [turn for turn in self.turns if turn.role == POLICY]
        ids = [token for turn in said for token in turn.token_ids]
        text = "\n\n".join(turn.text for turn in said)
        return Completion(text, ids, self.finished, tuple(self.turns))


def converse(
    env: DialogueEnv,
    sampler: Sampler,
    policy: LanguagePolicy,
    prompts: Sequence[Prompt],
    prompt_ids: Sequence[list[int]],
    repeats: int,
    params: SamplingParams,
    generator: torch.Generator,
) -> tuple[Samples, list[Completion]]:
    """Hold ``repeats`` dialogues on each prompt.

    A row ends on the policy's last turn. It is ``finished`` where the environment had nothing more
    to say or the last of ``max_turns`` ended by itself, and cut where a turn ran into
    ``params.max_new_tokens``, or a message left no token of it for an answer.

    Parameters
    ----------
    prompts, prompt_ids
        Messages and their tokens, [n] each.
    params : SamplingParams
        ``max_new_tokens`` is of a whole row, the environment's tokens included.

    Returns
    -------
    samples, completions
        n · repeats rows, those of one prompt side by side.
    """
    codec, budget = policy.codec, params.max_new_tokens
    pairs = list(zip(prompts, prompt_ids, strict=True))
    rows = [_Row(prompt, ids) for prompt, ids in pairs for _ in range(repeats)]
    speaking, starts, each = rows, list(prompt_ids), repeats
    longest = max(map(len, prompt_ids)) + budget
    for turn in range(1, env.max_turns + 1):
        # One limit for all. A row with less left is cut afterwards, which leaves its tokens as they
        # would be under a limit of its own: a token doesn't depend on how many may follow.
        most = max(budget - len(row.token) for row in speaking)
        limited = dataclasses.replace(params, max_new_tokens=most, max_length=longest)
        samples = sampler.generate(policy, starts, each, limited, generator)
        ended = _said(codec, speaking, samples, budget)
        if turn == env.max_turns or not ended:
            for row in ended:
                row.finished = True
            break
        speaking = _heard(env, codec, ended, budget)
        if not speaking:
            break
        starts, each = [row.prompt_ids + row.token for row in speaking], 1
    return _samples(rows, codec.pad_id, policy.device), [row.completion() for row in rows]


def transcript(completion: Completion) -> str:
    """Return a completion's text, of a dialogue with both sides by name."""
    if not completion.turns:
        return completion.text
    return "\n".join(f"[{turn.role}] {turn.text}" for turn in completion.turns)


def _said(codec: TextCodec, rows: Sequence[_Row], samples: Samples, budget: int) -> list[_Row]:
    """Add what was sampled, within the budget; return the rows whose turn came to its end."""
    token, log_prob = samples.token.tolist(), samples.log_prob.tolist()
    length, finished = samples.length.tolist(), samples.finished.tolist()
    ended = []
    for i, row in enumerate(rows):
        kept = min(length[i], budget - len(row.token))
        row.say(codec, token[i][:kept], log_prob[i][:kept])
        if finished[i] and kept == length[i]:
            ended.append(row)
    return ended


def _heard(env: DialogueEnv, codec: TextCodec, rows: Sequence[_Row], budget: int) -> list[_Row]:
    """Add the environment's messages; return the rows in which the policy has the word."""
    replies = env.reply([row.prompt for row in rows], [row.completion() for row in rows])
    check_replies(env, replies, len(rows))
    going = []
    for row, message in zip(rows, replies, strict=True):
        if message is None:
            row.finished = True
            continue
        ids = codec.encode_reply(message, row.token[-1])
        if len(row.token) + len(ids) < budget:
            row.hear(message, ids)
            going.append(row)
    return going


def _samples(rows: Sequence[_Row], pad: int, device: torch.device) -> Samples:
    width = max(len(row.token) for row in rows)

    def padded(values: Sequence[Sequence[float]], fill: float, dtype: torch.dtype) -> torch.Tensor:
        filled = [[*row, *[fill] * (width - len(row))] for row in values]
        return torch.tensor(filled, dtype=dtype, device=device)

    return Samples(
        token=padded([row.token for row in rows], pad, torch.int64),
        length=torch.tensor([len(row.token) for row in rows], device=device),
        log_prob=padded([row.log_prob for row in rows], 0.0, torch.float32),
        finished=torch.tensor([row.finished for row in rows], device=device),
        own=padded([row.own for row in rows], False, torch.bool),
    )
