"""Atomic checkpoints that ``torch.load(weights_only=True)`` can read.

A checkpoint is written beside its final name, flushed to the disk and renamed: at any moment the
name holds a complete file or none. It contains tensors and plain Python values only.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import torch

from zoo.core.atomic import replacing
from zoo.errors import UserError

__all__ = ["INCOMPLETE", "lightened", "load", "load_run", "rng_state", "save", "set_rng_state"]

#: bytes of a buffer that a checkpoint kept for its weights still takes along
_LARGE = 16 * 2**20
INCOMPLETE = (
    "this checkpoint holds no replay buffer, which was too large for a best.pt: training goes on"
    " from its weights with an empty one, and not bit for bit; last.pt has the buffer."
)


def save(state: dict[str, Any], path: Path | str) -> None:
    """Write a checkpoint atomically.

    Raises
    ------
    UserError
        Where the disk is full or not writable; what was there before stays valid.
    """
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            torch.save(_alone(state), file)
    except (OSError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "write" not in str(error).lower():
            raise
        kept = "; there is none before it. Free some space and start again."
        if path.exists():
            kept = (
                f"; the one before it, {path}, is still valid. Free some space and go on with"
                " `zoo train --resume`."
            )
        raise UserError(f"could not write the checkpoint {path} ({error}){kept}") from error


def lightened(state: dict[str, Any]) -> dict[str, Any]:
    """Return a run's state without its buffer where that is large; no evaluation reads it."""
    return state if _nbytes(state["buffer"]) <= _LARGE else {**state, "buffer": None}


def _nbytes(state: Any) -> int:
    """Return the memory of all tensors in a state."""
    if isinstance(state, torch.Tensor):
        return state.nbytes
    return sum(map(_nbytes, state.values())) if isinstance(state, dict) else 0


def _alone(value: Any) -> Any:
    """Copy tensors that are parts of larger ones, all of which would be written."""
    if isinstance(value, dict):
        return {key: _alone(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_alone(inner) for inner in value)
    if isinstance(value, torch.Tensor) and value.untyped_storage().nbytes() > value.nbytes:
        return value.clone()
    return value


def load(path: Path | str, device: str | torch.device = "cpu") -> dict[str, Any]:
    """Read a checkpoint without running any code that it might hold.

    Raises
    ------
    UserError
        Where the file is missing or is no checkpoint.
    """
    path = Path(path)
    if not path.is_file():
        raise UserError(f"no checkpoint at {path}.")
    try:
        state = torch.load(path, map_location=device, weights_only=True)
    except Exception as error:
        raise UserError(f"{path} is not a readable checkpoint ({type(error).__name__}).") from error
    return state


def load_run(path: Path | str) -> dict[str, Any]:
    """Read a run's checkpoint; files of other origin, such as bare weights, are refused.

    Raises
    ------
    UserError
        Where the file is missing, no checkpoint, or not one of a run.
    """
    state = load(path)
    needed = ("config", "counters", "policy")
    if not isinstance(state, dict) or not all(isinstance(state.get(k), dict) for k in needed):
        raise UserError(
            f"{path} is no checkpoint of a run: it lacks {', '.join(needed)}. Give a run folder, or"
            " a file of its checkpoints/."
        )
    return state


def rng_state() -> dict[str, Any]:
    """Return the states of the global generators (torch, CUDA, NumPy, Python) in plain types."""
    numpy: dict[str, Any] = dict(np.random.get_state(legacy=False))
    version, internal, gauss = random.getstate()
    state: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "numpy": {
            "key": torch.from_numpy(numpy["state"]["key"].astype(np.int64)),
            "pos": int(numpy["state"]["pos"]),
            "has_gauss": int(numpy["has_gauss"]),
            "gauss": float(numpy["gauss"]),
        },
        "python": [version, list(internal), gauss],
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def set_rng_state(state: dict[str, Any]) -> None:
    """Put the global generators back to a :func:`rng_state`."""
    torch.set_rng_state(state["torch"].cpu())
    numpy = state["numpy"]
    key = numpy["key"].cpu().numpy().astype(np.uint32)
    np.random.set_state(("MT19937", key, numpy["pos"], numpy["has_gauss"], numpy["gauss"]))
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state_all([s.cpu() for s in state["cuda"]])
