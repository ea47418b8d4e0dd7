"""Scaling of rewards for training; evaluation reports raw ones and never comes here.

``return_std`` divides by the running standard deviation of discounted returns (Engstrom et al.
2020, arXiv:2005.12729, "reward scaling")::

    G_t = γ·(1 − terminated_{t−1})·(1 − truncated_{t−1})·G_{t−1} + r_t      per environment
    r_t ← clip(r_t / std(all G so far), ±clamp)

The mean is not taken off: that would change which policy is best. G starts from 0 after a
truncation as after a termination; Gymnasium's own wrapper keeps it at truncations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from zoo.errors import UserError
from zoo.functional.returns import reverse_scan
from zoo.plugins.facts import Facts

if TYPE_CHECKING:
    from tensordict import TensorDict

    from zoo.core.protocols import Evaluation, Update

__all__ = ["RewardScale", "RewardScaleKnobs"]


@dataclass(frozen=True)
class RewardScaleKnobs:
    """Settings of reward scaling."""

    #: none, return_std (by the running std of discounted returns) or constant
    mode: Literal["none", "return_std", "constant"] = "none"
    #: constant: what rewards are multiplied by
    factor: float = 1.0
    #: bound on a scaled reward's size; None is off
    clamp: float | None = None

    def __post_init__(self) -> None:
        """Refuse what turns rewards around or off."""
        if self.factor <= 0:
            raise UserError(f"reward_scale.factor must be positive (got {self.factor}).")
        if self.clamp is not None and self.clamp <= 0:
            raise UserError(f"reward_scale.clamp must be positive or null (got {self.clamp}).")


class RewardScale:
    """The reward scaling plugin.

    Parameters
    ----------
    knobs : RewardScaleKnobs
        Settings.
    gamma : float
        Discount of the returns whose spread is measured; the algorithm's own.
    at_sampling : bool
        True with replay: rollouts are only measured and stored raw, so that old data stay valid;
        the algorithm calls :meth:`scale` on what it samples.
    """

    name = "reward_scale"

    def __init__(
        self, knobs: RewardScaleKnobs, gamma: float = 0.99, at_sampling: bool = False
    ) -> None:
        self.knobs, self.gamma, self.at_sampling = knobs, gamma, at_sampling
        zero = torch.zeros((), dtype=torch.float64)
        self._count, self._mean, self._squares = zero.clone(), zero.clone(), zero.clone()
        self._running = torch.zeros(0, dtype=torch.float64)  # [N], G of each environment

    @classmethod
    def build(cls, knobs: RewardScaleKnobs, facts: Facts) -> RewardScale:
        """Make the plugin for a run, or refuse it with the reason.

        Raises
        ------
        UserError
            Where scaling has no effect or measures nothing sensible.
        """
        cls.refuse(knobs, facts)
        return cls(knobs, facts.gamma, at_sampling=not facts.on_policy)

    @staticmethod
    def refuse(knobs: RewardScaleKnobs, facts: Facts) -> None:
        """Raise UserError with the reason where the settings make no sense for a run."""
        if knobs.mode == "none":
            return
        if facts.group_scale == "group":
            raise UserError(
                f"reward_scale.mode={knobs.mode} has no effect on {facts.algorithm}: its advantage"
                " is already divided by the group's own standard deviation. Leave it at none, or"
                " use algo.scale=none."
            )
        if facts.world == "text" and knobs.mode == "return_std":
            raise UserError(
                "reward_scale.mode=return_std measures returns that build up over an episode; a"
                " completion is paid once, at its end, so the zeros before would be measured."
                " Use reward_scale.mode=constant, or normalised advantages."
            )

    @property
    def coefficient(self) -> float:
        """Return what a reward is multiplied by at present, before clamping."""
        if self.knobs.mode == "constant":
            return self.knobs.factor
        if self.knobs.mode == "return_std" and self._count > 0:
            variance = float(self._squares / self._count)
            # Returns that don't vary give no scale; dividing by almost 0 would explode rewards.
            return variance**-0.5 if variance > 1e-8 else 1.0
        return 1.0

    def scale(self, reward: Tensor) -> Tensor:
        """Scale and clamp rewards of any shape by the present statistics."""
        scaled = reward if self.knobs.mode == "none" else reward * self.coefficient
        clamp = self.knobs.clamp
        return scaled if clamp is None else scaled.clamp(-clamp, clamp)

    def on_rollout(self, batch: TensorDict, policy: Any) -> dict[str, float]:
        """Measure the rollout's returns, then scale its rewards unless it is stored raw."""
        if self.knobs.mode == "return_std":
            self.measure(*(batch[k] for k in ("reward", "terminated", "truncated", "mask")))
        if not self.at_sampling and (self.knobs.mode != "none" or self.knobs.clamp is not None):
            batch["reward"] = self.scale(batch["reward"])
        return {} if self.knobs.mode == "none" else {"reward/scale": self.coefficient}

    def measure(self, reward: Tensor, terminated: Tensor, truncated: Tensor, mask: Tensor) -> None:
        """Add a rollout's discounted returns to the statistics.

        Parameters
        ----------
        reward : Tensor
            [N, T] float32; row n continues where row n of the last rollout stopped.
        terminated, truncated, mask : Tensor
            [N, T] bool; only live steps count.
        """
        rows = reward.shape[0]
        live = mask.cpu()
        ended = ((terminated | truncated) & mask).cpu()
        rewards = reward.cpu().double().masked_fill(~live, 0.0)
        if len(self._running) != rows:  # the first rollout, or other environments than before
            self._running = torch.zeros(rows, dtype=torch.float64)
        # G_t = r_t + c_t·G_{t−1}; a dead step passes G on as it is.
        after_end = torch.cat([torch.zeros(rows, 1, dtype=torch.bool), ended[:, :-1]], 1)
        decay = torch.full_like(rewards, self.gamma).masked_fill(~live, 1.0)
        decay = decay.masked_fill(after_end, 0.0)
        rewards[:, 0] += decay[:, 0] * self._running
        running = reverse_scan(rewards.flip(1), decay.flip(1)).flip(1)
        self._running = running[:, -1].masked_fill(ended[:, -1], 0.0)
        # Welford's running moments, a batch at a time (Chan et al. 1979).
        new = running[live]
        if not len(new):
            return
        count = self._count + len(new)
        shift = new.mean() - self._mean
        self._squares = (
            self._squares
            + (new - new.mean()).square().sum()
            + shift.square() * self._count * len(new) / count
        )
        self._mean = self._mean + shift * len(new) / count
        self._count = count

    def terms(self, out: Evaluation, batch: TensorDict, update: Update) -> dict[str, Tensor]:
        """No term: the reward itself was changed."""
        return {}

    def figures(self, out: Evaluation, batch: TensorDict) -> dict[str, Tensor]:
        """Nothing per step."""
        return {}

    def after_update(self, metrics: Mapping[str, float]) -> None:
        """Nothing moves between rounds."""

    def parameters(self) -> list[nn.Parameter]:
        """Nothing is learned by gradient."""
        return []

    def state_dict(self) -> dict[str, Any]:
        """Return the moments of the returns and each environment's running return."""
        return {
            "count": self._count.clone(),
            "mean": self._mean.clone(),
            "squares": self._squares.clone(),
            "running": self._running.clone(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a :meth:`state_dict`."""
        self._count, self._mean = state["count"].clone(), state["mean"].clone()
        self._squares, self._running = state["squares"].clone(), state["running"].clone()
