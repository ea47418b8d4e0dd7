"""A causal language model as a policy: its actions are tokens, its state is what was said so far.

Log-probabilities are at the sampling temperature everywhere: sampler, old policy, trainer and
reference all use log softmax(z / T).
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from tensordict import TensorDict
from torch import Tensor, nn

from zoo.core.precision import multiplies_bfloat16
from zoo.core.protocols import Evaluation
from zoo.errors import UserError
from zoo.functional.token_log_prob import (
    OutputHead,
    TokenStatistics,
    statistics_of_logits,
    token_log_prob,
)
from zoo.policies.adapters import LoraKnobs, is_adapted, is_adapter_folder
from zoo.policies.language_batches import cut
from zoo.policies.layout import TextRows
from zoo.policies.llama import LlamaForward
from zoo.policies.llama_decode import LlamaDecoder
from zoo.policies.text_codec import TextCodec
from zoo.policies.transformers_forward import TransformersDecoder, TransformersForward

if TYPE_CHECKING:
    from zoo.core.protocols import Policy

__all__ = ["LanguageKnobs", "LanguagePolicy"]

_Forward = LlamaForward | TransformersForward


@dataclass(frozen=True)
class LanguageKnobs:
    """Which model, and how it is computed."""

    #: shipped name (tiny, smollm2-135m), folder, or OWNER/NAME on the hub
    path: str | None = None
    #: of sampling and of every log-probability; 1.0 keeps the policy gradient unbiased
    temperature: float = 1.0
    #: dtype the weights are kept and updated in; bfloat16 halves memory but loses small updates
    dtype: Literal["float32", "bfloat16"] = "float32"
    #: dtype of sampling; auto takes bfloat16 where the hardware multiplies in it
    sampling_dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    #: recompute each layer in the backward pass: less memory, a third more time
    gradient_checkpointing: bool = False
    #: put the environment's answer instruction behind questions, where it doesn't say itself
    instruct: bool = True
    #: further arguments of the chat template, as in model.template.enable_thinking=false
    template: dict[str, Any] = field(default_factory=dict)
    #: positions whose logits exist at one time
    chunk: int = 512
    #: low-rank adapters in place of the whole model's training
    lora: LoraKnobs = field(default_factory=LoraKnobs)
    #: nf4 keeps the frozen base in 4 bits (with lora; bitsandbytes)
    quantize: Literal["nf4"] | None = None

    def __post_init__(self) -> None:
        """Refuse what can't be computed."""
        if not self.temperature > 0:
            raise UserError(
                f"model.temperature must be > 0 (got {self.temperature}); greedy decoding is for"
                " evaluation, which does it by itself."
            )
        if self.chunk < 1:
            raise UserError(f"model.chunk must be ≥ 1 (got {self.chunk}).")
        if self.quantize and not self.lora.rank and not is_adapter_folder(Path(self.path or "")):
            raise UserError(
                f"model.quantize={self.quantize} freezes the weights, so something else must be"
                " trained: give model.lora.rank=16, say."
            )


