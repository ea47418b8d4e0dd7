"""From elementwise losses [B, T] to the one number that is differentiated.

A mean taken per micro-batch depends on how the batch was cut: micro-batches with 10 and 100 live
tokens must give (Σ₁ + Σ₂)/110, not the mean of two means. So the denominators of the *whole* update
are counted first, over all micro-batches and ranks, and every part is divided by them. The sum over
parts is then exactly the whole, and so are its gradients.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

__all__ = ["Denominators", "Mode", "aggregate", "denominators", "weights"]

Mode = Literal["token-mean", "sequence-mean", "constant"]


@dataclass(frozen=True)
class Denominators:
    """What each mode divides by; counts add up over micro-batches (``+``) and ranks.

    Attributes
    ----------
    tokens : Tensor
        Scalar int64, live steps.
    sequences : Tensor
        Scalar int64, rows with at least one live step.
    constant : Tensor or None
        Scalar, ``sequences`` × the length limit; None where no limit was given.
    dense : bool
        Every step of this rank is live, so that nothing needs to be masked.
    """

    tokens: Tensor
    sequences: Tensor
    constant: Tensor | None = None
    dense: bool = False

    def across_ranks(self) -> Denominators:
        """Sum over all ranks of torch.distributed; itself where that is not in use.

        Gradients must then be *summed* over the ranks too, not averaged.
        """
        if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
            return self
        counted = [self.tokens, self.sequences]
        counted += [torch.zeros_like(self.tokens) if self.constant is None else self.constant]
        counts = torch.stack([count.double() for count in counted])
        torch.distributed.all_reduce(counts)
        tokens, sequences, constant = counts.unbind()
        constant_or_none = None if self.constant is None else constant
        return Denominators(tokens, sequences, constant_or_none, self.dense)


def denominators(mask: Tensor, max_length: float | None = None) -> Denominators:
    """Count what :func:`aggregate` divides by.

    Parameters
    ----------
    mask : Tensor
        [B, T] bool, of the whole update or of a part to be added to others.
    max_length : float, optional
        Length limit of a sequence, for the mode ``constant``. It is a setting, not ``T``: padding
        differs from part to part.
    """
    if mask.ndim != 2 or mask.dtype != torch.bool:
        raise ValueError(f"mask must be [B, T] bool, got {tuple(mask.shape)} {mask.dtype}")
    tokens = mask.sum()
    dense = mask.numel() > 0 and int(tokens) == mask.numel()
    sequences = tokens.new_tensor(len(mask)) if dense else mask.any(1).sum()
    limit = None if max_length is None else sequences * max_length
    return Denominators(tokens, sequences, limit, dense)


def aggregate(values: Tensor, mask: Tensor, mode: Mode, denominators: Denominators) -> Tensor:
    """Reduce one part's elementwise values to its share of the update's objective.

    ::

        token-mean     Σ_{i,t} x_{i,t} / Σ_i |y_i|          every token weighs the same (DAPO)
        sequence-mean  Σ_i (Σ_t x_{i,t} / |y_i|) / n        every sequence weighs the same (GRPO)
        constant       Σ_{i,t} x_{i,t} / (n·L_max)           no length enters at all (Dr. GRPO)

    |y_i| counts the live steps of row i, n the rows that have any; rows with none add nothing.

    Parameters
    ----------
    values : Tensor
        [B, T] float32; anything, NaN included, where the mask is False.
    mask : Tensor
        [B, T] bool. For ``sequence-mean`` a row must be whole.
    mode : {"token-mean", "sequence-mean", "constant"}
        Which weighting.
    denominators : Denominators
        Of the whole update, summed over all its parts.

    Returns
    -------
    Tensor
        Scalar float32; over the parts of an update they sum to the whole.
    """
    if values.shape != mask.shape:
        raise ValueError(f"values {tuple(values.shape)} and mask {tuple(mask.shape)} differ")
    live = values if denominators.dense else values.masked_fill(~mask, 0.0)
    if mode == "token-mean":
        return live.sum() / denominators.tokens.clamp(min=1)
    if mode == "sequence-mean":
        length = mask.sum(1).clamp(min=1)
        return (live.sum(1) / length).sum() / denominators.sequences.clamp(min=1)
    if mode != "constant":
        raise ValueError(f"mode is token-mean, sequence-mean or constant, got {mode!r}")
    if denominators.constant is None:
        raise ValueError("mode constant needs denominators counted with max_length")
    return live.sum() / denominators.constant.clamp(min=1)


def weights(mask: Tensor, mode: Mode, denominators: Denominators) -> Tensor:
    """Return what :func:`aggregate` weighs every value by: its derivative, [B, T] float32.

    ``values.backward(weights(…))`` is ``aggregate(values, …).backward()`` without the sum.
    """
    if mode == "sequence-mean":
        per_row = 1 / denominators.sequences.clamp(min=1)
        return mask * per_row / mask.sum(1, keepdim=True).clamp(min=1)
    if mode == "token-mean":
        return mask / denominators.tokens.clamp(min=1)
    if mode != "constant":
        raise ValueError(f"mode is token-mean, sequence-mean or constant, got {mode!r}")
    if denominators.constant is None:
        raise ValueError("mode constant needs denominators counted with max_length")
    return mask / denominators.constant.clamp(min=1)
