"""Group Relative Policy Optimization (Shao et al. 2024, DeepSeekMath, arXiv:2402.03300).

For G completions of one prompt with rewards r_1 … r_G:

    A_i = (r_i − mean(r)) / (std(r) + 1e-4)              the same for every token of completion i
    ρ_it = π(o_it | q, o_i,<t) / π_old(o_it | q, o_i,<t)
    L = −1/G Σ_i 1/|o_i| Σ_t min(ρ_it A_i, clip(ρ_it, 1 − ε_low, 1 + ε_high) A_i) + β KL(π ‖ π_ref)

std has n − 1 in its denominator. What differs from the paper: β defaults to 0 and the divergence
from the *reference* is monitored; a group whose rewards are all equal gives exactly 0, by max − min
and not by the rounding residue of its std; such groups still count in the mean over completions.
On control tasks a group is G trajectories from one seeded reset, r_i is the return of one, and a
step is a token.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from zoo.core.algorithm import Algorithm
from zoo.core.learner import OptimizerKnobs
from zoo.core.protocols import Loss, Update
from zoo.core.schema import in_range
from zoo.errors import UserError
from zoo.functional import returns, surrogate
from zoo.plugins import EntropyKnobs, KLKnobs, RewardScaleKnobs

if TYPE_CHECKING:
    from tensordict import TensorDict

__all__ = ["GRPO"]


@dataclass(frozen=True)
class GRPOKnobs(OptimizerKnobs):
    """GRPO's settings."""

    #: small steps are part of the method; 1e-6 for full training of a 0.6 B model
    lr: float = 1e-6
    #: faster second moment than Adam's own: there are few, noisy updates
    betas: tuple[float, float] = (0.9, 0.98)
    #: samples per prompt, or trajectories per seeded reset
    group_size: int = 8
    #: divide the group's advantage by its std (group), the batch's (batch), or not at all (none)
    scale: Literal["group", "batch", "none"] = "group"
    #: passes over each rollout; 1 is on-policy
    epochs: int = 1
    #: rows per optimizer step; None takes the whole rollout at once
    minibatch_size: int | None = None
    #: lower clip range ε_low; without effect at one update per rollout
    clip_low: float = 0.2
    #: upper clip range ε_high
    clip_high: float = 0.2
    #: upper bound −dual_clip·|A| on the loss of bad samples; None is off
    dual_clip: float | None = None
    #: sequence-mean is the paper's 1/|o_i|
    reduction: Literal["token-mean", "sequence-mean", "constant"] = "sequence-mean"
    #: bonus on the policy's entropy
    entropy: EntropyKnobs = field(default_factory=EntropyKnobs)
    #: divergence from the reference; coefficient 0 still monitors it
    kl: KLKnobs = field(default_factory=KLKnobs)
    #: scaling of rewards for training; evaluation reports raw ones
    reward_scale: RewardScaleKnobs = field(default_factory=RewardScaleKnobs)

    def __post_init__(self) -> None:
        """Refuse what can't be trained with."""
        super().__post_init__()
        if self.group_size < 2:
            raise UserError(
                f"GRPO needs group_size ≥ 2 (got {self.group_size}): a group of one has no"
                " baseline. Use algo=ppo for single samples."
            )
        in_range(self, "epochs", "minibatch_size", low=1)
        in_range(self, "clip_low", "clip_high", low=0)
        in_range(self, "dual_clip", low=1, above=True)


class GRPO(Algorithm):
    """Clipped policy gradient with the group's mean reward as its baseline; no critic."""

    name = "grpo"
    Knobs = GRPOKnobs
    knobs: GRPOKnobs

    def prepare(self, batch: TensorDict) -> TensorDict:
        """Give every live step of a row the row's advantage within its group."""
        live = batch["mask"]
        total = (batch["reward"] * live).sum(1)
        advantage = returns.group_advantage(
            total, batch["group"], scale=self.knobs.scale, valid=live.any(1)
        )
        batch["advantage"] = advantage[:, None] * live
        self.write_old_log_prob(batch)
        return batch

    def losses(self, batch: TensorDict, update: Update) -> Iterator[Loss]:
        """Yield the one policy loss; the KL term is the plugin's."""
        k = self.knobs
        out = self.evaluation(batch)
        log_ratio = out.log_prob - self.old_log_prob(batch, out)
        low, high, advantage = k.clip_low, k.clip_high, batch["advantage"]
        policy = surrogate.clipped(log_ratio, advantage, low, high, dual_clip=k.dual_clip)
        metrics = {}
        if update.diagnose:
            metrics = self.diagnostics(log_ratio, advantage, out, low, high)
        yield Loss("grpo", {"policy": policy}, batch["mask"], ("policy",), out, metrics)
