"""Replay: a memory of transitions, sampled uniformly or by priority.

Prioritised replay (Schaul et al. 2016, arXiv:1511.05952, proportional variant) draws transition i
with probability P(i) and weighs its loss by w_i:

    p_i = |δ_i| + ε        P(i) = p_i^α / Σ_k p_k^α        w_i = (N · P(i))^−β / max_j w_j

The maximum is taken over the sampled batch, as in Dopamine and Acme: over the whole memory, one
transition with a tiny error would shrink every step by orders of magnitude. N and Σ p^α cancel.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict

from zoo.core.schema import in_range
from zoo.core.sum_tree import SumTree
from zoo.core.transitions import TransitionRing
from zoo.errors import UserError

__all__ = ["PriorityKnobs", "ReplayBuffer", "ReplayKnobs"]

#: the stream of random numbers that a run's seed gives the draws
_REPLAY = 3
_DIAGNOSED_EVERY = 64
#: bytes gathered at once where several mini-batches follow each other: what a core's cache holds
_BLOCK = 2**18


@dataclass(frozen=True)
class PriorityKnobs:
    """How strongly replay prefers transitions with a large error; off unless alpha is set."""

    #: exponent of priorities: 0 is uniform replay, the paper has .6, 1 is proportional to the error
    alpha: float = 0.0
    #: exponent of the importance weights at the start: 1 corrects the preference in full
    beta: float = 0.4
    #: the same at the end of the run; linear in between
    beta_final: float = 1.0
    #: added to |δ|, so that a transition without error can come again
    epsilon: float = 1e-6

    def __post_init__(self) -> None:
        """Refuse exponents that the method has no meaning for."""
        in_range(self, "alpha", "beta", "beta_final", low=0, high=1)
        in_range(self, "epsilon", low=0, above=True)


@dataclass(frozen=True)
class ReplayKnobs:
    """The memory of transitions, and how often it is learned from."""

    #: transitions kept; then the oldest go
    capacity: int = 1_000_000
    #: transitions per update
    batch_size: int = 256
    #: steps summed before bootstrapping
    n_step: int = 1
    #: environment steps acted at random and stored before the first update
    learning_starts: int = 100
    #: updates per environment step from then on
    updates_per_step: float = 1.0
    #: preference for transitions with a large error
    priority: PriorityKnobs = field(default_factory=PriorityKnobs)

    def __post_init__(self) -> None:
        """Refuse what can't be sampled from."""
        self.build(gamma=1.0, seed=0)

    def refuse_clamp(self, clamp: float | None) -> None:
        """Refuse a bound on rewards where what is sampled, and scaled, are sums of several."""
        if clamp is not None and self.n_step > 1:
            raise UserError(
                f"reward_scale.clamp={clamp} would bound the sum of {self.n_step} rewards, as"
                f" replay.n_step={self.n_step} samples them, and not each: leave one of them out."
            )

    def build(self, gamma: float, seed: int) -> ReplayBuffer:
        """Return the empty buffer; it takes memory as it is written."""
        return ReplayBuffer(
            self.capacity,
            self.batch_size,
            gamma=gamma,
            n_step=self.n_step,
            learning_starts=self.learning_starts,
            updates_per_step=self.updates_per_step,
            seed=seed,
            priority=self.priority if self.priority.alpha > 0 else None,
        )


