"""Where words stand on a picture so that none covers another, leaves it or hides a curve."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from zoo.benchmarks.report.scales import Scale, tick_labels, ticks
from zoo.benchmarks.report.svg import text_width

__all__ = ["ROOM", "flow", "marks_below", "spread"]

#: size of letters for which room is left: on a phone they are drawn larger than elsewhere
ROOM = 14.0


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float] | None:
    """Return places ``gap`` or more apart within ``low … high``, as near to those wanted as can be.

    Least squares by pooling neighbours that violate the order (isotonic regression of the places
    less their gaps). None where there is no room for so many.

    Examples
    --------
    >>> spread([10, 10, 50], gap=4, low=0, high=100)
    [8.0, 12.0, 50.0]
    """
    count = len(wanted)
    if count and (count - 1) * gap > high - low:
        return None
    order = np.argsort(wanted, kind="stable")
    pools: list[tuple[float, int]] = []  # mean and number
    for rank, index in enumerate(order):
        mean, number = wanted[index] - rank * gap, 1
        while pools and pools[-1][0] > mean:
            before, many = pools.pop()
            mean, number = (before * many + mean * number) / (many + number), many + number
        pools.append((mean, number))
    flat = np.repeat([mean for mean, _ in pools], [number for _, number in pools])
    flat = np.clip(flat, low, high - (count - 1) * gap) + gap * np.arange(count)
    places = np.empty(count)
    places[order] = flat
    return [float(place) for place in places]


def marks_below(across: Scale, form: str) -> tuple[list[float], list[str]]:
    """Return the ticks of a horizontal axis with their figures, as many as stand apart."""
    for most in (7, 5, 4, 3, 2, 1):
        places = ticks(across.low, across.high, form, most)
        words = tick_labels(places, form)
        needed = sum(text_width(word, ROOM) + 8 for word in words)
        if needed <= across.end - across.start:
            break
    return places, words


def flow(widths: Sequence[float], room: float, gap: float) -> list[tuple[float, int]]:
    """Return where words go that follow each other, left end and row, as text does in lines."""
    places, left, row = [], 0.0, 0
    for width in widths:
        if left and left + width > room:
            left, row = 0.0, row + 1
        places.append((left, row))
        left += width + gap
    return places
