"""How often 95 % intervals hold the true value: simulate, store, and print as Markdown.

    python -m zoo.benchmarks.coverage --page docs/statistics.md

writes coverage.json beside this file, and the tables into the page between their two markers.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from zoo.benchmarks.candidates import CANDIDATES
from zoo.benchmarks.experiments import PARTS, Experiment
from zoo.benchmarks.intervals import detectable, fewest_tasks
from zoo.benchmarks.student import t_quantile

__all__ = ["STORED", "claimed", "main", "simulate", "tables", "write_page"]

STORED = Path(__file__).with_name("coverage.json")
MARKERS = ("<!-- coverage: written by python -m zoo.benchmarks.coverage -->", "<!-- /coverage -->")

_ONE_TASK = (2, 3, 4, 5, 6, 8, 10, 20, 30)
#: part → numbers of runs that are simulated
_RUNS: dict[str, Sequence[int]] = {
    "level": _ONE_TASK,
    "difference": _ONE_TASK,
    "paired": _ONE_TASK,
    "aggregate": (3, 5, 6, 8, 10),
    "improvement": (5, 6, 8, 10, 20, 30),
    "profile": (5, 6, 8, 10, 20, 30),
}
_COMPARED = (5, 10)
_DETECTABLE = (5, 6, 8, 10, 15, 20, 30, 50)

#: part → the fewest runs for which it is claimed that 93 of 100 intervals hold the true value
_FROM = {"level": 6, "difference": 5, "paired": 6, "improvement": 5}
#: distributions that take more runs
_LATER = {
    "level": {"a third fails": 8, "60 % at a ceiling": 8},
    "difference": {"a third fails – none fails": 8},
    "paired": {"a third fails – a fifth fails": 8},
}
#: the same for aggregates, over five tasks or more; that of the median is not claimed
_AGGREGATES = {"difference of iqm": 5, "iqm": 6, "mean": 6, "optimality_gap": 8}
_TITLES = {
    "level": "Level of one task: interquartile mean",
    "difference": "Difference of two groups on one task: interquartile means",
    "paired": "Paired difference: interquartile mean of the differences at one seed",
    "aggregate": "Aggregates over tasks",
    "improvement": "Probability of improvement",
    "profile": "Performance profile, at one threshold",
}


def simulate(repetitions: int = 4000) -> dict[str, Any]:
    """Simulate every cell of every table.

    Parameters
    ----------
    repetitions : int
        Experiments per cell; a quarter of them where each is analysed by itself (aggregates) and
        in the comparison of methods.

    Returns
    -------
    dict
        What coverage.json holds: ``parts`` (part → experiment → runs → coverage, of 1),
        ``candidates`` (method → part → runs → experiment → [coverage, median width]) and
        ``detectable`` (runs → difference, in standard deviations).
    """
    return {
        "numpy": np.__version__,
        "repetitions": repetitions,
        "parts": {
            part: {
                e.name: {str(n): round(e.cell(n, repetitions).coverage, 4) for n in _RUNS[part]}
                for e in experiments
            }
            for part, experiments in PARTS.items()
        },
        "candidates": {
            method: {
                part: {
                    str(n): {e.name: _compared(e, n, repetitions, method) for e in PARTS[part]}
                    for n in _COMPARED
                }
                for part in ("level", "difference")
            }
            for method in CANDIDATES
        },
        "detectable": {str(n): round(detectable(1.0, n), 3) for n in _DETECTABLE},
    }


def _compared(experiment: Experiment, runs: int, repetitions: int, method: str) -> list[float]:
    cell = experiment.cell(runs, repetitions // 4, method)
    return [round(cell.coverage, 4), round(cell.width, 4)]


def claimed(part: str, experiment: str, runs: int) -> bool:
    """Whether it is claimed that 93 of 100 such intervals, or more, hold the true value."""
    if part == "aggregate":
        tasks, figure, _ = experiment.split(", ", 2)
        fewest = _AGGREGATES.get(figure)
        return (
            fewest is not None
            and runs >= fewest
            and int(tasks.split(maxsplit=1)[0]) >= fewest_tasks()
        )
    later = next((n for name, n in _LATER.get(part, {}).items() if experiment.startswith(name)), 0)
    return part in _FROM and runs >= max(_FROM[part], later)


def tables(stored: Mapping[str, Any]) -> str:
    """Markdown tables of what coverage.json holds."""
    lines = ["### The cells that are claimed", "", *_summary(stored["parts"]), ""]
    for part, experiments in stored["parts"].items():
        lines += [f"### {_TITLES[part]}", "", *_part(part, experiments), ""]
    lines += ["### The methods that were tried", "", *_candidates(stored["candidates"]), ""]
    lines += ["### The difference that is just told from none", "", *_detectable(stored)]
    return "\n".join(lines)


def _summary(parts: Mapping[str, Mapping[str, Mapping[str, float]]]) -> Iterator[str]:
    yield "| interval of | cells | lowest | highest | from 93 to 97 |"
    yield "|---|---:|---:|---:|---:|"
    rows: dict[str, list[float]] = {}
    for part, experiments in parts.items():
        for name, cells in experiments.items():
            row = part if part != "aggregate" else f"aggregate: {name.split(', ', 2)[1]}"
            held = [100 * c for n, c in cells.items() if claimed(part, name, int(n))]
            rows.setdefault(row.replace("_", " "), []).extend(held)
    for row, held in rows.items():
        if held:
            within = sum(93 <= c <= 97 for c in held)
            yield f"| {row} | {len(held)} | {min(held):.1f} | {max(held):.1f} | {within} |"


def _part(part: str, experiments: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
    runs = [str(n) for n in _RUNS[part]]
    yield f"| runs per task | {' | '.join(runs)} |"
    yield f"|---|{'---:|' * len(runs)}"
    for name, cells in experiments.items():
        texts = [_cell(cells[n], claimed(part, name, int(n))) for n in runs]
        yield f"| {name.replace('_', ' ')} | {' | '.join(texts)} |"


def _cell(coverage: float, claimed: bool) -> str:
    return f"**{100 * coverage:.1f}**" if claimed else f"{100 * coverage:.1f}"


def _candidates(candidates: Mapping[str, Any]) -> Iterator[str]:
    heads = [f"{part}, {n} runs" for part in ("level", "difference") for n in _COMPARED]
    yield f"| method | {' | '.join(heads)} |"
    yield f"|---|{'---:|' * len(heads)}"
    for method, parts in candidates.items():
        texts = []
        for part in ("level", "difference"):
            for n in _COMPARED:
                cells = parts[part][str(n)]
                covered = sorted(100 * c for c, _ in cells.values())
                width = cells["normal" if part == "level" else "normal, both"][1]
                best = 2 * float(t_quantile(0.95, n - 1)) / np.sqrt(n)
                if part == "difference":
                    best = 2 * float(t_quantile(0.95, 2 * n - 2)) * np.sqrt(2 / n)
                wide = f"×{width / best:.2f}" if width < 1000 else "×∞"
                texts.append(f"{covered[0]:.0f}–{covered[-1]:.0f} {wide}")
        yield f"| {method} | {' | '.join(texts)} |"


def _detectable(stored: Mapping[str, Any]) -> Iterator[str]:
    found: Mapping[str, float] = stored["detectable"]
    yield f"| runs in each group | {' | '.join(found)} |"
    yield f"|---|{'---:|' * len(found)}"
    yield f"| standard deviations | {' | '.join(f'{d:.2f}' for d in found.values())} |"


def write_page(page: Path, stored: Mapping[str, Any]) -> None:
    """Replace what stands between the page's markers by the tables."""
    before, _, rest = page.read_text("utf-8").partition(MARKERS[0])
    _, end, after = rest.partition(MARKERS[1])
    if not end:
        raise SystemExit(f"{page} does not hold the lines {MARKERS[0]} and {MARKERS[1]}.")
    text = f"{before}{MARKERS[0]}\n\n{tables(stored)}\n\n{MARKERS[1]}{after}"
    page.write_text(text, "utf-8")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the simulation; see --help."""
    parser = argparse.ArgumentParser(
        prog="python -m zoo.benchmarks.coverage", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--repetitions", type=int, default=4000, help="experiments per cell")
    parser.add_argument("--out", type=Path, default=STORED, help="where the result goes")
    parser.add_argument("--page", type=Path, help="Markdown page whose tables are to be replaced")
    given = parser.parse_args(arguments)
    start = time.perf_counter()
    stored = simulate(given.repetitions)
    given.out.write_text(json.dumps(stored, indent=1, ensure_ascii=False) + "\n", "utf-8")
    if given.page:
        write_page(given.page, stored)
    print(tables(stored))
    print(f"\n{given.repetitions} repetitions, {time.perf_counter() - start:.0f} s, {given.out}")


if __name__ == "__main__":
    main()
