"""Which prompts come next: a shuffle per epoch that depends on the seed and the epoch alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

__all__ = ["PromptStream"]

_STREAM = 7  # keeps this use of the seed apart from others


class PromptStream:
    """An endless stream of indices below ``count``, each once per epoch.

    Its whole state is (epoch, position), so a resumed run sees what the uninterrupted one would
    have, across an epoch's end too.

    Examples
    --------
    >>> stream = PromptStream(3, seed=0)
    >>> sorted(stream.take(3)), stream.epoch, stream.position
    ([0, 1, 2], 0, 3)
    """

    def __init__(self, count: int, seed: int) -> None:
        if count < 1:
            raise ValueError("a prompt stream needs at least one prompt")
        self.count, self.seed = count, seed
        self.epoch = self.position = 0
        self._order = self._shuffle(0)

    def take(self, number: int) -> list[int]:
        """Return the next indices."""
        taken: list[int] = []
        while len(taken) < number:
            if self.position == self.count:
                self.epoch, self.position = self.epoch + 1, 0
                self._order = self._shuffle(self.epoch)
            stop = min(self.count, self.position + number - len(taken))
            taken += self._order[self.position : stop].tolist()
            self.position = stop
        return taken

    def state_dict(self) -> dict[str, Any]:
        """Epoch and position; ``count`` is there to be checked."""
        return {"epoch": self.epoch, "position": self.position, "count": self.count}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`."""
        self.epoch, self.position = state["epoch"], state["position"]
        self._order = self._shuffle(self.epoch)

    def _shuffle(self, epoch: int) -> np.ndarray:
        sequence = np.random.SeedSequence(self.seed, spawn_key=(_STREAM, epoch))
        return np.random.default_rng(sequence).permutation(self.count)
