"""The Markdown twin says the same as the page, in every dialect that shows it."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

import pytest
from sample_page import sample_page

from zoo.benchmarks.report import html, intervals, markdown
from zoo.benchmarks.report.page import Cell, Intervals, Page, Row, Section, Table, Whisker

TRICKY = "*a* _b_ |c| <d> &lt; ~~e~~ $f$ {g} [h] \\i `j` # k"


def twin(*blocks, folder=Path(), **options):
    fields = {"title": "t", "subtitle": "", "verdicts": (), "notes": ()} | options
    return markdown.render(Page(sections=(Section("S", blocks),), **fields), folder, "x-charts")


def github(text):
    """As GitHub and most others read it."""
    from markdown_it import MarkdownIt

    return MarkdownIt("commonmark").enable("table").enable("strikethrough").render(text)


def mkdocs(text):
    """As MkDocs reads it."""
    python_markdown = pytest.importorskip("markdown")
    pytest.importorskip("pymdownx")
    extensions = ["tables", "toc", "admonition", "md_in_html", "pymdownx.superfences"]
    return python_markdown.markdown(text, extensions=extensions)


def visible(text):
    """The words of a page, without pictures."""
    text = re.sub(r"<(head|svg)\b.*?</\1>", "", text, flags=re.DOTALL)
    text = re.sub(r"</?(code|a|strong|bdi|em|del|span)\b[^>]*>", "", text)
    return unescape(re.sub(r"<[^>]+>", " ", text)).split()


DIALECTS = pytest.mark.parametrize("dialect", [github, mkdocs])


@DIALECTS
def test_marks_in_what_users_write_stay_text(dialect):
    table = Table((TRICKY,), (Row((Cell(TRICKY),)), Row((Cell("a|`b|c`"),))), TRICKY)
    text = twin(TRICKY, table, title=TRICKY, notes=(TRICKY,), verdicts=(TRICKY,))
    shown = visible(dialect(text))
    assert "".join(shown).count(TRICKY.replace("`", "").replace(" ", "")) == 5
    assert "".join(shown).count(TRICKY.replace(" ", "")) == 2  # a title and a column hold no code
    assert "a|b|c" in shown
    assert not re.search("<(em|del)>", dialect(text))


@DIALECTS
@pytest.mark.parametrize("start", ["# a", "1. a", "12) a", "- a", "+ a", "---", "> a", "* a"])
def test_a_line_is_no_heading_and_no_list_for_how_it_begins(dialect, start):
    assert f"<p>{start.replace('>', '&gt;')}</p>" in dialect(twin(start))


@DIALECTS
def test_every_number_of_the_page_stands_in_the_twin(dialect):
    page = sample_page()
    shown = visible(html.render(page, Path()))
    there = visible(dialect(markdown.render(page, Path(), "x-charts")))
    numbers = {word for word in shown if re.search(r"\d", word)}
    rows = [
        words
        for section in page.sections
        for block in section.blocks
        if isinstance(block, Intervals)
        for words in intervals.rows_in_words(block)
    ]
    numbers |= {word for words in rows for word in words.split() if re.search(r"\d", word)}
    assert len(numbers) > 300
    # a legend's words stand in the pictures
    assert numbers - set(there) <= {"sb3", "(n_steps=32,", "batch_size=256)"}


@DIALECTS
def test_tables_and_folded_sections_are_read_as_such(dialect):
    shown = dialect(markdown.render(sample_page(), Path(), "x-charts"))
    assert shown.count("<table>") == 7
    folded = shown[shown.index("<details") :]
    assert folded.count("<table>") == 2
    assert folded.count("</details>") == 2


@DIALECTS
def test_links_and_anchors_meet(dialect):
    shown = dialect(markdown.render(sample_page(), Path(), "x-charts"))
    targets = set(re.findall(r'href="#([^"]+)"', shown))
    made = {re.sub(r"\s+", "-", t.lower()) for t in re.findall(r"<h2[^>]*>([^<]+)</h2>", shown)}
    assert targets <= set(re.findall(r' id="([^"]+)"', shown)) | made
    assert {"run-14", "cartpole-v1"} <= targets


def test_pictures_are_named_and_told():
    chart = Intervals("a-b", "A [title]", "x", (Whisker("p", 0, 1.0, 0.5, 1.5),), caption="Seen.")
    assert twin(chart).endswith(
        "**A \\[title\\]**\n\n![A title](x-charts/a-b.svg)\n\n".replace("A title", "A \\[title\\]")
        + "- p: 1.00 \\[0.50, 1.50\\]\n\nSeen.\n"
    )


def test_paths_become_links_seen_from_the_page(tmp_path):
    (tmp_path / "runs" / "a b").mkdir(parents=True)
    cells = (
        Cell("here", target=tmp_path / "runs" / "a b", strong=True),
        Cell("gone", target=Path("no|where")),
        Cell("bad", target="javascript:x"),
    )
    text = twin(Table(("a", "b", "c"), (Row(cells, anchor="R 1"),)), folder=tmp_path / "docs")
    assert text.splitlines()[-1] == (
        '| <a id="r-1"></a>**[here](../runs/a%20b)** | gone <code>no&#124;where</code> | bad |'
    )
