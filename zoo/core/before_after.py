"""What training changed: two evaluations of a run side by side, prompt by prompt.

Both answer the same held-out prompts, so the interval of the difference is of the pairs: how hard a
prompt is falls out of it, and it is narrower than that of two evaluations of different prompts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

__all__ = ["change", "clustered_ci95", "table"]

_Z = 1.959964
_NAMES = {
    "greedy_strict": "greedy, strict",
    "greedy_lenient": "greedy, lenient",
    "accuracy_strict": "sampled, strict",
    "accuracy_lenient": "sampled, lenient",
    "pass_at_k": "pass@{k}",
}


def clustered_ci95(means: np.ndarray) -> float:
    """Half-width of the 95 % interval of a mean of per-prompt means, or of their differences.

    Completions of one prompt resemble each other, so the prompts are what is counted. Where all
    prompts agree the normal interval would be 0 wide; there it is Wilson's.
    """
    n = len(means)
    if n < 2:
        return math.nan
    deviation = float(means.std(ddof=1))
    if deviation > 0.0:
        return _Z * deviation / math.sqrt(n)
    p = min(1.0, abs(float(means.mean())))
    return _Z / (1 + _Z**2 / n) * math.sqrt(p * (1 - p) / n + _Z**2 / (4 * n**2))


def change(first: Mapping[str, Any], last: Mapping[str, Any]) -> dict[str, Any]:
    """Compare two evaluations by what each of their prompts was worth.

    Parameters
    ----------
    first, last : mapping
        ``updates``, ``prompts`` (their ids), ``k`` of pass@k, and ``values``: for each figure one
        number per prompt.

    Returns
    -------
    dict
        ``updates`` and ``prompts`` (how many) of both, ``paired`` (they are the same prompts), and
        for each figure that both have ``before``, ``after``, ``difference``, the half-width of each
        one's 95 % interval over prompts (``…_ci95``), and ``within_noise``: the difference's holds
        0. Where the prompts differ, its interval is that of two independent means.
    """
    paired = first["prompts"] == last["prompts"]
    both = [
        name
        for name in _NAMES
        if name in first["values"]
        and name in last["values"]
        and (name != "pass_at_k" or first["k"] == last["k"])
    ]
    return {
        "updates": [first["updates"], last["updates"]],
        "prompts": [len(first["prompts"]), len(last["prompts"])],
        "k": last["k"],
        "paired": paired,
        **{n: _compared(first["values"][n], last["values"][n], paired) for n in both},
    }


def _compared(first: Sequence[float], last: Sequence[float], paired: bool) -> dict[str, Any]:
    before, after = np.asarray(first, np.float64), np.asarray(last, np.float64)
    widths = clustered_ci95(before), clustered_ci95(after)
    width = clustered_ci95(after - before) if paired else math.hypot(*widths)
    difference = float(after.mean() - before.mean())
    return {
        "before": float(before.mean()),
        "before_ci95": widths[0],
        "after": float(after.mean()),
        "after_ci95": widths[1],
        "difference": difference,
        "difference_ci95": width,
        "within_noise": not abs(difference) > width,
    }


def table(change: Mapping[str, Any]) -> str:
    """Write a :func:`change` for people."""
    counts, k = change["prompts"], change["k"]
    same = counts[0] if change["paired"] else f"{counts[0]} and {counts[1]} other"
    heads = [f"update {number:,}" for number in change["updates"]]
    lines = [("held-out", *heads, "difference")]
    for name, label in _NAMES.items():
        if name in change:
            row = change[name]
            cells = [_number(row, p, n) for p, n in zip(("before", "after"), counts, strict=True)]
            pairs = counts[0] if change["paired"] else 0
            verdict = "  within noise" if row["within_noise"] else ""
            apart = _number(row, "difference", pairs, "+") + verdict
            lines.append((label.format(k=k), *cells, apart))
    widths = [max(len(line[i]) for line in lines) for i in range(3)]
    rows = [
        "  ".join([*(cell.ljust(w) for cell, w in zip(line, widths, strict=False)), line[3]])
        for line in lines
    ]
    over = ", the difference's over pairs" if change["paired"] else ""
    rows.append(f"± half of the 95 % interval over {same} prompts{over}")
    if any("*" in row for row in rows):
        rows.append(
            "* all prompts agree: Wilson's, which reaches from 0 or 1 inwards by twice that"
        )
    return "\n".join(rows)


def _number(row: Mapping[str, Any], name: str, count: int, sign: str = "") -> str:
    """Write a figure with its width, and a star where that is not measured from any spread."""
    value, width = row[name], row[f"{name}_ci95"]
    if width is None or not math.isfinite(width):
        return f"{value:{sign}.3f} ± ?"
    agreed = count > 1 and math.isclose(width, clustered_ci95(np.full(count, value)))
    return f"{value:{sign}.3f} ± {width:.3f}{'*' if agreed else ''}"
