"""The plugins that an algorithm's knobs ask for, in the order in which they see a rollout."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zoo.plugins.entropy import Entropy
from zoo.plugins.facts import Facts
from zoo.plugins.kl import KL
from zoo.plugins.reward_scale import RewardScale

if TYPE_CHECKING:
    from zoo.core.protocols import Plugin, World

__all__ = ["build_plugins"]


def build_plugins(
    knobs: Any,
    *,
    world: World,
    algorithm: str,
    policy: Any = None,
    action_space: Any = None,
    on_policy: bool = True,
    stochastic: bool = True,
) -> list[Plugin]:
    """Make every plugin whose settings the knobs hold, or refuse it with the reason.

    Parameters
    ----------
    knobs : dataclass
        An algorithm's; read are ``reward_scale``, ``kl``, ``entropy``, ``gamma`` and, where
        advantages are group-relative, ``scale``. Each may be missing.
    world : {"control", "text"}
        What a step is.
    algorithm : str
        Its name, for messages.
    policy : Policy, optional
        Asked for its ``action_space`` where none is given.
    action_space : gymnasium.Space, optional
        On control.
    on_policy, stochastic : bool
        See :class:`Facts`.

    Returns
    -------
    list of Plugin
        Reward scaling first: a KL penalty in the reward is in nats, not in units of the reward.

    Raises
    ------
    UserError
        Where a setting makes no sense for the algorithm.
    """
    if action_space is None:
        action_space = getattr(policy, "action_space", None)
    facts = Facts(
        algorithm=algorithm,
        world=world,
        action_space=action_space,
        gamma=getattr(knobs, "gamma", 1.0),
        on_policy=on_policy,
        stochastic=stochastic,
        group_scale=getattr(knobs, "scale", None),
    )
    kinds: tuple[Any, ...] = (RewardScale, KL, Entropy)
    return [
        kind.build(getattr(knobs, kind.name), facts) for kind in kinds if hasattr(knobs, kind.name)
    ]
