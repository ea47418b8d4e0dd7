"""One row of figures from one round or from several short ones."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["Row"]

_SUMMED = ("time/", "episode/count", "reward/failed/")
_WORK = ("time/collect", "time/learn")
#: as they stand at the end: counters, and weights that move
_LAST = (
    "update/steps",
    "update/skipped",
    "update/halts",
    "entropy/coefficient",
    "kl/coefficient",
    "reward/scale",
    "stored/passes",
    "lr",
)
_LARGEST = (
    "completion/length_max",
    "importance/ratio_max",
    "memory/peak_cuda_gib",
    "memory/peak_rss_gib",
    "policy/ratio_max",
    "rollout/age_max",
    "sampler/log_prob_gap_max",
)
#: means over the episodes that ended in a round
_PER_EPISODE = ("return/mean", "return/std", "episode/length")


class Row:
    """Gather the figures and records of rounds until they are written as one row.

    Times and counts add up, speeds are over the time that they took, figures of episodes are over
    all episodes; of counters and coefficients the last one stands, and of anything else the mean
    over the rounds that had it.
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
        merged = {}
        for name in dict.fromkeys(name for r in self.rounds for name in r):
            had = [r for r in self.rounds if name in r]
            values = [r[name] for r in had]
            if name.startswith(_SUMMED):
                merged[name] = sum(values)
            elif name in _LAST:
                merged[name] = values[-1]
            elif name in _LARGEST:
                merged[name] = max(values)
            elif name.startswith("speed/"):
                merged[name] = _mean(values, [sum(r.get(k, 0.0) for k in _WORK) for r in had])
            elif name in _PER_EPISODE:
                merged[name] = _mean(values, [r.get("episode/count", 1.0) for r in had])
            else:
                merged[name] = _mean(values)
        if "return/std" in merged:
            merged["return/std"] = self._return_std(merged["return/mean"])
        return merged

    def _return_std(self, mean: float) -> float:
        """Return the deviation over all episodes: that within rounds and that between them."""
        had = [r for r in self.rounds if "return/std" in r]
        squares = [r["return/std"] ** 2 + (r["return/mean"] - mean) ** 2 for r in had]
        return math.sqrt(_mean(squares, [r.get("episode/count", 1.0) for r in had]))

    def state_dict(self) -> dict[str, Any]:
        """Return what was gathered."""
        return {"rounds": self.rounds, "records": self.records}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a :meth:`state_dict`."""
        self.rounds, self.records = list(state["rounds"]), list(state["records"])


def _mean(values: Sequence[float], weights: Sequence[float] | None = None) -> float:
    """Return the weighted mean; the plain one where there are no weights or all are 0."""
    if not weights or sum(weights) <= 0:
        return sum(values) / len(values)
    return sum(v * w for v, w in zip(values, weights, strict=True)) / sum(weights)
