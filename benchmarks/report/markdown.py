"""A page as Markdown, for GitHub and MkDocs alike; its pictures are files beside it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import quote

from zoo.benchmarks.report import charts, intervals
from zoo.benchmarks.report.page import Cell, Chart, Intervals, Page, Row, Section, Table
from zoo.benchmarks.report.picture import Picture, standalone
from zoo.benchmarks.report.texts import (
    anchors,
    clean,
    plain,
    relative_link,
    safe_target,
    slug,
    spans,
)

__all__ = ["SIGNATURE", "as_target", "pictures", "render"]

#: how a file begins that was written here
SIGNATURE = "<!-- Written by `zoo report`: changes made here are lost with the next one. -->"
# Backslashes where every dialect takes them, character references where not all do.
_MARKS = str.maketrans(
    {"\\": r"\\", "`": r"\`", "*": r"\*", "_": r"\_", "[": r"\[", "]": r"\]"}
    | {"<": "&lt;", ">": "&gt;", "|": "&#124;", "~": "&#126;", "$": "&#36;", "{": r"\{", "}": r"\}"}
)


def render(page: Page, folder: Path, charts_folder: str) -> str:
    """Write a page; links to files are seen from ``folder``, pictures lie in ``charts_folder``."""
    parts = [SIGNATURE, f"# {_escape(page.title)}"]
    parts += [_text(page.subtitle)] if page.subtitle else []
    parts += [_list(page.verdicts)] if page.verdicts else []
    if page.notes:
        noted = f"**Notes**\n\n{_list(page.notes)}"
        parts.append("\n".join(f"> {line}".rstrip() for line in noted.split("\n")))
    named = zip(anchors(s.anchor or s.title for s in page.sections), page.sections)
    for anchor, section in named:
        parts += _section(anchor, section, folder, charts_folder)
    parts += ["---", *map(_text, page.footer)] if page.footer else []
    return "\n\n".join(parts) + "\n"


def pictures(page: Page) -> dict[str, str]:
    """Return the file name of each picture on a page with what the file holds."""
    blocks = [block for section in page.sections for block in section.blocks]
    drawn: dict[str, Picture] = {}
    for block in blocks:
        if isinstance(block, Chart):
            drawn[block.name] = charts.draw(block, legend=True)
        elif isinstance(block, Intervals):
            drawn[block.name] = intervals.draw(block)
    return {f"{name}.svg": standalone(picture) for name, picture in drawn.items()}


def as_target(name: str) -> str:
    """Return a file's name as links write it."""
    return quote(os.fsencode(name))


def _section(anchor: str, section: Section, folder: Path, charts_folder: str) -> list[str]:
    title = _escape(section.title)
    blocks = [part for block in section.blocks for part in _block(block, folder, charts_folder)]
    if section.folded:
        fold = f'<details markdown="1" id="{anchor}">\n<summary>{title}</summary>'
        return [fold, *blocks, "</details>"]
    # where the title makes that anchor by itself, on GitHub and in MkDocs, it needs no other
    made = "-".join(clean(section.title).lower().split()) == anchor
    return ["## " + ("" if made else f'<a id="{anchor}"></a>') + title, *blocks]


def _block(block: Table | Chart | Intervals | str, folder: Path, charts_folder: str) -> list[str]:
    if isinstance(block, str):
        return [_text(block)]
    if isinstance(block, Table):
        return [*([_text(block.caption)] if block.caption else []), _table(block, folder)]
    words = charts.in_words(block) if isinstance(block, Chart) else plain(block.title)
    parts = [
        f"**{_escape(block.title)}**",
        f"![{_escape(words)}]({charts_folder}/{block.name}.svg)",
    ]
    if isinstance(block, Intervals):
        parts.append("\n".join(f"- {_escape(words)}" for words in intervals.rows_in_words(block)))
    more = charts.leaves_out(block) if isinstance(block, Chart) else ""
    caption = " ".join(filter(None, [_text(block.caption), _escape(more)]))
    return [*parts, *([caption] if caption else [])]


def _table(table: Table, folder: Path) -> str:
    lines = [
        _line(_escape(name) for name in table.columns),
        "|" + " --- |" * len(table.columns),
        *(_line(_cells(row, folder)) for row in table.rows),
    ]
    return "\n".join(lines)


def _cells(row: Row, folder: Path) -> Iterable[str]:
    for index, cell in enumerate(row.cells):
        anchor = f'<a id="{slug(row.anchor)}"></a>' if row.anchor and index == 0 else ""
        yield anchor + _cell(cell, folder)


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(cell: Cell, folder: Path) -> str:
    content = _text(cell.text, in_table=True)
    if isinstance(cell.target, Path):
        way = relative_link(cell.target, folder)
        if way is None:
            path = _code(clean(str(cell.target)), in_table=True)
            content = path if clean(cell.text) == clean(str(cell.target)) else f"{content} {path}"
        else:
            content = f"[{content}]({way})"
    elif cell.target is not None and (address := safe_target(cell.target)):
        content = f"[{content}]({address})"
    return f"**{content}**" if cell.strong and content else content


def _list(texts: Iterable[str]) -> str:
    return "\n".join(f"- {_text(text)}" for text in texts)


def _text(text: str, in_table: bool = False) -> str:
    parts = []
    for span in spans(text):
        if span.kind == "plain":
            parts.append(_escape_inside(span.text))
        elif span.kind == "code":
            parts.append(_code(span.text, in_table))
        else:
            parts.append(f"[{_text(span.text, in_table)}]({span.target})")
    return _at_start("".join(parts))


def _escape(text: str) -> str:
    return _at_start(_escape_inside(clean(text)))


def _escape_inside(text: str) -> str:
    """Take the meaning from what Markdown would read as a mark."""
    return re.sub(r"&(?=#?\w+;)", "&amp;", text).translate(_MARKS)


def _at_start(text: str) -> str:
    """Keep a line from being read as a heading, a list or a rule."""
    text = re.sub(r"^([#+\-=]+)(?=\s|$)", lambda m: "\\" + m[1], text)
    return re.sub(r"^(\d+)([.)])(?=\s|$)", r"\1\\\2", text)


def _code(text: str, in_table: bool) -> str:
    if "`" in text or (in_table and "|" in text):  # dialects differ in how they take a bar there
        return f"<code>{_escape_inside(text)}</code>"
    return f"`{text}`"
