"""A page as one HTML file that needs nothing else: no network, no script, no library."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Iterable
from functools import cache
from html import escape
from itertools import groupby
from pathlib import Path

from zoo.benchmarks.report import charts, intervals
from zoo.benchmarks.report.page import Cell, Chart, Intervals, Page, Row, Section, Table
from zoo.benchmarks.report.palette import series_class, variables
from zoo.benchmarks.report.picture import inline, style
from zoo.benchmarks.report.svg import element
from zoo.benchmarks.report.texts import (
    anchors,
    clean,
    leading_number,
    plain,
    relative_link,
    safe_target,
    slug,
    spans,
)

__all__ = ["SIGNATURE", "render"]

#: what a script reads as a number by itself
_PLAIN = re.compile(r"-?\d+(\.\d+)?")
#: with fewer sections, a page needs no table of contents
_LONG = 3


#: by which a page is known to be one that may be replaced
SIGNATURE = '<meta name="generator" content="zoo report">'


def render(page: Page, folder: Path) -> str:
    """Write a page; links to files are seen from ``folder``."""
    title = escape(clean(page.title))
    css, script = _style_sheet(), _source("page.js")
    named = list(zip(anchors(s.anchor or s.title for s in page.sections), page.sections))
    sections = "\n".join(_section(anchor, section, folder) for anchor, section in named)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{_policy(css, script)}">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
{SIGNATURE}
<title>{title}</title>
<link rel="icon" href="data:,">
<style>{css}</style>
<script>{script}</script>
</head>
<body>
<a class="skip" href="#figures">Skip to the figures</a>
<header>
<h1>{title}</h1>
{_paragraphs([page.subtitle], "subtitle")}
{_verdicts(page.verdicts)}
{_notes(page.notes)}
</header>
{_contents(named)}
<main id="figures">
{sections}
</main>
<footer>
{_paragraphs(page.footer)}
</footer>
</body>
</html>
"""


def _verdicts(verdicts: Iterable[str]) -> str:
    items = "".join(f"<li>{_text(verdict)}</li>" for verdict in verdicts)
    return f'<ul class="verdicts" aria-label="Verdicts">{items}</ul>' if items else ""


def _notes(notes: Iterable[str]) -> str:
    items = "".join(f"<li>{_text(note)}</li>" for note in notes)
    if not items:
        return ""
    return f'<aside aria-labelledby="notes"><h2 id="notes">Notes</h2><ul>{items}</ul></aside>'


def _contents(named: list[tuple[str, Section]]) -> str:
    if len(named) < _LONG:
        return ""
    items = "".join(
        f'<li><a href="#{anchor}">{escape(clean(section.title))}</a></li>'
        for anchor, section in named
    )
    return f'<nav aria-label="Contents"><ul>{items}</ul></nav>'


def _section(anchor: str, section: Section, folder: Path) -> str:
    title = f'<h2 id="{anchor}">{escape(clean(section.title))}</h2>'
    blocks = []
    for pictures, group in groupby(section.blocks, lambda b: isinstance(b, Chart | Intervals)):
        parts = "".join(_block(block, folder) for block in group)
        blocks.append(f'<div class="pictures">{parts}</div>' if pictures else parts)
    content = "".join(blocks)
    if section.folded:
        content = f"<details><summary>{title}</summary>{content}</details>"
    else:
        content = title + content
    return f'<section aria-labelledby="{anchor}">{content}</section>'


def _block(block: Table | Chart | Intervals | str, folder: Path) -> str:
    if isinstance(block, str):
        return f"<p>{_text(block)}</p>"
    if isinstance(block, Table):
        return _table(block, folder)
    if isinstance(block, Chart):
        picture, more = charts.draw(block, legend=False), charts.leaves_out(block)
        legend = _legend(block)
    else:
        picture, more, legend = intervals.draw(block), "", ""
    caption = " ".join(filter(None, [_text(block.caption), escape(more)]))
    title = f"<h3>{escape(picture.title)}</h3>"
    below = f"<figcaption>{caption}</figcaption>" if caption else ""
    drawn = inline(picture, block.name)
    return f'<figure id="{escape(block.name)}">{title}{legend}{drawn}{below}</figure>'


