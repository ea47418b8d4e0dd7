"""Horizontal lines with their names: published results, thresholds."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from html import escape

import numpy as np

from zoo.benchmarks.report.labels import ROOM, spread
from zoo.benchmarks.report.page import Chart, Level
from zoo.benchmarks.report.scales import Scale, figure, resolution, short
from zoo.benchmarks.report.svg import element, shorten, text_width
from zoo.benchmarks.report.texts import clean

__all__ = ["draw_levels", "level_text"]

#: as far off its line, a label still takes the place of a part of it
_ON = 7.0


def draw_levels(chart: Chart, across: Scale, up: Scale) -> Iterator[str]:
    """Draw the levels of a chart; each name stands on its line, at the end that is freer."""
    left, right, fine = across.start, across.end, resolution(up.high - up.low, chart.y_format)
    levels = [level for level in chart.levels if np.isfinite(level.value)]
    heights = up(np.array([level.value for level in levels])).tolist()
    texts = [level_text(level, chart.y_format, fine) for level in levels]
    words = [shorten(text, right - left - 24, ROOM) for text in texts]
    widths = [text_width(word, ROOM) for word in words]
    at_right = [_freer_right(chart, across, up, h, w) for h, w in zip(heights, widths)]
    for side in (False, True):
        mine = [i for i, other in enumerate(at_right) if other == side]
        places: Sequence[float | None]
        places = spread([heights[i] for i in mine], ROOM, up.end, up.start - 4) or [None] * len(
            mine
        )
        for i, place in zip(mine, places):
            y, gap = heights[i], widths[i] + 8
            if place is None or abs(place - y) > _ON:
                gap = 0.0
            start, end = (left, right - gap) if side else (left + gap, right)
            yield element("path", class_="level", d=f"M{start:.1f} {y:.1f}H{end:.1f}")
            if place is not None:
                x, class_ = (right - 4, "halo end") if side else (left + 4, "halo")
                yield element("text", escape(words[i]), class_=class_, x=x, y=place + 4)


def level_text(level: Level, form: str, fine: float) -> str:
    """Return a level's name, with its value unless the name holds it."""
    value, label = short(figure(level.value, form, fine)), clean(level.label)
    said = re.search(rf"(?<![\d.,]){re.escape(value)}(?!\d)", label)
    return label if said else f"{label} {value}"


def _freer_right(chart: Chart, across: Scale, up: Scale, height: float, width: float) -> bool:
    """Whether fewer points of curves are near the right end of a level than near its left."""
    left = right = 0
    for series in chart.series:
        x, near = across(series.x), np.abs(up(series.y) - height) < ROOM
        left += int((near & (x < across.start + width + 8)).sum())
        right += int((near & (x > across.end - width - 8)).sum())
    return right < left
