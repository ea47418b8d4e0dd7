"""Fixtures of the language-model tests; what they are made of is in small_models.py."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from zoo.policies.language import LanguageKnobs, LanguagePolicy


@pytest.fixture(scope="session")
def tiny() -> LanguagePolicy:
    """The shipped model, read-only."""
    return LanguagePolicy.load("tiny", LanguageKnobs(sampling_dtype="float32"))


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    """Small matrices, and results that don't depend on the machine's cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
