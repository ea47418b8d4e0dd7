"""What rliable computes from small arrays: the values that tests compare our statistics with.

    python benchmarks/peers/rliable_reference.py > tests/benchmarks/rliable_reference.json

runs where rliable 1.2.0 is installed (it needs pandas < 3); nothing else of ours is imported.
"""

from __future__ import annotations

import json
import sys
from importlib import metadata
from typing import Any

import numpy as np

__all__ = ["CASES", "main", "reference"]

SEED = 7
REPS = 200
THRESHOLDS = [0.0, 0.25, 0.5, 0.75, 1.0]


def _cases() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Pairs of score tables [runs, tasks]; decimals are few, so that scores tie."""
    generator = np.random.default_rng(0)
    x = generator.normal(0.6, 0.3, size=(5, 4)).round(1)
    y = generator.normal(0.5, 0.3, size=(7, 4)).round(1)
    same = y.copy()
    same[:, 1:] += 0.1
    return {
        "ties, unequal runs": (x, y),
        "one task": (generator.normal(size=(10, 1)), generator.normal(size=(10, 1))),
        "three runs": (generator.gamma(2.0, size=(3, 3)), generator.gamma(2.0, size=(3, 3))),
        "one task is equal": (y, same),
        "at a ceiling": (np.minimum(1.0, x + 0.4), np.minimum(1.0, y[:5] + 0.4)),
    }


CASES = _cases()


def reference() -> dict[str, Any]:
    """Everything that rliable says about the cases.

    Its ``random_state`` does not reach its draws, which come from NumPy's global generator; that
    is what is seeded here, anew before each interval.
    """
    from rliable import library, metrics

    aggregates = {
        "iqm": metrics.aggregate_iqm,
        "mean": metrics.aggregate_mean,
        "median": metrics.aggregate_median,
        "optimality_gap": metrics.aggregate_optimality_gap,
    }

    def interval(scores: Any, statistic: Any) -> tuple[float, list[float]]:
        np.random.seed(SEED)
        value, limits = library.get_interval_estimates(
            {"x": scores}, lambda *a: np.array([statistic(*a)]), reps=REPS
        )
        return float(value["x"][0]), limits["x"][:, 0].tolist()

    def profile(scores: np.ndarray, runs: bool) -> dict[str, list[Any]]:
        np.random.seed(SEED)
        value, limits = library.create_performance_profile(
            {"x": scores}, np.array(THRESHOLDS), use_score_distribution=runs, reps=REPS
        )
        return {"value": value["x"].tolist(), "limits": limits["x"].tolist()}

    found: dict[str, Any] = {}
    for name, (x, y) in CASES.items():
        found[name] = {
            "x": x.tolist(),
            "y": y.tolist(),
            "aggregates": {key: interval(x, f) for key, f in aggregates.items()},
            "improvement": interval((x, y), metrics.probability_of_improvement),
            "profile": profile(x, True),
            "average_profile": profile(x, False),
        }
    packages = ("rliable", "arch", "numpy", "scipy", "pandas")
    versions = {package: metadata.version(package) for package in packages}
    return {
        "versions": versions,
        "seed": SEED,
        "reps": REPS,
        "thresholds": THRESHOLDS,
        "cases": found,
    }


def main() -> None:
    """Print the values as JSON."""
    json.dump(reference(), sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