def _legend(chart: Chart) -> str:
    if len(chart.series) < 2:
        return ""
    items = "".join(
        f'<li data-series="{index}">{_key(one.colour)}<bdi>{escape(clean(one.label))}</bdi></li>'
        for index, one in enumerate(chart.series)
    )
    return f'<ul class="legend" aria-label="Legend">{items}</ul>'


def _key(colour: int) -> str:
    drawn = element("path", class_=f"centre {series_class(colour)}", d="M2 5h18")
    return element("svg", drawn, class_="zoo-chart key", viewBox="0 0 22 10", aria_hidden="true")


def _table(table: Table, folder: Path) -> str:
    filled = zip(*(row.cells for row in table.rows), strict=True)
    numeric = [_is_numeric(cell.text for cell in column) for column in filled]
    numeric = numeric if table.rows else [False] * len(table.columns)
    heads = "".join(
        f'<th scope="col"{_class("number" if number and i else "")}>{escape(clean(name))}</th>'
        for i, (name, number) in enumerate(zip(table.columns, numeric, strict=True))
    )
    rows = "\n".join(_row(row, numeric, folder) for row in table.rows)
    caption = f"<caption><span>{_text(table.caption)}</span></caption>" if table.caption else ""
    label = escape(plain(table.caption) or "Table")
    return (
        f'<div class="box" role="region" aria-label="{label}" tabindex="0"><table>{caption}'
        f"<thead><tr>{heads}</tr></thead><tbody>\n{rows}\n</tbody></table></div>"
    )


def _row(row: Row, numeric: list[bool], folder: Path) -> str:
    cells = []
    for i, (cell, number) in enumerate(zip(row.cells, numeric, strict=True)):
        content = _cell(cell, folder)
        value = leading_number(cell.text) if number else None
        key = "" if value is None or _PLAIN.fullmatch(cell.text) else f' data-sort="{value!r}"'
        if i == 0:
            key_line = _key(row.colour) if row.colour >= 0 else ""
            cells.append(f'<th scope="row"{key}>{key_line}{content}</th>')
        else:
            cells.append(f"<td{_class('number' if number else '')}{key}>{content}</td>")
    name = f' id="{slug(row.anchor)}"' if row.anchor else ""
    return f"<tr{name}>{''.join(cells)}</tr>"


def _cell(cell: Cell, folder: Path) -> str:
    content = _text(cell.text)
    if isinstance(cell.target, Path):
        way = relative_link(cell.target, folder)
        if way is None:
            path = f"<code>{escape(clean(str(cell.target)))}</code>"
            content = path if clean(cell.text) == clean(str(cell.target)) else f"{content} {path}"
        else:
            content = _link(content, way)
    elif cell.target is not None and (address := safe_target(cell.target)):
        content = _link(content, address)
    return f"<strong>{content}</strong>" if cell.strong else content


def _text(text: str) -> str:
    marks: dict[str, Callable[[str], str]] = {
        "plain": escape,
        "code": lambda words: f"<code>{escape(words)}</code>",
    }
    return "".join(
        _link(_text(span.text), span.target) if span.kind == "link" else marks[span.kind](span.text)
        for span in spans(text)
    )


def _link(content: str, target: str) -> str:
    return f'<a href="{escape(target)}">{content}</a>'


def _paragraphs(texts: Iterable[str], class_: str = "") -> str:
    return "".join(f"<p{_class(class_)}>{_text(text)}</p>" for text in texts if text)


def _class(name: str) -> str:
    return f' class="{name}"' if name else ""


def _is_numeric(texts: Iterable[str]) -> bool:
    filled = [text for text in texts if text.strip("–—- ")]
    return bool(filled) and all(leading_number(text) is not None for text in filled)


def _policy(css: str, script: str) -> str:
    """Return a Content-Security-Policy that lets through what stands in the page, and no more."""
    return (
        f"default-src 'none'; style-src '{_hash(css)}'; script-src '{_hash(script)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


@cache
def _style_sheet() -> str:
    light, dark = variables(0), variables(1)
    return (
        f":root{{{light}}}\n"
        f"@media(prefers-color-scheme:dark){{:root:not([data-theme=light]){{{dark}}}}}\n"
        f":root[data-theme=dark]{{{dark}}}\n"
        f"@media print{{:root:root:root{{{light}color-scheme:light}}}}\n"
        f"{style()}\n{_source('page.css')}"
    )


def _source(name: str) -> str:
    return Path(__file__).with_name(name).read_text("utf-8")
