"""Accuracies, their interval and pass@k of scored completions."""

from __future__ import annotations

import math

import numpy as np

from zoo.core.protocols import Scores
from zoo.rollouts.sampling import Samples

__all__ = ["clustered_ci95", "pass_at_k", "summary"]

_Z = 1.959964


def pass_at_k(correct: int, n: int, k: int) -> float:
    """Chance that at least one of k completions, drawn from n of which some are right, is right.

    1 − C(n − c, k) / C(n, k), the unbiased estimator of Chen et al. 2021 (arXiv:2107.03374).

    Examples
    --------
    >>> pass_at_k(1, 4, 2)
    0.5
    """
    return 1.0 - math.comb(n - correct, k) / math.comb(n, k)


def clustered_ci95(means: np.ndarray) -> float:
    """Half-width of the 95 % interval of a mean of per-prompt means.

    Completions of one prompt resemble each other, so the prompts are what is counted. Where all
    prompts agree at 0 or 1 the normal interval would be 0 wide; there it is Wilson's.
    """
    n = len(means)
    if n < 2:
        return math.nan
    deviation = float(means.std(ddof=1))
    if deviation > 0.0:
        return _Z * deviation / math.sqrt(n)
    p = float(means.mean())
    return _Z / (1 + _Z**2 / n) * math.sqrt(p * (1 - p) / n + _Z**2 / (4 * n**2))


def summary(
    scores: Scores, samples: Samples, repeats: int, k: int, greedy: bool
) -> dict[str, float]:
    """Figures of one evaluation pass with ``repeats`` completions per prompt, side by side.

    A completion whose grading failed counts as wrong, and ``failed`` says what share that was.
    """
    strict, lenient = (
        np.asarray(scores.grades[f"accuracy_{name}"], np.float64).reshape(-1, repeats)
        for name in ("strict", "lenient")
    )
    failed = float(np.isnan(strict).mean())
    strict, lenient = np.nan_to_num(strict), np.nan_to_num(lenient)
    shape = {
        **({"failed": failed} if failed else {}),
        "length_mean": float(samples.length.float().mean()),
        "truncated": float((~samples.finished).float().mean()),
        "n": len(strict),
    }
    if greedy:
        # Length and truncation are the sampled ones' where both are measured: they come last.
        figures = {"greedy_strict": float(strict.mean()), "greedy_lenient": float(lenient.mean())}
        return {**figures, **shape, "accuracy_ci95": clustered_ci95(strict.mean(1))}
    correct = np.rint(strict.sum(1)).astype(int).tolist()
    return {
        "accuracy_strict": float(strict.mean()),
        "accuracy_lenient": float(lenient.mean()),
        "accuracy_ci95": clustered_ci95(strict.mean(1)),
        "pass_at_k": float(np.mean([pass_at_k(c, repeats, k) for c in correct])),
        "k": k,
        **shape,
    }
