"""The code on the docs' how-to pages runs as it stands.

The ``python`` blocks of a page are one script, in order, run in an empty folder. A block that is
only to be read has the line ``<!-- not run -->`` above it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted(DOCS.glob("add-*.md"))
BLOCK = re.compile(r"(?P<skip><!-- not run -->\n+)?^```python\n(?P<code>.*?)^```$", re.M | re.S)


def script(page: str) -> str:
    """Return a page's runnable blocks as one script; line numbers are kept, for tracebacks."""
    lines = [""] * (page.count("\n") + 1)
    for block in BLOCK.finditer(page):
        if block["skip"] is None:
            first = page.count("\n", 0, block.start("code"))
            code = block["code"].splitlines()
            lines[first : first + len(code)] = code
    return "\n".join(lines) + "\n"


def test_blocks_keep_their_order_and_line_numbers() -> None:
    page = (
        "# T\n```python\na = 1\n```\n<!-- not run -->\n```python\nno\n```\n```python\nb = a\n```\n"
    )
    assert script(page).split("\n") == ["", "", "a = 1", *[""] * 6, "b = a", "", "", ""]


@pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in PAGES])
def test_the_code_of_a_page_runs(page: Path, tmp_path: Path) -> None:
    file = tmp_path / f"{page.stem.replace('-', '_')}.py"
    file.write_text(script(page.read_text(encoding="utf-8")), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, file.name],
        cwd=tmp_path,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, f"{page}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
