"""The pages of results are what ``zoo report`` writes, and the README quotes them."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from zoo.benchmarks.pages import command_of
from zoo.cli import main

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs/results").glob("*.md"))


def words(text: str) -> str:
    """Take links, marks and escapes off."""
    text = re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", text.replace("\\", ""))
    return re.sub(r"\s+", " ", text.replace("*", ""))


@pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in PAGES])
def test_a_page_of_results_is_what_its_command_writes(page, tmp_path, monkeypatch, capsys):
    shutil.copytree(ROOT / "docs/results/data", tmp_path / "docs/results/data")
    monkeypatch.chdir(tmp_path)
    committed = page.read_text("utf-8")
    assert main(command_of(committed)[1:]) == 0
    capsys.readouterr()
    again = (tmp_path / page.relative_to(ROOT)).read_text("utf-8")
    assert again == committed, "write it again: python -m zoo.benchmarks.pages docs/results/*.md"


def test_the_results_in_the_readme_stand_in_these_pages():
    readme = (ROOT / "README.md").read_text("utf-8")
    section = readme.partition("## Results")[2].partition("\n## ")[0]
    quoted = [words(text) for text in re.findall(r"^\* ((?:.+\n)+?)(?=\* |\n)", section, re.M)]
    assert len(quoted) >= 4
    pages = " ".join(words(page.read_text("utf-8")) for page in PAGES)
    for sentence in quoted:
        assert sentence.strip() in pages
