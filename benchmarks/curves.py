"""Draw the learning curves of several runs of one setting, and print their table.

    python benchmarks/curves.py runs/gsm8k-* --metric eval/accuracy_strict --out curve.png

Reads nothing but the run folders (metrics.jsonl, summary.json). Needs matplotlib.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from pathlib import Path

#: two-sided 95 % quantiles of Student's t by degrees of freedom, for 2 to 10 runs
_T = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}


def interval(values: list[float]) -> tuple[float, float]:
    """Return the mean and half the width of its 95 % interval (Student's t)."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return mean, math.nan
    t = _T.get(len(values) - 1, 1.96)
    return mean, t * statistics.stdev(values) / math.sqrt(len(values))


def curve(folder: Path, metric: str, axis: str) -> tuple[list[float], list[float]]:
    """Return where a run measured a figure, and what it was."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").open(encoding="utf-8")]
    found = [(float(r[axis]), float(r[metric])) for r in rows if r.get(metric) is not None]
    return [x for x, _ in found], [y for _, y in found]


def main() -> None:
    """Read the runs, print a Markdown table, draw the picture."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--metric", default="eval/accuracy_strict")
    parser.add_argument("--axis", default="wall_s", help="wall_s, updates or env_steps")
    parser.add_argument("--label", default=None, help="name of the vertical axis")
    parser.add_argument("--title", default=None)
    parser.add_argument("--out", type=Path, default=None, help="picture to write")
    arguments = parser.parse_args()

    key = arguments.metric.removeprefix("eval/")
    print("| run | seed | first | last | gain | minutes | updates | s/update | peak GiB |")
    print("|---|---|---|---|---|---|---|---|---|")
    firsts, lasts = [], []
    for run in arguments.runs:
        s = json.loads((run / "summary.json").read_text())
        if not s.get("eval_first") or not s.get("eval"):
            parser.error(f"{run} has no evaluation at start and end")
        first, last = s["eval_first"][key], s["eval"][key]
        firsts.append(first)
        lasts.append(last)
        print(
            f"| {run.name} | {s['seed']} | {first:.3f} | {last:.3f} | {last - first:+.3f} |"
            f" {s['wall_s'] / 60:.1f} | {s['updates']} | {s['wall_s'] / s['updates']:.2f} |"
            f" {s['peak_rss_gib']:.2f} |"
        )
    for name, values in (
        ("first", firsts),
        ("last", lasts),
        ("gain", [b - a for a, b in zip(firsts, lasts, strict=True)]),
    ):
        mean, half = interval(values)
        print(f"\n{name}: {mean:.3f} ± {half:.3f} (95 % interval of the mean, n = {len(values)})")
    if arguments.out is not None:
        draw(arguments)


def draw(arguments: argparse.Namespace) -> None:
    """Draw every run thin and their mean thick."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(6.4, 3.6), dpi=160)
    scale = 60.0 if arguments.axis == "wall_s" else 1.0
    curves = [curve(run, arguments.metric, arguments.axis) for run in arguments.runs]
    for x, y in curves:
        axes.plot([v / scale for v in x], y, color="tab:blue", alpha=0.3, linewidth=1)
    if len({len(y) for _, y in curves}) == 1:
        xs = [statistics.fmean(v) / scale for v in zip(*(x for x, _ in curves), strict=True)]
        bands = [interval(list(v)) for v in zip(*(y for _, y in curves), strict=True)]
        means = [m for m, _ in bands]
        axes.plot(xs, means, color="tab:blue", linewidth=2, label=f"mean of {len(curves)} seeds")
        if len(curves) > 2:
            low, high = [m - h for m, h in bands], [m + h for m, h in bands]
            axes.fill_between(xs, low, high, color="tab:blue", alpha=0.15, label="95 % interval")
        axes.legend(frameon=False, loc="lower right")
    axes.set_xlabel("minutes of training" if scale == 60.0 else arguments.axis)
    axes.set_ylabel(arguments.label or arguments.metric)
    axes.set_title(arguments.title or "")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(arguments.out)
    print(f"\nwrote {arguments.out}")


if __name__ == "__main__":
    main()
