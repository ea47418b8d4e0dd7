"""What keeps an engine from disturbing the process that it runs in."""

from __future__ import annotations

import contextlib
import logging
import random
import warnings
from collections.abc import Iterator

import numpy as np
import torch

__all__ = ["leave_group", "quiet", "reason", "states_kept"]


def leave_group() -> None:
    """End what vLLM's workers of this process are connected by."""
    from vllm.distributed import destroy_distributed_environment, destroy_model_parallel

    destroy_model_parallel()
    destroy_distributed_environment()


@contextlib.contextmanager
def states_kept() -> Iterator[None]:
    """Leave the trainer's random generators and thread count alone, which vLLM sets its own way."""
    state, arrays, set_threads = random.getstate(), np.random.get_state(), torch.set_num_threads
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with torch.random.fork_rng(devices):
        try:
            yield
        finally:
            random.setstate(state)
            np.random.set_state(arrays)
            torch.set_num_threads = set_threads  # its CPU worker puts one there that does nothing


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep the engine's start off the console; what goes wrong is raised."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def reason(error: BaseException) -> str:
    """Return the sentence of an error that says what is wrong; pydantic's has a count before it."""
    lines = str(error).strip().splitlines() or [""]
    told = lines[1 if "validation error" in lines[0] and len(lines) > 1 else 0]
    told = told.split(" [type=")[0].split("Value error, ")[-1].split("Assertion failed, ")[-1]
    sentence = told.split(". ")[0].strip().rstrip(".")
    if sentence and isinstance(error, (ValueError, RuntimeError, ImportError, OSError)):
        return f"{sentence}."
    return f"{type(error).__name__}: {sentence}.".replace(": .", ".")
