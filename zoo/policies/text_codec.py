"""Between chat messages and token ids: template, beginning token, stop tokens, padding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from zoo.errors import UserError

__all__ = ["TextCodec"]

#: stands for an answer where only what a template writes behind it is wanted
_ANSWER = "(answer)"
#: opens a thought, which the tag with a slash ends
_THINK, _THOUGHT = "<think>", "</think>"


class TextCodec:
    """What a policy knows of text.

    Parameters
    ----------
    tokenizer : PreTrainedTokenizerBase
        With or without a chat template.
    generation_config : GenerationConfig, optional
        Its end tokens join the tokenizer's; nothing else of it is read.
    template : mapping, optional
        Further arguments of the chat template, such as Qwen3's ``enable_thinking``.

    Attributes
    ----------
    stop_ids : frozenset of int
        Every token that ends a completion.
    pad_id : int
        Fills unused places. It may be one of ``stop_ids``: what is live is known from lengths.
    bos_id : int or None
        The token that every prompt starts with exactly once, where the tokenizer or its template
        puts one.
    """

    def __init__(
        self,
        tokenizer: Any,
        generation_config: Any = None,
        template: Mapping[str, Any] | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.template = dict(template or {})
        stop: set[int] = set()
        for ends in (tokenizer.eos_token_id, getattr(generation_config, "eos_token_id", None)):
            stop.update([ends] if isinstance(ends, int) else ends or ())
        self.stop_ids = frozenset(stop)
        pad = tokenizer.pad_token_id
        self.pad_id: int = pad if pad is not None else min(self.stop_ids, default=0)
        self.bos_id: int | None = tokenizer.bos_token_id
        own = tokenizer("x")["input_ids"]
        self._adds_bos = self.bos_id is not None and own[:1] == [self.bos_id]

    def encode(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """Token ids of a conversation up to where the answer starts.

        The tokenizer's chat template renders it; without one, the contents stand below each other.
        """
        return self.encode_all([messages])[0]

    def encode_all(self, conversations: Sequence[Sequence[dict[str, str]]]) -> list[list[int]]:
        """Encode many conversations."""
        if not conversations:
            return []
        if getattr(self.tokenizer, "chat_template", None):
            texts = [self._rendered(messages) for messages in conversations]
        else:
            texts = ["\n\n".join(m["content"] for m in c) + "\n" for c in conversations]
        encoded = self.tokenizer(texts, add_special_tokens=False)["input_ids"]
        return [self._one_bos(list(ids)) for ids in encoded]

    def encode_reply(self, message: dict[str, str], last: int) -> list[int]:
        """Token ids of a message that follows an answer, up to where the next answer starts.

        What was sampled is never encoded again: the template renders a short dialogue with a
        stand-in for the answer, and what it writes behind that is taken. So it is exact also where
        a template takes the thoughts out of earlier answers or puts a system prompt in front.

        Parameters
        ----------
        message : dict
            ``role`` and ``content``.
        last : int
            The answer's last token. Where the template ends an answer with that very token, it
            isn't repeated.

        Raises
        ------
        UserError
            For a template that doesn't render the message, or not as a continuation: it ends the
            answer in another way than it does where nothing follows, or the tokens of what it
            writes depend on the answer's text.
        """
        if not getattr(self.tokenizer, "chat_template", None):
            text = f"\n\n{message['content']}\n"
            return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])
        answered = [{"role": "user", "content": "?"}, {"role": "assistant", "content": _ANSWER}]
        try:
            alone = self._rendered(answered, answer_follows=False)
            whole = self._rendered([*answered, message])
        except Exception as error:  # whatever the template raises: jinja2's errors are not typed
            raise UserError(
                f"the model's chat template refuses a message of role '{message['role']}' behind an"
                f" answer ({error}): let the environment's reply() take a role that it knows."
            ) from error
        end, behind = (text.partition(_ANSWER)[2] for text in (alone, whole))
        ids, all_ids = self.tokenizer([behind, whole], add_special_tokens=False)["input_ids"]
        if (
            not behind.startswith(end)
            or message["content"].strip() not in behind
            or list(all_ids[len(all_ids) - len(ids) :]) != list(ids)
        ):
            raise UserError(
                f"the model's chat template doesn't continue an answer with a message of role"
                f" '{message['role']}': rendered with it, the dialogue before it reads otherwise,"
                " so a row can't be extended token by token. Use another model.template, role or"
                " model."
            )
        return list(ids[1:] if ids[:1] == [last] else ids)

    def opened_thought(self, ids: Sequence[int]) -> str:
        """Return the tag by which a prompt that ends inside a thought opened it, else nothing."""
        if _THINK not in str(getattr(self.tokenizer, "chat_template", None)):
            return ""
        _, tag, inside = self.decode(ids[-16:]).rpartition(_THINK)
        return tag + inside if tag and _THOUGHT not in inside else ""

    def answers(self, before: Sequence[Sequence[int]], ids: Sequence[Sequence[int]]) -> list[str]:
        """Texts of answers, each with the tag by which what stands before it opened a thought."""
        texts = self.decode_all(ids)
        return [self.opened_thought(b) + text for b, text in zip(before, texts, strict=True)]

    def leading_bos(self, ids: Sequence[int]) -> int:
        """How many beginning tokens a prompt starts with."""
        count = 0
        while self.bos_id is not None and count < len(ids) and ids[count] == self.bos_id:
            count += 1
        return count

    def wants_bos(self, ids: Sequence[int]) -> bool:
        """Whether a prompt has to start with the beginning token."""
        return self._adds_bos or self.leading_bos(ids) > 0

    def decode(self, ids: Sequence[int] | Tensor) -> str:
        """Text of token ids, without special tokens."""
        return self.decode_all([ids])[0]

    def decode_all(self, sequences: Sequence[Sequence[int] | Tensor]) -> list[str]:
        """Decode many sequences."""
        return self.tokenizer.batch_decode(
            sequences, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )

    def _rendered(self, messages: Sequence[dict[str, str]], *, answer_follows: bool = True) -> str:
        text: str = self.tokenizer.apply_chat_template(
            list(messages), tokenize=False, add_generation_prompt=answer_follows, **self.template
        )
        return text

    def _one_bos(self, ids: list[int]) -> list[int]:
        # A template may write the token out and the tokenizer add another: models have seen one.
        if self.bos_id is None or not self.wants_bos(ids):
            return ids
        return [self.bos_id, *ids[self.leading_bos(ids) :]]
