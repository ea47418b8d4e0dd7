"""A reward model: any sequence classifier of transformers, read in a process of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from zoo.errors import UserError

if TYPE_CHECKING:
    from zoo.core.protocols import Prompt, Turn

__all__ = ["RewardModel"]


@dataclass(frozen=True)
class RewardModel:
    """Score whole conversations with a sequence classifier.

    A model of one output pays its logit (Bradley-Terry reward models), one of several the
    probability of ``label``. It reads the prompt's messages and all turns by its own chat template;
    without one, the question and the answer as a pair of texts. It is loaded once, in float32,
    when the reward's process starts.

    Parameters
    ----------
    path : str
        A folder, or ``OWNER/NAME`` on the hub.
    label : str or int, optional
        Of several outputs, the one whose probability is paid.
    max_tokens : int
        Longer conversations lose their beginning.
    rows : int
        Conversations computed together.
    device : str
        Torch's name of it.

    Raises
    ------
    UserError
        For settings that make no sense; when its process starts, for a model that can't be loaded.
    """

    path: str
    label: str | int | None = None
    max_tokens: int = 2048
    rows: int = 8
    device: str = "cpu"

    def __post_init__(self) -> None:
        if not isinstance(self.path, str) or not self.path:
            raise UserError(f"reward_model: path must name a model (got {self.path!r})")
        for name in ("max_tokens", "rows"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise UserError(f"reward_model: {name} must be a whole number ≥ 1 (got {value!r})")

    def __call__(
        self, prompts: Sequence[Prompt], completions: Sequence[str], turns: Sequence[list[Turn]]
    ) -> list[float]:
        """Return one number per completion; in a reward's process the model is there already."""
        return _Loaded(self)(prompts, completions, turns)

    def __reduce__(self) -> Any:
        # Carried to its process it arrives loaded: no completion's time limit pays for that.
        return _Loaded, (
            RewardModel,
            self.path,
            self.label,
            self.max_tokens,
            self.rows,
            self.device,
        )


class _Loaded:
    """A reward model with its weights."""

    def __init__(self, make: Any, *settings: Any) -> None:
        import torch
        from transformers import AutoModelForSequenceClassification, AutoTokenizer
        from transformers.utils.logging import disable_progress_bar

        disable_progress_bar()  # in its process: what is printed there is shown to the user
        self.settings = made = make(*settings) if settings else make
        try:
            self.tokenizer: Any = AutoTokenizer.from_pretrained(made.path, truncation_side="left")
            loaded: Any = AutoModelForSequenceClassification.from_pretrained(
                made.path, dtype=torch.float32, output_loading_info=True
            )
            self.model, found = loaded
            self.model = self.model.eval().to(made.device)
        except (OSError, ValueError, KeyError, RuntimeError) as error:
            raise UserError(
                f"reward_model: '{made.path}' can't be loaded:"
                f" {str(error).strip().partition(chr(10))[0]}"
            ) from error
        if found["missing_keys"]:
            raise UserError(
                f"reward_model: '{made.path}' is no trained classifier: its files lack"
                f" {', '.join(sorted(found['missing_keys'])[:3])}, which would stay random."
            )
        self.index = _index(made, self.model.config)
        pad = self.tokenizer.pad_token_id
        self.model.config.pad_token_id = pad
        self.rows = made.rows if pad is not None else 1  # nothing to pad with

    def __call__(
        self, prompts: Sequence[Prompt], completions: Sequence[str], turns: Sequence[list[Turn]]
    ) -> list[float]:
        import torch

        encoded = self.encode(prompts, completions, turns)
        order = sorted(range(len(encoded)), key=lambda i: len(encoded[i]["input_ids"]))
        found = [0.0] * len(encoded)
        with torch.inference_mode():
            for start in range(0, len(order), self.rows):
                part = order[start : start + self.rows]
                batch = self.padded([encoded[i] for i in part]).to(self.settings.device)
                logits = self.model(**batch).logits.float()
                index = self.index
                value = logits[:, 0] if index is None else logits.softmax(-1)[:, index]
                for i, number in zip(part, value.tolist(), strict=True):
                    found[i] = number
        return found

    def encode(
        self, prompts: Sequence[Prompt], completions: Sequence[str], turns: Sequence[list[Turn]]
    ) -> list[dict[str, list[int]]]:
        """Return the model's inputs for each conversation, unpadded."""
        cut = {"truncation": True, "max_length": self.settings.max_tokens}
        if getattr(self.tokenizer, "chat_template", None):
            said = [[{"role": t.role, "content": t.text} for t in row] for row in turns]
            texts = [
                self.tokenizer.apply_chat_template([*p.messages, *row], tokenize=False)
                for p, row in zip(prompts, said, strict=True)
            ]
            encoded = self.tokenizer(texts, add_special_tokens=False, **cut)
        else:
            questions = ["\n\n".join(m["content"] for m in p.messages) for p in prompts]
            encoded = self.tokenizer(questions, list(completions), **cut)
        return [{k: v[i] for k, v in encoded.items()} for i in range(len(prompts))]

    def padded(self, rows: list[dict[str, list[int]]]) -> Any:
        """Return rows as tensors of one width; a single one needs no token to pad with."""
        from transformers import BatchEncoding

        if len(rows) > 1:
            return self.tokenizer.pad(rows, return_tensors="pt")
        return BatchEncoding({k: [v] for k, v in rows[0].items()}, tensor_type="pt")


def _index(settings: RewardModel, config: Any) -> int | None:
    """Return which output is paid; None where there is one, which is the reward itself."""
    names = {str(name): int(i) for i, name in config.id2label.items()}
    label, known = settings.label, ", ".join(names)
    if config.num_labels == 1:
        if label is not None:
            raise UserError(f"reward_model: '{settings.path}' has one output: leave out label.")
        return None
    if isinstance(label, int) and not isinstance(label, bool) and label in names.values():
        return label
    if label not in names:
        raise UserError(
            f"reward_model: '{settings.path}' has {config.num_labels} outputs: say by label= which"
            f" one's probability is paid, of {known} (got {label!r})."
        )
    return names[str(label)]
