"""Points with intervals, a row each, drawn by hand."""

from __future__ import annotations

import math
from collections.abc import Iterator
from html import escape

import numpy as np

from zoo.benchmarks.report.labels import ROOM, marks_below
from zoo.benchmarks.report.page import Intervals, Whisker
from zoo.benchmarks.report.palette import series_class
from zoo.benchmarks.report.picture import Picture
from zoo.benchmarks.report.scales import Scale, domain, interval, resolution
from zoo.benchmarks.report.svg import element, shorten, text_width
from zoo.benchmarks.report.texts import clean

__all__ = ["draw", "rows_in_words"]

WIDTH = 440.0
_TOP, _BOTTOM = 8.0, 42.0
#: height of a row, and of one whose words stand over its whisker; the most room for words beside
_ROW, _TALL, _BESIDE = 26.0, 42.0, 130.0


def draw(chart: Intervals) -> Picture:
    """Draw points with their intervals, words and figures beside them, or above if too long."""
    low, high = _reach(chart)
    labels = [clean(row.label) for row in chart.rows]
    values = [_value(row, chart, resolution(high - low, chart.x_format)) for row in chart.rows]
    beside = max((text_width(text, ROOM) for text in labels), default=0.0)
    after = max((text_width(text, ROOM) for text in values), default=0.0)
    tall = beside > _BESIDE
    row_height = _TALL if tall else _ROW
    bottom = _TOP + row_height * max(len(chart.rows), 1)
    across = Scale(low, high, 6.0 if tall else beside + 16, WIDTH - after - 14)
    parts = [*_frame(chart, across, bottom)]
    for index, (row, label, value) in enumerate(zip(chart.rows, labels, values)):
        top = _TOP + row_height * index
        middle = top + (30 if tall else 13)
        words = escape(shorten(label, WIDTH, ROOM))
        parts.append(element("text", words, class_="halo", x=0, y=middle + (-15 if tall else 4)))
        parts.append(element("text", escape(value), class_="value end", x=WIDTH, y=middle + 4))
        parts.extend(_whisker(row, across, middle))
    height = bottom + _BOTTOM
    words = f"{clean(chart.x_label)}. {'; '.join(rows_in_words(chart)) or 'No values'}."
    return Picture(WIDTH, height, "".join(parts), clean(chart.title), words)


def rows_in_words(chart: Intervals) -> list[str]:
    """Return each row's label, value and interval."""
    low, high = _reach(chart)
    fine = resolution(high - low, chart.x_format)
    return [f"{clean(row.label)}: {_value(row, chart, fine)}" for row in chart.rows]


def _reach(chart: Intervals) -> tuple[float, float]:
    ends = [end for row in chart.rows for end in (row.value, row.low, row.high) if end is not None]
    low, high = domain(np.array([*ends, *([0.0] if chart.zero else [])], float), pad=0.04)
    if chart.x_format == "percent" and all(0 <= end <= 1 for end in ends) and not chart.zero:
        return max(low, 0.0), min(high, 1.0)
    return low, high


def _value(row: Whisker, chart: Intervals, fine: float) -> str:
    if row.text:
        return clean(row.text)
    sign = "+" if chart.zero and row.value > 0 else ""
    return sign + interval(row.value, row.low, row.high, chart.x_format, fine)


def _frame(chart: Intervals, across: Scale, bottom: float) -> Iterator[str]:
    places, words = marks_below(across, chart.x_format)
    for place, text in zip(across(np.array(places)).tolist(), words):
        yield element("path", class_="grid", d=f"M{place:.1f} {_TOP:.1f}V{bottom:.1f}")
        yield element("text", text, class_="tick middle", x=place, y=bottom + 17)
    if not chart.rows:
        x, y = (across.start + across.end) / 2, (_TOP + bottom) / 2
        yield element("text", "no values", class_="name halo middle", x=x, y=y)
    if chart.zero:
        zero = float(across(np.zeros(1))[0])
        yield element("path", class_="level", d=f"M{zero:.1f} {_TOP - 4:.1f}V{bottom + 4:.1f}")
    name = escape(shorten(clean(chart.x_label), WIDTH, ROOM))
    middle = (across.start + across.end) / 2
    middle = min(max(middle, text_width(name, ROOM) / 2), WIDTH - text_width(name, ROOM) / 2)
    yield element("text", name, class_="name middle", x=middle, y=bottom + 36)


def _whisker(row: Whisker, across: Scale, y: float) -> Iterator[str]:
    colour = series_class(row.colour)
    if row.low is not None and row.high is not None and not math.isnan(row.low + row.high):
        ends = np.clip([row.low, row.high], across.low, across.high)  # an open end: to the edge
        low, high = across(ends).tolist()
        yield element("path", class_=f"whisker {colour}", d=f"M{low:.1f} {y:.1f}H{high:.1f}")
    if math.isfinite(row.value):
        x = float(across(np.array([row.value]))[0])
        yield element("circle", class_=f"full {colour.split()[0]}", cx=x, cy=y, r=4.5)
