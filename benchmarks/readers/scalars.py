"""Figures under a name, as loggers write them, to curves: whose names mean what."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from zoo.benchmarks.readers.series import EPISODES, Series, clean

__all__ = ["SB3", "Convention", "Points", "convention_of", "series_of"]


@dataclass
class Points:
    """What was logged under one name, in the order it was written."""

    step: list[float] = field(default_factory=list)
    value: list[float] = field(default_factory=list)
    wall_s: list[float] = field(default_factory=list)

    def add(self, step: float, value: float, wall_s: float) -> None:
        """Add one point."""
        self.step.append(step)
        self.value.append(value)
        self.wall_s.append(wall_s)


@dataclass(frozen=True)
class Convention:
    """What one library calls its figures.

    Attributes
    ----------
    library : str
        Goes before the algorithm in the label; empty for ours.
    metric, unit : str
        As in a Run.
    evaluation, training : str
        The figures' names.
    counter : str
        The figure that holds the steps in ``unit``, where there is one beside the logger's step.
    bare : str
        What the logger's own step counts.
    window : int
        How many episodes the training curve averages, where each is logged by itself.
    witness : str
        A figure of every evaluation, for a logger that leaves out those that are not finite.
    """

    library: str
    metric: str
    unit: str
    evaluation: str
    training: str
    counter: str = "global_step"
    bare: str = "environment steps"
    window: int = 1
    witness: str = ""


_STEPS = "environment steps"
SB3 = Convention("SB3", "return", _STEPS, "eval/mean_reward", "rollout/ep_rew_mean")
_OWN = ("eval/return_mean", "return/mean", "env_steps", "updates", 1, "eval/episodes")
_OWN_TEXT = ("eval/accuracy_strict", "train/accuracy_strict", "updates", "updates")
_CLEANRL = ("eval/episodic_return", "charts/episodic_return", "global_step", _STEPS, EPISODES)
#: the first one of which there is a figure is taken
_CONVENTIONS = (
    Convention("", "return", _STEPS, *_OWN),
    Convention("", "accuracy", "updates", *_OWN_TEXT),
    SB3,
    Convention("CleanRL", "return", _STEPS, *_CLEANRL),
    *(
        Convention("", metric, "steps", f"eval/{name}", f"train/{name}", bare="steps")
        for metric, name in (
            ("return", "return"),
            ("return", "episode_return"),
            ("return", "episode_reward"),
            ("return", "mean_reward"),
            ("return", "reward"),
            ("accuracy", "accuracy"),
        )
    ),
)


def convention_of(names: Mapping[str, object]) -> Convention | None:
    """Return whose figures these are, None where no known name is among them."""
    return next((c for c in _CONVENTIONS if {c.evaluation, c.training} & names.keys()), None)


def series_of(
    convention: Convention, figures: Mapping[str, Points]
) -> tuple[str, dict[str, Series]]:
    """Return the unit of the steps, and the curves that there are."""
    counter, clock = figures.get(convention.counter), figures.get("wall_s")
    steps = _by_step(counter) if counter else None
    walls = _by_step(clock) if clock else {}
    series = {}
    for curve, name in (("evaluation", convention.evaluation), ("training", convention.training)):
        if name not in figures:
            continue
        points = figures[name]
        seen, witness = set(points.step), figures.get(convention.witness)
        if curve == "evaluation" and witness and witness.step[-1] not in seen:
            points.add(witness.step[-1], math.nan, witness.wall_s[-1])
        series[curve] = clean(
            points.step if steps is None else [steps.get(s, math.nan) for s in points.step],
            points.value,
            [walls.get(s, wall) for s, wall in zip(points.step, points.wall_s, strict=True)],
            convention.window if curve == "training" else 1,
        )
    return convention.bare if steps is None else convention.unit, series


def _by_step(points: Points) -> dict[float, float]:
    return dict(zip(points.step, points.value, strict=True))
