"""Write a report: one HTML page that needs nothing else, and its Markdown twin."""

from __future__ import annotations

import re
from pathlib import Path

from zoo.benchmarks.report import html, markdown
from zoo.benchmarks.report.page import Chart, Intervals, Page
from zoo.benchmarks.report.picture import SIGNATURE
from zoo.core.atomic import replacing
from zoo.errors import UserError

__all__ = ["write"]


def write(page: Page, path: Path) -> list[Path]:
    """Write a page and return the files, the one asked for first.

    Parameters
    ----------
    page : Page
        What it holds.
    path : Path
        ``x.html`` makes the page, ``x.md`` and the pictures of the latter, ``x-charts/*.svg``;
        ``x.md`` makes the last two. Each file is replaced in one go; pictures of an earlier report
        of that name that this one has not are removed.

    Raises
    ------
    UserError
        Where the name has another ending, it can't be written there, or there is a file of that
        name that no report made.
    ValueError
        Where two charts of the page have one name, or one that is no file name.
    """
    if path.suffix not in (".html", ".md"):
        raise UserError(
            f"{path}: a report is a .html file (with a .md file beside it) or a .md file alone: "
            "name one of them."
        )
    _check_names(page)
    twin, pictures = path.with_suffix(".md"), path.with_name(f"{path.stem}-charts")
    texts = {path: html.render(page, path.parent)} if path.suffix == ".html" else {}
    texts[twin] = markdown.render(page, path.parent, markdown.as_target(pictures.name))
    drawn = {pictures / name: text for name, text in markdown.pictures(page).items()}
    try:
        for file in texts:
            if not _may_replace(file):
                raise UserError(
                    f"{file} would be replaced, and no report made it: give {path.name} another"
                    " name, or move that file."
                )
        path.parent.mkdir(parents=True, exist_ok=True)
        if drawn:
            pictures.mkdir(exist_ok=True)
        for file, text in {**drawn, **texts}.items():
            with replacing(file) as out:
                out.write(text.encode())
        _remove_others(pictures, set(drawn))
    except OSError as error:
        raise UserError(f"can't write the report {path}: {error.strerror or error}.") from error
    return [*texts, *drawn]


def _check_names(page: Page) -> None:
    seen: set[str] = set()
    for block in (block for section in page.sections for block in section.blocks):
        if isinstance(block, Chart | Intervals):
            if not re.fullmatch(r"[A-Za-z0-9-]{1,200}", block.name) or block.name in seen:
                raise ValueError(f"a chart's name is unique, of A-Z a-z 0-9 -: {block.name!r}")
            seen.add(block.name)


def _may_replace(file: Path) -> bool:
    signature = html.SIGNATURE if file.suffix == ".html" else markdown.SIGNATURE
    return not file.is_file() or signature.encode() in file.read_bytes()[:4096]


def _remove_others(folder: Path, kept: set[Path]) -> None:
    for file in set(folder.glob("*.svg")) - kept:
        if file.read_bytes().startswith(SIGNATURE.encode()):
            file.unlink()