class ReplayBuffer:
    """Store transitions, and yield as many sampled mini-batches as the new ones have earned.

    Parameters
    ----------
    capacity : int
        Transitions kept, rounded up to a multiple of the environments; then the oldest go.
    batch_size : int
        B: transitions per mini-batch, drawn with replacement.
    gamma : float
        Discount γ per step.
    n_step : int
        n: steps summed before bootstrapping.
    learning_starts : int
        Environment steps to store first; they earn no updates.
    updates_per_step : float
        Mini-batches per environment step from then on; fractions are carried over.
    seed : int
        Seed of the draws, which have a generator of their own.
    priority : PriorityKnobs, optional
        Draw by priority; None draws uniformly.

    Raises
    ------
    UserError
        For numbers out of range or that don't fit together.
    """

    def __init__(
        self,
        capacity: int,
        batch_size: int,
        *,
        gamma: float,
        n_step: int = 1,
        learning_starts: int = 0,
        updates_per_step: float = 1.0,
        seed: int = 0,
        priority: PriorityKnobs | None = None,
    ) -> None:
        self.capacity, self.batch_size = capacity, batch_size
        self.gamma, self.n_step = gamma, n_step
        self.learning_starts, self.updates_per_step = learning_starts, updates_per_step
        in_range(self, "capacity", "batch_size", "n_step", low=1)
        in_range(self, "gamma", low=0, high=1)
        in_range(self, "learning_starts", low=0)
        in_range(self, "updates_per_step", low=0, above=True)
        for name in ("batch_size", "n_step", "learning_starts"):
            value = getattr(self, name)
            if value > capacity:
                raise UserError(
                    f"{name}={value} is more than the replay's capacity={capacity}: lower it or"
                    " raise the capacity."
                )
        self.priority = priority
        self._ring = TransitionRing(capacity, n_step, gamma)
        self._tree: SumTree | None = None
        self._largest = 1.0  # p^α that new transitions get
        self._rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(_REPLAY,)))
        self._strata = np.arange(batch_size)
        self._mask = torch.ones(batch_size, 1, dtype=torch.bool)
        self._device = torch.device("cpu")
        self._seen = 0  # environment steps
        self._yielded = 0  # mini-batches

    @property
    def size(self) -> int:
        """Transitions stored."""
        return self._ring.size

    @property
    def nbytes(self) -> int:
        """Memory in bytes when full; it is taken as it is written."""
        return self._ring.nbytes + (0 if self._tree is None else self._tree.nbytes)

    def extend(self, batch: TensorDict) -> None:
        """Store fragments of rollouts.

        Parameters
        ----------
        batch : TensorDict
            ``batch_size [N]``, leaves [N, T, …]: ``observation``, ``next_observation`` (the true
            one), ``action``, ``reward``, ``terminated``, ``truncated`` and ``mask``. Row i is
            environment i; a call continues where the last one ended.

        Raises
        ------
        BatchError
            Where ``mask`` is not all True, or N changed.
        """
        written, emptied = self._ring.extend(batch)
        self._device = batch["observation"].device
        self._seen += batch["mask"].numel()
        if self.priority is not None:
            if self._tree is None:
                self._tree = SumTree(self._ring.slots)
            self._tree.set(emptied, 0.0)
            self._tree.set(written, self._largest)

    def __len__(self) -> int:
        """How many mini-batches are waiting."""
        # counted from the beginning: a fraction carried from call to call would drift
        earned = max(0, self._seen - self.learning_starts) * self.updates_per_step
        return max(0, int(earned + 1e-6) - self._yielded)

    @property
    def diagnosed_every(self) -> int:
        """How many mini-batches apart the figures that are only logged are computed."""
        return _DIAGNOSED_EVERY

    def minibatches(self, progress: float = 0.0) -> Iterator[TensorDict]:
        """Yield the mini-batches that are waiting.

        Parameters
        ----------
        progress : float
            Fraction of the run's budget that is spent; moves β.

        Yields
        ------
        TensorDict
            ``batch_size [B]``; ``observation``, ``action`` and ``next_observation`` (k ≤ n steps
            later, the true one) [B, 1, …]; ``reward`` (Σ_{i<k} γ^i r_{t+i} of raw rewards),
            ``discount`` (γ^k, 0 after a termination) and, with priorities alone, ``weight`` (≤ 1)
            [B, 1] float32; ``mask`` (all True) [B, 1]; ``index`` [B] int64, for :meth:`feedback`.
        """
        waiting = len(self)
        # priorities change with every update; uniform draws are the same one by one or all at once
        whole = max(1, _BLOCK // (self.batch_size * self._ring.row_bytes)) if waiting else 1
        while waiting > 0:
            drawn = 1 if self._tree is not None else min(whole, waiting)
            waiting -= drawn
            for sampled in self._draw(drawn, progress):
                self._yielded += 1
                yield sampled

    def sample(self, progress: float = 0.0) -> TensorDict:
        """Draw one mini-batch, earned or not; see :meth:`minibatches`."""
        return next(self._draw(1, progress))

    def _draw(self, count: int, progress: float) -> Iterator[TensorDict]:
        """Draw so many mini-batches with one look into the memory; one, where by priority."""
        size, weight = self.batch_size, {}
        if self._tree is None:
            index = self._ring.slot(self._rng.integers(self._ring.size, size=count * size))
        else:
            index, weight["weight"] = self._preferred(self._tree, progress)
        arrays = {**self._ring.gather(index), **weight, "index": index}
        leaves = {key: torch.from_numpy(array) for key, array in arrays.items()}
        if self._device.type != "cpu":
            leaves = {key: leaf.to(self._device) for key, leaf in leaves.items()}
            self._mask = self._mask.to(self._device)
        for part in zip(*(leaf.split(size) for leaf in leaves.values()), strict=True):
            own = dict(zip(leaves, part, strict=True))
            yield TensorDict({**own, "mask": self._mask}, batch_size=[size])

    def _preferred(self, tree: SumTree, progress: float) -> tuple[np.ndarray, np.ndarray]:
        """Draw one slot from each of B equal parts of the total mass; [B] and weights [B, 1]."""
        assert self.priority is not None
        first, final = self.priority.beta, self.priority.beta_final
        beta = first + (final - first) * min(1.0, max(0.0, progress))
        stratum = tree.total / self.batch_size
        index = tree.find((self._strata + self._rng.random(self.batch_size)) * stratum)
        mass = tree.leaves.take(index)
        weight = (mass.min() / mass) ** beta
        return index, weight.astype(np.float32)[:, None]

    def feedback(self, index: torch.Tensor, td_error: torch.Tensor) -> None:
        """Set the priorities of sampled transitions; does nothing without priorities.

        Parameters
        ----------
        index : Tensor
            [B] int64 of a sampled batch; of repeated ones the last error counts.
        td_error : Tensor
            [B] or [B, 1], of either sign. An error that is not finite leaves its transition's
            priority as it was: the Learner skips that update and counts it in update/skipped.
        """
        if self._tree is None or self.priority is None:
            return
        slots = index.reshape(-1).cpu().numpy()
        error = td_error.detach().reshape(-1).double().abs().cpu().numpy()
        mass = (error + self.priority.epsilon) ** self.priority.alpha
        # a slot emptied since it was sampled has mass 0, and keeps it
        known = np.isfinite(mass) & (self._tree.leaves[slots] > 0)
        if not known.all():
            slots, mass = slots[known], mass[known]
        if len(slots):
            self._tree.set(slots, mass)
            self._largest = max(self._largest, float(mass.max()))

    def state_dict(self) -> dict[str, Any]:
        """Stored transitions, priorities, generator and counters, in tensors and plain values.

        As in a module's state, tensors share the buffer's memory (a copy would double it): write
        them out, or copy them, before the next :meth:`extend`.
        """
        state = {"seen": self._seen, "yielded": self._yielded, "ring": self._ring.state_dict()}
        state["rng"] = self._rng.bit_generator.state
        if self._tree is not None:
            mass = self._tree.leaves[: self._ring.size + self._ring.num_envs]
            state["priority"] = {"mass": torch.from_numpy(mass), "largest": self._largest}
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a :meth:`state_dict`, bit for bit."""
        self._seen, self._yielded = state["seen"], state["yielded"]
        self._ring.load_state_dict(state["ring"])
        self._rng.bit_generator.state = state["rng"]
        self._tree = None
        if "priority" in state:
            self._tree, self._largest = SumTree(self._ring.slots), state["priority"]["largest"]
            self._tree.fill(state["priority"]["mass"].cpu().numpy())
