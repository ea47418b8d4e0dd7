"""A drawn picture, inside a page or as a file of its own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from html import escape
from pathlib import Path

from zoo.benchmarks.report.palette import COLOURS
from zoo.benchmarks.report.svg import element

__all__ = ["SIGNATURE", "Picture", "inline", "standalone", "style"]

#: how a file begins that was written here
SIGNATURE = '<svg class="zoo-chart"'
_MARGIN = 14


@dataclass(frozen=True)
class Picture:
    """What was drawn.

    Attributes
    ----------
    width, height : float
        Its size in its own units.
    body : str
        The elements.
    title : str
        What it shows.
    words : str
        The figures that it shows, in words, for those who can't see it.
    axes : mapping
        Attributes that tell a script which values lie where.
    """

    width: float
    height: float
    body: str
    title: str
    words: str
    axes: Mapping[str, str] = field(default_factory=dict)


def inline(picture: Picture, name: str) -> str:
    """Write it as a part of a page whose style sheet holds :func:`style`."""
    told = element("title", escape(picture.title), id=f"{name}-title")
    told += element("desc", escape(picture.words), id=f"{name}-words")
    return element(
        "svg",
        told + picture.body,
        class_="zoo-chart",
        viewBox=f"0 0 {picture.width:g} {picture.height:g}",
        role="img",
        aria_labelledby=f"{name}-title",
        aria_describedby=f"{name}-words",
        **picture.axes,
    )


def standalone(picture: Picture) -> str:
    """Write it as a file that shows the reader's theme, on a ground of its own.

    Its colours are written out: many programs that show pictures know no custom properties.
    """
    width, height = picture.width + 2 * _MARGIN, picture.height + 2 * _MARGIN
    rules = f"{_in_theme(0)}@media (prefers-color-scheme:dark){{{_in_theme(1)}}}"
    ground = element("rect", class_="ground", width=f"{width:g}", height=f"{height:g}", rx=8)
    return element(
        "svg",
        element("title", escape(picture.title))
        + element("desc", escape(picture.words))
        + element("style", rules)
        + ground
        + element("g", picture.body, transform=f"translate({_MARGIN} {_MARGIN})"),
        class_="zoo-chart",
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width:g} {height:g}",
        width=f"{1.25 * width:g}",
        height=f"{1.25 * height:g}",
        role="img",
    )


@cache
def style() -> str:
    """Return the style sheet of pictures; its colours are custom properties."""
    text = Path(__file__).with_name("picture.css").read_text("utf-8")
    return re.sub(r"\s*\n\s*", "", re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL))


def _in_theme(theme: int) -> str:
    return re.sub(r"var\(--([\w-]+)\)", lambda match: COLOURS[match[1]][theme], style())
