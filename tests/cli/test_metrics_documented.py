"""docs/metrics.md lists what runs log."""

from __future__ import annotations

import json
import re
from pathlib import Path

from zoo.core.choices import CONF

DOCUMENT = Path(__file__).parents[2] / "docs" / "metrics.md"


def listed() -> list[re.Pattern[str]]:
    """Return the keys between backticks of the document; <name> stands for any name."""
    keys = re.findall(r"`([a-z][\w/<>]*)`", DOCUMENT.read_text("utf-8"))
    return [re.compile(re.sub(r"<\w+>", r"\\w+", key)) for key in keys]


def test_every_figure_of_a_run_is_documented(finished: Path) -> None:
    patterns = listed()
    seen = set(json.loads((finished / "summary.json").read_text()))
    for name in ("metrics.jsonl", "episodes.jsonl"):
        for line in (finished / name).read_text().splitlines():
            seen |= set(json.loads(line))
    missing = [key for key in sorted(seen) if not any(p.fullmatch(key) for p in patterns)]
    assert not missing


def test_every_key_that_the_source_names_is_documented() -> None:
    patterns = listed()
    home = CONF.parent
    folders = [home / part for part in ("core", "plugins", "rollouts")]
    folders.append(Path(__import__("zoo.algorithms").algorithms.__file__).parent)
    prefixes = (
        "advantage|check|completion|dialogue|entropy|episode|eval|grad|group|importance|kl|memory|policy"
        "|return|reward"
        "|rollout|sampler|speed|stored|time|train|update"
    )
    named = re.compile(rf'"((?:{prefixes})/[a-z]\w*)"')
    missing = {
        key
        for folder in folders
        for file in folder.glob("*.py")
        for key in named.findall(file.read_text("utf-8"))
        if not any(p.fullmatch(key) for p in patterns)
    }
    assert not missing
