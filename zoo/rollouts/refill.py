"""Dynamic sampling: leave out groups that teach nothing, and sample more prompts in their place.

DAPO (Yu et al. 2025, arXiv:2503.14476, §3.2, eq. 11): a batch is made of groups with
0 < |right answers| < G only. A group counts as informative where the *accuracy* of its completions
differs, by max − min; where no item of that name is paid, the total reward takes its place.

Groups are taken in the order in which their prompts were dispatched, never in that in which they
are done: short answers are done first, and a batch of what is done first is biased towards them.
Informative groups beyond the batch are kept for the next one. Rows carry the version of the weights
that sampled them, by which the importance plugin finds and corrects these.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor

from zoo.core.schema import in_range
from zoo.functional.returns import live_groups

__all__ = ["Refill", "RefillKnobs", "accuracy", "join"]

#: relative difference of rewards below which they are equal but for the order of their sums
_RESIDUE = 1e-6


@dataclass(frozen=True)
class RefillKnobs:
    """Settings of dynamic sampling."""

    #: sampling rounds per batch at most, the first one included; 0 turns dynamic sampling off
    rounds: int = 0

    def __post_init__(self) -> None:
        """Refuse a negative number of rounds."""
        in_range(self, "rounds", low=0)


class Refill:
    """Make batches of ``groups`` informative groups, and hold what is left over between them.

    Parameters
    ----------
    knobs : RefillKnobs
        Settings.
    groups : int
        Groups of a full batch.

    Attributes
    ----------
    metrics : dict of str to float
        Figures of the last batch; empty where dynamic sampling is off.
    notices : list of str
        What is to be said of the last batch.
    """

    def __init__(self, knobs: RefillKnobs, groups: int) -> None:
        self.knobs, self.groups = knobs, groups
        self.metrics: dict[str, float] = {}
        self.notices: list[str] = []
        self._left: TensorDict | None = None
        self._said = False

    def collect(self, answer: Callable[[int], TensorDict]) -> TensorDict:
        """Return the next batch, sampling by ``answer`` until it is full or the rounds are spent.

        Where the rounds don't fill it, the batch holds the informative groups there are. Where
        there is not a single one, it holds the first groups that were sampled, with advantages of
        0: a penalty in the loss still acts on them.

        Parameters
        ----------
        answer : callable
            Answers that many further prompts; rows in the order of dispatch, group numbers rising.
        """
        self.metrics, self.notices = {}, []
        if not self.knobs.rounds:
            return answer(self.groups)
        before = self._left
        kept = [] if before is None else [before]
        have = stale = _count(before)
        dropped: list[TensorDict] = []
        sampled = rounds = 0
        while have < self.groups and rounds < self.knobs.rounds:
            part = answer(self._wanted(self.groups - have, sampled, have - stale))
            rounds, sampled = rounds + 1, sampled + _count(part)
            live = informative(part)
            kept.append(part[live])
            dropped.append(part[~live])
            have += _count(kept[-1])
        batch, self._left = _split(join(kept if have else dropped), self.groups)
        out = join(dropped)
        if not have:
            self._left = None
        if have < self.groups:
            self._say(out, have, sampled, rounds)
        self.metrics = {
            "refill/rounds": float(rounds),
            "refill/sampled": float(sampled),
            "refill/dropped": float(_count(out)),
            "refill/kept": float(min(have, self.groups)),
            "refill/from_before": float(stale),
            "refill/left_over": float(_count(self._left)),
        }
        return batch

    def _wanted(self, missing: int, sampled: int, live: int) -> int:
        """Return how many prompts to dispatch: what is missing, at the rate seen in this batch.

        Never more than a batch, so that less than one is left over and none waits for two.
        """
        if not sampled:
            return missing
        return min(self.groups, -(-missing * sampled // live) if live else self.groups)

    def _say(self, dropped: TensorDict, have: int, sampled: int, rounds: int) -> None:
        """Say once per run that the data don't fill a batch, and on which side they fail."""
        if self._said:
            return
        self._said = True
        value = accuracy(dropped)
        why = "too hard or too easy for this model, or the reward never pays"
        if value is not None:
            right = float((value[value.isfinite()] > 0.5).float().mean())
            why = f"too {'easy' if right > 0.5 else 'hard'} for this model"
        self.notices.append(
            f"warning: dynamic sampling found {have} informative groups of the {self.groups} wanted"
            f" in {rounds} rounds ({sampled} prompts), and trains on what there is: the data are"
            f" {why}. This is said once; refill/kept shows it from here on."
        )

    def state_dict(self) -> dict[str, Any]:
        """Rows that were left over, and whether the warning was given."""
        return {"left": None if self._left is None else self._left.to_dict(), "said": self._said}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`, bit for bit."""
        left = state["left"]
        self._left = left and TensorDict(left, batch_size=[len(left["group"])])
        self._said = state["said"]


def accuracy(batch: TensorDict) -> Tensor | None:
    """Return the accuracy item [B] of a batch, None where none is paid."""
    found: Tensor | None = batch["reward_items"].get("accuracy", None)
    return found


def informative(batch: TensorDict) -> Tensor:
    """Tell which rows [B] belong to a group whose accuracies, else totals, differ."""
    value, valid = accuracy(batch), batch["mask"].any(1)
    if value is None:
        value = batch["reward"].sum(1)
    valid = valid & value.isfinite()
    live = live_groups(value, batch["group"], valid, tolerance=_RESIDUE)
    # a row without a reward stays with its group; the mask keeps it out of everything
    return torch.isin(batch["group"], batch["group"][live])


def join(parts: Sequence[TensorDict]) -> TensorDict:
    """Put batches one below the other, padded to one width: prompts in front, the rest behind."""
    parts = [part for part in parts if len(part)] or list(parts[:1])
    if len(parts) == 1:
        return parts[0]
    steps = max(part["mask"].shape[1] for part in parts)
    width = max(part["prompt_ids"].shape[1] for part in parts)
    joined: dict[str, Any] = {}
    for key, first in parts[0].items():
        leaves = [part[key].to(parts[-1][key].device) for part in parts]  # resumed ones: the CPU
        if isinstance(first, Tensor) and first.dim() >= 2:
            left = key == "prompt_ids"
            leaves = [_padded(leaf, width if left else steps, left) for leaf in leaves]
        joined[key] = torch.cat(leaves)
    return TensorDict(joined, batch_size=[sum(len(part) for part in parts)])


def _padded(leaf: Tensor, width: int, left: bool) -> Tensor:
    missing = width - leaf.shape[1]
    return torch.nn.functional.pad(leaf, (missing, 0) if left else (0, missing))


def _split(batch: TensorDict, groups: int) -> tuple[TensorDict, TensorDict | None]:
    """Cut after so many groups; group numbers rise, so those dispatched first come first."""
    numbers = batch["group"].unique()
    if len(numbers) <= groups:
        return batch, None
    last = numbers[groups - 1]
    return batch[batch["group"] <= last], batch[batch["group"] > last]


def _count(batch: TensorDict | None) -> int:
    return 0 if batch is None else len(batch["group"].unique())
