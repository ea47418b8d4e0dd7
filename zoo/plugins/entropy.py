"""Entropy bonus: fixed, scheduled, or held at a target by a learned temperature.

    term = −α·H(π(·|s_t))

With ``mode="auto"`` α is learned (Haarnoja et al. 2018, arXiv:1812.05905, eq. 18)::

    J(log α) = log α·(H − H_target)       so that α falls while the entropy is above its target

which is SAC's temperature; SAC's own term, α·log π(a), is this one with the one-sample estimate
H ≈ −log π(a).

The plugin also warns, once, where the entropy collapses in the first tenth of a run, against that
of the first round learned from::

    discrete actions, tokens    below a tenth of it
    a Box                       lower by 3 nats per dimension, so deviations are a twentieth

A learned α whose target is as low as that asked for it, and is not warned of.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from zoo.core.schedule import schedule
from zoo.errors import UserError
from zoo.plugins.facts import Facts

if TYPE_CHECKING:
    from tensordict import TensorDict

    from zoo.core.protocols import Evaluation, Update

__all__ = ["Entropy", "EntropyKnobs", "target_entropy"]

#: the part of a run in which a collapse is warned of, and how many nats per dimension make one
_EARLY, _NATS = 0.1, 3.0


@dataclass(frozen=True)
class EntropyKnobs:
    """Settings of the entropy bonus."""

    #: fixed, scheduled (over the run) or auto (a learned temperature holds a target entropy)
    mode: Literal["fixed", "scheduled", "auto"] = "fixed"
    #: weight α of the bonus; the start of scheduled and auto. Raise it when entropy collapses
    coefficient: float = 0.0
    #: scheduled: the weight at the end of the run
    final: float = 0.0
    #: scheduled: the way from coefficient to final
    schedule: Literal["linear", "cosine"] = "linear"
    #: auto: entropy to hold, in nats; "auto" is −dim(A) for a Box, else discrete_fraction·log n
    target: float | Literal["auto"] = "auto"
    #: auto: share of a discrete space's largest entropy. The SAC-discrete paper has .98, which is
    #: nearly uniform and slow; .89 is CleanRL's
    discrete_fraction: float = 0.89
    #: auto: the temperature's own learning rate
    lr: float = 3e-4

    def __post_init__(self) -> None:
        """Refuse what would push the wrong way or not at all."""
        if self.coefficient < 0 or self.final < 0:
            raise UserError(
                f"entropy.coefficient and entropy.final must not be negative (got"
                f" {self.coefficient} and {self.final}): a negative bonus collapses the policy."
            )
        if self.mode == "auto" and self.coefficient == 0:
            raise UserError(
                "entropy.mode=auto needs entropy.coefficient > 0 to start from (got 0):"
                " its logarithm is what is learned. 1.0 is the usual start."
            )

    @property
    def active(self) -> bool:
        """Whether the bonus is ever different from zero."""
        return self.coefficient > 0 or (self.mode == "scheduled" and self.final > 0)


def target_entropy(space: Any, discrete_fraction: float = 0.89) -> float:
    """Return the usual target entropy of a Gymnasium action space, in nats.

    −dim(A) for a Box (Haarnoja et al. 2018, appendix D), ``discrete_fraction``·log n for n discrete
    actions (Christodoulou 2019, arXiv:1910.07207), their sum for MultiDiscrete and MultiBinary.

    Raises
    ------
    UserError
        For a space without such a convention.
    """
    if hasattr(space, "nvec"):
        return discrete_fraction * sum(math.log(int(n)) for n in space.nvec.reshape(-1))
    if hasattr(space, "n"):  # MultiBinary has a shape, and two values at each place of it
        values = math.log(2) * math.prod(space.shape) if space.shape else math.log(int(space.n))
        return discrete_fraction * values
    if hasattr(space, "low"):
        return -float(math.prod(space.shape))
    raise UserError(
        f"entropy.target=auto has no convention for the action space {space}:"
        " give entropy.target a number of nats."
    )


class Entropy:
    """The entropy plugin.

    Parameters
    ----------
    knobs : EntropyKnobs
        Settings.
    target : float, optional
        Target entropy in nats where ``knobs.target`` is "auto"; :meth:`build` works it out.
    dimensions : int
        Of a Box of actions; 0 where actions are discrete.
    """

    name = "entropy"

    def __init__(
        self, knobs: EntropyKnobs, target: float | None = None, dimensions: int = 0
    ) -> None:
        self.knobs, self.dimensions = knobs, dimensions
        self._initial: float | None = None
        self._warned = False
        self.lr = knobs.lr
        self._progress = 0.0
        self.log_alpha: nn.Parameter | None = None
        self.target = target
        if knobs.mode == "auto":
            if knobs.target != "auto":
                self.target = float(knobs.target)
            if self.target is None:
                raise ValueError("mode auto with target auto needs the target worked out")
            self.log_alpha = nn.Parameter(torch.tensor(math.log(knobs.coefficient)))

    @classmethod
    def build(cls, knobs: EntropyKnobs, facts: Facts) -> Entropy:
        """Make the plugin for a run, or refuse it with the reason.

        Raises
        ------
        UserError
            Where the policy has no entropy, or no target can be worked out.
        """
        if knobs.active and not facts.stochastic:
            raise UserError(
                f"{facts.algorithm} acts without an action distribution, so there is no entropy to"
                " reward: leave entropy.coefficient at 0 and set its exploration instead."
            )
        box = hasattr(facts.action_space, "low")
        dimensions = math.prod(facts.action_space.shape) if box else 0
        if knobs.mode != "auto" or knobs.target != "auto":
            return cls(knobs, dimensions=dimensions)
        if facts.world == "text":
            raise UserError(
                "entropy.target=auto is meant for action spaces of control tasks; a share of a"
                " vocabulary's entropy would ask for noise. Give entropy.target a number of nats"
                " per token (0.3 is a common level), or use entropy.mode=fixed."
            )
        target = target_entropy(facts.action_space, knobs.discrete_fraction)
        return cls(knobs, target, dimensions)

    @property
    def coefficient(self) -> float | Tensor:
        """Return the present α: a float, or a detached scalar tensor where it is learned."""
        if self.log_alpha is not None:
            return self.log_alpha.detach().exp()
        if self.knobs.mode == "scheduled":
            start, final = self.knobs.coefficient, self.knobs.final
            return final + (start - final) * schedule(self.knobs.schedule, self._progress)
        return self.knobs.coefficient

    def on_rollout(self, batch: TensorDict, policy: Any) -> dict[str, float]:
        """Report the coefficient."""
        return {"entropy/coefficient": float(self.coefficient)} if self.knobs.active else {}

    def terms(self, out: Evaluation, batch: TensorDict, update: Update) -> dict[str, Tensor]:
        """Return −α·H, and the temperature's own loss where α is learned.

        The two move different things: α is a constant in the first, H in the second.
        """
        self._progress = update.progress
        if not self.knobs.active:
            return {}
        bonus = {"entropy": -self.coefficient * out.entropy}
        if self.log_alpha is None or self.target is None:
            return bonus
        return {**bonus, "temperature": self.log_alpha * (out.entropy.detach() - self.target)}

    def figures(self, out: Evaluation, batch: TensorDict) -> dict[str, Tensor]:
        """Nothing beyond what every algorithm logs."""
        return {}

    def after_update(self, metrics: Mapping[str, float]) -> str | None:
        """Return a warning where the entropy has just collapsed in the first tenth of the run."""
        entropy = metrics.get("policy/entropy")
        if entropy is None or self._warned or self._progress > _EARLY:
            return None
        if self._initial is None:
            self._initial = entropy
        bound = self._initial - _NATS * self.dimensions if self.dimensions else self._initial / 10
        if entropy >= bound or (self.target is not None and entropy >= self.target):
            return None
        self._warned = True
        return (
            f"The policy's entropy has collapsed early: from {self._initial:.3g} to {entropy:.3g}"
            f" nats with {self._progress:.0%} of the run done. What it no longer tries it can't"
            " learn from: raise algo.entropy.coefficient or lower algo.lr."
        )

    def parameters(self) -> list[nn.Parameter]:
        """Return log α where it is learned."""
        return [] if self.log_alpha is None else [self.log_alpha]

    def state_dict(self) -> dict[str, Any]:
        """Return log α and the progress last seen."""
        state: dict[str, Any] = {
            "progress": self._progress,
            "initial": self._initial,
            "warned": self._warned,
        }
        if self.log_alpha is not None:
            state["log_alpha"] = self.log_alpha.detach().clone()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a :meth:`state_dict`.

        In place: the optimizer holds this very parameter, and a new one would never move again.
        """
        self._progress = state["progress"]
        self._initial, self._warned = state.get("initial"), state.get("warned", False)
        if self.log_alpha is not None:
            with torch.no_grad():
                self.log_alpha.copy_(state["log_alpha"])
