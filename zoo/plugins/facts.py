"""What a plugin must know of the algorithm and the task to say whether it makes sense there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from zoo.core.protocols import World

__all__ = ["Facts"]


@dataclass(frozen=True)
class Facts:
    """The run that a plugin is built into.

    Attributes
    ----------
    algorithm : str
        Its name, for messages only.
    world : {"control", "text"}
        What a step is.
    action_space : gymnasium.Space or None
        None on text.
    gamma : float
        The algorithm's discount per step.
    on_policy : bool
        Whether every rollout is used by the policy that made it; False with replay.
    stochastic : bool
        Whether the policy has an action distribution, hence log-probabilities and an entropy.
    group_scale : {"group", "batch", "none"} or None
        What a group-relative advantage is divided by; None where advantages aren't group-relative.
    sampled_ahead : bool
        Whether rollouts are sampled by earlier weights while the present ones learn.
    one_update : bool
        Whether importance weights are only multiplied onto the loss of a rollout's single update.
    """

    algorithm: str
    world: World
    action_space: Any = None
    gamma: float = 1.0
    on_policy: bool = True
    stochastic: bool = True
    group_scale: Literal["group", "batch", "none"] | None = None
    sampled_ahead: bool = False
    one_update: bool = False
