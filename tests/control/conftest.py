"""Tests of the control world."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))  # counter_env, under every import mode


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
