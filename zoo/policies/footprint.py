"""What training a language model takes at the least, counted before its weights are loaded.

A lower bound of accelerator memory, of what is there whatever the lengths turn out to be::

    weights + Adam's moments + reference + value head
      + max(gradients + logits of one chunk, weights to sample from + cache of the completions)
      + an engine that doesn't sleep

Activations, prompts in the cache and the allocator's losses come on top, so that what does not fit
by this count can't be trained, and what fits may still not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from zoo.errors import UserError
from zoo.policies.adapters import layers_of

__all__ = ["Footprint", "footprint", "refuse_too_large"]

_NF4_BYTES = 4.127 / 8  # per weight, scales included
_GIB = 2**30


@dataclass(frozen=True)
class Footprint:
    """Bytes of each part; see the module."""

    weights: float
    moments: float
    reference: float
    gradients: float
    logits: float
    sampled: float
    cache: float
    engine: float = 0.0

    @property
    def total(self) -> float:
        """Bytes that are there at one time at the least."""
        learning, sampling = self.gradients + self.logits, self.sampled + self.cache
        always = self.weights + self.moments + self.reference + self.engine
        return always + max(learning, sampling)


def footprint(
    model: Any, settings: Any, knobs: Any, rollout: Any, card_gib: float = 0.0
) -> Footprint:
    """Count what a run holds.

    Parameters
    ----------
    model : PreTrainedModel
        Of the right shapes; on the meta device it takes no memory.
    settings : LanguageKnobs
        How it is computed.
    knobs : dataclass
        The algorithm's.
    rollout : TextRolloutKnobs
        How much is sampled.
    card_gib : float
        Of which an engine of its own (``rollout=vllm``) takes its share.

    Raises
    ------
    UserError
        Where the engine's share can't hold the model and the cache of one completion.
    """
    size = 2 if settings.dtype == "bfloat16" else 4
    head = model.get_output_embeddings()
    linear = [m for m in model.modules() if hasattr(m, "in_features") and m is not head]
    products = sum(m.weight.numel() for m in linear)
    every = sum(p.numel() for p in model.parameters())
    packed = _NF4_BYTES if settings.quantize else size
    weights = products * packed + (every - products) * size
    trained, wide = every, size
    if settings.lora.rank:
        targets = settings.lora.targets
        chosen = None if targets == "all-linear" else layers_of(targets)
        adapted = [
            m
            for name, m in model.named_modules()
            if hasattr(m, "in_features") and m is not head
            if chosen is None or name.rpartition(".")[2] in chosen
        ]
        trained = settings.lora.rank * sum(m.in_features + m.out_features for m in adapted)
        wide = 4
        weights += trained * 4
    moments = {"device": 2 * wide, "8bit": 2, "host": 0}[knobs.adam_state] * trained
    watched = knobs.kl.coefficient > 0 or knobs.kl.monitor_every > 0
    reference = trained * wide if watched else 0
    reference += trained * wide * rollout.staleness  # the copies that are sampled from
    config = model.config
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    each = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    rows = min(rollout.max_rows, rollout.prompts * getattr(knobs, "group_size", 1))
    token = 2 * config.num_hidden_layers * heads * each * 2
    sampled = 0 if settings.quantize else products * 2
    cache = rows * rollout.max_new_tokens * token
    engine = getattr(rollout, "engine", None)
    share = 0.0
    if engine is not None:  # it holds the base in 16 bits, whatever that is kept in here
        apart = trained if settings.lora.rank and rollout.adapter == "apart" else 0
        share = engine.gpu_memory_utilization * card_gib * _GIB
        held = (every + apart) * 2 + rollout.max_new_tokens * token
        if held > share:
            raise UserError(
                f"vLLM would hold {held / _GIB:.1f} GiB of weights in 16 bits and cache, and"
                f" rollout.engine.gpu_memory_utilization={engine.gpu_memory_utilization:g} gives it"
                f" {share / _GIB:.1f} of the card's {card_gib:.0f}: raise that, or use rollout=hf."
            )
        sampled, cache = (share, 0) if engine.sleep_level else (0, 0)
    return Footprint(
        weights=weights,
        moments=moments,
        reference=reference,
        gradients=trained * wide,
        logits=settings.chunk * config.vocab_size * 4,
        sampled=sampled,
        cache=cache,
        engine=0.0 if engine is None or engine.sleep_level else share,
    )


def refuse_too_large(parts: Footprint, card_gib: float, name: str) -> None:
    """Refuse a run that a card can't hold.

    Raises
    ------
    UserError
        With the parts, the largest first, and what would make it fit.
    """
    if parts.total <= card_gib * _GIB:
        return
    listed = {
        "weights": parts.weights,
        "Adam's moments": parts.moments,
        "reference": parts.reference,
        "vLLM": parts.engine,
    }
    if parts.gradients + parts.logits > parts.sampled + parts.cache:
        listed |= {"gradients": parts.gradients, "logits": parts.logits}
    else:
        listed |= {"weights to sample from": parts.sampled, "cache": parts.cache}
    said = ", ".join(
        f"{what} {size / _GIB:.1f}"
        for what, size in sorted(listed.items(), key=lambda item: -item[1])
        if size >= 0.05 * _GIB
    )
    ways = "model.dtype=bfloat16, model.lora.rank=16, model.quantize=nf4 with it"
    if parts.engine:
        ways += ", rollout.engine.sleep_level=1"
    if parts.cache > parts.weights:
        ways = "fewer rollout.max_rows or rollout.max_new_tokens"
    raise UserError(
        f"training {name} takes at least {parts.total / _GIB:.1f} GiB of a card's {card_gib:.0f}"
        f" (GiB of {said}): try {ways}."
    )
