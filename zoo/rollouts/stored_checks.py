"""What saved rollouts must have to be of use to a run, and what their episodes brought."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from tensordict import TensorDict

from zoo.errors import UserError
from zoo.policies.spaces import stored_dtype

__all__ = ["Returns", "refuse_other_environment", "refuse_other_groups", "refuse_other_spaces"]


def refuse_other_environment(path: Path, about: Mapping[str, Any], world: str, name: str) -> None:
    """Refuse a file that another environment's rollouts are in."""
    if about["world"] != world or about["env"] != name:
        raise UserError(
            f"{path} holds rollouts of env={about['env']} ({about['world']}), and this run is about"
            f" env={name}: give the rollout.path of a run on that."
        )


def refuse_other_spaces(
    path: Path, batch: TensorDict, observation_space: Any, action_space: Any
) -> None:
    """Refuse observations and actions that the environment's spaces don't have."""
    seen, action = batch["observation"], batch["action"]
    continuous = isinstance(action_space, spaces.Box)
    kinds = (
        (
            "observations",
            seen,
            observation_space,
            seen.numpy().dtype == stored_dtype(observation_space),
        ),
        ("actions", action, action_space, action.is_floating_point() == continuous),
    )
    for what, leaf, space, same_kind in kinds:
        if tuple(leaf.shape[2:]) != tuple(space.shape) or not same_kind:
            raise UserError(
                f"{path} has {what} of shape {list(leaf.shape[2:])} and type {leaf.dtype}, and"
                f" those of this environment are {space}: it is of another version or variant of"
                " the environment."
            )
    if not continuous:
        taken = action[batch["mask"]].numpy() - getattr(action_space, "start", 0)
        if not ((taken >= 0) & (taken < _choices(action_space))).all():
            raise UserError(
                f"{path} has actions from {int(action.min())} to {int(action.max())}, which"
                f" {action_space} does not have: it is of another variant of the environment."
            )


def _choices(space: Any) -> Any:
    """Return how many values an action, or each of its parts, can have."""
    if isinstance(space, spaces.MultiBinary):
        return 2
    return space.nvec if isinstance(space, spaces.MultiDiscrete) else space.n


def refuse_other_groups(
    path: Path, about: Mapping[str, Any], batch: TensorDict, group_size: int
) -> None:
    """Refuse a file whose rows are no groups of that size."""
    sizes = torch.unique(batch["group"], return_counts=True)[1]
    if about["groups"] and bool((sizes == group_size).all()):
        return
    found = f"groups of {int(sizes.min())}" if about["groups"] else "no groups"
    raise UserError(
        f"{path} holds {found}, and algo.group_size={group_size} rows of one start are to be"
        " compared: give rollouts of a run with such groups, or train algo=ppo on these."
    )


class Returns:
    """Returns of the episodes of batches that are added in the order of their collection.

    An episode may run over several files of fragments; one whose beginning is in none of them is
    left out. So are those that go on when the files end.

    Attributes
    ----------
    whole : list of float
        One return per episode, undiscounted.
    """

    def __init__(self) -> None:
        self.whole: list[float] = []
        self._running: np.ndarray | None = None  # [N], NaN where the beginning is unknown
        self._following: np.ndarray | None = None

    def add(self, batch: TensorDict, whole_rows: bool) -> None:
        """Add a batch; with ``whole_rows`` every row begins with its episode."""
        reward, mask = batch["reward"].double().numpy(), batch["mask"].numpy()
        ended = (batch["terminated"] | batch["truncated"]).numpy() & mask
        running = np.zeros(len(reward)) if whole_rows else self._continued(batch)
        for row in range(len(reward)):
            total, start = np.cumsum(reward[row] * mask[row]), 0.0
            for t in np.flatnonzero(ended[row]):
                self.whole.append(float(running[row] + total[t] - start))
                running[row], start = 0.0, total[t]
            running[row] += total[-1] - start
        self.whole = [value for value in self.whole if np.isfinite(value)]
        if not whole_rows:
            self._running, self._following = running, batch["next_observation"][:, -1].numpy()

    def _continued(self, batch: TensorDict) -> np.ndarray:
        first = batch["observation"][:, 0].numpy()
        if self._running is None or self._following is None:
            return np.zeros(len(first))
        if self._following.shape != first.shape:  # another run's, of other environments
            return np.full(len(first), np.nan)
        ended = self._running == 0.0  # the row begins with a new episode, or without reward so far
        same = (self._following == first).reshape(len(first), -1).all(1)
        return np.where(same | ended, self._running, np.nan)
