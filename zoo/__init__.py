"""Reinforcement learning on control tasks and language models with one loop."""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

__all__ = [
    "UserError",
    "__version__",
    "algorithms",
    "benchmarks",
    "core",
    "envs",
    "functional",
    "plugins",
    "policies",
    "rollouts",
]


def __getattr__(name: str) -> Any:
    """Import a part of the library when it is first asked for: torch alone takes seconds."""
    if name == "UserError":
        return importlib.import_module("zoo.errors").UserError
    if name in __all__:
        return importlib.import_module(f"zoo.{name}")
    raise AttributeError(f"module 'zoo' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(__all__)
