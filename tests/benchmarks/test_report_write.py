"""Writing a report: which files come, and what stands in the way."""

from __future__ import annotations

import contextlib
import errno
from dataclasses import replace
from pathlib import Path

import pytest
from sample_page import sample_page

from zoo.benchmarks import report
from zoo.benchmarks.report import write
from zoo.benchmarks.report.page import Intervals, Page, Section
from zoo.errors import UserError


def page(*names):
    charts = tuple(Intervals(name, name, "x", ()) for name in names)
    return Page("t", "", (), (), (Section("S", charts),))


def tree(folder):
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def test_the_page_its_twin_and_the_pictures_are_written(tmp_path):
    files = write(page("a", "b"), tmp_path / "new" / "deep" / "x.html")
    folder = tmp_path / "new" / "deep"
    assert [str(file.relative_to(folder)) for file in files] == [
        "x.html",
        "x.md",
        "x-charts/a.svg",
        "x-charts/b.svg",
    ]
    assert tree(folder) == sorted(str(file.relative_to(folder)) for file in files)
    assert files[0].read_text("utf-8").startswith("<!doctype html>")
    assert "(x-charts/a.svg)" in files[1].read_text("utf-8")


def test_markdown_alone_is_written_with_its_pictures(tmp_path):
    files = write(page("a"), tmp_path / "x.md")
    assert files == [tmp_path / "x.md", tmp_path / "x-charts" / "a.svg"]
    assert tree(tmp_path) == ["x-charts/a.svg", "x.md"]


def test_a_page_without_charts_leaves_no_folder(tmp_path):
    assert write(page(), tmp_path / "x.md") == [tmp_path / "x.md"]
    assert [p.name for p in tmp_path.iterdir()] == ["x.md"]


def test_the_same_page_gives_the_same_bytes(tmp_path):
    first = {f.name: f.read_bytes() for f in write(sample_page(), tmp_path / "x.html")}
    second = {f.name: f.read_bytes() for f in write(sample_page(), tmp_path / "x.html")}
    assert first == second


def test_pictures_of_the_report_before_are_removed_and_others_stay(tmp_path):
    write(page("a", "old"), tmp_path / "x.md")
    mine = tmp_path / "x-charts" / "drawn-by-hand.svg"
    mine.write_text("<svg/>")
    write(page("a"), tmp_path / "x.md")
    assert tree(tmp_path / "x-charts") == ["a.svg", "drawn-by-hand.svg"]


def test_a_file_with_spaces_in_its_name_finds_its_pictures(tmp_path):
    write(page("a"), tmp_path / "my report.md")
    assert "(my%20report-charts/a.svg)" in (tmp_path / "my report.md").read_text()


@pytest.mark.parametrize("name", ["x.pdf", "x", "x.HTM", "x.html.gz"])
def test_another_ending_is_refused(tmp_path, name):
    with pytest.raises(UserError, match=r"a \.html file .* or a \.md file"):
        write(page(), tmp_path / name)
    assert tree(tmp_path) == []


def test_a_page_that_no_report_made_is_not_replaced(tmp_path):
    (tmp_path / "README.md").write_text("# Mine")
    (tmp_path / "own.html").write_text("<p>Mine")
    for name, kept in (("README.html", "README.md"), ("README.md", "README.md"), ("own.html",) * 2):
        with pytest.raises(UserError, match=f"{kept} would be replaced"):
            write(page("a"), tmp_path / name)
    assert tree(tmp_path) == ["README.md", "own.html"]
    assert (tmp_path / "README.md").read_text() == "# Mine"


@pytest.mark.parametrize("name", ["a.html", "b.md"])
def test_a_page_that_a_report_made_is_replaced(tmp_path, name):
    write(replace(page("a"), title="Before"), tmp_path / name)
    assert "Before" in (tmp_path / name).read_text()
    write(replace(page("a"), title="After"), tmp_path / name)
    text = (tmp_path / name).read_text()
    assert "After" in text and "Before" not in text


def test_a_folder_that_is_a_file_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"can't write the report .*x\.html: .+\."):
        write(page(), tmp_path / "file" / "x.html")


def test_a_report_that_is_a_folder_is_told(tmp_path):
    (tmp_path / "x.html").mkdir()
    with pytest.raises(UserError, match=r"can't write the report .*x\.html: Is a directory\."):
        write(page(), tmp_path / "x.html")


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_a_disk_that_takes_nothing_is_told_and_the_old_page_stays(tmp_path, monkeypatch, code):
    write(page("a"), tmp_path / "x.html")
    before = (tmp_path / "x.html").read_bytes()

    @contextlib.contextmanager
    def refuse(path):
        raise OSError(code, "it takes nothing")
        yield

    monkeypatch.setattr(report, "replacing", refuse)
    with pytest.raises(UserError, match=r"can't write the report .*x\.html: it takes nothing\."):
        write(replace(page("a"), title="new"), tmp_path / "x.html")
    assert (tmp_path / "x.html").read_bytes() == before


@pytest.mark.parametrize("names", [("a", "a"), ("../a",), ("",), ("a b",)])
def test_names_of_charts_are_unique_file_names(tmp_path, names):
    with pytest.raises(ValueError, match="a chart's name"):
        write(page(*names), tmp_path / "x.md")


def test_run_folders_are_linked_from_the_page(tmp_path):
    run = tmp_path / "runs" / "ppo-CartPole-v1-s0"
    run.mkdir(parents=True)
    file, *_ = write(sample_page(runs=tmp_path / "runs"), tmp_path / "out" / "x.html")
    assert '<a href="../runs/ppo-CartPole-v1-s0">' in file.read_text()
    assert isinstance(file, Path)
