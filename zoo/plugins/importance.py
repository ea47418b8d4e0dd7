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

Where a rollout is learned from in one update, π_old is the policy that the update's own forward
pass evaluates, so the weights are made there from its log-probabilities, as constants. Several
updates, or advantages that take the weights (V-trace), need a forward pass before.
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
    one_update : bool
        Whether the algorithm asks for the weights in its one loss of a rollout.

    Attributes
    ----------
    pending : bool
        Whether the present rollout's losses are to be multiplied by :meth:`weights`.
    """

    name = "importance"

    def __init__(
        self, knobs: ImportanceKnobs, *, sampled_ahead: bool = False, one_update: bool = False
    ) -> None:
        self.knobs, self.one_update, self.pending = knobs, one_update, False
        self.truncation = knobs.truncation or (2.0 if sampled_ahead else 1.0)
        self._version = 0  # of the weights before the round's first update
        self._ratios: list[Tensor] = []

    @classmethod
    def build(cls, knobs: ImportanceKnobs, facts: Facts) -> Importance:
        """Make the plugin for a run."""
        return cls(knobs, sampled_ahead=facts.sampled_ahead, one_update=facts.one_update)

    @property
    def coefficient(self) -> float:
        """Return the largest weight."""
        return self.truncation

    def on_rollout(self, batch: TensorDict, policy: Any) -> dict[str, float]:
        """Write ``old_log_prob`` and ``importance`` [B, T] where other weights made a row.

        With ``one_update`` they are left to the loss.

        Raises
        ------
        UserError
            Where the behaviour policy had no probabilities.
        """
        self._version = policy.version
        stale = bool((batch["version"] != policy.version).any())
        self.pending = self.one_update and (stale or self.knobs.sampler)
        if not self.knobs.sampler and not stale:
            return {}
        if not bool(batch["log_prob"][batch["mask"]].isfinite().all()):
            raise UserError(
                "these rollouts have actions without a probability (TD3's, or those with noise on"
                " top), which can't be importance-corrected: train algo=td3 or algo=sac on them."
            )
        if self.pending:
            return {}
        with torch.no_grad():
            batch["old_log_prob"] = policy.log_prob(batch)
        batch["importance"] = self.weights(batch, batch["old_log_prob"])
        return self._figures()

    def weights(self, batch: TensorDict, old_log_prob: Tensor) -> Tensor:
        """Return the weight of every step of a rollout or of a part of it, [B, T] without gradient.

        Parameters
        ----------
        old_log_prob : Tensor
            [B, T], log π_old.
        """
        weighed = batch["mask"]
        if not self.knobs.sampler:
            weighed = weighed & (batch["version"] != self._version)[:, None]
        log_ratio = (old_log_prob.detach() - batch["log_prob"]).masked_fill(~weighed, 0.0)
        ratio = surrogate.ratio(log_ratio)
        self._ratios.append(ratio[weighed])
        return ratio.clamp(max=self.truncation).masked_fill(~weighed, 1.0)

    def terms(self, out: Evaluation, batch: TensorDict, update: Update) -> dict[str, Tensor]:
        """No term: the algorithm weighs its own."""
        return {}

    def figures(self, out: Evaluation, batch: TensorDict) -> dict[str, Tensor]:
        """Nothing per step."""
        return {}

    def after_update(self, metrics: dict[str, float]) -> None:
        """Add the figures of weights that were made in the loss."""
        metrics.update(self._figures())

    def parameters(self) -> list[nn.Parameter]:
        """Nothing is learned."""
        return []

    def state_dict(self) -> dict[str, Any]:
        """Nothing changes."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Nothing to continue from."""

    def _figures(self) -> dict[str, float]:
        """Return what the ratios of the steps that were weighed, not truncated, are worth."""
        ratios, self._ratios = self._ratios, []
        ratio = torch.cat([each.double() for each in ratios]) if ratios else torch.empty(0)
        if not len(ratio):
            return {}
        return {
            # Kish's effective sample size (Σw)²/Σw², as a share of the steps
            "importance/effective": float(ratio.sum().square() / ratio.square().sum() / len(ratio)),
            "importance/ratio_mean": float(ratio.mean()),
            "importance/ratio_max": float(ratio.max()),
            "importance/truncated": float((ratio > self.truncation).double().mean()),
        }
