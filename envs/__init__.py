"""Environments: control tasks, and questions with verifiable answers for language models.

Names are imported on first use, so that ``import zoo.envs`` stays cheap.
"""

from __future__ import annotations

import importlib
from typing import Any

_WHERE = {
    "GSM8K": "zoo.envs.gsm8k",
    "Guess": "zoo.envs.guess",
    "JSONL": "zoo.envs.jsonl",
    "QuestionEnv": "zoo.envs.text",
    "ReasoningGym": "zoo.envs.reasoning",
    "RewardItem": "zoo.envs.rewards",
    "make_prompt": "zoo.envs.text",
}

__all__ = list(_WHERE)


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'zoo.envs' has no attribute '{name}'")
    return getattr(importlib.import_module(_WHERE[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_WHERE])
