"""Learning curves and other lines over one axis, drawn by hand."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from itertools import chain

import numpy as np

from zoo.benchmarks.report.labels import ROOM, flow, marks_below, spread
from zoo.benchmarks.report.levels import draw_levels, level_text
from zoo.benchmarks.report.page import Chart, Series
from zoo.benchmarks.report.palette import series_class
from zoo.benchmarks.report.picture import Picture
from zoo.benchmarks.report.scales import (
    LARGEST,
    Scale,
    domain,
    figure,
    interval,
    resolution,
    tick_labels,
    ticks,
)
from zoo.benchmarks.report.svg import element, line, pieces, shorten, text_width, thin
from zoo.benchmarks.report.texts import clean

__all__ = ["draw", "in_words", "leaves_out"]

WIDTH, HEIGHT = 440.0, 290.0
_TOP, _BOTTOM = 26.0, 42.0
#: most points of a curve; all single runs of a picture share 12,000, but each has 60
_POINTS, _SHARED, _FEWEST = 200, 12_000, 60
#: the most that a label at the end of a line may be wide, may stand off its place, and the part of
#: the picture that the line may end before the others
_LABEL, _OFF, _EARLY = 96.0, 16.0, 0.06
#: where the single runs reach over so many heights of the rest, they are cut off
_FAR = 5.0


def draw(chart: Chart, legend: bool) -> Picture:
    """Draw a chart; with a legend on request if it needs one: pages have their own."""
    low, high = _heights(chart)
    marks = ticks(low, high, chart.y_format, 7)
    figures = tick_labels(marks, chart.y_format)
    left = max((text_width(text, ROOM) for text in figures), default=0.0) + 8
    bottom = HEIGHT - _BOTTOM
    up = Scale(low, high, bottom, _TOP)
    reach = _reach(chart)
    names = _end_labels(chart, up, *reach)
    widest = max((text_width(text, ROOM) for text, _, _ in names), default=0.0)
    right = WIDTH - (widest + 10 if names else 14)
    across = Scale(*reach, left, right)
    layers = [
        *_frame(chart, across, up, marks, figures),
        *_bands(chart, across, up),
        *_traces(chart, across, up),
        *_centres(chart, across, up),
        *draw_levels(chart, across, up),
        *(_word(right + 6, place + 4, text, at) for text, place, at in names),
    ]
    height = HEIGHT
    if legend and len(chart.series) > 1 and not names:
        rows, height = _legend(chart.series)
        layers.append(rows)
    axes = {
        "data-x": f"{across.low!r} {across.high!r} {left:.1f} {right:.1f} {chart.x_format}",
        "data-y": f"{low!r} {high!r} {bottom:.1f} {_TOP:.1f} {chart.y_format}",
    }
    return Picture(WIDTH, height, "".join(layers), clean(chart.title), in_words(chart), axes)


def in_words(chart: Chart) -> str:
    """Say what the chart shows: where each line ends, and the levels."""
    low, high = _heights(chart)
    fine = resolution(high - low, chart.y_format)
    parts = []
    for series in chart.series:
        kept = np.flatnonzero(np.isfinite(series.x) & np.isfinite(series.y))
        if kept.size == 0:
            parts.append(f"{clean(series.label)}: no values")
            continue
        last = int(kept[-1])
        bands = (series.low, series.high)
        least, most = (None if band is None else float(band[last]) for band in bands)
        value = interval(series.y[last], least, most, chart.y_format, fine)
        far = figure(
            series.x[last], chart.x_format, resolution(abs(series.x[last]) or 1.0, chart.x_format)
        )
        parts.append(f"{clean(series.label)}: {value} at {far}")
    last_values = f" Last values: {'; '.join(parts)}." if parts else " No values."
    levels = "; ".join(level_text(level, chart.y_format, fine) for level in chart.levels)
    axes = f"{clean(chart.y_label)} over {clean(chart.x_label)}."
    return f"{axes}{last_values}" + (f" Levels: {levels}." if levels else "")


def leaves_out(chart: Chart) -> str:
    """Say how far the single runs reach that were cut off, an empty text where none was."""
    low, high = _heights(chart)
    values = _all(t.y for s in chart.series for t in s.traces)
    if values.size == 0 or (values.min() >= low and values.max() <= high):
        return ""
    fine = resolution(10 * float(np.ptp(values)), chart.y_format)
    least, most = (figure(float(v), chart.y_format, fine) for v in (values.min(), values.max()))
    return f"Single runs reach from {least} to {most}, further than the picture shows."


def _all(arrays: Iterator[np.ndarray]) -> np.ndarray:
    values = np.concatenate([np.zeros(0), *(np.asarray(array, float) for array in arrays)])
    return np.clip(values[np.isfinite(values)], -LARGEST, LARGEST)


def _heights(chart: Chart) -> tuple[float, float]:
    bands = (band for s in chart.series for band in (s.low, s.high) if band is not None)
    centres = (s.y for s in chart.series)
    levels = np.array([level.value for level in chart.levels], float)
    core = _all(chain(centres, bands, [levels]))
    whole = _all(chain([core], (t.y for s in chart.series for t in s.traces)))
    low, high = domain(core, pad=0.05)
    if core.size == 0 or np.ptp(whole) <= _FAR * (high - low):
        low, high = domain(whole, pad=0.05)
    else:
        width = high - low
        low = min(low, max(low - width, float(whole.min())))
        high = max(high, min(high + width, float(whole.max())))
    if chart.y_format == "percent" and whole.size and whole.min() >= 0 and whole.max() <= 1:
        low, high = max(low, 0.0), min(high, 1.0)
    return low, high


def _reach(chart: Chart) -> tuple[float, float]:
    lines = (t.x for s in chart.series for t in s.traces)
    return domain(_all(chain((s.x for s in chart.series), lines)), whole=True)


def _frame(
    chart: Chart, across: Scale, up: Scale, marks: list[float], figures: list[str]
) -> Iterator[str]:
    left, right, bottom = across.start, across.end, up.start
    heights = up(np.array(marks))
    for place, text in zip(heights.tolist(), figures):
        yield element("path", class_="grid", d=f"M{left:.1f} {place:.1f}H{right:.1f}")
        yield element("text", text, class_="tick end", x=left - 6, y=place + 4)
    places, words = marks_below(across, chart.x_format)
    for place, text in zip(across(np.array(places)).tolist(), words):
        yield element("path", class_="axis", d=f"M{place:.1f} {bottom:.1f}v4")
        yield element("text", text, class_="tick middle", x=place, y=bottom + 17)
    yield element("path", class_="axis", d=f"M{left:.1f} {bottom:.1f}H{right:.1f}")
    yield element("text", _fitting(chart.y_label, WIDTH), class_="name", x=0, y=12)
    middle = (left + right) / 2
    yield element(
        "text", _fitting(chart.x_label, WIDTH), class_="name middle", x=middle, y=HEIGHT - 6
    )
    if not any(np.isfinite(s.y).any() or s.traces for s in chart.series):
        height = (bottom + _TOP) / 2
        yield element("text", "no values", class_="name middle", x=middle, y=height)


def _bands(chart: Chart, across: Scale, up: Scale) -> Iterator[str]:
    for index, series in enumerate(chart.series):
        if series.low is None or series.high is None:
            continue
        x, low, high = across(series.x), _inside(up(series.low)), _inside(up(series.high))
        shapes, lines = [], []
        for piece in pieces(x, low, high):
            if piece.stop - piece.start == 1:
                ends = x[piece][0], low[piece][0], high[piece][0]
                lines.append("M{:.1f} {:.1f}V{:.1f}".format(*ends))
                continue
            there, back = thin(x[piece], low[piece], _POINTS), thin(x[piece], high[piece], _POINTS)
            ring = (np.concatenate([a, b[::-1]]) for a, b in zip(there, back))
            shapes.append(line(*ring) + "z")
        band = _path(series, "band full", "".join(shapes))
        yield _layer(index, band + _path(series, "whisker", "".join(lines)))


def _traces(chart: Chart, across: Scale, up: Scale) -> Iterator[str]:
    count = sum(len(series.traces) for series in chart.series)
    crowd = "crowd" if count > 40 else ("many" if count > 12 else None)
    most = min(_POINTS, max(_FEWEST, _SHARED // max(count, 1)))
    for index, series in enumerate(chart.series):
        lines = []
        for trace in series.traces:
            x, y = across(trace.x), _inside(up(trace.y))
            shown = "".join(line(*thin(x[p], y[p], most)) for p in pieces(x, y))
            lines.append(_path(series, "trace", shown, clean(trace.name)))
        yield _layer(index, "".join(lines), crowd)


def _centres(chart: Chart, across: Scale, up: Scale) -> Iterator[str]:
    for index, series in enumerate(chart.series):
        x, y = across(series.x), _inside(up(series.y))
        lines, dots = "", ""
        for piece in pieces(x, y):
            if piece.stop - piece.start > 1:
                lines += line(*thin(x[piece], y[piece], _POINTS))
            else:
                at = {"cx": float(x[piece][0]), "cy": float(y[piece][0])}
                dots += element("circle", class_=f"full {series_class(series.colour)}", r=3.5, **at)
        yield _layer(index, _path(series, "centre", lines) + dots)


def _end_labels(chart: Chart, up: Scale, start: float, end: float) -> list[tuple[str, float, int]]:
    """Text, height and index of the labels at the lines' ends; none where they don't fit."""
    found = []
    for index, series in enumerate(chart.series):
        shown = np.isfinite(series.x) & np.isfinite(series.y)
        if shown.any():
            if end - series.x[shown][-1] > _EARLY * (end - start):
                return []
            found.append((clean(series.label), float(up(series.y[shown][-1:])[0]), index))
    if len(found) < 2 or any(text_width(text, ROOM) > _LABEL for text, _, _ in found):
        return []
    wanted = [height for _, height, _ in found]
    places = spread(wanted, ROOM + 1, up.end + 4, up.start - 4)
    if places is None or max(abs(a - b) for a, b in zip(places, wanted)) > _OFF:
        return []
    return [(text, place, index) for (text, _, index), place in zip(found, places)]


def _legend(series: tuple[Series, ...]) -> tuple[str, float]:
    words = [_fitting(one.label, WIDTH - 30) for one in series]
    places = flow([26 + text_width(word, ROOM) for word in words], WIDTH, 14)
    items = []
    for one, word, (x, row) in zip(series, words, places):
        y = HEIGHT + 16 + 19 * row
        items.append(_path(one, "centre", f"M{x:.1f} {y - 4:.1f}h18"))
        items.append(element("text", word, x=x + 24, y=y))
    return "".join(items), HEIGHT + 24 + 19 * places[-1][1]


def _layer(index: int, content: str, class_: str | None = None) -> str:
    return element("g", content, data_series=index, class_=class_) if content else ""


def _path(series: Series, class_: str, d: str, name: str | None = None) -> str:
    if not d:
        return ""
    return element("path", class_=f"{class_} {series_class(series.colour)}", d=d, data_name=name)


def _word(x: float, y: float, text: str, index: int) -> str:
    return element("text", escape(text), x=x, y=y, data_series=index)


def _fitting(text: str, width: float) -> str:
    return escape(shorten(clean(text), width, ROOM))


def _inside(place: np.ndarray) -> np.ndarray:
    """Hold what leaves the picture near it: its coordinates would be of any length."""
    return np.where(np.isnan(place), place, np.clip(place, _TOP - 2, HEIGHT - _BOTTOM + 2))
