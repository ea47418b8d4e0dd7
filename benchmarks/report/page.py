"""What a report page holds, without how it looks; :mod:`html` and :mod:`markdown` write it out.

Texts may hold `` `code` `` and ``[links](target)``; everything else in them is taken as it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

__all__ = [
    "Cell",
    "Chart",
    "Intervals",
    "Level",
    "Page",
    "Row",
    "Section",
    "Series",
    "Table",
    "Trace",
    "Whisker",
]


@dataclass(frozen=True)
class Cell:
    """One field of a table.

    Attributes
    ----------
    text : str
        What stands there.
    target : Path or str, optional
        What it links to: a folder or file, ``#anchor`` on this page, or an address.
    strong : bool
        Whether it stands out.
    """

    text: str
    target: Path | str | None = None
    strong: bool = False


@dataclass(frozen=True)
class Row:
    """One row of a table; ``colour`` is that of its group (see :class:`Series`), -1 for none."""

    cells: tuple[Cell, ...]
    anchor: str = ""
    colour: int = -1


@dataclass(frozen=True)
class Table:
    """A table: the names of its columns and its rows, each with as many cells."""

    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    caption: str = ""


@dataclass(frozen=True)
class Trace:
    """One run's own curve: x and y, [N] each."""

    name: str
    x: np.ndarray
    y: np.ndarray


@dataclass(frozen=True)
class Series:
    """One group in a chart.

    Attributes
    ----------
    label : str
        Its name in the legend.
    colour : int
        Its place in the palette, the same all over the page.
    x, y : ndarray, [N]
        The centre line.
    low, high : ndarray, [N], optional
        The band; None where there are too few runs for one.
    traces : tuple of Trace
        The single runs, drawn thin.
    """

    label: str
    colour: int
    x: np.ndarray
    y: np.ndarray
    low: np.ndarray | None = None
    high: np.ndarray | None = None
    traces: tuple[Trace, ...] = ()


@dataclass(frozen=True)
class Level:
    """A horizontal line: a published result, or a threshold."""

    label: str
    value: float


@dataclass(frozen=True)
class Chart:
    """Curves over one axis.

    Attributes
    ----------
    name : str
        Unique on the page; letters, digits and hyphens, the file name of its picture.
    title, x_label, y_label : str
        Its texts.
    x_format : str
        ``count`` (12,000 → 12k), ``seconds`` (ticks in s, min or h) or ``number``.
    y_format : str
        ``number`` or ``percent`` (0.41 → 41 %).
    caption : str
        What it shows, in one sentence.
    """

    name: str
    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    levels: tuple[Level, ...] = ()
    x_format: str = "count"
    y_format: str = "number"
    caption: str = ""


@dataclass(frozen=True)
class Whisker:
    """A point with its interval; ``low`` and ``high`` are None where there is none.

    ``text`` is how its figures are written beside it; where it is empty, with three digits of the
    axis.
    """

    label: str
    colour: int
    value: float
    low: float | None = None
    high: float | None = None
    text: str = ""


@dataclass(frozen=True)
class Intervals:
    """Points with intervals on one axis, a row each; ``zero`` draws the line of no difference."""

    name: str
    title: str
    x_label: str
    rows: tuple[Whisker, ...]
    x_format: str = "number"
    zero: bool = False
    caption: str = ""


@dataclass(frozen=True)
class Section:
    """A part of the page; ``folded`` ones are opened by a click."""

    title: str
    blocks: tuple[Table | Chart | Intervals | str, ...]
    anchor: str = ""
    folded: bool = False


@dataclass(frozen=True)
class Page:
    """A whole report.

    Attributes
    ----------
    title, subtitle : str
        What is compared; where and when it was made.
    verdicts : tuple of str
        What follows from the figures, the most important first.
    notes : tuple of str
        What has to be known about the input: what was left out, what is uncertain.
    sections : tuple of Section
        The figures.
    footer : tuple of str
        How the figures were computed, and the command that made the page.
    """

    title: str
    subtitle: str
    verdicts: tuple[str, ...]
    notes: tuple[str, ...]
    sections: tuple[Section, ...]
    footer: tuple[str, ...] = ()
