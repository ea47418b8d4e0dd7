"""Transitions of several environments in a ring over time, each observation stored once.

The observation that follows a step is the one of the next step of its environment, so it isn't
stored again. Where an episode ended, what followed is a new episode's first observation; the true
final one lies in a side store, which has one entry per ended episode.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict

from zoo.core.batch import BatchError
from zoo.errors import UserError

__all__ = ["TransitionRing"]

#: what ``_end`` says of a step: the next step follows, or is yet to come, or (above 0) the episode
#: ended there and this entry of the side store, counted from 1, has its final observation
_GOES_ON, _NEWEST = 0, -1
_NOTHING = np.float32(0.0)  # what follows a termination is worth
_STORED = ("observation", "action", "reward", "terminated")


class TransitionRing:
    """Keep the last ``capacity`` transitions, and read n-step ones from any start.

    Slot ``row · N + env`` is the step of one environment, N environments advancing together. One
    row more than needed is kept: the row after the newest step has no transition, only the
    observation that follows it, and so separates new data from old.

    Parameters
    ----------
    capacity : int
        Transitions kept; rounded up to a multiple of the environments.
    n_step : int
        The longest multi-step return.
    gamma : float
        Discount γ per step.

    Attributes
    ----------
    num_envs : int
        N, known after the first :meth:`extend`; 0 before.
    """

    def __init__(self, capacity: int, n_step: int, gamma: float) -> None:
        self.capacity, self.n_step = capacity, n_step
        self.num_envs = 0
        self._rows = 0  # steps of each environment that are stored
        self._head = 0  # the row after the newest step
        self._offset = np.arange(n_step)
        self._power = gamma**self._offset  # γ^i of reward i
        self._discount = (gamma * self._power).astype(np.float32)
        self._store: dict[str, np.ndarray] = {}
        self._end = self._final = np.zeros(0, np.int32)
        self._free: list[int] = []  # entries of the side store

    @property
    def size(self) -> int:
        """Transitions stored."""
        return self._rows * self.num_envs

    @property
    def slots(self) -> int:
        """Slots there are, written or not; 0 before the first :meth:`extend`."""
        return len(self._end)

    @property
    def nbytes(self) -> int:
        """Memory of the full ring in bytes, with the side store as it stands."""
        arrays = [*self._store.values(), self._end, self._final]
        return sum(array.nbytes for array in arrays)

    @property
    def row_bytes(self) -> int:
        """Memory of one transition in bytes."""
        return sum(array[:1].nbytes for array in self._store.values()) + self._end[:1].nbytes

    def _allocate(self, num_envs: int, like: Mapping[str, np.ndarray]) -> None:
        """Make the arrays; ``like`` has any number of leading entries of each."""
        rows = -(-self.capacity // num_envs)
        if rows < self.n_step:
            raise UserError(
                f"a replay of capacity={self.capacity} holds {rows} steps of each of {num_envs}"
                f" environments, fewer than n_step={self.n_step}: raise the capacity."
            )
        self.num_envs, slots = num_envs, (rows + 1) * num_envs
        # zeros, unlike a fill, takes memory only as it is written
        self._store = {k: np.zeros((slots, *like[k].shape[1:]), like[k].dtype) for k in _STORED}
        self._end = np.zeros(slots, np.int32)
        self._final = np.zeros((0, *like["observation"].shape[1:]), like["observation"].dtype)
        self._free = []

    # Writing.

    def extend(self, batch: TensorDict) -> tuple[np.ndarray, np.ndarray]:
        """Store fragments [N, T] whose rows continue those of the last call.

        Where a row doesn't begin with the observation that the last one ended on (an environment
        that could not be restored), the step before counts as truncated.

        Returns
        -------
        written, emptied : ndarray
            int64 slots that got a transition, and those that lost theirs without getting one.

        Raises
        ------
        BatchError
            Where steps are masked out, or the number of environments changed.
        UserError
            Where the capacity is less than n_step steps of every environment.
        """
        envs, steps = batch["mask"].shape
        self._refuse_unfit(batch, envs)
        kept = min(steps, -(-self.capacity // envs))

        def flat(key: str) -> np.ndarray:
            """[N, T, …] → [kept · N, …], in the order of the slots."""
            leaf = batch[key].cpu().numpy()[:, steps - kept :].swapaxes(0, 1)
            return leaf.reshape(kept * envs, *leaf.shape[2:])

        new = {key: flat(key) for key in _STORED}
        following = flat("next_observation")
        if not self._store:
            self._allocate(envs, new)
        self._join(new["observation"][:envs])
        slots = (self._head * envs + np.arange((kept + 1) * envs)) % self.slots
        written, emptied = slots[:-envs], slots[-envs:]
        self._release(slots)
        for key, array in self._store.items():
            array[written] = new[key]
        self._store["observation"][emptied] = following[-envs:]
        self._end[written[-envs:]] = _NEWEST
        ended = new["terminated"] | flat("truncated")
        if kept > 1:
            ended[:-envs] |= _differ(following[:-envs], new["observation"][envs:])
        self._close(written, ended, following)
        self._rows = min(self._rows + kept, -(-self.capacity // envs))
        self._head = int(emptied[0]) // envs
        return written, emptied

    def _refuse_unfit(self, batch: TensorDict, envs: int) -> None:
        if not bool(batch["mask"].all()):
            row, step = (~batch["mask"]).nonzero()[0].tolist()
            raise BatchError(
                f"batch['mask'] is False at [{row}, {step}]: replay stores fragments in which every"
                " step counts, not padded episodes (rollouts with a group_size)."
            )
        if self.num_envs and envs != self.num_envs:
            raise BatchError(
                f"the batch has {envs} environments, the replay was begun with {self.num_envs}"
            )

    def _join(self, observation: np.ndarray) -> None:
        """Let the newest steps be followed by these observations [N, …], if they do follow."""
        if self._rows:
            gap = self._head * self.num_envs + np.arange(self.num_envs)
            newest = (gap - self.num_envs) % self.slots
            running = self._end[newest] == _NEWEST
            expected = self._store["observation"][gap]
            self._end[newest[running]] = _GOES_ON
            self._close(newest, running & _differ(expected, observation), expected)

    def _close(self, slots: np.ndarray, ended: np.ndarray, following: np.ndarray) -> None:
        """End the episodes of those slots [M] that ``ended``; keep their final observations."""
        at = np.flatnonzero(ended)
        if len(at):
            have = len(self._final)
            if len(self._free) < len(at):
                more = max(have, len(at), 8)
                grown = np.zeros((more, *self._final.shape[1:]), self._final.dtype)
                self._final = np.concatenate([self._final, grown])
                self._free.extend(range(have, have + more))
            entries = [self._free.pop() for _ in at]
            self._final[entries] = following[at]
            self._end[slots[at]] = np.array(entries, np.int32) + 1

    def _release(self, slots: np.ndarray) -> None:
        """Forget the ends of slots that are about to be overwritten."""
        end = self._end[slots]
        self._free.extend((end[end > 0] - 1).tolist())
        self._end[slots] = _GOES_ON

    # Reading.

    def slot(self, age: np.ndarray) -> np.ndarray:
        """Return the slots of transitions counted from the oldest, 0 ≤ age < size."""
        return ((self._head - self._rows) * self.num_envs + age) % self.slots

    def gather(self, slot: np.ndarray) -> dict[str, np.ndarray]:
        """Read the n-step transitions that begin at the given slots [B].

        A start less than n steps before the newest stored step gives the return up to there and
        bootstraps from its next observation: a correct target, over fewer steps. Leaving such
        starts out would keep those of them whose episode ended, and over-represent ends.

        Returns
        -------
        dict of str to ndarray
            ``observation``, ``action``, ``next_observation`` [B, 1, …], ``reward``
            (Σ_{i<k} γ^i r_{t+i}) and ``discount`` (γ^k, 0 after a termination) [B, 1] float32.
        """
        first = slot[:, None]
        store = self._store
        reward, steps = store["reward"], 0
        if self.n_step == 1:
            summed, last = reward.take(first), first
        else:
            window = (first + self.num_envs * self._offset) % self.slots
            stops = self._end.take(window) != _GOES_ON
            stops[:, -1] = True
            steps = stops.argmax(1)[:, None]  # k − 1
            counted = np.where(self._offset <= steps, reward.take(window), 0.0)
            summed = (counted @ self._power).astype(np.float32)[:, None]
            last = (first + self.num_envs * steps) % self.slots
        following = store["observation"].take(last + self.num_envs, axis=0, mode="wrap")
        end = self._end.take(last)
        ended = end > 0
        if ended.any():
            following[ended] = self._final.take(end[ended] - 1, axis=0)
        return {
            "observation": store["observation"].take(first, axis=0),
            "action": store["action"].take(first, axis=0),
            "reward": summed,
            "discount": np.where(store["terminated"].take(last), _NOTHING, self._discount[steps]),
            "next_observation": following,
        }

    # State.

    def state_dict(self) -> dict[str, Any]:
        """What is written so far; tensors share the ring's memory, as those of a module do."""
        state: dict[str, Any] = {"num_envs": self.num_envs, "rows": self._rows, "head": self._head}
        if self._store:
            written = (self._rows + 1) * self.num_envs  # unless all rows are, head = rows
            final = self._final[: max(0, int(self._end[:written].max()))]
            for key, array in self._store.items():
                state[key] = torch.from_numpy(array[:written])
            state["end"] = torch.from_numpy(self._end[:written])
            state["final_observation"] = torch.from_numpy(final)
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a :meth:`state_dict` of a ring of the same capacity."""
        self.num_envs, self._rows, self._head = state["num_envs"], state["rows"], state["head"]
        self._store = {}
        if self.num_envs:
            arrays = {k: state[k].cpu().numpy() for k in (*_STORED, "end", "final_observation")}
            self._allocate(self.num_envs, arrays)
            written = len(arrays["end"])
            for key, array in self._store.items():
                array[:written] = arrays[key]
            self._end[:written] = arrays["end"]
            self._final = arrays["final_observation"].copy()
            self._free = sorted(set(range(len(self._final))) - set((arrays["end"] - 1).tolist()))


def _differ(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Say which of M observations [M, …] are not the same, [M] bool."""
    return (one != other).reshape(len(one), -1).any(1)
