"""Write result pages again, each by the command at its own foot.

    python -m zoo.benchmarks.pages docs/results/*.md

from the folder in which the commands were typed, the repository's. Pages hold no figure that was
typed: what changes in the report or in the kept results is in them after this.
"""

from __future__ import annotations

import argparse
import re
import shlex
from pathlib import Path

from zoo.cli import main as zoo
from zoo.errors import UserError

__all__ = ["command_of", "main"]

_FOOT = re.compile(r"^This page was made by `(zoo report .+)`\.$", re.MULTILINE)


def command_of(page: str) -> list[str]:
    """Return the words of the command that made a page, from its Markdown.

    Raises
    ------
    UserError
        Where it names none.
    """
    found = _FOOT.findall(page)
    if not found:
        raise UserError("it does not name the command that made it.")
    return shlex.split(found[-1])


def main() -> None:
    """Write the pages that are named."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("pages", nargs="+", type=Path, metavar="PAGE.md")
    for page in parser.parse_args().pages:
        if zoo(command_of(page.read_text("utf-8"))[1:]):
            raise SystemExit(f"{page} could not be written again")


if __name__ == "__main__":
    main()
