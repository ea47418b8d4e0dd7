"""Group Relative Policy Optimization (Shao et al. 2024, DeepSeekMath, arXiv:2402.03300).

For G completions of one prompt with rewards r_1 … r_G:

    A_i = (r_i − mean(r)) / (std(r) + 1e-4)              the same for every token of completion i
    ρ_it = π(o_it | q, o_i,<t) / π_old(o_it | q, o_i,<t)
    L = −1/G Σ_i 1/|o_i| Σ_t min(ρ_it A_i, clip(ρ_it, 1 − ε_low, 1 + ε_high) A_i) + β KL(π ‖ π_ref)

std has n − 1 in its denominator. What differs from the paper: β defaults to 0 and the divergence
from the *reference* is monitored; a group whose rewards are all equal gives exactly 0, by max − min
and not by the rounding residue of its std; such groups still count in the mean over completions.
On control tasks a group is G trajectories from one seeded reset, r_i is the return of one, and a
step is a token. On saved rollouts, of a behaviour policy μ, the loss of every step is weighted by
min(w̄, π_old/μ).

What other papers change of it are knobs: the baseline, the scale, the level of the ratio, the
objective, the reduction. algorithms/variants.py and dapo.py have those combinations by their names.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from zoo.algorithms.grpo_checks import refuse, refuse_on_control
from zoo.core.algorithm import Algorithm
from zoo.core.learner import OptimizerKnobs
from zoo.core.protocols import Loss, Plugin, Update
from zoo.core.schema import in_range
from zoo.functional import returns, surrogate
from zoo.plugins import EntropyKnobs, ImportanceKnobs, KLKnobs, RewardScaleKnobs
from zoo.rollouts.refill import RefillKnobs

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
    #: what r_i is compared with: its group's mean, that of the group's others, or 0 (REINFORCE with
    #: the reward-to-go of each step, which takes scale=none)
    baseline: Literal["group", "leave-one-out", "none"] = "group"
    #: divide the group's advantage by its std (group), the batch's (batch), or not at all (none)
    scale: Literal["group", "batch", "none"] = "group"
    #: after that, subtract the mean and divide by the std over the rollout's steps
    normalize_advantage: bool = False
    #: completions cut at the length limit leave the loss, and stay in their group's mean (text)
    overlong_filter: bool = False
    #: dynamic sampling: groups that teach nothing are left out and others sampled instead (text)
    refill: RefillKnobs = field(default_factory=RefillKnobs)
    #: ρ of a step, or of a whole completion: the geometric mean over its steps (GSPO)
    ratio: Literal["token", "sequence"] = "token"
    #: clipped surrogate, or a clipped weight on an unclipped gradient (CISPO)
    objective: Literal["clipped", "cispo"] = "clipped"
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
    #: importance of steps that an earlier policy took (rollout=stored)
    importance: ImportanceKnobs = field(default_factory=ImportanceKnobs)

    def __post_init__(self) -> None:
        """Refuse what can't be trained with."""
        super().__post_init__()
        in_range(self, "group_size", "epochs", "minibatch_size", low=1)
        in_range(self, "clip_low", "clip_high", low=0)
        in_range(self, "dual_clip", low=1, above=True)
        refuse(self)


class GRPO(Algorithm):
    """Clipped policy gradient with the group's mean reward as its baseline; no critic."""

    name = "grpo"
    Knobs = GRPOKnobs
    knobs: GRPOKnobs
    weighs_losses_only = True

    def attach(self, knobs: GRPOKnobs, policy: Any, plugins: Sequence[Plugin]) -> None:
        """Take the parts, but for those that only completions have a meaning for."""
        if policy.stepwise:
            refuse_on_control(knobs)
        super().attach(knobs, policy, plugins)

    def prepare(self, batch: TensorDict) -> TensorDict:
        """Give every live step its row's advantage within the group, or its own reward-to-go."""
        k, live = self.knobs, batch["mask"]
        if k.baseline == "none":
            flags = batch["terminated"], batch["truncated"]
            advantage = returns.discounted(batch["reward"], *flags, gamma=1.0, mask=live)
        else:
            total = (batch["reward"] * live).sum(1)
            advantage = returns.group_advantage(
                total, batch["group"], k.scale, live.any(1), k.baseline
            )
            advantage = advantage[:, None] * live
        if k.overlong_filter:
            batch["mask"] = live = live & ~batch["truncated"].any(1, keepdim=True)
        if k.normalize_advantage:
            advantage = returns.normalize(advantage, live)
        batch["advantage"] = advantage
        self.write_old_log_prob(batch)
        return batch

    def losses(self, batch: TensorDict, update: Update) -> Iterator[Loss]:
        """Yield the one policy loss; the KL term is the plugin's."""
        k = self.knobs
        out = self.evaluation(batch)
        old = self.old_log_prob(batch, out)
        log_ratio = out.log_prob - old
        if k.ratio == "sequence":
            log_ratio = surrogate.sequence_log_ratio(log_ratio, batch["mask"])
        low, high, advantage = k.clip_low, k.clip_high, batch["advantage"]
        if k.objective == "cispo":
            policy = surrogate.cispo(log_ratio, out.log_prob, advantage, low, high)
        else:
            policy = surrogate.clipped(log_ratio, advantage, low, high, dual_clip=k.dual_clip)
        policy = self.weighted(policy, batch, old)
        metrics = {}
        if update.diagnose:
            metrics = self.diagnostics(log_ratio, advantage, out, low, high)
        loss = Loss(self.name, {"policy": policy}, batch["mask"], ("policy",), out, metrics)
        loss.log_ratio = log_ratio.detach()
        yield loss
