"""Accuracies, their interval and pass@k of scored completions."""

from __future__ import annotations

import math

import numpy as np

from zoo.core.before_after import clustered_ci95
from zoo.core.protocols import Scores
from zoo.rollouts.sampling import Samples

__all__ = ["clustered_ci95", "pass_at_k", "summary"]


def pass_at_k(correct: int, n: int, k: int) -> float:
    """Chance that at least one of k completions, drawn from n of which some are right, is right.

    1 − C(n − c, k) / C(n, k), the unbiased estimator of Chen et al. 2021 (arXiv:2107.03374).

    Examples
    --------
    >>> pass_at_k(1, 4, 2)
    0.5
    """
    return 1.0 - math.comb(n - correct, k) / math.comb(n, k)


def summary(
    scores: Scores, samples: Samples, repeats: int, k: int, greedy: bool
) -> tuple[dict[str, float], dict[str, list[float]]]:
    """Figures of one evaluation pass with ``repeats`` completions per prompt, side by side.

    A completion whose grading failed counts as wrong, and ``failed`` says what share that was.

    Returns
    -------
    figures, values : dict
        Means and half-widths of their 95 % intervals; and what each prompt was worth, by figure.
    """
    strict, lenient = (
        np.asarray(scores.grades[f"accuracy_{name}"], np.float64).reshape(-1, repeats)
        for name in ("strict", "lenient")
    )
    failed = float(np.isnan(strict).mean())
    strict, lenient = np.nan_to_num(strict), np.nan_to_num(lenient)
    kind = "greedy" if greedy else "accuracy"
    values = {f"{kind}_strict": strict.mean(1), f"{kind}_lenient": lenient.mean(1)}
    if not greedy:
        correct = np.rint(strict.sum(1)).astype(int).tolist()
        values["pass_at_k"] = np.array([pass_at_k(c, repeats, k) for c in correct])
    figures: dict[str, float] = {}
    for name, each in values.items():
        figures |= {name: float(each.mean()), f"{name}_ci95": clustered_ci95(each)}
    # The strict one's is accuracy_ci95. Of figures that both passes have the sampled ones' count:
    # they come last.
    figures["accuracy_ci95"] = figures.pop(f"{kind}_strict_ci95")
    if greedy:
        figures["greedy_strict_ci95"] = figures["accuracy_ci95"]
    else:
        figures["k"] = k
    figures |= {"failed": failed} if failed else {}
    figures |= {
        "length_mean": float(samples.sampled.float().mean()),
        "truncated": float((~samples.finished).float().mean()),
        "n": len(strict),
    }
    return figures, {name: each.tolist() for name, each in values.items()}
