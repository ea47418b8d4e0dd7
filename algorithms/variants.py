"""GRPO with other knobs, by the names that the papers gave them; docs/algorithms/variants.md.

For G completions of one prompt with rewards r_i, ratios ρ_it and s_i = (Π_t ρ_it)^(1/|o_i|):

    Dr. GRPO      A_i = r_i − mean(r)               Σ_it min(ρ_it A_i, clip(ρ_it) A_i) / (G·L_max)
    GSPO          A_i as GRPO's                     1/G Σ_i min(s_i A_i, clip(s_i) A_i)
    CISPO         A_i as GRPO's                     Σ_it sg[min(ρ_it, 1+ε)] A_i log π_it / Σ_i|o_i|
    RLOO          A_i = r_i − mean of the others    Σ_it ρ_it A_i / Σ_i|o_i|
    REINFORCE++   A_it = Σ_{u≥t} r_iu − β KL_iu, then mean 0 and std 1 over the batch's tokens

No line of a loss is here: what is not said is GRPO's, and so are the tuned settings in zoo/conf.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from zoo.algorithms.grpo import GRPO, GRPOKnobs
from zoo.plugins import KLKnobs

__all__ = ["CISPO", "GSPO", "RLOO", "DrGRPO", "ReinforcePP"]

_Baseline = Literal["group", "leave-one-out", "none"]
_Scale = Literal["group", "batch", "none"]
_Reduction = Literal["token-mean", "sequence-mean", "constant"]


@dataclass(frozen=True)
class DrGRPOKnobs(GRPOKnobs):
    """Dr. GRPO's settings."""

    #: no division by the std, which favours questions that are nearly always or never solved
    scale: _Scale = "none"
    #: no division by a completion's own length, which favours long wrong ones
    reduction: _Reduction = "constant"


class DrGRPO(GRPO):
    """GRPO done right (Liu et al. 2025, arXiv:2503.20783, §3.2)."""

    name = "dr_grpo"
    Knobs = DrGRPOKnobs


@dataclass(frozen=True)
class GSPOKnobs(GRPOKnobs):
    """GSPO's settings; the ranges and the four mini-batches are the paper's (§5.1)."""

    #: one ratio per completion
    ratio: Literal["token", "sequence"] = "sequence"
    #: ε_low of a geometric mean over tokens, hence a thousandth of GRPO's
    clip_low: float = 3e-4
    #: ε_high
    clip_high: float = 4e-4
    #: several updates per rollout: with one, the ratio is 1 and this is GRPO
    minibatch_size: int | None = 32


class GSPO(GRPO):
    """Group Sequence Policy Optimization (Zheng et al. 2025, arXiv:2507.18071, eq. 5–7)."""

    name = "gspo"
    Knobs = GSPOKnobs


@dataclass(frozen=True)
class CISPOKnobs(GRPOKnobs):
    """CISPO's settings; the paper names no ε_high, the bound of 5 is ScaleRL's (2510.13786)."""

    #: a bounded weight on every token's gradient, in place of a gradient that is cut off
    objective: Literal["clipped", "cispo"] = "cispo"
    #: no lower bound on the weight
    clip_low: float = 1.0
    #: the weight is at most 1 + ε_high
    clip_high: float = 4.0
    #: every token weighs the same
    reduction: _Reduction = "token-mean"
    #: several updates per rollout: with one, every weight is 1 and this is GRPO by token-mean
    minibatch_size: int | None = 32


class CISPO(GRPO):
    """Clipped importance-sampling weights (MiniMax-M1 2025, arXiv:2506.13585, eq. 4–5)."""

    name = "cispo"
    Knobs = CISPOKnobs


@dataclass(frozen=True)
class RLOOKnobs(GRPOKnobs):
    """RLOO's settings."""

    #: a baseline that does not depend on the sample itself
    baseline: _Baseline = "leave-one-out"
    #: rewards as they are
    scale: _Scale = "none"
    #: Σ_t log π(o_it) is the log-probability of the completion: no division by its own length
    reduction: _Reduction = "token-mean"


class RLOO(GRPO):
    """REINFORCE leave-one-out (Ahmadian et al. 2024, arXiv:2402.14740, eq. 5)."""

    name = "rloo"
    Knobs = RLOOKnobs


@dataclass(frozen=True)
class ReinforcePPKnobs(GRPOKnobs):
    """REINFORCE++'s settings; ``baseline="group"`` is the paper's REINFORCE++-baseline."""

    #: no group: single samples do, algo.group_size=1
    baseline: _Baseline = "none"
    #: the batch is what scales
    scale: _Scale = "none"
    #: over all tokens of the batch
    normalize_advantage: bool = True
    #: every token weighs the same
    reduction: _Reduction = "token-mean"
    #: a penalty per token, in the reward
    kl: KLKnobs = field(
        default_factory=lambda: KLKnobs(coefficient=0.01, estimator="k1", where="reward")
    )


class ReinforcePP(GRPO):
    """REINFORCE++ (Hu et al. 2025, arXiv:2501.03262)."""

    name = "reinforce_pp"
    Knobs = ReinforcePPKnobs
