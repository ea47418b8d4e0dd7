"""What must hold before the first optimizer step, whatever the model and its settings.

Each of these has gone wrong unnoticed elsewhere and only showed as a run that doesn't learn.
"""

from __future__ import annotations

import torch
from tensordict import TensorDict
from torch import Tensor

from zoo.errors import UserError
from zoo.policies.language import LanguagePolicy
from zoo.policies.layout import TextRows

__all__ = ["first_step", "said"]

#: max |ratio − 1| between two forward passes of the same weights, by the dtype they run in: the
#: parts that a batch is cut into change the order of sums, nothing else may
_RATIO = {torch.float32: 1e-5, torch.float64: 1e-6}
_RATIO_HALF = 0.5
#: an accelerator also takes other kernels for other shapes
_RATIO_ACCELERATOR = 10.0
#: mean gap between sampler and trainer, nats per token, that rounding explains
_GAP = {torch.float32: 1e-4, torch.bfloat16: 0.1}
#: fraction of groups with unequal rewards below which there is little to learn from
_LIVE = 0.1


def first_step(policy: LanguagePolicy, batch: TensorDict, rows: int = 8) -> dict[str, float]:
    """Check a fresh batch against the policy that sampled it.

    Parameters
    ----------
    rows : int
        How many of the batch's rows are computed; chosen evenly.

    Returns
    -------
    dict
        ``check/ratio_deviation`` (max |π_train / π_old − 1| of the training forward against the
        no-gradient one), ``sampler/log_prob_gap_mean`` and ``_max`` (sampler against trainer, for
        information: it depends on the dtypes).

    Raises
    ------
    UserError
        Where the ratio isn't 1 (something random or stateful in the forward pass, such as dropout),
        or prompts don't start with exactly one beginning token where the model has one.
    """
    _check_bos(policy, batch)
    count = batch.batch_size[0]
    index = torch.arange(0, count, max(1, count // rows), device=batch["group"].device)[:rows]
    # Each side computes the rows in its own way: alone without gradient, together with it.
    parts = policy.micro_batches(batch[index], None)
    part = parts[0] if len(parts) == 1 else batch[index]
    old = policy.log_prob(part, micro_batch_size=max(1, len(index) // 2))
    with torch.enable_grad():
        new = policy.evaluate(part).log_prob.detach()
    text = TextRows.of(part)
    deviation = float(_live(new - old, text).expm1().abs().max())
    limit = _RATIO.get(policy.computed_dtype(), _RATIO_HALF)
    if policy.device.type != "cpu":
        limit = min(_RATIO_HALF, limit * _RATIO_ACCELERATOR)
    if not deviation <= limit:
        raise UserError(
            f"the policy doesn't agree with itself before the first update: max |ratio − 1| ="
            f" {deviation:.2g} (at most {limit:g}) between two forward passes of the same weights."
            " Something in the model is random or keeps state (dropout, routing noise): turn it"
            " off in the model's config."
        )
    gap = _live(new - part["log_prob"][:, : new.shape[1]], text).abs()
    return {
        "check/ratio_deviation": deviation,
        "sampler/log_prob_gap_mean": float(gap.mean()),
        "sampler/log_prob_gap_max": float(gap.max()),
    }


def said(policy: LanguagePolicy, batch: TensorDict, figures: dict[str, float]) -> list[str]:
    """Put the figures of a first round into sentences; what looks wrong comes with its meaning.

    Parameters
    ----------
    figures : dict
        Of :func:`first_step`, and ``group/live_fraction`` where there are groups.
    """
    trainer, sampler = policy.computed_dtype(), policy.sampling_dtype()
    names = [str(dtype).removeprefix("torch.") for dtype in (sampler, trainer)]
    mean, largest = (figures[f"sampler/log_prob_gap_{k}"] for k in ("mean", "max"))
    live = figures.get("group/live_fraction")
    groups = "" if live is None else f"; {live:.0%} of the groups have unequal rewards"
    bos = _bos_seen(policy, batch)
    sentences = [
        f"first step: max |ratio − 1| {figures['check/ratio_deviation']:.1e}; {bos}; sampler"
        f" ({names[0]}) and trainer ({names[1]}) differ by {mean:.1e} nats per token, at most"
        f" {largest:.1e}{groups}."
    ]
    if mean > _GAP[torch.float32 if trainer == sampler == torch.float32 else torch.bfloat16]:
        sentences.append(
            f"warning: sampler and trainer differ by {mean:.1e} nats per token, more than rounding"
            f" explains in {' and '.join(dict.fromkeys(names))}: the policy learns from other"
            " samples than its own. Look at the sampling parameters and dtypes."
        )
    if live is not None and live < _LIVE and bool(batch["mask"].any()):
        few = f"only {live:.0%} of the groups have" if live else "no group of this batch has"
        rest = "the others teach" if live else "it teaches"
        sentences.append(
            f"warning: {few} unequal rewards, and {rest} nothing: the data are too hard or too easy"
            " for this model, or the reward never pays."
        )
    return sentences


def _prompts(batch: TensorDict) -> list[list[int]]:
    width = batch["prompt_ids"].shape[1]
    padded = zip(batch["prompt_ids"].tolist(), batch["prompt_length"].tolist(), strict=True)
    return [ids[width - length :] for ids, length in padded]


def _bos_seen(policy: LanguagePolicy, batch: TensorDict) -> str:
    """Say how many prompts begin with the beginning token; `_check_bos` refused what is wrong."""
    if policy.codec.bos_id is None:
        return "the tokenizer has no BOS"
    prompts = _prompts(batch)
    count = sum(policy.codec.leading_bos(prompt) == 1 for prompt in prompts)
    if count == len(prompts):
        return "one BOS per prompt"
    if not count:
        return "no BOS in the prompts, as neither tokenizer nor template puts one"
    return f"one BOS in {count} of {len(prompts)} prompts"


def _check_bos(policy: LanguagePolicy, batch: TensorDict) -> None:
    for prompt in _prompts(batch):
        count = policy.codec.leading_bos(prompt)
        if count > 1 or (count == 0 and policy.codec.wants_bos(prompt)):
            raise UserError(
                f"a prompt starts with {count} beginning tokens (id {policy.codec.bos_id}) instead"
                " of one: look at the tokenizer's chat template and its add_bos_token setting."
            )


def _live(values: Tensor, rows: TextRows) -> Tensor:
    return values.reshape(-1).index_select(0, rows.live)
