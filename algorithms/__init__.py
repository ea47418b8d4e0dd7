"""Every algorithm is one file; import its class from here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zoo.algorithms.dapo import DAPO
    from zoo.algorithms.dqn import DQN
    from zoo.algorithms.grpo import GRPO
    from zoo.algorithms.ppo import PPO
    from zoo.algorithms.sac import SAC
    from zoo.algorithms.td3 import TD3
    from zoo.algorithms.variants import CISPO, GSPO, RLOO, DrGRPO, ReinforcePP

__all__ = [
    "CISPO",
    "DAPO",
    "DQN",
    "GRPO",
    "GSPO",
    "PPO",
    "RLOO",
    "SAC",
    "TD3",
    "DrGRPO",
    "ReinforcePP",
]
_VARIANTS = ("CISPO", "GSPO", "RLOO", "DrGRPO", "ReinforcePP")


def __getattr__(name: str) -> Any:
    """Import an algorithm when it is asked for."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    file = "variants" if name in _VARIANTS else name.lower()
    return getattr(import_module(f"{__name__}.{file}"), name)
