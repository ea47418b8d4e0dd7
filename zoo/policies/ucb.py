"""Upper confidence bounds: exploration by counts of what was done in which bin of states.

    a = argmax_a Q(s, a) + c·√(ln N(s) / n(s, a))

(UCB1, Auer et al. 2002) where n(s, a) counts how often a was chosen in the bin of s, and N(s) is
their sum over the actions. Untried actions come first, the one of the largest Q among them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from gymnasium import spaces

from zoo.errors import UserError

if TYPE_CHECKING:
    from zoo.policies.exploration import Choice, ExplorationKnobs

__all__ = ["UCB"]

#: bounds beyond this are none (Gymnasium writes the largest float32 for them)
_UNBOUNDED = 1e6
_MOST_DIMENSIONS = 32


class UCB:
    """The largest upper confidence bound, from counts of what was done in which bin of states.

    Discrete observations are their own bins. A Box is cut into ``bins`` equal parts per dimension,
    between its bounds where it has them and within ±``span`` elsewhere. Environments choose one
    after the other and are counted at once, so copies in one state try different actions.
    """

    temperature: float | None = None

    def __init__(
        self, knobs: ExplorationKnobs, space: spaces.Box | spaces.Discrete, actions: int
    ) -> None:
        self.knobs = knobs
        self._rows: dict[bytes, int] = {}
        self._counts = np.zeros((64, actions))
        self._low: np.ndarray | None = None
        self._width = 1
        if isinstance(space, spaces.Box):
            low, high = space.low.reshape(-1), space.high.reshape(-1)
            if len(low) > _MOST_DIMENSIONS:
                raise UserError(
                    f"exploration.kind=ucb counts visits of discretised states, and observations of"
                    f" {len(low)} dimensions hardly ever fall into one bin twice (at most"
                    f" {_MOST_DIMENSIONS}): use exploration.kind=epsilon or boltzmann."
                )
            bounded = (np.abs(low) < _UNBOUNDED) & (np.abs(high) < _UNBOUNDED)
            self._low = np.where(bounded, low, -knobs.span).astype(np.float64)
            above = np.where(bounded, high, knobs.span).astype(np.float64)
            self._width = len(low)
            self._per_bin = knobs.bins / np.maximum(above - self._low, 1e-12)

    def begin(
        self, shape: tuple[int, int, int], rng: np.random.Generator, done: int, total: int
    ) -> Choice:
        """Choose by the counts as they grow; nothing is drawn."""
        return self

    def __call__(
        self, value: np.ndarray, observation: np.ndarray, step: int, action: np.ndarray
    ) -> None:
        """Choose and count, one environment after the other."""
        for i, key in enumerate(self._bins(observation)):
            row = self._row(key.tobytes())  # which may replace the table, so it comes first
            counts = self._counts[row]
            untried = counts == 0
            if untried.any():
                scores = np.where(untried, value[i], -np.inf)
            else:
                bonus = np.sqrt(math.log(counts.sum()) / counts)
                scores = value[i] + self.knobs.bonus * bonus
            action[i] = scores.argmax()
            counts[action[i]] += 1

    def log_prob(self, value: np.ndarray, action: np.ndarray) -> np.ndarray:
        """Return 0: given the counts, the choice is certain."""
        return np.zeros(action.shape)

    def visits(self, observation: np.ndarray) -> np.ndarray:
        """Return the counts n(s, ·) of observations [N, *obs], [N, A]."""
        rows = [self._rows.get(key.tobytes()) for key in self._bins(observation)]
        none = np.zeros(self._counts.shape[1])
        return np.stack([none if row is None else self._counts[row] for row in rows])

    def _bins(self, observation: np.ndarray) -> np.ndarray:
        """Return the bins of observations [N, *obs], one row of int64 each."""
        flat = observation.reshape(len(observation), -1)
        if self._low is None:
            return flat.astype(np.int64)
        bins = np.floor((flat - self._low) * self._per_bin)
        return np.clip(bins, 0, self.knobs.bins - 1).astype(np.int64)

    def _row(self, key: bytes) -> int:
        row = self._rows.setdefault(key, len(self._rows))
        if row == len(self._counts):
            self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
        return row

    def state_dict(self) -> dict[str, Any]:
        """Return the bins that were visited and their counts."""
        bins = np.frombuffer(b"".join(self._rows), np.int64).reshape(-1, self._width)
        counts = self._counts[: len(self._rows)]
        return {"bins": torch.tensor(bins), "counts": torch.tensor(counts)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a :meth:`state_dict`."""
        bins, counts = state["bins"].numpy(), state["counts"].numpy()
        self._rows = {key.tobytes(): row for row, key in enumerate(bins)}
        self._counts = np.concatenate([counts, np.zeros((64, self._counts.shape[1]))])
