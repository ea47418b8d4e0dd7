"""Compare runs: one self-contained HTML page and a Markdown twin.

    zoo report runs/bench/classic                         a bench folder, or any folder with runs
    zoo report runs/ppo-* runs/grpo-* -o report.html
    zoo report runs/ppo-* "SB3 PPO@CartPole-v1=logs/sb3-*"    another library's runs beside ours
    zoo report results.csv                                columns algo, env, seed, step, value
    zoo report runs/a runs/b --export compare.results.json.gz    keep the curves without the folders

RUN is [LABEL[@ENV]=]PATH: run folders of zoo, CSV files, logs of Stable-Baselines3
(evaluations.npz, monitor.csv), TensorBoard event files, offline runs of W&B, or an exported
*.results.json(.gz). Without a label, runs go by their algorithm, and runs that were trained with
different settings are told apart by those.

Every comparison is made at the last step that all runs of a task have reached, unless --at names
another one.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zoo.benchmarks.report.page import Page

__all__ = ["add_arguments", "announce", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("runs", nargs="+", metavar="RUN", help="[LABEL[@ENV]=]PATH of runs")
    parser.add_argument(
        "-o",
        "--out",
        type=Path,
        default=Path("report.html"),
        metavar="FILE",
        help="report.html by default; of FILE.md no HTML is written",
    )
    parser.add_argument("--title", help="in place of one made of labels and tasks")
    parser.add_argument(
        "--note", action="append", default=[], metavar="TEXT", help="a remark of yours; repeatable"
    )
    parser.add_argument("--baseline", metavar="LABEL", help="compare all others with this one")
    parser.add_argument("--at", type=_positive, metavar="STEP", help="compare at this step")
    parser.add_argument(
        "--threshold",
        action="append",
        default=[],
        type=_threshold,
        metavar="ENV=VALUE",
        help="the score at which a task counts as learned; repeatable",
    )
    parser.add_argument(
        "--export", type=Path, metavar="FILE", help="write the runs to FILE.results.json(.gz), too"
    )


def run(arguments: argparse.Namespace) -> int:
    """Read the runs, write the page, print what it says first."""
    from zoo.benchmarks.comparison import Options, compare
    from zoo.benchmarks.readers import read
    from zoo.benchmarks.report import write

    collection = read(arguments.runs)
    page = compare(
        collection,
        Options(
            title=arguments.title,
            remarks=tuple(arguments.note),
            baseline=arguments.baseline,
            at=arguments.at,
            thresholds=dict(arguments.threshold),
            command=arguments.typed,
        ),
    )
    if arguments.export:
        from zoo.benchmarks.readers.results_file import write_results

        write_results(collection, arguments.export)
        print(f"runs: {arguments.export}")
    announce(page, write(page, arguments.out))
    return 0


def announce(page: Page, written: Sequence[Path]) -> None:
    """Print what a report says first, and where it is."""
    from zoo.benchmarks.wording import without_links

    for sentence in page.verdicts:
        print(f"* {without_links(sentence)}")
    for note in page.notes:
        print(f"note: {without_links(note)}")
    print(f"report: {' and '.join(map(str, written[:2]))}")


def _positive(text: str) -> float:
    number = _number(text)
    if number <= 0:
        raise argparse.ArgumentTypeError("must be above 0")
    return number


def _threshold(text: str) -> tuple[str, float]:
    env, found, number = text.rpartition("=")
    if not found or not env:
        raise argparse.ArgumentTypeError(f"must be ENV=VALUE (got '{text}')")
    return env, _number(number)


def _number(text: str) -> float:
    try:
        number = float(text.replace("_", ""))
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise argparse.ArgumentTypeError(f"must be a number (got '{text}')")
    return number