class LanguagePolicy(nn.Module):
    """A transformers causal LM and its tokenizer, with a value head where wanted.

    Parameters
    ----------
    model : PreTrainedModel
        Any causal LM; dropout in it is turned off, because the ratio of two forward passes must not
        depend on chance.
    tokenizer : PreTrainedTokenizerBase
        Its tokenizer.
    knobs : LanguageKnobs, optional
        How it is computed.
    critic : bool
        Whether a scalar head on the last hidden state, starting at 0, estimates values.
    """

    stepwise = False
    sampler_is_exact = False

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        knobs: LanguageKnobs | None = None,
        *,
        critic: bool = False,
    ) -> None:
        super().__init__()
        self.knobs = knobs or LanguageKnobs()
        self.model = model
        self.codec = TextCodec(
            tokenizer, getattr(model, "generation_config", None), self.knobs.template
        )
        self.version = 0
        self.has_critic = critic
        self.is_llama = LlamaForward.supports(model)
        self._plain_head: bool | None = None
        if is_adapted(model):
            self.register_state_dict_post_hook(_leave_out_the_base)
            self.register_load_state_dict_post_hook(_miss_no_base)
        _remove_dropout(model)
        # transformers checkpoints only in training mode, which without dropout changes nothing else
        self.train()
        if self.knobs.gradient_checkpointing and not self.is_llama:
            # the name before transformers 5.2x
            enable = getattr(model, "activation_checkpointing_enable", None)
            (enable or model.gradient_checkpointing_enable)({"use_reentrant": False})
        head = None
        if critic:
            weight = model.get_output_embeddings().weight
            head = nn.Linear(weight.shape[1], 1, device=weight.device, dtype=torch.float32)
            nn.init.zeros_(head.weight)
            nn.init.zeros_(head.bias)
        self.value_head = head

    @classmethod
    def load(
        cls,
        source: str | LanguageKnobs,
        knobs: LanguageKnobs | None = None,
        *,
        critic: int = 0,
    ) -> LanguagePolicy:
        """Load a model by name, or the one that the knobs' ``path`` names.

        Raises
        ------
        UserError
            For a name that is neither shipped, nor a folder, nor to be had from the hub, for a
            folder that holds no causal language model and tokenizer, and for twin critics.
        """
        if critic > 1:
            raise UserError(
                "twin critics (algo.double_q=true) are for control tasks: two value heads on one"
                " language model, both starting at 0, would stay the same. Leave it at false."
            )
        from zoo.policies.language_loading import load_adapted

        if isinstance(source, LanguageKnobs):
            knobs = source
        knobs = knobs or LanguageKnobs()
        path = source if isinstance(source, str) else source.path
        if not path:
            raise UserError("which language model? Name one: model=tiny, a folder, or OWNER/NAME.")
        dtype = getattr(torch, knobs.dtype)
        model, tokenizer = load_adapted(path, dtype, knobs.lora, knobs.quantize)
        return cls(model, tokenizer, knobs, critic=bool(critic))

    @property
    def temperature(self) -> float:
        """What logits are divided by, in sampling and in every log-probability."""
        return self.knobs.temperature

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.model.parameters()).device

    # What the trainer asks.

    def evaluate(self, batch: TensorDict, reference: Policy | None = None) -> Evaluation:
        """Log-probability, entropy, value and exact KL of every live token, with gradients.

        Computed in the dtype of the surrounding autocast, else in the weights' own. Positions after
        a row's ``completion_length`` are 0.
        """
        rows, dtype = TextRows.of(batch), self.computed_dtype()
        with torch.autocast(self.device.type, enabled=False):
            forward = self.forward_pass(dtype)
            other = None
            if reference is not None:
                other = reference.forward_pass(dtype)  # type: ignore[attr-defined]
            value = None
            if isinstance(forward, TransformersForward) and not forward.plain_head:
                statistics = self._from_logits(forward, rows, other)
                if self.value_head is not None:
                    value = self._value(forward.hidden(rows), rows)
            else:
                hidden = forward.hidden(rows)
                statistics = self._from_hidden(forward, hidden, rows, other)
                if self.value_head is not None:
                    value = self._value(hidden, rows)
        kl = None if statistics.kl is None else rows.spread(statistics.kl)
        return Evaluation(
            rows.spread(statistics.log_prob), rows.spread(statistics.entropy), value, kl
        )

    @torch.no_grad()
    def log_prob(self, batch: TensorDict, micro_batch_size: int = 32) -> Tensor:
        """[B, T] log-probabilities of the batch's tokens, without gradient."""
        return self._by_parts(batch, micro_batch_size, lambda part: self.evaluate(part).log_prob)

    @torch.no_grad()
    def values(self, batch: TensorDict, micro_batch_size: int = 32) -> tuple[Tensor, Tensor]:
        """V before each token and before the policy's next one, [B, T]; 0 after the last.

        What an environment says in between belongs to the next state. A completion that was cut at
        its length limit has no next state to value.
        """
        if self.value_head is None:
            raise UserError("this language policy has no value head: load it with critic=True.")

        def value(part: TensorDict) -> Tensor:
            rows = TextRows.of(part)
            with torch.autocast(self.device.type, enabled=False):
                return self._value(self.forward_pass(dtype).hidden(rows), rows)

        dtype = self.computed_dtype()
        now = self._by_parts(batch, micro_batch_size, value)
        return now, _of_next(now, batch.get("own", None))

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """Return the trainable parameters: the model's, and the value head's as ``"critic"``."""
        groups = {"policy": [p for p in self.model.parameters() if p.requires_grad]}
        if self.value_head is not None:
            groups["critic"] = list(self.value_head.parameters())
        return groups

    def micro_batches(
        self, minibatch: TensorDict, size: int | None, tokens: int | None = None
    ) -> Sequence[TensorDict]:
        """Cut into parts of at most ``size`` rows or ``tokens`` padded tokens; see `cut`."""
        return [part for part, _ in cut(minibatch, size, tokens)]

    def reference_copy(self) -> LanguagePolicy:
        """Return a frozen copy of the policy as it stands; a frozen base is shared, not copied.

        So the reference of a fresh adapter is the base itself, since B = 0, and that of a continued
        one has a copy of the adapter.
        """
        frozen = {id(p): p for p in self.model.parameters() if not p.requires_grad}
        twin = LanguagePolicy(copy.deepcopy(self.model, frozen), self.codec.tokenizer, self.knobs)
        return twin.requires_grad_(False)

    # What the sampler asks.

    def decoder(self) -> LlamaDecoder | TransformersDecoder:
        """Return a cached decoder of the present weights, in the sampling dtype."""
        forward = self.forward_pass(self.sampling_dtype())
        if isinstance(forward, LlamaForward):
            return LlamaDecoder(forward, self.codec.pad_id)
        return TransformersDecoder(forward, self.codec.pad_id)

    def sampling_dtype(self) -> torch.dtype:
        """Return the dtype that tokens are sampled in."""
        if self.knobs.sampling_dtype != "auto":
            return getattr(torch, self.knobs.sampling_dtype)
        return torch.bfloat16 if multiplies_bfloat16(self.device) else self._parameter_dtype()

    def forward_pass(self, dtype: torch.dtype) -> _Forward:
        """Return the forward pass in that dtype: our own where it knows the architecture."""
        if self.is_llama:
            return LlamaForward(self.model, dtype, checkpointing=self.knobs.gradient_checkpointing)
        forward = TransformersForward(self.model, dtype, plain_head=self._plain_head)
        self._plain_head = forward.plain_head
        return forward

    def _parameter_dtype(self) -> torch.dtype:
        return next(self.model.parameters()).dtype

    def computed_dtype(self) -> torch.dtype:
        """Return the dtype of a forward pass here: autocast's, else the weights'."""
        kind = self.device.type
        if torch.is_autocast_enabled(kind):
            return torch.get_autocast_dtype(kind)
        return self._parameter_dtype()

    def _from_hidden(
        self, forward: _Forward, hidden: Tensor, rows: TextRows, other: _Forward | None
    ) -> TokenStatistics:
        head = None
        if other is not None:
            with torch.no_grad():
                head = OutputHead(other.hidden(rows), *other.head())
        weight, bias = forward.head()
        return token_log_prob(
            hidden,
            weight,
            rows.target,
            temperature=self.temperature,
            bias=bias,
            reference=head,
            chunk=self.knobs.chunk,
        )

    def _from_logits(
        self, forward: TransformersForward, rows: TextRows, other: Any
    ) -> TokenStatistics:
        logits = None
        if other is not None:
            with torch.no_grad():
                logits = other.logits(rows)
        return statistics_of_logits(
            forward.logits(rows), rows.target, temperature=self.temperature, reference=logits
        )

    def _value(self, hidden: Tensor, rows: TextRows) -> Tensor:
        assert self.value_head is not None
        return rows.spread(self.value_head(hidden.float()).squeeze(-1))

    def _by_parts(self, batch: TensorDict, size: int, function: Any) -> Tensor:
        token = batch["action"]
        out = torch.zeros(token.shape, device=token.device)
        for part, index in cut(batch, size):
            values = function(part)
            out[index, : values.shape[1]] = values
        return out


def _leave_out_the_base(policy: nn.Module, state: dict[str, Any], prefix: str, _: Any) -> None:
    """Keep a frozen base out of checkpoints: it is loaded from where it came from."""
    for key in [k for k in state if _is_base(k.removeprefix(prefix))]:
        del state[key]


def _miss_no_base(policy: nn.Module, keys: Any) -> None:
    keys.missing_keys[:] = [key for key in keys.missing_keys if not _is_base(key)]


def _is_base(key: str) -> bool:
    return key.startswith("model.") and ".lora_" not in key


def _of_next(value: Tensor, own: Tensor | None) -> Tensor:
    """Return the value [B, T] at the next own step, 0 where there is none."""
    steps = value.shape[1]
    following = torch.nn.functional.pad(value[:, 1:], (0, 1))
    if own is None:
        return following
    place = torch.arange(steps, device=value.device).where(own, steps)
    nearest = place.flip(1).cummin(1).values.flip(1)  # the own step at or after each
    after = torch.nn.functional.pad(nearest[:, 1:], (0, 1), value=steps)
    return torch.nn.functional.pad(value, (0, 1)).gather(1, after)


def _remove_dropout(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for name in ("attention_dropout", "dropout", "activation_dropout", "hidden_dropout"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
