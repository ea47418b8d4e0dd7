"""The batch: one TensorDict per rollout, and a checker that names what is wrong with it.

On-policy trajectories have ``batch_size [B]`` and leaves ``[B, T, …]``: a row is a fragment of T
environment steps, a padded episode, or a completion. docs/architecture.md lists the keys.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from tensordict import TensorDict

__all__ = ["BatchError", "check", "flatten_steps", "live_steps"]

_BOOL, _FLOAT, _LONG = torch.bool, torch.float32, torch.int64

#: Keys every trajectory batch has: name → (dtype or None for any, number of leading dimensions).
TRAJECTORY: dict[str, tuple[torch.dtype | None, int]] = {
    "action": (None, 2),
    "log_prob": (_FLOAT, 2),
    "reward": (_FLOAT, 2),
    "terminated": (_BOOL, 2),
    "truncated": (_BOOL, 2),
    "mask": (_BOOL, 2),
    "group": (_LONG, 1),
    "version": (_LONG, 1),
}
#: Keys that ``prepare`` adds.
PREPARED: dict[str, tuple[torch.dtype | None, int]] = {
    "value": (_FLOAT, 2),
    "next_value": (_FLOAT, 2),
    "advantage": (_FLOAT, 2),
    "return": (_FLOAT, 2),
    "old_log_prob": (_FLOAT, 2),
    "ref_log_prob": (_FLOAT, 2),
}
_SCHEMA = {**TRAJECTORY, **PREPARED, "own": (_BOOL, 2)}
_EXACT = {
    "log_prob",
    "reward",
    "terminated",
    "truncated",
    "mask",
    "group",
    "version",
    "own",
    *PREPARED,
}


class BatchError(ValueError):
    """A batch that does not keep the schema; the message names the key and the shapes."""


def check(batch: TensorDict, require: Iterable[str] = ()) -> TensorDict:
    """Check a trajectory batch against the schema and return it.

    Parameters
    ----------
    batch : TensorDict
        ``batch_size [B]``; every leaf of time is ``[B, T, …]``.
    require : iterable of str
        Keys of ``prepare`` that must be there as well, such as ``"advantage"``.

    Raises
    ------
    BatchError
        Naming the first wrong key, its shape or dtype, and what was expected.

    Examples
    --------
    >>> check(batch)  # doctest: +SKIP
    BatchError: batch['reward'] has shape [8, 3], expected [8, 5] like batch['mask']
    """
    if len(batch.batch_size) != 1:
        raise BatchError(f"batch_size is {list(batch.batch_size)}, expected [B] (rows only)")
    mask = batch.get("mask", None)
    if mask is None or mask.dim() != 2:
        shape = None if mask is None else list(mask.shape)
        raise BatchError(f"batch['mask'] must be a [B, T] tensor of bool (got shape {shape})")
    shape = mask.shape
    for key in (*TRAJECTORY, *require):
        if batch.get(key, None) is None:
            raise BatchError(
                f"batch['{key}'] is missing; present: {sorted(map(str, batch.keys()))}"
            )
    for key, leaf in batch.items():
        if key not in _SCHEMA:
            continue
        dtype, dims = _SCHEMA[key]
        expected = shape[:dims]
        if (leaf.shape if key in _EXACT else leaf.shape[:dims]) != expected:
            raise BatchError(
                f"batch['{key}'] has shape {list(leaf.shape)}, expected {list(expected)}"
                f" like batch['mask']"
            )
        if dtype is not None and leaf.dtype != dtype:
            raise BatchError(f"batch['{key}'] has dtype {leaf.dtype}, expected {dtype}")
    both = batch["terminated"] & batch["truncated"]
    if bool(both.any()):
        row, step = both.nonzero()[0].tolist()
        raise BatchError(f"step [{row}, {step}] is both terminated and truncated")
    return batch


def live_steps(batch: TensorDict) -> int:
    """Return how many steps of the batch are the policy's own."""
    return int(batch["mask"].sum())


def flatten_steps(batch: TensorDict) -> TensorDict:
    """Cut trajectories [B, T] into their live steps [N, 1], N the number of live steps.

    ``group`` and ``version`` are repeated for every step of their row. Afterwards a mini-batch of
    steps and a mini-batch of sequences are the same operation: a choice of rows.
    """
    mask = batch["mask"]
    rows, steps = mask.shape
    whole = bool(mask.all())
    live = mask.reshape(-1)
    flat = {}
    for key, leaf in batch.items():
        if not isinstance(leaf, torch.Tensor):
            continue
        if leaf.dim() < 2 or leaf.shape[1] != steps:
            leaf = leaf.unsqueeze(1).expand(rows, steps, *leaf.shape[1:])
            leaf = leaf.reshape(rows * steps, *leaf.shape[2:])
        else:
            leaf = leaf.reshape(rows * steps, 1, *leaf.shape[2:])
        flat[key] = leaf if whole else leaf[live]
    count = rows * steps if whole else int(live.sum())
    return TensorDict(flat, batch_size=[count])
