"""The HTML page: whole, closed to the network, safe from what users name their runs."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from sample_page import sample_page

from zoo.benchmarks.report import html, write
from zoo.benchmarks.report.page import (
    Cell,
    Chart,
    Intervals,
    Level,
    Page,
    Row,
    Section,
    Series,
    Table,
    Trace,
    Whisker,
)

EVIL = "<img src=x onerror=alert(1)>\"'&\n\x00</script></style><!--"
VOID = {"meta", "link", "img", "br", "hr"}


class Parsed(HTMLParser):
    """The elements and the visible words of a page; an unbalanced one fails."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.words: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not {"style", "script", "title", "desc"} & set(self.open):
            self.words.append(data)

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


def page(*blocks, **options):
    options = {"title": "t", "subtitle": "", "verdicts": (), "notes": ()} | options
    return Page(sections=(Section("S", blocks),), **options)


def render(*blocks, folder=Path(), **options):
    return html.render(page(*blocks, **options), folder)


def evil_page():
    x = np.arange(3.0)
    series = Series(EVIL, 0, x, x, x, x, (Trace(EVIL, x, x),))
    cells = (Cell(EVIL), Cell(EVIL, target=EVIL), Cell(EVIL, target=Path(EVIL), strong=True))
    blocks = (
        EVIL,
        Table((EVIL, EVIL, EVIL), (Row(cells, anchor=EVIL, colour=0),), EVIL),
        Chart("c", EVIL, EVIL, EVIL, (series, series), (Level(EVIL, 1),), caption=EVIL),
        Intervals("i", EVIL, EVIL, (Whisker(EVIL, 0, 1.0),), caption=EVIL),
    )
    folded = Section(EVIL, blocks[:2], anchor=EVIL, folded=True)
    return Page(EVIL, EVIL, (EVIL,), (EVIL,), (Section(EVIL, blocks), folded, folded), (EVIL,))


def test_what_users_write_stays_text():
    parsed = Parsed(html.render(evil_page(), Path()))
    assert not parsed.all("img")
    assert len(parsed.all("script")) == len(parsed.all("style")) == 1
    assert not any(
        name.startswith("on") for _, attributes in parsed.elements for name in attributes
    )
    assert "".join(parsed.words).count("<img src=x onerror=alert(1)>\"'& \ufffd") > 15
    ids = [attributes["id"] for _, attributes in parsed.elements if "id" in attributes]
    assert not any(re.search(r"\s", name) for name in ids)


