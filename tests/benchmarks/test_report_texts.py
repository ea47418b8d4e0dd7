"""What texts may hold, and which links are let through."""

from __future__ import annotations

from pathlib import Path

import pytest

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


def parts(text):
    return [(span.kind, span.text, span.target) for span in spans(text)]


def test_code_and_links_are_found_and_the_rest_is_left():
    assert parts("a *b* `c_d` and [e](f/g.html), [x] (y)") == [
        ("plain", "a *b* ", ""),
        ("code", "c_d", ""),
        ("plain", " and ", ""),
        ("link", "e", "f/g.html"),
        ("plain", ", [x] (y)", ""),
    ]


def test_a_link_may_hold_code_and_its_address_brackets():
    assert parts("[`run`](https://a.org/b_(c))") == [("link", "`run`", "https://a.org/b_%28c%29")]
    assert plain("see [`run`](#x) `y`") == "see run y"


def test_a_refused_link_stays_as_it_was_written():
    text = "[x](javascript:alert(1)) `y`"
    assert parts(text)[0] == ("plain", "[x](javascript:alert(1)) ", "")


@pytest.mark.parametrize(
    "target",
    [
        "javascript:alert(1)",
        "JaVaScRiPt:alert(1)",
        "java\nscript:alert(1)",
        "\x01javascript:alert(1)",
        " javascript:alert(1)",
        "data:text/html,x",
        "file:///etc/passwd",
        "mailto:a@b.c",
        "//evil.org/x",
        "\\\\evil.org\\x",
        "/etc/passwd",
        "",
    ],
)
def test_other_targets_are_refused(target):
    assert safe_target(target) is None


@pytest.mark.parametrize(
    ("target", "written"),
    [
        ("https://a.org/x?y=1&z=%20#f", "https://a.org/x?y=1&z=%20#f"),
        ("HTTP://a.org", "HTTP://a.org"),
        ('https://a.org/a b"<é', "https://a.org/a%20b%22%3C%C3%A9"),
        ("../runs/a b", "../runs/a%20b"),
        ("runs/a:b", "runs/a:b"),
        ("#LunarLander-v3", "#lunarlander-v3"),
    ],
)
def test_addresses_relative_paths_and_anchors_are_let_through(target, written):
    assert safe_target(target) == written


def test_what_no_page_can_hold_is_replaced_and_lines_are_joined():
    assert (
        clean(" a\x00b\x1b[31m\ud800\n\n c\u2028d\u00a0%\x85")
        == "a\ufffdb\ufffd[31m\ufffd c d\u00a0%"
    )


def test_a_file_is_linked_from_where_the_page_lies(tmp_path):
    run = tmp_path / "runs" / "a #1 (ü)"
    run.mkdir(parents=True)
    (tmp_path / "docs").mkdir()
    assert relative_link(run, tmp_path / "docs") == "../runs/a%20%231%20%28%C3%BC%29"


def test_a_path_is_linked_from_wherever_the_command_runs(tmp_path, monkeypatch):
    (tmp_path / "runs").mkdir()
    monkeypatch.chdir(tmp_path)
    assert relative_link(Path("runs"), Path("new/docs")) == "../../runs"


def test_a_link_goes_by_the_names_that_were_given(tmp_path):
    (tmp_path / "runs").mkdir()
    (tmp_path / "far" / "away").mkdir(parents=True)
    (tmp_path / "docs").symlink_to(tmp_path / "far" / "away")
    assert relative_link(tmp_path / "runs", tmp_path / "docs") == "../runs"


@pytest.mark.parametrize("name", ["missing", "x" * 5000, "a\x00b"])
def test_what_does_not_exist_has_no_link(name, tmp_path):
    assert relative_link(tmp_path / name, tmp_path) is None


def test_anchors_are_unique_and_free_of_marks():
    assert slug("LunarLander-v3: a_b <x>") == "lunarlander-v3-a-b-x"
    assert slug("…") == "part"
    assert anchors(["A b", "a-b", "notes", "a b 2"]) == ["a-b", "a-b-2", "notes-2", "a-b-2-2"]


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("4.1 [1.2, 6.9]", 4.1),
        ("+4.1", 4.1),
        ("−1,250.5", -1250.5),
        ("-3", -3),
        (".83", 0.83),
        ("12k [10k, 15k]", 12_000),
        ("1.5M", 1_500_000),
        ("41 %", 41),
        ("2 min", 120),
        ("1.5\xa0h", 5400),
        ("3e−4", 3e-4),
        ("< 5", 5),
        ("`7`", 7),
        ("1.02 GiB", 1.02),
        ("10 of 10", 10),
    ],
)
def test_a_cell_is_sorted_by_the_number_it_begins_with(text, number):
    assert leading_number(text) == pytest.approx(number)


@pytest.mark.parametrize("text", ["ppo", "–", "", "v3", "linear, 1e-3 → 0"])
def test_words_are_no_numbers(text):
    assert leading_number(text) is None
