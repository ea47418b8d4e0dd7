"""Importance of steps that other weights took: rollouts stored earlier, or gathered a while ago.

    w_t = min(truncation, π_old(a_t|s_t) / μ(a_t|s_t))

with μ the behaviour policy, whose log-probabilities are in the rollout, and π_old the policy as it
is before this round's first update. The clipped ratio π/π_old stays what bounds the round's change,
and w_t multiplies it (decoupled PPO, Hilton et al. 2022, arXiv:2110.00641): clipping π/μ instead
would take the gradient of every step away whose ratio is far from 1 to begin with. V-trace, which
estimates values and advantages, takes the same w_t (zoo/functional/vtrace.py).

Rows of the policy's own version keep a weight of 1, unless the sampler itself is to be corrected
for: one that computes in bfloat16 draws from another distribution than the one the trainer
differentiates (truncated importance sampling, Yao et al. 2025, "Your efficient RL framework
secretly brings you off-policy RL training", with w̄ = 2).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from zoo.core.schema import in_range
from zoo.errors import UserError
from zoo.functional import surrogate
from zoo.plugins.facts import Facts

if TYPE_CHECKING:
    from tensordict import TensorDict

    from zoo.core.protocols import Evaluation, Update

__all__ = ["Importance", "ImportanceKnobs"]


@dataclass(frozen=True)
class ImportanceKnobs:
    """Settings of the importance correction; by default without effect on fresh rollouts."""

    #: largest weight of a step: more is less biased, and noisier by its square; None takes
    #: V-trace's 1, and 2 with rollout.staleness, where ratios are near 1 and half would be cut
    truncation: float | None = None
    #: also weigh fresh steps, by trainer's against sampler's log-probabilities: for text sampled in
    #: bfloat16, with truncation=2; a forward pass more per rollout
    sampler: bool = False

    def __post_init__(self) -> None:
        """Refuse weights that teach nothing."""
        in_range(self, "truncation", low=0, above=True)


class Importance:
    """The importance plugin.

    Parameters
    ----------
    knobs : ImportanceKnobs
        Settings.
    sampled_ahead : bool
        Whether rollouts come from weights of a round or a few before.
    """

    name = "importance"

    def __init__(self, knobs: ImportanceKnobs, *, sampled_ahead: bool = False) -> None:
        self.knobs = knobs
        self.truncation = knobs.truncation or (2.0 if sampled_ahead else 1.0)

    @classmethod
    def build(cls, knobs: ImportanceKnobs, facts: Facts) -> Importance:
        """Make the plugin for a run."""
        return cls(knobs, sampled_ahead=facts.sampled_ahead)

    @property
    def coefficient(self) -> float:
        """Return the largest weight."""
        return self.truncation

    def on_rollout(self, batch: TensorDict, policy: Any) -> dict[str, float]:
        """Write ``old_log_prob`` and ``importance`` [B, T] where other weights made a row.

        Raises
        ------
        UserError
            Where the behaviour policy had no probabilities.
        """
        stale = batch["version"] != policy.version
        if not self.knobs.sampler and not bool(stale.any()):
            return {}
        mask, behaviour = batch["mask"], batch["log_prob"]
        if not bool(behaviour[mask].isfinite().all()):
            raise UserError(
                "these rollouts have actions without a probability (TD3's, or those with noise on"
                " top), which can't be importance-corrected: train algo=td3 or algo=sac on them."
            )
        with torch.no_grad():
            old = batch["old_log_prob"] = policy.log_prob(batch)
        log_ratio = (old - behaviour).masked_fill(~mask, 0.0)
        ratio, truncation = surrogate.ratio(log_ratio), self.truncation
        weighed = mask if self.knobs.sampler else mask & stale[:, None]
        batch["importance"] = ratio.clamp(max=truncation).masked_fill(~weighed, 1.0)
        return _figures(ratio[weighed].double(), truncation)

    def terms(self, out: Evaluation, batch: TensorDict, update: Update) -> dict[str, Tensor]:
        """No term: the algorithm weighs its own."""
        return {}

    def figures(self, out: Evaluation, batch: TensorDict) -> dict[str, Tensor]:
        """Nothing per step."""
        return {}

    def after_update(self, metrics: Mapping[str, float]) -> None:
        """Nothing moves between rounds."""

    def parameters(self) -> list[nn.Parameter]:
        """Nothing is learned."""
        return []

    def state_dict(self) -> dict[str, Any]:
        """Nothing changes."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Nothing to continue from."""


def _figures(ratio: Tensor, truncation: float) -> dict[str, float]:
    """Return what the ratios [M] of the steps that are weighed, not truncated, are worth."""
    if not len(ratio):
        return {}
    return {
        # Kish's effective sample size (Σw)²/Σw², as a share of the steps
        "importance/effective": float(ratio.sum().square() / ratio.square().sum() / len(ratio)),
        "importance/ratio_mean": float(ratio.mean()),
        "importance/ratio_max": float(ratio.max()),
        "importance/truncated": float((ratio > truncation).double().mean()),
    }
