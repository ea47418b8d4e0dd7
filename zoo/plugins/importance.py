"""Importance of steps that other weights took: rollouts stored earlier, or gathered a while ago.

    w_t = min(truncation, π_old(a_t|s_t) / μ(a_t|s_t))

with μ the behaviour policy, whose log-probabilities are in the rollout, and π_old the policy as it
is before this round's first update. The clipped ratio π/π_old stays what bounds the round's change,
and w_t multiplies it (decoupled PPO, Hilton et al. 2022, arXiv:2110.00641): clipping π/μ instead
would take the gradient of every step away whose ratio is far from 1 to begin with. V-trace, which
estimates values and advantages, takes the same w_t (zoo/functional/vtrace.py).

A rollout of the policy's own version is left alone.
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
    """Settings of the importance correction; without effect on fresh rollouts."""

    #: largest weight of a step: more is less biased, and noisier by its square; 1 is V-trace's
    truncation: float = 1.0

    def __post_init__(self) -> None:
        """Refuse weights that teach nothing."""
        in_range(self, "truncation", low=0, above=True)


class Importance:
    """The importance plugin.

    Parameters
    ----------
    knobs : ImportanceKnobs
        Settings.
    """

    name = "importance"

    def __init__(self, knobs: ImportanceKnobs) -> None:
        self.knobs = knobs

    @classmethod
    def build(cls, knobs: ImportanceKnobs, facts: Facts) -> Importance:
        """Make the plugin for a run."""
        return cls(knobs)

    @property
    def coefficient(self) -> float:
        """Return the largest weight."""
        return self.knobs.truncation

    def on_rollout(self, batch: TensorDict, policy: Any) -> dict[str, float]:
        """Write ``old_log_prob`` and ``importance`` [B, T] where other weights made the rollout.

        Raises
        ------
        UserError
            Where the behaviour policy had no probabilities.
        """
        if bool((batch["version"] == policy.version).all()):
            return {}
        mask, behaviour = batch["mask"], batch["log_prob"]
        if not bool(behaviour[mask].isfinite().all()):
            raise UserError(
                "these rollouts have actions without a probability (TD3's, or those with noise on"
                " top), which can't be importance-corrected: train algo=td3 or algo=sac on them."
            )
        with torch.no_grad():
            old = batch["old_log_prob"] = policy.log_prob(batch)
        ratio = surrogate.ratio((old - behaviour).masked_fill(~mask, 0.0))
        batch["importance"] = ratio.clamp(max=self.knobs.truncation)
        return _figures(ratio[mask].double(), self.knobs.truncation)

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
    """Return what the ratios [M] of the live steps, not truncated, are worth."""
    if not len(ratio):
        return {}
    return {
        # Kish's effective sample size (Σw)²/Σw², as a share of the steps
        "importance/effective": float(ratio.sum().square() / ratio.square().sum() / len(ratio)),
        "importance/ratio_mean": float(ratio.mean()),
        "importance/ratio_max": float(ratio.max()),
        "importance/truncated": float((ratio > truncation).double().mean()),
    }
