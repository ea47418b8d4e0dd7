"""Where words stand on a picture so that none covers another, leaves it or hides a curve."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

__all__ = ["SIZE", "ROOM", "flow", "spread"]

#: size of letters, and the larger one that a phone shows, for which room is left
SIZE, ROOM = 12.0, 14.0


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


def flow(widths: Sequence[float], room: float, gap: float) -> list[tuple[float, int]]:
    """Return where words go that follow each other, left end and row, as text does in lines."""
    places, left, row = [], 0.0, 0
    for width in widths:
        if left and left + width > room:
            left, row = 0.0, row + 1
        places.append((left, row))
        left += width + gap
    return places
