"""``zoo report`` as users type it."""

from __future__ import annotations

from pathlib import Path

import pytest

from zoo.cli import main


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder with one file of results."""
    monkeypatch.chdir(tmp_path)
    rows = ["algo,env,seed,step,value"]
    for algo, gain in (("A", 0), ("B", 100)):
        for seed in range(5):
            rows += [f"{algo},MyTask-v0,{seed},{step},{gain + step + seed}" for step in (10, 20)]
    (tmp_path / "results.csv").write_text("\n".join(rows) + "\n")
    return tmp_path


def zoo(capsys, *arguments):
    status = main(["report", *arguments])
    out, err = capsys.readouterr()
    return status, out, err


def test_a_report_is_two_files_and_says_its_verdict(folder, capsys):
    status, out, _ = zoo(capsys, "results.csv")
    assert status == 0
    assert "* B beats A on MyTask-v0: +100.0 [" in out
    assert "report: report.html and report.md" in out
    page = (folder / "report.html").read_text()
    assert "B beats A on" in page and "zoo report results.csv" in page
    assert "B beats A on" in (folder / "report.md").read_text()


def test_markdown_alone_is_written_where_asked_for(folder, capsys):
    status, out, _ = zoo(capsys, "results.csv", "-o", "docs/page.md", "--title", "Mine")
    assert status == 0 and "docs/page.md" in out
    assert "\n# Mine\n" in (folder / "docs/page.md").read_text()
    assert not (folder / "docs/page.html").exists()


def test_an_export_gives_the_same_report_again(folder, capsys):
    zoo(capsys, "results.csv", "-o", "a.md", "--export", "kept.results.json.gz")
    zoo(capsys, "kept.results.json.gz", "-o", "b.md")
    first, again = ((folder / n).read_text().split("\n## ")[0] for n in ("a.md", "b.md"))
    assert first == again and "B beats A" in first


def test_options_reach_the_page(folder, capsys):
    remarks = ["--note", "Mind the gap.", "--threshold", "MyTask-v0=115", "--at", "10"]
    zoo(capsys, "results.csv", "-o", "a.md", "--baseline", "A", *remarks)
    page = (folder / "a.md").read_text()
    assert "Mind the gap." in page and "reached 115.0" in page and "at 10 steps" in page


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing"], "there is no file or folder 'missing'"),
        (["."], "no run found under ."),
        (["results.csv", "--baseline", "C"], "no runs are labelled 'C': there are A and B"),
        (["results.csv", "--threshold", "115"], "must be ENV=VALUE"),
        (["results.csv", "--threshold", "MyTask-v0=high"], "must be a number"),
        (["results.csv", "--threshold", "Pong=1"], "a threshold names 'Pong'"),
        (["results.csv", "--at", "0"], "must be above 0"),
        (["results.csv", "-o", "page.pdf"], "page.pdf"),
        (["results.csv", "--export", "kept.csv"], "kept.csv"),
        ([], "RUN"),
    ],
)
def test_mistakes_are_one_line(folder, capsys, arguments, message):
    if arguments == ["."]:
        (folder / "results.csv").unlink()
    status, _, err = zoo(capsys, *arguments)
    assert status == 2
    assert err.startswith("error: ") and message in err and err.count("\n") == 1


def test_a_step_that_no_run_reaches_leaves_nothing_to_compare(folder, capsys):
    status, _, err = zoo(capsys, "results.csv", "--at", "1000000")
    assert status == 2
    assert "no run can be reported on" in err
