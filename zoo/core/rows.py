"""One row of figures from one round or from several short ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["Row"]

_SUMMED = ("time/", "episode/count")
_WORK = ("time/collect", "time/learn")


class Row:
    """Gather the figures and records of rounds until they are written as one row.

    Times and counts add up, speeds are over the time that they took, and everything else is the
    mean over the rounds that had it.
    """

    def __init__(self) -> None:
        self.rounds: list[dict[str, float]] = []
        self.records: list[dict[str, Any]] = []

    def add(self, metrics: Mapping[str, float], records: Sequence[Mapping[str, Any]]) -> None:
        """Add one round."""
        self.rounds.append(dict(metrics))
        self.records += [dict(record) for record in records]

    def figures(self) -> dict[str, float]:
        """Return the figures of all rounds so far, as one."""
        if len(self.rounds) == 1:
            return self.rounds[0]
        work = [sum(r.get(key, 0.0) for key in _WORK) for r in self.rounds]
        merged = {}
        for name in dict.fromkeys(name for r in self.rounds for name in r):
            found = [(r[name], t) for r, t in zip(self.rounds, work, strict=True) if name in r]
            values = [value for value, _ in found]
            total = sum(t for _, t in found)
            if name.startswith(_SUMMED):
                merged[name] = sum(values)
            elif name.startswith("speed/") and total > 0:
                merged[name] = sum(value * t for value, t in found) / total
            else:
                merged[name] = sum(values) / len(values)
        return merged

    def state_dict(self) -> dict[str, Any]:
        """Return what was gathered."""
        return {"rounds": self.rounds, "records": self.records}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a :meth:`state_dict`."""
        self.rounds, self.records = list(state["rounds"]), list(state["records"])
