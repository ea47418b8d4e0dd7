"""Divergence from a reference policy: as a penalty in loss or reward, or only watched.

    in the loss     term = β·k(log π, log ref)            k: k2, k3, or the exact divergence
    in the reward   r_t ← r_t − β·(log π(a_t) − log ref(a_t))

The reference is the policy as it was before the first update, or an average of its past. It is not
the old policy of a clipped ratio. zoo/functional/divergence.py says which estimator is right where.

Trajectories whose group has equal rewards ("dead" groups: advantage exactly 0) still count here:
the penalty acts on every live step, and they stay in the denominators. In the reward the penalty
differs from trajectory to trajectory, so that such a group is no longer dead at all.

With an adaptive coefficient (Ziegler et al. 2019, arXiv:1909.08593, §2.2), once per round::

    β ← β·(1 + clip(KL/target − 1, −0.2, 0.2)/horizon)
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from zoo.core.targets import Target
from zoo.errors import UserError
from zoo.functional import divergence
from zoo.plugins.facts import Facts

if TYPE_CHECKING:
    from tensordict import TensorDict

    from zoo.core.protocols import Evaluation, Update

__all__ = ["KL", "KLKnobs"]

_ESTIMATORS = {"k2": divergence.k2, "k3": divergence.k3}


@dataclass(frozen=True)
class KLKnobs:
    """Settings of the divergence from the reference."""

    #: weight β of the penalty; 0 only watches. Raise it when kl/reference_k1 runs away
    coefficient: float = 0.0
    #: k2, k3 (low variance) or exact in the loss; k1 in the reward
    estimator: Literal["k1", "k2", "k3", "exact"] = "k3"
    #: whether the penalty goes into the loss or, before advantages are made, into the reward
    where: Literal["loss", "reward"] = "loss"
    #: divergence per step in nats that an adaptive coefficient holds; None keeps it fixed
    target: float | None = None
    #: rounds in which an adaptive coefficient moves by at most a fifth
    horizon: float = 10.0
    #: the policy before its first update (frozen), or an average of its past (ema)
    reference: Literal["frozen", "ema"] = "frozen"
    #: ema: share of the old average kept per round
    decay: float = 0.99
    #: at coefficient 0: measure on every so many rollouts, each a forward of the reference; 0 never
    monitor_every: int = 10

    def __post_init__(self) -> None:
        """Refuse estimators where their expected gradient is not a divergence's."""
        if self.coefficient < 0 or self.monitor_every < 0:
            raise UserError(
                "kl.coefficient and kl.monitor_every must not be negative"
                f" (got {self.coefficient} and {self.monitor_every})."
            )
        if self.where == "loss" and self.estimator == "k1":
            raise UserError(
                "kl.estimator=k1 in the loss is no penalty: with samples as constants its expected"
                " gradient is zero. Use k2, k3 or exact, or kl.where=reward."
            )
        if self.where == "reward" and self.estimator != "k1":
            raise UserError(
                f"kl.where=reward needs kl.estimator=k1 (got {self.estimator}): only there is the"
                " expected gradient that of KL(π‖ref); k2's and k3's vanish near the reference,"
                " and the exact divergence costs a forward for the same expectation."
            )
        if self.target is not None and (self.target <= 0 or self.coefficient == 0):
            raise UserError(
                f"kl.target must be positive and needs kl.coefficient > 0 to start from (got"
                f" {self.target} and {self.coefficient}): the coefficient moves by factors."
            )
        if self.horizon < 1:
            raise UserError(f"kl.horizon must be at least 1 round (got {self.horizon}).")
        if not 0 <= self.decay < 1:
            raise UserError(f"kl.decay must be within [0, 1) (got {self.decay}).")


