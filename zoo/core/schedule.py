"""Schedules: a value as a function of the run's progress."""

from __future__ import annotations

import math

from zoo.errors import UserError, nearest

__all__ = ["SCHEDULES", "schedule"]

SCHEDULES = ("constant", "linear", "cosine", "warmup-cosine")


def schedule(
    kind: str, progress: float, warmup: float = 0.1, final: float = 0.0, share: float = 0.0
) -> float:
    """Return the factor on the initial value at a fraction of the run.

    Parameters
    ----------
    kind : {"constant", "linear", "cosine", "warmup-cosine"}
        ``linear``: 1 − p·(1 − final). ``cosine``: final + (1 − final)·(1 + cos πp)/2.
        ``warmup-cosine``: p/warmup up to ``warmup``, then the *cosine* over the rest.
    progress : float
        Fraction of the budget spent, clamped to [0, 1].
    warmup : float
        Fraction of the run spent warming up; only ``warmup-cosine`` reads it.
    final : float
        Factor at the end of the run.
    share : float
        Fraction of the run that the present round spends: a warm-up gives it the factor of its
        end, or the first round would learn nothing.

    Examples
    --------
    >>> schedule("linear", 0.25), schedule("cosine", 0.5)
    (0.75, 0.5)
    """
    p = min(max(progress, 0.0), 1.0)
    if kind == "constant":
        return 1.0
    if kind == "linear":
        return 1.0 - p * (1.0 - final)
    if kind == "warmup-cosine":
        if p < warmup:
            return min((p + share) / warmup, 1.0)
        p = (p - warmup) / (1.0 - warmup) if warmup < 1.0 else 1.0
    elif kind != "cosine":
        raise UserError(
            f"unknown schedule '{kind}': use one of {', '.join(SCHEDULES)}."
            + nearest(kind, SCHEDULES)
        )
    return final + (1.0 - final) * (1.0 + math.cos(math.pi * p)) / 2.0
