"""Decoupled Clip and Dynamic sAmpling Policy Optimization (Yu et al. 2025, arXiv:2503.14476).

    L = −1/Σ_i|o_i| Σ_i Σ_t min(ρ_it A_i, clip(ρ_it, 1 − ε_low, 1 + ε_high) A_i)      (eq. 8)
    where 0 < |{right answers}| < G for every group                                    (eq. 11)

with GRPO's A_i. It is GRPO with four other parts: a higher ceiling than floor of the clip range
(clip-higher, §3.1), batches that are refilled until they hold informative groups only (§3.2,
zoo/rollouts/refill.py), a loss in which every token weighs the same (§3.3), and completions cut at
the length limit left out of it (§3.4). No critic, no KL. The soft overlong penalty of §3.4 (eq. 13)
is the reward item `overlong`, to be asked for with its limit and cache.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from zoo.algorithms.grpo import GRPO, GRPOKnobs
from zoo.rollouts.refill import RefillKnobs

__all__ = ["DAPO"]


@dataclass(frozen=True)
class DAPOKnobs(GRPOKnobs):
    """DAPO's settings; on control refill and filter are off, see conf/tuned/dapo/control.yaml."""

    #: upper clip range: a rare token may become likelier by more than a likely one can
    clip_high: float = 0.28
    #: every token weighs the same, those of long completions too
    reduction: Literal["token-mean", "sequence-mean", "constant"] = "token-mean"
    #: dynamic sampling
    refill: RefillKnobs = field(default_factory=lambda: RefillKnobs(rounds=8))
    #: an answer that was cut off says nothing about its tokens
    overlong_filter: bool = True


class DAPO(GRPO):
    """GRPO with clip-higher, dynamic sampling, token-mean and overlong filter."""

    name = "dapo"
    Knobs = DAPOKnobs
