"""A game that answers completions, and a sampler that says what it was told to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from small_models import Sums

from zoo.core.protocols import Completion, Prompt
from zoo.policies.text_codec import TextCodec
from zoo.rollouts.sampling import Samples, SamplingParams

#: every answer ends on <end>, as the codec's stop token; the next question follows
CHAT = (
    "{% for m in messages %}{% if m['role'] == 'assistant' %}{{ m['content'] }}<end>"
    "{% elif m['role'] == 'user' %}Q:{{ m['content'] }}\nA:"
    "{% else %}{{ raise_exception('no such role') }}{% endif %}{% endfor %}"
)


class Echo(Sums):
    """Says the number of the turn back, until an answer holds a `.`."""

    def __init__(self, max_turns: int = 3, count: int = 10, **settings: Any) -> None:
        super().__init__(count, **settings)
        self.max_turns = max_turns
        self.seen: list[Completion] = []

    def reply(
        self, prompts: Sequence[Prompt], completions: Sequence[Completion]
    ) -> list[dict[str, str] | None]:
        """Answer the last turn of each dialogue."""
        self.seen += completions
        said = [sum(t.role == "assistant" for t in c.turns) for c in completions]
        over = ["." in c.turns[-1].text for c in completions]
        return [
            None if o else {"role": "user", "content": f"{n}?"}
            for o, n in zip(over, said, strict=True)
        ]


class Scripted:
    """Gives the next of the texts of each prompt; `|` stands for the stop token."""

    def __init__(self, codec: TextCodec, texts: Sequence[Sequence[str]]) -> None:
        self.codec, self.texts = codec, [list(t) for t in texts]
        self.asked: list[tuple[list[list[int]], int, int]] = []
        self.open = list(range(len(texts)))

    def generate(
        self,
        policy: Any,
        prompts: list[list[int]],
        samples_per_prompt: int,
        params: SamplingParams,
        generator: torch.Generator,
    ) -> Samples:
        """Continue rows in order; which are open is told by the texts that are left."""
        self.asked.append((prompts, samples_per_prompt, params.max_new_tokens))
        rows = [t for t in self.texts if t][: len(prompts) * samples_per_prompt]
        texts = [row.pop(0) for row in rows]
        ids = [self.ids(text)[: params.max_new_tokens] for text in texts]
        width = max(map(len, ids))
        length = torch.tensor([len(row) for row in ids])
        live = torch.arange(width) < length[:, None]
        return Samples(
            token=torch.tensor([row + [0] * (width - len(row)) for row in ids]),
            length=length,
            log_prob=torch.where(live, -0.5, 0.0),
            finished=torch.tensor([row[-1] == 1 for row in ids]),
        )

    def ids(self, text: str) -> list[int]:
        """Tokens of a text; the tokenizer has one per character."""
        plain = text.removesuffix("|")
        ids = self.codec.tokenizer(plain, add_special_tokens=False)["input_ids"]
        return [*ids, 1] if text.endswith("|") else ids
