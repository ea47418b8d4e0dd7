"""The simulated experiments: in how many of them does an interval hold the true value?

An experiment is a table of scores drawn from known distributions; :data:`PARTS` lists what is
estimated from it. Every cell has a generator of its own, so that it can be repeated alone.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np

from zoo.benchmarks import statistics
from zoo.benchmarks.bootstrap import interval
from zoo.benchmarks.candidates import CANDIDATES
from zoo.benchmarks.estimate import Estimate
from zoo.benchmarks.intervals import improvement, profile
from zoo.benchmarks.shapes import SHAPES, Shape, grid, true_value

__all__ = ["PARTS", "Cell", "Experiment"]

_CHOSEN = "expanded percentile"


@dataclass(frozen=True)
class Cell:
    """How often the interval held the true value, of 1, and how wide it was (median)."""

    coverage: float
    width: float


@dataclass(frozen=True)
class Experiment:
    """One row of a table of coverage.

    Attributes
    ----------
    name : str
        The distributions, unique in its part.
    run : callable
        From a generator, a number of runs, a number of repetitions and a method to a cell.
    """

    name: str
    run: Callable[[np.random.Generator, int, int, str], Cell]

    def cell(self, runs: int, repetitions: int, method: str = _CHOSEN) -> Cell:
        """Simulate; the same arguments give the same cell."""
        generator = np.random.default_rng((zlib.crc32(self.name.encode()), runs))
        return self.run(generator, runs, repetitions, method)


def _level(name: str) -> Experiment:
    shape = SHAPES[name]

    def run(generator: np.random.Generator, runs: int, repetitions: int, method: str) -> Cell:
        scores = shape(generator.normal(size=(runs, repetitions)))
        return _held(*CANDIDATES[method]([scores]), true_value(shape, _estimand(method)))

    return Experiment(name, run)


def _difference(x: str, y: str, ratio: int = 1) -> Experiment:
    first, second = SHAPES[x], SHAPES[y]

    def run(generator: np.random.Generator, runs: int, repetitions: int, method: str) -> Cell:
        groups = [
            first(generator.normal(size=(runs, repetitions))),
            second(generator.normal(size=(ratio * runs, repetitions))),
        ]
        statistic = _estimand(method)
        truth = true_value(first, statistic) - true_value(second, statistic)
        return _held(*CANDIDATES[method](groups), truth)

    return Experiment(_versus(x, y) + (f" with {ratio} times the runs" if ratio > 1 else ""), run)


def _paired(x: str, y: str, correlation: float) -> Experiment:
    def gaps(generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        z, own = generator.normal(size=(2, *shape))
        return SHAPES[x](z) - SHAPES[y](correlation * z + np.sqrt(1 - correlation**2) * own)

    @lru_cache
    def truth() -> float:
        return float(statistics.iqm(gaps(np.random.default_rng(0), (1_000_000,))[:, None]))

    def run(generator: np.random.Generator, runs: int, repetitions: int, method: str) -> Cell:
        return _held(*CANDIDATES[method]([gaps(generator, (runs, repetitions))]), truth())

    return Experiment(f"{_versus(x, y)}, correlation {correlation}", run)


def _versus(x: str, y: str) -> str:
    return f"{x}, both" if x == y else f"{x} – {y}"


def _estimand(method: str) -> str:
    return "mean" if "means" in method else "iqm"


def _suite(shape: Shape, tasks: int, widen: float = 1.0) -> Shape:
    """Tasks of different level and spread, [..., tasks] from as many z."""
    level = np.linspace(0.1, 1.2, tasks)
    spread = 0.05 + 0.25 * (7 * np.arange(tasks) % tasks) / max(tasks - 1, 1)
    return lambda z: level + widen * spread * shape(z)


def _aggregate(statistic: str, shape: str, tasks: int, versus: bool = False) -> Experiment:
    """The aggregate of one suite, or its difference to that of a suite with twice the spread."""
    suites = [_suite(SHAPES[shape], tasks)]
    if versus:
        suites.append(_suite(SHAPES[shape], tasks, widen=2.0))
    aggregate: Callable[[np.ndarray], np.ndarray] = getattr(statistics, statistic)

    def value(x: np.ndarray, y: np.ndarray | None = None) -> np.ndarray:
        return aggregate(x) if y is None else aggregate(x) - aggregate(y)

    def run(generator: np.random.Generator, runs: int, repetitions: int, method: str) -> Cell:
        many = np.repeat(grid(20_000)[:, None], tasks, axis=1)
        truth = float(value(*(s(many) for s in suites)))
        return _each(
            lambda: interval(
                value,
                *(s(generator.normal(size=(runs, tasks))) for s in suites),
                method="expanded",
                reps=1000,
            ),
            truth,
            repetitions // 4,
        )

    kind = "difference of " if versus else ""
    return Experiment(f"{tasks} tasks, {kind}{statistic}, {shape}", run)


def _improvement(x: str, y: str, shift: float, tasks: int) -> Experiment:
    first, second = SHAPES[x], SHAPES[y]
    ours, theirs = np.sort(first(grid(20_000)) + shift), np.sort(second(grid(20_000)))
    sides = [np.searchsorted(theirs, ours, side).mean() for side in ("left", "right")]
    truth = float(sum(sides)) / 2 / len(theirs)

    def run(generator: np.random.Generator, runs: int, repetitions: int, method: str) -> Cell:
        def scores() -> Estimate:
            z = generator.normal(size=(2, runs, tasks))
            return improvement(first(z[0]) + shift, second(z[1]))

        return _each(scores, truth, repetitions)

    return Experiment(f"P = {truth:.2f}, {_versus(x, y)}, {_tasks(tasks)}", run)


def _profile(fraction: float, tasks: int) -> Experiment:
    threshold = np.array([NormalDist().inv_cdf(1 - fraction)])

    def run(generator: np.random.Generator, runs: int, repetitions: int, method: str) -> Cell:
        def one() -> Estimate:
            band = profile(generator.normal(size=(runs, tasks)), threshold)
            assert band.low is not None and band.high is not None
            return Estimate(float(band.centre[0]), float(band.low[0]), float(band.high[0]))

        return _each(one, fraction, repetitions)

    return Experiment(f"{fraction:.0%} of the runs above, {_tasks(tasks)}", run)


def _tasks(tasks: int) -> str:
    return "1 task" if tasks == 1 else f"{tasks} tasks"


def _each(estimate: Callable[[], Estimate], truth: float, repetitions: int) -> Cell:
    made = [estimate() for _ in range(repetitions)]
    return _held(np.array([e.low for e in made]), np.array([e.high for e in made]), truth)


def _held(low: np.ndarray, high: np.ndarray, truth: float) -> Cell:
    rounding = 1e-9
    held = (low <= truth + rounding) & (truth - rounding <= high)
    return Cell(float(held.mean()), float(np.median(high - low)))


_ONE = list(SHAPES)[:7]
_FEW = ["normal", "skewed", "heavy tails", "a fifth fails", "a third fails"]

#: what is estimated → the experiments
PARTS: dict[str, list[Experiment]] = {
    "level": [_level(name) for name in _ONE],
    "difference": [
        *(_difference(name, name) for name in _ONE),
        _difference("normal", "normal, thrice as wide"),
        _difference("normal, thrice as wide", "normal", ratio=2),
        _difference("normal", "normal, thrice as wide", ratio=2),
        _difference("skewed", "skewed, thrice as wide"),
        _difference("skewed", "skewed the other way"),
        _difference("a fifth fails", "none fails"),
        _difference("a third fails", "none fails"),
        _difference("60 % at a ceiling", "30 % at a ceiling"),
    ],
    "paired": [
        _paired(x, y, correlation)
        for correlation in (0.0, 0.5, 0.9)
        for x, y in (
            ("normal", "normal"),
            ("normal", "normal, thrice as wide"),
            ("skewed", "skewed, thrice as wide"),
            ("heavy tails", "heavy tails"),
            ("a third fails", "a fifth fails"),
            ("60 % at a ceiling", "30 % at a ceiling"),
        )
    ],
    "aggregate": [
        *(_aggregate("iqm", shape, tasks) for tasks in (2, 3, 5, 10) for shape in _FEW),
        *(_aggregate("iqm", shape, tasks, versus=True) for tasks in (3, 5, 10) for shape in _FEW),
        *(
            _aggregate(statistic, shape, tasks)
            for statistic in ("mean", "median", "optimality_gap")
            for tasks in (5, 10)
            for shape in ("normal", "skewed", "a fifth fails")
        ),
    ],
    "improvement": [
        _improvement(x, y, shift, tasks)
        for tasks in (1, 10)
        for x, y, shift in (
            ("normal", "normal", 0.0),
            ("normal", "normal", 1.0),
            ("normal", "normal", 2.0),
            ("normal", "normal, thrice as wide", 0.0),
            ("a fifth fails", "none fails", 0.5),
            ("60 % at a ceiling", "30 % at a ceiling", 0.0),
        )
    ],
    "profile": [
        _profile(fraction, tasks) for tasks in (1, 10) for fraction in (0.5, 0.8, 0.9, 0.95, 0.99)
    ],
}
