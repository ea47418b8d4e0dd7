"""Keep what a run collects: a rollout around another that also writes its batches to files."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from zoo.core.protocols import Report
from zoo.rollouts.rollout_files import FOLDER, as_arrays, joined, name_of, tokenizer_of, write

if TYPE_CHECKING:
    from tensordict import TensorDict

    from zoo.core.protocols import Rollout

__all__ = ["SavingRollout"]

#: of a file at least; fragments that follow one another are gathered until there is as much
_STEPS, _BYTES = 2048, 16 * 2**20
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class SavingRollout:
    """Collect as the rollout within does, and write every batch into ``<folder>/rollouts``.

    What is written is what happened: raw observations and rewards, and the behaviour policy's
    log-probabilities per unit of the environment's action. A full disk, or ``max_gib``, ends the
    writing and not the run.

    Parameters
    ----------
    rollout : Rollout
        What collects, evaluates and has all other attributes.
    folder : Path or None
        The run's folder; None writes nothing, for a run that is only evaluated.
    about : dict
        What the files say of their origin besides the environment: ``algo``, ``model``, ``seed``.
    max_gib : float
        Bound on the files' size together.
    """

    def __init__(
        self, rollout: Rollout, folder: Path | None, about: Mapping[str, Any], max_gib: float
    ) -> None:
        self.rollout, self.max_gib = rollout, max_gib
        env = getattr(rollout, "env", None) or getattr(rollout, "make", None)
        self.about = {"world": rollout.world, "env": name_of(env), **about}
        self.folder = None if folder is None else folder / FOLDER
        self._grouped = rollout.world == "text" or getattr(rollout, "group_size", None) is not None
        if hasattr(rollout, "keep_raw"):
            rollout.keep_raw = True
        self._files = 0  # complete ones
        self._pending: list[dict[str, np.ndarray]] = []
        self._steps = self._bytes = 0  # of what is pending
        self._notices: list[str] = []
        self._ended = False

    def __getattr__(self, name: str) -> Any:
        """Return what the rollout within has: spaces, its environment, how it is watched."""
        return getattr(self.__dict__["rollout"], name)

    def collect(self, policy: Any, budget: int | None = None) -> TensorDict:
        """Gather one batch and keep it."""
        batch: TensorDict = self.rollout.collect(policy, budget)
        if self.folder is not None and not self._ended:
            arrays = self._kept(batch, policy)
            self._pending.append(arrays)
            self._steps += arrays["mask"].size
            self._bytes += _nbytes(arrays)
            if self._grouped or self._steps >= _STEPS or self._bytes >= _BYTES:
                self._flush(complete=True, left=budget)
            elif budget is not None and arrays["mask"].size >= budget:  # the run's last batch
                self._flush(complete=False)
        return batch.exclude("raw_observation", "raw_next_observation")

    def _kept(self, batch: TensorDict, policy: Any) -> dict[str, np.ndarray]:
        if "tokenizer" not in self.about and self.rollout.world == "text":
            self.about["tokenizer"] = tokenizer_of(policy)
        arrays = as_arrays(batch)
        bounds = getattr(policy, "bounds", None)
        if bounds is not None:  # squashed actions have a density per half their range
            arrays["log_prob"] -= np.log(bounds.half).sum(dtype=np.float32)
        return arrays

    def _flush(self, complete: bool, left: int | None = None) -> None:
        """Write what is pending as the next file, which is done where it is ``complete``."""
        if self.folder is None or not self._pending or self._ended:
            return
        self._pending = [joined(self._pending)]
        arrays = self._pending[0]
        path = self.folder / f"{self._files + 1:06d}.npz"
        if sum(file.stat().st_size for file in self.folder.glob("*.npz")) >= self.max_gib * 2**30:
            self._end(f"save.max_gib={self.max_gib:g} is reached")
            return
        try:
            self.folder.mkdir(exist_ok=True)
            size = write(path, arrays, {**self.about, "groups": self._grouped})
        except OSError as error:
            if error.errno not in _FULL:
                raise
            self._end(f"no space left on the disk for {path}")
            return
        if not complete:
            return
        self._files, self._pending, self._steps, self._bytes = self._files + 1, [], 0, 0
        if self._files == 1:
            self._notices.append(self._forecast(size, arrays, left))

    def _end(self, reason: str) -> None:
        self._ended, self._pending = True, []
        self._notices.append(
            f"{reason}: later rollouts are not saved; the {self._files} files before are complete,"
            " and training goes on."
        )

    def _forecast(self, size: int, arrays: Mapping[str, np.ndarray], left: int | None) -> str:
        """Say what the whole run will take, by its first file; budgets count steps or rounds."""
        steps = int(arrays["mask"].sum())
        spent = steps if self.rollout.world == "control" else 1
        whole = "" if left is None else f", about {size * max(1.0, left / spent) / 2**20:.3g} MiB"
        return (
            f"rollouts are saved in {self.folder}: {size / max(1, steps):.3g} bytes a step{whole}"
            f" in all, at most save.max_gib={self.max_gib:g}."
        )

    def report(self) -> Report:
        """Figures and records of the last batch."""
        report = self.rollout.report()
        notices, self._notices = [*report.notices, *self._notices], []
        return Report(report.metrics, report.records, notices, report.errors)

    def evaluate(self, policy: Any, **options: Any) -> dict[str, float]:
        """Measure the policy; nothing of it is saved."""
        return self.rollout.evaluate(policy, **options)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the rollout within, and the steps that no file holds yet."""
        whole = joined(self._pending) if self._pending else {}
        return {
            "rollout": self.rollout.state_dict(),
            "files": self._files,
            "pending": {name: torch.from_numpy(array.copy()) for name, array in whole.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue; files that were written after the state was taken will be written again."""
        self.rollout.load_state_dict(state["rollout"])
        self._files = state["files"]
        pending = {name: tensor.numpy() for name, tensor in state["pending"].items()}
        if pending:
            self._pending, self._steps = [pending], pending["mask"].size
            self._bytes = _nbytes(pending)
        for file in () if self.folder is None else self.folder.glob("*.npz"):
            if file.stem.isdigit() and int(file.stem) > self._files:
                file.unlink()

    def close(self) -> None:
        """Write what is pending and release what the rollout within holds."""
        self._flush(complete=False)
        self.rollout.close()


def _nbytes(arrays: Mapping[str, np.ndarray]) -> int:
    return sum(array.nbytes for array in arrays.values())
