"""Figures of a round on text that no mean over mini-batches gives: quantiles, speed, memory.

The values of all live tokens of all mini-batches are gathered, so that a quantile is one of the
whole round however it was cut. On control tasks these would cost a small network's update more than
they tell.
"""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from zoo.core.memory import peak_cuda_gib, peak_rss_gib
from zoo.functional.surrogate import ratio

if TYPE_CHECKING:
    from tensordict import TensorDict

    from zoo.core.protocols import Loss

__all__ = ["RoundFigures"]

_QUANTILES = {"min": 0.0, "p01": 0.01, "p50": 0.5, "p99": 0.99, "max": 1.0}


class RoundFigures:
    """Gather what the losses of one round show.

    Parameters
    ----------
    version : int
        Of the weights before the round's first update: rows of this version are fresh, and what
        their log-probabilities differ by is the sampler's doing alone.
    """

    def __init__(self, version: int) -> None:
        self.version, self._start = version, perf_counter()
        self._values: dict[str, list[Tensor]] = {"ratio": [], "advantage": [], "gap": []}

    @torch.no_grad()
    def add(self, loss: Loss, batch: TensorDict) -> None:
        """Take a part's live tokens, where the loss says its ``log_ratio``."""
        if loss.log_ratio is None or loss.out is None:
            return
        fresh = loss.mask & (batch["version"] == self.version)[:, None]
        old = batch.get("old_log_prob", None)
        gap = (loss.out.log_prob.detach() if old is None else old) - batch["log_prob"]
        live = (loss.log_ratio[loss.mask], batch["advantage"][loss.mask], gap[fresh])
        for kept, values in zip(self._values.values(), live, strict=True):
            kept.append(values.float())

    def figures(self, device: torch.device) -> dict[str, float]:
        """Return the figures of everything that was gathered."""
        seconds = perf_counter() - self._start
        found = {"time/update": seconds, "memory/peak_rss_gib": peak_rss_gib()}
        if device.type == "cuda":
            found["memory/peak_cuda_gib"] = peak_cuda_gib(device)
        rho, advantage, gap = (torch.cat(v) if v else torch.empty(0) for v in self._values.values())
        if len(rho):
            found["speed/learned_tokens_per_s"] = len(rho) / seconds
            ordered = ratio(rho).sort().values
            for name, q in _QUANTILES.items():
                found[f"policy/ratio_{name}"] = float(ordered[round(q * (len(ordered) - 1))])
            found["advantage/mean"] = float(advantage.mean())
            found["advantage/std"] = float(advantage.std(correction=0))
        if len(gap):
            weight = ratio(gap).double()
            found["sampler/log_prob_gap_mean"] = float(gap.abs().mean())
            found["sampler/log_prob_gap_max"] = float(gap.abs().max())
            found["sampler/effective"] = float(
                weight.sum().square() / weight.square().sum() / len(weight)
            )
        return found
