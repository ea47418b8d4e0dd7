"""Figures and lists in words, the same all over a report."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from zoo.benchmarks.records import Run

__all__ = [
    "chance_of",
    "duration",
    "interval",
    "listed",
    "number",
    "plural",
    "rate",
    "runs_named",
    "several",
    "signed",
    "slug",
    "steps",
    "value",
    "without_links",
]

_MINUS = "−"


def number(x: float, digits: int = 4) -> str:
    """Write a number to some significant digits, whole ones in full.

    Examples
    --------
    >>> number(100000), number(-151.8554), number(0.03712)
    ('100,000', '−151.9', '0.03712')
    """
    if not math.isfinite(x):
        return "–"
    if x == round(x) or abs(x) >= 10**digits:
        text = f"{x:,.0f}"
    else:
        decimals = max(0, digits - 1 - math.floor(math.log10(abs(x))))
        text = f"{x:,.{min(decimals, digits + 1)}f}"
    return text.replace("-", _MINUS)


def value(x: float | None, percent: bool = False) -> str:
    """Write a score: a return, or a fraction as a percentage; None and NaN are a dash."""
    if x is None or not math.isfinite(x):
        return "–"
    if percent:
        return f"{100 * x:.1f} %".replace("-", _MINUS)
    decimals = 1 if abs(x) >= 10 or x == 0 else 2 if abs(x) >= 1 else 3
    return _no_negative_zero(f"{x:,.{decimals}f}").replace("-", _MINUS)


def signed(x: float, percent: bool = False) -> str:
    """Write a difference with its sign; of fractions in points, without the word."""
    text = value(100 * x if percent else x)
    return text if text.startswith(_MINUS) or x == 0 else f"+{text}"


def interval(
    low: float | None, high: float | None, percent: bool = False, sign: bool = False
) -> str:
    """Write an interval in brackets; nothing where there is none."""
    if low is None or high is None:
        return ""
    if sign:
        return f"[{signed(low, percent)}, {signed(high, percent)}]"
    return f"[{value(low, percent)}, {value(high, percent)}]".replace(" %,", ",")


def duration(seconds: float | None) -> str:
    """Write a time in the unit that suits it."""
    if seconds is None or not math.isfinite(seconds):
        return "–"
    for size, unit in ((3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s" if seconds < 100 else f"{seconds:.0f} s"


def chance_of(p: float) -> str:
    """Write a probability: .83."""
    return f"{p:.2f}".replace("0.", ".") if p < 1 else "1"


def rate(x: float | None) -> str:
    """Write a speed: three digits of slow ones."""
    return "–" if x is None else f"{x:,.0f}" if x >= 100 else number(x, 3)


def plural(count: int, noun: str) -> str:
    """Write a count and its noun: 1 seed, 10 seeds."""
    return f"{count} {noun}" if count == 1 else f"{count:,} {noun}s"


def steps(at: float, unit: str) -> str:
    """Write a step with its unit: 1 update, 100,000 environment steps."""
    return f"{number(at)} {unit.removesuffix('s') if at == 1 else unit}"


def slug(*parts: str) -> str:
    """Return a name for anchors and files: at most 80 letters, digits and hyphens.

    Examples
    --------
    >>> slug("task", "ALE/Pong-v5")
    'task-ale-pong-v5'
    """
    return re.sub(r"[^a-z0-9]+", "-", "-".join(parts).lower())[:80].strip("-")


def several(things: Sequence[object], one: str = "is", more: str = "are") -> str:
    """Return the verb's form for a number of things."""
    return one if len(things) == 1 else more


def listed(words: Sequence[str]) -> str:
    """Join words as in a sentence: a, b and c."""
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1] if words else ""]))


def without_links(text: str) -> str:
    """Return a sentence of a page for the terminal: the words of its links alone."""
    return re.sub(r"\[([^\]]+)\]\(#[^)]*\)", r"\1", text)


def runs_named(runs: Sequence[Run]) -> str:
    """Name runs by label and seed, the first three of many."""
    names = [run.label if run.seed is None else f"{run.label} seed {run.seed}" for run in runs]
    return listed(names) if len(names) <= 3 else f"{', '.join(names[:3])} and {len(names) - 3} more"


def _no_negative_zero(text: str) -> str:
    return text.removeprefix("-") if not any(c in "123456789" for c in text) else text
