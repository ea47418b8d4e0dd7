"""Files of saved rollouts: one batch each, in NumPy's .npz without pickled objects.

Control: ``observation`` [B, T, …] as the environment gave it, ``action``, ``log_prob``,
``reward`` (raw), ``terminated``, ``truncated``, ``mask``, ``version`` [B, T] and ``group`` [B]. The
observation after a step is the next step's own and stored only where it isn't: ``final`` [B, T]
marks those steps and ``final_observation`` [K, …] holds what followed them, row by row. Text: the
keys of the batch as docs/architecture.md lists them. ``about`` is a JSON object in bytes.
"""

from __future__ import annotations

import hashlib
import json
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict

from zoo.core.atomic import replacing
from zoo.core.batch import BatchError, check
from zoo.errors import UserError

__all__ = [
    "FOLDER",
    "as_arrays",
    "as_batch",
    "joined",
    "laid_end_to_end",
    "name_of",
    "read",
    "tokenizer_of",
    "write",
]

#: of a run folder
FOLDER = "rollouts"
_FORMAT = 1
#: what the batch may hold beside the policy's own view of it, where observations are normalised
_RAW = ("raw_observation", "raw_next_observation")
_CONTROL = ("action", "log_prob", "reward", "terminated", "truncated", "mask", "group", "version")


def as_arrays(batch: TensorDict) -> dict[str, np.ndarray]:
    """Return what a file holds of a fresh batch, in memory of its own."""
    flat = batch.flatten_keys("/")
    if "observation" not in flat.keys():  # noqa: SIM118 - a TensorDict iterates over its rows
        return {str(k): v.cpu().numpy().copy() for k, v in flat.items()}
    arrays = {k: flat[k].cpu().numpy().copy() for k in _CONTROL}
    names = _RAW if _RAW[0] in flat.keys() else ("observation", "next_observation")  # noqa: SIM118
    observation, following = (flat[k].cpu().numpy() for k in names)
    rows, steps = arrays["mask"].shape
    final = np.ones((rows, steps), bool)
    if steps > 1:
        differs = (observation[:, 1:] != following[:, :-1]).reshape(rows, steps - 1, -1).any(-1)
        final[:, :-1] = differs
    return {
        **arrays,
        "version": np.repeat(arrays["version"][:, None], steps, 1),
        "observation": observation.copy(),
        "final": final,
        "final_observation": following[final],
    }


def joined(parts: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Join fragments [N, T_i] that follow one another in time to [N, Σ T_i]."""
    if len(parts) == 1:
        return parts[0]
    whole = {k: np.concatenate([p[k] for p in parts], 1) for k in parts[0] if k in _TIME}
    rows = len(whole["mask"])
    # final observations lie row by row, and every row now takes its own from all parts in turn
    cut = [np.split(p["final_observation"], np.cumsum(p["final"].sum(1))[:-1]) for p in parts]
    finals = [piece[row] for row in range(rows) for piece in cut]
    return {**whole, "group": parts[0]["group"], "final_observation": np.concatenate(finals)}


_TIME = {*_CONTROL, "observation", "final"} - {"group"}


def as_batch(arrays: Mapping[str, np.ndarray]) -> TensorDict:
    """Return the batch that arrays of a file stand for; of no version that a policy could have.

    Raises
    ------
    BatchError, KeyError, IndexError, ValueError
        Where the arrays don't fit together.
    """
    tensors = {k: torch.from_numpy(v) for k, v in arrays.items() if not k.startswith("final")}
    rows = len(tensors["mask"])
    tensors["version"] = torch.full((rows,), -1)
    if "final" in arrays:
        observation, final = arrays["observation"], arrays["final"]
        following = np.empty_like(observation)
        following[:, :-1] = observation[:, 1:]
        following[final] = arrays["final_observation"]
        tensors["next_observation"] = torch.from_numpy(following)
    return check(TensorDict(tensors, batch_size=[rows]).unflatten_keys("/"))


def laid_end_to_end(batch: TensorDict) -> TensorDict:
    """Lay the live steps of all rows [B, T] behind one another in one row [1, L].

    Where a row ends without its episode, the step counts as truncated: it bootstraps from what
    followed it and nothing passes over it, as at the end of a row.
    """
    mask = batch["mask"]
    last = mask.clone()
    last[:, :-1] &= ~mask[:, 1:]
    live = mask.reshape(-1)
    leaves = {
        key: leaf.reshape(-1, *leaf.shape[2:])[live][None]
        for key, leaf in batch.items()
        if key not in ("group", "version")
    }
    cut = last.reshape(-1)[live][None] & ~leaves["terminated"]
    leaves["truncated"] = leaves["truncated"] | cut
    one = {key: batch[key][:1] for key in ("group", "version")}
    return TensorDict({**leaves, **one}, batch_size=[1])


def write(path: Path, arrays: Mapping[str, np.ndarray], about: Mapping[str, Any]) -> int:
    """Write a file in one go and return its size in bytes.

    Raises
    ------
    OSError
        Where the disk is full or not writable.
    """
    text = json.dumps({"format": _FORMAT, **about}).encode()
    with replacing(path) as file:
        members: dict[str, Any] = {"about": np.frombuffer(text, np.uint8), **arrays}
        np.savez_compressed(file, **members)
    return path.stat().st_size


def read(path: Path) -> tuple[dict[str, Any], TensorDict]:
    """Read a file: what it says about itself, and its batch.

    Raises
    ------
    UserError
        Where it is damaged, incomplete or no saved rollout.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, AttributeError, zipfile.BadZipFile, zlib.error) as error:
        raise UserError(
            f"{path} can't be read ({type(error).__name__}): it is damaged, or was not written to"
            " its end. Delete it, or bring it back."
        ) from error
    try:
        about = json.loads(arrays.pop("about").tobytes())
        if about["format"] != _FORMAT:
            raise UserError(
                f"{path} has format {about['format']} and this version reads {_FORMAT}: train with"
                " the version that wrote it."
            )
        return about, as_batch(arrays)
    except (KeyError, IndexError, TypeError, ValueError, BatchError) as error:
        raise UserError(f"{path} is no saved rollout ({error}).") from error


def name_of(env: Any) -> str:
    """Return the name by which the environment of a rollout is known again."""
    return str(getattr(env, "id", None) or getattr(env, "name", None) or type(env).__name__)


def tokenizer_of(policy: Any) -> str:
    """Return a mark by which the vocabulary of a policy's tokens is known again."""
    vocabulary = sorted(policy.codec.tokenizer.get_vocab().items())
    return hashlib.sha256(repr(vocabulary).encode()).hexdigest()[:16]
