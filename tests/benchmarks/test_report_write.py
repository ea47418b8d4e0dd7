"""Writing a report: which files come, and what stands in the way."""

from __future__ import annotations

from sample_page import sample_page

from zoo.benchmarks.report import write


def test_the_page_its_twin_and_the_pictures_are_written(tmp_path):
    files = write(sample_page(seeds=3), tmp_path / "new" / "report.html")
    names = [str(file.relative_to(tmp_path / "new")) for file in files]
    assert names[:2] == ["report.html", "report.md"]
    assert names[2] == "report-charts/iqm.svg"
    assert all(file.is_file() for file in files)
