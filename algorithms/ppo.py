"""Proximal Policy Optimization (Schulman et al. 2017, arXiv:1707.06347).

    ρ_t = π(a_t|s_t) / π_old(a_t|s_t)
    L_policy = −E[ min(ρ_t A_t, clip(ρ_t, 1 − ε_low, 1 + ε_high) A_t) ]
    L_value  = c_v · ½ E[ max((V − R)², (V_old + clip(V − V_old, ±ε_v) − R)²) ]

with A_t by GAE(λ) (Schulman et al. 2016, arXiv:1506.02438). On saved rollouts, of a behaviour
policy μ, A_t and R are V-trace's and L_policy is weighted by min(w̄, π_old/μ). What differs from the
paper: advantages are normalised over the whole rollout, not per mini-batch, so that gradients do
not depend on how the rollout is cut; truncated episodes bootstrap from their true final
observation. Environment steps and tokens are the same thing here: on text a step is a token and V a
head on the last layer. With ``double_q`` V is the smaller of two critics' values in A_t and R, and
L_value the sum of both critics' losses (after Fujimoto et al. 2018, arXiv:1802.09477).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from zoo.core.algorithm import Algorithm
from zoo.core.batch import flatten_steps
from zoo.core.learner import OptimizerKnobs
from zoo.core.protocols import Loss, Update
from zoo.core.schedule import schedule
from zoo.core.schema import in_range
from zoo.functional import returns, surrogate
from zoo.functional.divergence import k3
from zoo.functional.value import value_loss
from zoo.functional.vtrace import vtrace
from zoo.plugins import EntropyKnobs, ImportanceKnobs, KLKnobs, RewardScaleKnobs

if TYPE_CHECKING:
    from tensordict import TensorDict

__all__ = ["PPO"]


@dataclass(frozen=True)
class PPOKnobs(OptimizerKnobs):
    """PPO's settings; the defaults are for control, conf/tuned/ppo/text.yaml has those for text."""

    #: discount of future rewards per step
    gamma: float = 0.99
    #: GAE's λ: 1 is the Monte-Carlo return (right for a terminal reward), 0 one-step TD
    gae_lambda: float = 0.95
    #: passes over each rollout; more reuse per sample, larger policy change
    epochs: int = 10
    #: rows per optimizer step (steps on control, completions on text); None takes all
    minibatch_size: int | None = 64
    #: lower clip range ε_low
    clip_low: float = 0.2
    #: upper clip range ε_high
    clip_high: float = 0.2
    #: schedule of both clip ranges over the run
    clip_schedule: Literal["constant", "linear", "cosine"] = "constant"
    #: a mini-batch whose KL(π_old ‖ π) exceeds 1.5 times this ends the round before its step is
    #: taken; None is off, 0.01 to 0.05 usual
    target_kl: float | None = None
    #: weight of the value loss
    value_coefficient: float = 0.5
    #: clip range of the value change, max form; None trusts the new value
    value_clip: float | None = None
    #: mse or huber
    value_loss: Literal["mse", "huber"] = "mse"
    #: twin critics, both trained; advantages are made from the smaller of their values (control)
    double_q: bool = False
    #: subtract the mean and divide by the std over the rollout
    normalize_advantage: bool = True
    #: gradients of bounded size are part of PPO's usual setting
    max_grad_norm: float = 0.5
    #: bonus on the policy's entropy
    entropy: EntropyKnobs = field(default_factory=EntropyKnobs)
    #: divergence from a reference policy
    kl: KLKnobs = field(default_factory=KLKnobs)
    #: scaling of rewards for training; evaluation reports raw ones
    reward_scale: RewardScaleKnobs = field(default_factory=RewardScaleKnobs)
    #: importance of steps that an earlier policy took (rollout=stored)
    importance: ImportanceKnobs = field(default_factory=ImportanceKnobs)

    def __post_init__(self) -> None:
        """Refuse what can't be trained with."""
        super().__post_init__()
        in_range(self, "gamma", "gae_lambda", low=0, high=1)
        in_range(self, "epochs", "minibatch_size", low=1)
        in_range(self, "clip_low", "clip_high", "value_coefficient", low=0)
        in_range(self, "value_clip", "target_kl", low=0, above=True)


class PPO(Algorithm):
    """Clipped policy gradient with a learned value baseline."""

    name = "ppo"
    Knobs = PPOKnobs
    knobs: PPOKnobs
    needs_critic = True

    @classmethod
    def critics(cls, knobs: PPOKnobs) -> int:
        """Return how many value networks there are."""
        return 2 if knobs.double_q else 1

    def prepare(self, batch: TensorDict) -> TensorDict:
        """Write values, advantages and returns; cut fragments into steps where they are free."""
        k = self.knobs
        batch["value"], batch["next_value"] = self.policy.values(batch)
        names = ("reward", "value", "next_value", "terminated", "truncated", "mask")
        steps, weight = {name: batch[name] for name in names}, batch.get("importance", None)
        if k.double_q:  # [B, T, 2]
            steps |= {name: steps[name].amin(-1) for name in ("value", "next_value")}
        if weight is None:
            estimate = returns.gae(**steps, gamma=k.gamma, lam=k.gae_lambda)
        else:
            estimate = vtrace(**steps, weight=weight, gamma=k.gamma, lam=k.gae_lambda)
        advantage, batch["return"] = estimate
        if k.normalize_advantage:
            advantage = returns.normalize(advantage, batch["mask"])
        batch["advantage"] = advantage
        self.write_old_log_prob(batch)
        # What the estimates were made from is not shuffled and cut again for every epoch.
        batch = batch.exclude("reward", "terminated", "truncated", "next_observation", "next_value")
        return flatten_steps(batch) if self.policy.stepwise else batch

    def losses(self, batch: TensorDict, update: Update) -> Iterator[Loss]:
        """Yield the one loss of policy and value together."""
        k = self.knobs
        out = self.evaluation(batch)
        factor = schedule(k.clip_schedule, update.progress)
        old = self.old_log_prob(batch, out)
        log_ratio = out.log_prob - old
        low, high = k.clip_low * factor, k.clip_high * factor
        clipped = surrogate.clipped(log_ratio, batch["advantage"], low, high)
        policy, target = self.weighted(clipped, batch), batch["return"]
        assert out.value is not None  # needs_critic
        if k.double_q:
            target = target.unsqueeze(-1).expand_as(out.value)
        value = value_loss(out.value, batch["value"], target, clip=k.value_clip, kind=k.value_loss)
        value = value.sum(-1) if k.double_q else value
        terms = {"policy": policy, "value": k.value_coefficient * value}
        metrics = {}
        if update.diagnose:
            metrics = self.diagnostics(log_ratio, batch["advantage"], out, low, high)
        loss = Loss("ppo", terms, batch["mask"], out=out, metrics=metrics)
        loss.log_ratio = log_ratio.detach()
        if k.target_kl is not None:
            loss.divergence, loss.limit = k3(old, out.log_prob).detach(), 1.5 * k.target_kl
        yield loss
