"""What a run left behind, whoever made it: what every reader gives and every report takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["Collection", "Curve", "Note", "Run", "place"]


@dataclass(frozen=True)
class Curve:
    """One figure of one run as it went on.

    Attributes
    ----------
    step : ndarray, [N] float64
        Where it was measured, strictly increasing, in the run's unit.
    value : ndarray, [N] float64
        What it was, finite.
    wall_s : ndarray, [N] float64, optional
        Seconds of training until then, never falling; None where the source does not say.
    """

    step: np.ndarray
    value: np.ndarray
    wall_s: np.ndarray | None = None


def place(source: Path) -> str:
    """Return the end of a path that tells runs of one bench apart: ppo/CartPole-v1/seed-0."""
    return "/".join(source.parts[-3:])


@dataclass(frozen=True)
class Note:
    """One sentence about the input that the reader of a report has to see.

    Attributes
    ----------
    text : str
        The sentence.
    source : Path, optional
        The file or folder it is about.
    """

    text: str
    source: Path | None = None


@dataclass(frozen=True)
class Run:
    """One training run.

    Attributes
    ----------
    label : str
        Whose it is: the name its group has in the report.
    env : str
        The task.
    seed : int, optional
        None where the source does not say.
    source : Path
        Its folder or file.
    kind : str
        Who wrote it: ``zoo``, ``csv``, ``sb3``, ``tensorboard``, ``wandb``, ``peers``.
    unit : str
        What steps count: ``environment steps``, ``updates``, or ``steps`` where it is not known.
    metric : str
        What the values are: ``return`` or ``accuracy``, a fraction.
    curves : mapping
        ``evaluation`` (of the policy in environments or on questions of its own) and ``training``
        (of the episodes or samples it learned from), those that there are.
    status : str
        ``finished``, ``interrupted``, ``failed``, ``diverged`` (its last values are not finite),
        ``running`` (neither finished nor known to have ended), or ``unknown`` (another library's).
    settings : mapping
        Dotted key → plain value; empty where the source does not say.
    facts : mapping
        Those known of: ``env_steps``, ``updates``, ``tokens``, ``wall_s``, ``seeds_together`` (how
        many were trained at once, where it was more than one), ``peak_rss_gib``, ``dataset``,
        ``model``, ``budget`` (in ``unit``), ``evaluation`` (the last one's figures, as in
        summary.json), ``versions``, ``hardware``, ``revision``, ``time``.
    named : bool
        Whether the label was chosen by a person: it then stands as it is.
    """

    label: str
    env: str
    seed: int | None
    source: Path
    kind: str
    unit: str
    metric: str
    curves: Mapping[str, Curve]
    status: str = "unknown"
    settings: Mapping[str, Any] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    named: bool = False


@dataclass(frozen=True)
class Collection:
    """The runs that were read, and what has to be said about them."""

    runs: tuple[Run, ...]
    notes: tuple[Note, ...] = ()