def test_the_sample_is_balanced_and_its_ids_are_unique():
    parsed = Parsed(html.render(sample_page(), Path()))
    ids = [attributes["id"] for _, attributes in parsed.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    targets = [a["href"][1:] for a in parsed.all("a") if a["href"].startswith("#")]
    assert set(targets) <= set(ids)
    described = [a for a in parsed.all("svg") if a.get("role") == "img"]
    assert len(described) == 11
    assert all({a["aria-labelledby"], a["aria-describedby"]} <= set(ids) for a in described)


def test_nothing_is_fetched_and_only_what_stands_there_runs():
    text = html.render(sample_page(), Path())
    parsed = Parsed(text)
    policy = next(a["content"] for a in parsed.all("meta") if "http-equiv" in a)
    assert policy.startswith("default-src 'none';")
    for tag in ("style", "script"):
        (content,) = re.findall(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert [a["href"] for a in parsed.all("link")] == ["data:,"]
    assert not any(
        "src" in attributes or "style" in attributes for _, attributes in parsed.elements
    )
    assert "url(" not in text
    assert "@import" not in text


def test_the_first_words_are_the_verdicts_and_notes_follow():
    parsed = Parsed(html.render(sample_page(), Path()))
    text = " ".join("".join(parsed.words).split())
    places = [text.index(words) for words in ("PPO beats GRPO", "Notes", "Scores are scaled")]
    assert places == sorted(places)


def test_a_page_has_landmarks_and_one_main_heading():
    tags = [tag for tag, _ in Parsed(html.render(sample_page(), Path())).elements]
    for tag in ("header", "main", "nav", "aside", "footer", "h1"):
        assert tags.count(tag) == 1
    assert tags.count("section") == tags.count("h2") - 1 == 8  # the notes have a heading, too


def test_a_short_page_has_no_table_of_contents_and_no_empty_parts():
    tags = [tag for tag, _ in Parsed(render("text")).elements]
    assert not {"nav", "aside", "figure", "table", "ul"} & set(tags)


def test_folded_sections_are_closed_details():
    parsed = Parsed(html.render(sample_page(), Path()))
    assert parsed.all("details") == [{}, {}]
    assert len(parsed.all("summary")) == 2


def table(*rows):
    return Table(("name", "value"), tuple(Row(tuple(map(Cell, row))) for row in rows), "A `b`")


def test_tables_have_scopes_captions_and_a_scrolling_box():
    parsed = Parsed(render(table(("a", "1"), ("b", "2"))))
    assert [a["scope"] for a in parsed.all("th")] == ["col", "col", "row", "row"]
    assert len(parsed.all("caption")) == 1
    box = next(a for a in parsed.all("div") if a.get("class") == "box")
    assert box == {"class": "box", "role": "region", "aria-label": "A b", "tabindex": "0"}


def test_figures_are_set_right_and_sorted_by_value():
    parsed = Parsed(render(table(("a", "12k [10k, 14k]"), ("b", "900"), ("c", "–"))))
    cells = parsed.all("td")
    assert [cell.get("class") for cell in cells] == ["number"] * 3
    assert [cell.get("data-sort") for cell in cells] == ["12000.0", None, None]
    words = Parsed(render(table(("a", "12k"), ("b", "linear")))).all("td")
    assert words == [{}, {}]


def test_a_row_with_too_few_cells_is_no_page():
    with pytest.raises(ValueError, match="zip"):
        render(Table(("a", "b"), (Row((Cell("1"),)),)))


def test_a_cell_links_to_what_exists_and_names_what_does_not(tmp_path):
    (tmp_path / "runs" / "a b").mkdir(parents=True)
    cells = (
        Cell("here", target=tmp_path / "runs" / "a b"),
        Cell("gone", target=Path("runs/gone & <x>")),
        Cell("runs/c", target=Path("runs/c")),
        Cell("there", target="https://a.org/?a=1&b=2", strong=True),
        Cell("up", target="#Some Row"),
        Cell("bad", target="javascript:alert(1)"),
    )
    text = render(Table(tuple("abcdef"), (Row(cells),)), folder=tmp_path / "docs")
    for expected in (
        '<a href="../runs/a%20b">here</a>',
        "gone <code>runs/gone &amp; &lt;x&gt;</code>",
        "<td><code>runs/c</code></td>",
        '<strong><a href="https://a.org/?a=1&amp;b=2">there</a></strong>',
        '<a href="#some-row">up</a>',
        "<td>bad</td>",
    ):
        assert expected in text


def test_texts_hold_code_and_links():
    text = render(verdicts=("`a<b` [`c`](d/e) [x](javascript:f)",))
    assert (
        '<li><code>a&lt;b</code> <a href="d/e"><code>c</code></a> [x](javascript:f)</li>'
    ) in text


def test_pictures_that_follow_each_other_stand_side_by_side():
    chart = Intervals("a", "t", "x", ())
    text = render(chart, replace(chart, name="b"), "words", replace(chart, name="c"))
    groups = re.findall(r'<div class="pictures">(.*?)</div>', text, re.DOTALL)
    assert [group.count("<figure") for group in groups] == [2, 1]


def test_a_hundred_runs_a_task_weigh_little(tmp_path):
    whole = sample_page(seeds=34, points=600)
    charts = [block for section in whole.sections for block in section.blocks]
    traces = {c.name: c.series for c in charts if isinstance(c, Chart) and c.name.endswith("steps")}
    assert sum(len(series.traces) for series in traces["curve-0-steps"]) == 102

    def crowded(block):
        """The same single runs over time as over steps."""
        if not isinstance(block, Chart) or not block.name.endswith("-time"):
            return block
        others = traces[block.name.replace("-time", "-steps")]
        return replace(
            block, series=tuple(replace(s, traces=o.traces) for s, o in zip(block.series, others))
        )

    sections = (replace(s, blocks=tuple(map(crowded, s.blocks))) for s in whole.sections)
    file = write(replace(whole, sections=tuple(sections)), tmp_path / "big.html")[0]
    assert file.read_text().count('class="trace') == 4 * 2 * 102
    assert file.stat().st_size < 1_500_000