class KL:
    """The KL plugin.

    Parameters
    ----------
    knobs : KLKnobs
        Settings.
    """

    name = "kl"

    def __init__(self, knobs: KLKnobs) -> None:
        self.knobs = knobs
        self._coefficient = knobs.coefficient
        self._rollouts = 0
        self._target: Target | None = None
        self._loaded: dict[str, Any] | None = None  # a reference that waits for its module

    @classmethod
    def build(cls, knobs: KLKnobs, facts: Facts) -> KL:
        """Make the plugin for a run, or refuse it with the reason.

        Raises
        ------
        UserError
            Where the policy has no log-probabilities or learns from replay.
        """
        if facts.stochastic and facts.on_policy:
            return cls(knobs)
        if knobs.coefficient > 0 and not facts.stochastic:
            raise UserError(
                f"{facts.algorithm} acts without an action distribution, so there is no KL to a"
                " reference: leave kl.coefficient at 0, or use algo=ppo or algo=sac."
            )
        if knobs.coefficient > 0 and knobs.estimator != "exact":
            raise UserError(
                f"{facts.algorithm} learns from replayed steps of many past policies, of which"
                f" kl.estimator={knobs.estimator} can't be estimated: use kl.estimator=exact."
            )
        if knobs.target is not None:
            raise UserError(
                "kl.target moves the coefficient once per rollout, of which"
                f" {facts.algorithm} makes one every few steps: leave it out."
            )
        return cls(dataclasses.replace(knobs, monitor_every=0))

    @property
    def coefficient(self) -> float:
        """Return the present β."""
        return self._coefficient

    @property
    def reference(self) -> Any:
        """Return the reference policy, or None before the first rollout."""
        return None if self._target is None else self._target.module

    @property
    def exact_reference(self) -> Any:
        """Return the policy to give to ``evaluate(batch, reference)``, or None if not needed."""
        wanted = self.knobs.estimator == "exact" and self._coefficient > 0
        return self.reference if wanted else None

    def on_rollout(self, batch: TensorDict, policy: Any) -> dict[str, float]:
        """Write ``ref_log_prob`` where it is needed, and take the penalty off the reward."""
        k, active = self.knobs, self._coefficient > 0
        if not active and not k.monitor_every:
            return {}
        if self._target is None:  # before the first update, so it is the policy at its start
            self._target = Target(policy, 1 - k.decay, policy.reference_copy())
            self._target.module.eval()
            if self._loaded is not None:
                self._target.load_state_dict(self._loaded)
                self._loaded = None
        watched = bool(k.monitor_every) and self._rollouts % k.monitor_every == 0
        self._rollouts += 1
        if not watched and (not active or k.estimator == "exact"):
            return {"kl/coefficient": self._coefficient} if active else {}
        with torch.no_grad():
            batch["ref_log_prob"] = self.reference.log_prob(batch)
        if active and k.where == "reward":
            penalty = divergence.k1(self._log_prob(batch, policy), batch["ref_log_prob"])
            penalty = penalty.masked_fill(~batch["mask"], 0.0)
            batch["reward"] = batch["reward"] - self._coefficient * penalty
        return {"kl/coefficient": self._coefficient}

    @staticmethod
    def _log_prob(batch: TensorDict, policy: Any) -> Tensor:
        """Return log π as the trainer computes it; kept, for it is the old policy's too."""
        if batch.get("old_log_prob", None) is None:
            if policy.sampler_is_exact:
                sampled: Tensor = batch["log_prob"]
                return sampled
            with torch.no_grad():
                batch["old_log_prob"] = policy.log_prob(batch)
        log_prob: Tensor = batch["old_log_prob"]
        return log_prob

    def terms(self, out: Evaluation, batch: TensorDict, update: Update) -> dict[str, Tensor]:
        """Return β·KL per step where the penalty goes into the loss."""
        k = self.knobs
        if self._coefficient == 0 or k.where == "reward":
            return {}
        if k.estimator == "exact":
            if out.kl is None:
                raise ValueError("kl.estimator=exact needs evaluate(batch, kl.exact_reference)")
            return {"kl": self._coefficient * out.kl}
        estimate = _ESTIMATORS[k.estimator](out.log_prob, batch["ref_log_prob"])
        return {"kl": self._coefficient * estimate}

    def figures(self, out: Evaluation, batch: TensorDict) -> dict[str, Tensor]:
        """Return detached elementwise divergences [B, T], to be logged as means over live steps.

        From the trainer's own log-probabilities: a sampler's would add their rounding (its square
        to k3), which in bf16 is larger than the divergence of a young run.
        """
        figures = {} if out.kl is None else {"kl/reference_exact": out.kl.detach()}
        reference = batch.get("ref_log_prob", None)
        if reference is not None:
            pair = out.log_prob.detach(), reference
            figures["kl/reference_k1"] = divergence.k1(*pair)
            figures["kl/reference_k3"] = divergence.k3(*pair)
        return figures

    def after_update(self, metrics: Mapping[str, float]) -> None:
        """Move an adaptive coefficient by the measured divergence, and an averaged reference."""
        k = self.knobs
        exact = k.estimator == "exact"
        measured = metrics.get("kl/reference_exact" if exact else "kl/reference_k1")
        if k.target is not None and measured is not None:  # None: a round without a live step
            error = min(max(measured / k.target - 1, -0.2), 0.2)
            self._coefficient *= 1 + error / k.horizon
        if k.reference == "ema" and self._target is not None:
            self._target.update()

    def parameters(self) -> list[nn.Parameter]:
        """Nothing is learned."""
        return []

    def state_dict(self) -> dict[str, Any]:
        """Return β, the rollouts seen and the reference's weights, where there is one."""
        reference = self._loaded if self._target is None else self._target.state_dict()
        return {
            "coefficient": self._coefficient,
            "rollouts": self._rollouts,
            "reference": reference,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a :meth:`state_dict`; the reference waits for the next rollout's policy."""
        self._coefficient, self._rollouts = state["coefficient"], state["rollouts"]
        reference = state["reference"]
        if reference is None:
            self._target = None
        elif self._target is not None:
            self._target.load_state_dict(reference)
        else:
            self._loaded = copy.deepcopy(reference)  # a policy may keep more than tensors
