"""Horizontal lines with their names: published results, thresholds."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape

import numpy as np

from zoo.benchmarks.report.labels import ROOM, spread
from zoo.benchmarks.report.page import Chart, Level
from zoo.benchmarks.report.scales import Scale, figure, resolution, short
from zoo.benchmarks.report.svg import element, shorten, text_width
from zoo.benchmarks.report.texts import clean

__all__ = ["draw_levels", "level_text"]


def draw_levels(chart: Chart, across: Scale, up: Scale) -> Iterator[str]:
    """Draw the levels of a chart, each named at its freer end; no line runs through a name."""
    left, right, fine = across.start, across.end, resolution(up.high - up.low, chart.y_format)
    levels = [level for level in chart.levels if np.isfinite(level.value)]
    heights = up(np.array([level.value for level in levels])).tolist()
    texts = [level_text(level, chart.y_format, fine) for level in levels]
    words = [shorten(text, right - left - 48, ROOM) for text in texts]
    widths = [text_width(word, ROOM) for word in words]
    at_right = [_freer_right(chart, across, up, h, w) for h, w in zip(heights, widths)]
    boxes = []  # of the names: side, height, width
    for side in (False, True):
        mine = [i for i, other in enumerate(at_right) if other == side]
        places = spread([heights[i] for i in mine], ROOM, up.end, up.start - 4) or []
        for i, place in zip(mine, places):  # no names where there are too many
            boxes.append((side, place, widths[i]))
            x, class_ = (right - 4, "halo end") if side else (left + 4, "halo")
            yield element("text", escape(words[i]), class_=class_, x=x, y=place + 4)
    for height in heights:
        gaps = [0.0, 0.0]
        for side, place, width in boxes:
            if abs(place - height) < ROOM / 2:
                gaps[side] = max(gaps[side], width + 8)
        ends = left + gaps[0], max(right - gaps[1], left + gaps[0])
        yield element("path", class_="level", d="M{1:.1f} {0:.1f}H{2:.1f}".format(height, *ends))


def level_text(level: Level, form: str, fine: float) -> str:
    """Return a level's name after its value, unless the name holds that."""
    value, label = short(figure(level.value, form, fine)), clean(level.label)
    said = re.search(rf"(?<![\d.,]){re.escape(value)}(?!\d)", label)
    return label if said else f"{value} {label}"


def _freer_right(chart: Chart, across: Scale, up: Scale, height: float, width: float) -> bool:
    """Whether fewer points of curves are near the right end of a level than near its left."""
    left = right = 0
    for series in chart.series:
        x, near = across(series.x), np.abs(up(series.y) - height) < ROOM
        left += int((near & (x < across.start + width + 8)).sum())
        right += int((near & (x > across.end - width - 8)).sum())
    return right < left
