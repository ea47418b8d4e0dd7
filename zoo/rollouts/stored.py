"""Rollouts that an earlier run saved, read again in place of new ones.

Nothing is stepped or sampled in training: ``collect`` yields the saved batches, pass after pass.
Evaluation plays the real environment, or answers held-out prompts. The batches bear no version that
the policy could have, so that algorithms which learn from their own rollouts correct for it
(zoo/plugins/importance.py); those with replay take them as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict

from zoo.core.protocols import Report, TextEnv, World
from zoo.core.schema import in_range
from zoo.errors import UserError
from zoo.rollouts.rollout_files import FOLDER, laid_end_to_end, name_of, read, tokenizer_of
from zoo.rollouts.stored_checks import (
    Returns,
    refuse_other_environment,
    refuse_other_groups,
    refuse_other_spaces,
)

__all__ = ["StoredKnobs", "StoredRollout"]

#: the stream of random numbers that a run's seed gives the order of the files
_ORDER = 5


@dataclass(frozen=True)
class StoredKnobs:
    """Which saved rollouts are read, and in which order."""

    #: run folder of a run with save.rollouts=true, a folder of such files, or one of them
    path: str | None = None
    #: another order in every pass; false reads them as they were collected
    shuffle: bool = True
    #: text, for evaluation: tokens after which a completion is cut; and what reduction=constant,
    #: which asks for the saving run's limit, divides by
    max_new_tokens: int = 96
    #: text, for evaluation: tokens that a prompt may have at most
    max_prompt_tokens: int = 512
    #: text, for evaluation: completions sampled together
    max_rows: int = 256

    def __post_init__(self) -> None:
        """Refuse what reads nothing."""
        in_range(self, "max_new_tokens", "max_prompt_tokens", "max_rows", low=1)


class StoredRollout:
    """Yield saved batches.

    Parameters
    ----------
    env : ControlEnv or TextEnv
        What the rollouts were collected in; evaluation uses it.
    group_size : int, optional
        Rows per group, for algorithms that compare the rows of one.
    seed : int
        Of the order.
    **knobs
        Fields of :class:`StoredKnobs`.

    Notes
    -----
    On control the steps of a file are laid end to end in one row [1, L], so a budget of steps is
    met exactly; groups (algorithms with a ``group_size``) stay whole, and the last one may overrun.
    """

    Knobs = StoredKnobs
    on_policy = False
    record_file = "episodes.jsonl"
    world: World

    def __init__(
        self, env: Any, *, group_size: int | None = None, seed: int = 0, **knobs: Any
    ) -> None:
        self.knobs, self.seed, self.group_size = StoredKnobs(**knobs), seed, group_size
        self._files: list[Path] = []
        self._expected: int | None = None  # how many there were when the run was saved
        self._within = self._real(env)
        self.world = self._within.world
        self._name = name_of(env)
        self._grouped = group_size is not None and (self.world == "control" or group_size > 1)
        self.source = f"saved rollouts of {self.knobs.path}"
        questions = getattr(env, "dataset", None)
        self.dataset = f"{questions}, {self.source}" if questions else self.source
        self._taken = 0  # files so far, in all passes
        self._metrics: dict[str, float] = {}
        self._notices: list[str] = []
        self._tokenizers: set[str] = set()

    def _real(self, env: Any) -> Any:
        """Return the rollout that evaluates."""
        k = self.knobs
        if isinstance(env, TextEnv):
            from zoo.rollouts.hf import HFSampler
            from zoo.rollouts.text import TextRollout

            return TextRollout(
                env,
                HFSampler(),
                group_size=1,
                seed=self.seed,
                max_new_tokens=k.max_new_tokens,
                max_prompt_tokens=k.max_prompt_tokens,
                max_rows=k.max_rows,
            )
        from zoo.rollouts.gymnasium import GymnasiumRollout

        return GymnasiumRollout(env, num_envs=1, seed=self.seed)

    def __getattr__(self, name: str) -> Any:
        """Return what the evaluating rollout has: spaces, its environment, how it is watched."""
        return getattr(self.__dict__["_within"], name)

    # Reading.

    def open(self) -> None:
        """Find, read and check every file, before anything is trained on one of them.

        Raises
        ------
        UserError
            Where the files are missing, damaged, or of something else than this run is about.
        """
        files, steps, seen = _files(self.knobs.path), 0, Returns()
        for path in files:
            about, batch = self._read(path)
            steps += int(batch["mask"].sum())
            seen.add(batch, whole_rows=about["groups"])
        if self._expected not in (None, len(files)):
            raise UserError(
                f"{self.source} had {self._expected} files when this run was saved and there are"
                f" {len(files)} now: bring them back, or start a new run."
            )
        self._files = files
        unit, episodes = {
            "control": ("steps", "whole episodes"),
            "text": ("tokens", "completions"),
        }[self.world]
        mean = f" with mean return {np.mean(seen.whole):.4g}" if seen.whole else ""
        self._notices = [
            f"{self.source}: {steps:,} {unit} in {len(files)} files, {len(seen.whole):,}"
            f" {episodes}{mean}."
        ]

    def _read(self, path: Path) -> tuple[dict[str, Any], TensorDict]:
        about, batch = read(path)
        refuse_other_environment(path, about, self.world, self._name)
        if self.world == "control":
            refuse_other_spaces(path, batch, self.observation_space, self.action_space)
        else:
            self._tokenizers.add(about["tokenizer"])
        if self._grouped:
            refuse_other_groups(path, about, batch, self.group_size or 1)
        return about, batch

    def collect(self, policy: Any, budget: int | None = None) -> TensorDict:
        """Yield the next batch; on control tasks at most ``budget`` steps of it."""
        if not self._files:
            self.open()
        if self._tokenizers and self._tokenizers != {tokenizer_of(policy)}:
            raise UserError(
                f"{self.source} are of a model with other tokens: give model= the one that made"
                " them, or one of its family."
            )
        path, passes = self._files[self._next()], self._taken / len(self._files)
        _, batch = self._read(path)  # checked again: it may have been replaced since
        if self.world == "control":
            batch = self._normalised(batch, policy)
            if not self._grouped:
                batch = laid_end_to_end(batch)
                batch = batch if budget is None else _cut(batch, budget)
        self._taken += 1
        self._metrics = {"stored/passes": passes + 1 / len(self._files)}
        device = policy.device
        return batch if device.type == "cpu" else batch.to(device)

    def _next(self) -> int:
        passes, place = divmod(self._taken, len(self._files))
        if not self.knobs.shuffle:
            return place
        sequence = np.random.SeedSequence(self.seed, spawn_key=(_ORDER, passes))
        return int(np.random.default_rng(sequence).permutation(len(self._files))[place])

    def _normalised(self, batch: TensorDict, policy: Any) -> TensorDict:
        """Show observations as the policy sees them; its statistics grow in the first pass only."""
        if policy.normalizer is None:
            return batch
        if self._taken < len(self._files):
            policy.normalizer.update(batch["observation"][batch["mask"]].numpy())
        for key in ("observation", "next_observation"):
            batch[key] = torch.from_numpy(policy.normalizer(batch[key].numpy()))
        return batch

    def report(self) -> Report:
        """Passes through the files so far, and once what they hold."""
        notices, self._notices = self._notices, []
        return Report(metrics=self._metrics, notices=notices)

    # The rest of the protocol.

    def evaluate(self, policy: Any, **options: Any) -> dict[str, float]:
        """Measure the policy in the real environment, or on held-out prompts."""
        result: dict[str, float] = self._within.evaluate(policy, **options)
        return result

    def state_dict(self) -> dict[str, Any]:
        """Return how many files were read; the seed says in which order."""
        return {"taken": self._taken, "files": len(self._files) or self._expected}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue; the files are looked for when they are needed, an evaluation needs none."""
        self._taken, self._expected, self._files = state["taken"], state["files"], []

    def close(self) -> None:
        """Release the evaluating rollout."""
        self._within.close()


def _files(path: str | None) -> list[Path]:
    """Return the files that a path stands for, in the order in which they were written."""
    if not path:
        raise UserError(
            "rollout=stored needs rollout.path=: the folder of a run that was trained with"
            " save.rollouts=true."
        )
    found = Path(path).expanduser()
    if found.is_file():
        if found.suffix != ".npz":
            raise UserError(
                f"rollout.path={path} is no saved rollout, whose files end in .npz: give a run"
                " folder, or its rollouts/."
            )
        return [found]
    if not found.is_dir():
        raise UserError(f"rollout.path={path} does not exist: give a run folder, or its rollouts/.")
    files = sorted((found / FOLDER).glob("*.npz")) or sorted(found.glob("*.npz"))
    if not files:
        raise UserError(
            f"rollout.path={path} has no saved rollouts: train the run with save.rollouts=true."
        )
    return files


def _cut(batch: TensorDict, steps: int) -> TensorDict:
    """Return the first ``steps`` steps of one row [1, L]."""
    if steps >= batch["mask"].shape[1]:
        return batch
    rows = ("group", "version")
    leaves = {k: leaf if k in rows else leaf[:, :steps] for k, leaf in batch.items()}
    return TensorDict(leaves, batch_size=[1])
