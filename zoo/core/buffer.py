"""The rollout buffer: one round of fresh data, cut into shuffled mini-batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from tensordict import TensorDict

__all__ = ["RolloutBuffer"]

#: how many mini-batches of a round, at most, are looked at closely
_DIAGNOSED = 8


class RolloutBuffer:
    """Hold one prepared rollout and yield ``epochs`` passes of mini-batches over it.

    Parameters
    ----------
    epochs : int
        Passes over the data.
    minibatch_size : int or None
        Rows per mini-batch; None means all rows at once. The last one of a pass may be smaller.
    seed : int
        Seed of the shuffle, which has a generator of its own.
    """

    def __init__(self, epochs: int, minibatch_size: int | None = None, seed: int = 0) -> None:
        self.epochs = epochs
        self.minibatch_size = minibatch_size
        self.generator = torch.Generator().manual_seed(seed)
        self._batch: TensorDict | None = None

    def extend(self, batch: TensorDict) -> None:
        """Take a prepared rollout in place of the one before it."""
        self._batch = batch

    def rounds(self, rows: int) -> int:
        """Return how many mini-batches a rollout of that many rows yields."""
        size = self.minibatch_size or rows
        return self.epochs * max(1, -(-rows // size))

    def __len__(self) -> int:
        """Return how many mini-batches are waiting."""
        return 0 if self._batch is None else self.rounds(self._batch.batch_size[0])

    @property
    def diagnosed_every(self) -> int:
        """How many mini-batches apart the figures that are only logged are computed."""
        return max(1, -(-len(self) // _DIAGNOSED))

    def minibatches(self, progress: float = 0.0) -> Iterator[TensorDict]:
        """Yield every row once per epoch; rows are shuffled only where there is a choice."""
        batch = self._batch
        if batch is None:
            return
        rows = batch.batch_size[0]
        size = self.minibatch_size or rows
        self._batch = None  # also where the learner stops before the last one
        for _ in range(self.epochs):
            if size >= rows:
                yield batch
                continue
            shuffled = batch[self.order(rows).to(batch.device or "cpu")]
            for start in range(0, rows, size):
                yield shuffled[start : start + size]

    def order(self, rows: int) -> torch.Tensor:
        """Draw the order of an epoch's rows, [rows] int64."""
        return torch.randperm(rows, generator=self.generator)

    def drain(self) -> TensorDict:
        """Return the rollout and forget it: whoever takes it learns from it."""
        batch, self._batch = self._batch, None
        assert batch is not None  # extend came before
        return batch

    def feedback(self, index: torch.Tensor, td_error: torch.Tensor) -> None:
        """Do nothing: fresh data carry no priorities."""

    def state_dict(self) -> dict[str, Any]:
        """Return the shuffle's generator; between rounds the buffer is empty."""
        return {"generator": self.generator.get_state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a :meth:`state_dict`."""
        self.generator.set_state(state["generator"])
