"""What a task's scores mean: published results, thresholds, and the ends of its scale.

    python -m zoo.benchmarks.references CartPole-v1 --episodes 1000

measures what uniformly random actions earn, the zero of a task's normalised score.
"""

from __future__ import annotations

import argparse
import functools
import importlib.resources
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

__all__ = ["Published", "Reference", "random_return", "reference"]


@dataclass(frozen=True)
class Published:
    """A result that somebody published.

    Attributes
    ----------
    algo : str
        The algorithm, by our name.
    budget : int
        Environment steps of training.
    value, std : float
        Mean return and its standard deviation over episodes or runs, as the source says.
    source, about, url : str
        Who, what kind of figure it is, and where it stands.
    env : str
        The version of the task it was measured on.
    """

    algo: str
    budget: int
    value: float
    std: float
    source: str
    about: str
    url: str
    env: str


@dataclass(frozen=True)
class Reference:
    """What is known about a task; None where nothing is.

    Attributes
    ----------
    random, best : float, optional
        The scores that count as 0 and 1 where scores are averaged over tasks.
    threshold : float, optional
        The score at which the task counts as learned.
    published : tuple of Published
        Results of others.
    """

    random: float | None = None
    best: float | None = None
    threshold: float | None = None
    published: tuple[Published, ...] = ()

    @property
    def scaled(self) -> bool:
        """Whether scores can be put on the scale from random to best."""
        return self.random is not None and self.best is not None


def reference(env: str, metric: str = "return") -> Reference:
    """Return what is known about a task; an accuracy is on its scale as it is."""
    if metric == "accuracy":
        return Reference(random=0.0, best=1.0)
    entry = _tables()["tasks"].get(env)
    if entry is None:
        return Reference(threshold=_registered_threshold(env))
    sources = _tables()["sources"]
    published = tuple(
        Published(
            algo=row["algo"],
            budget=row["budget"],
            value=row["value"],
            std=row["std"],
            source=sources[row["source"]]["name"],
            about=sources[row["source"]]["about"],
            url=sources[row["source"]]["url"],
            env=row.get("env", env),
        )
        for row in entry["published"]
    )
    return Reference(entry["random"], entry["best"], entry["threshold"], published)


@functools.cache
def _tables() -> Mapping[str, Any]:
    text = (importlib.resources.files("zoo.benchmarks") / "references.yaml").read_text("utf-8")
    tables: Mapping[str, Any] = yaml.safe_load(text)
    return tables


def _registered_threshold(env: str) -> float | None:
    """Return Gymnasium's own threshold of a task, where it knows the task and has one."""
    import gymnasium

    spec = gymnasium.registry.get(env)
    return None if spec is None or spec.reward_threshold is None else float(spec.reward_threshold)


def random_return(env: str, episodes: int) -> tuple[float, float]:
    """Return what uniformly random actions earn: mean of the returns, and its standard error."""
    import gymnasium
    import numpy as np

    made = gymnasium.make(env)
    made.action_space.seed(0)
    returns = []
    for episode in range(episodes):
        made.reset(seed=episode)
        total, over = 0.0, False
        while not over:
            _, reward, terminated, truncated, _ = made.step(made.action_space.sample())
            total, over = total + float(reward), terminated or truncated
        returns.append(total)
    made.close()
    return float(np.mean(returns)), float(np.std(returns) / math.sqrt(episodes))


def main() -> None:
    """Measure the random policy on the tasks named."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("envs", nargs="+", metavar="ENV")
    parser.add_argument("--episodes", type=int, default=1000)
    arguments = parser.parse_args()
    for env in arguments.envs:
        mean, error = random_return(env, arguments.episodes)
        print(f"{env}: {mean:.1f} ± {error:.1f} (mean and standard error)")


if __name__ == "__main__":
    main()
