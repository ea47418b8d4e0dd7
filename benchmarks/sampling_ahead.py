"""Whether sampling ahead pays on this machine: rounds with and without it, turn by turn.

    python -m zoo.benchmarks.sampling_ahead --blocks 24 threads=1

Two runs of GRPO on gsm8k with the shipped model, in one process, take three rounds each in turns,
and whoever begins alternates, so that other work on the machine falls on both. A block of the run
that samples ahead ends when its thread has nothing left to do. What is compared is seconds, and
processor seconds, per token: the geometric mean over blocks of the ratio, with its 95 % interval.
"""

from __future__ import annotations

import argparse
import math
import resource
import statistics
import time
from collections.abc import Sequence

from zoo.algorithms import GRPO

_ROUNDS = 3


def block(run: GRPO) -> tuple[float, float]:
    """Take some rounds; return seconds and this process's processor seconds per token."""
    trainer = run.trainer
    tokens, wall, cpu = trainer.counters["tokens"], time.perf_counter(), _processor_s()
    for _ in range(_ROUNDS):
        trainer.round()
    trainer.rollout.state_dict()  # waits for what is under way
    tokens = trainer.counters["tokens"] - tokens
    return (time.perf_counter() - wall) / tokens, (_processor_s() - cpu) / tokens


def _processor_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def compare(blocks: int, overrides: Sequence[str]) -> str:
    """Measure that many blocks of both and say the ratios."""
    common = [*overrides, "eval.at_start=false", "eval.at_end=false", "updates=1000000"]
    runs = [
        GRPO("gsm8k", model="tiny", overrides=[*common, f"rollout.staleness={ahead}"])
        for ahead in (0, 1)
    ]
    ratios: list[tuple[float, float]] = []
    try:
        for run in runs:
            block(run)  # the first rounds check, compile and fill caches
        for number in range(blocks):
            order = (0, 1) if number % 2 == 0 else (1, 0)
            found = {index: block(runs[index]) for index in order}
            ratios.append((found[1][0] / found[0][0], found[1][1] / found[0][1]))
    finally:
        for run in runs:
            run.close()
    lines = []
    for name, values in zip(("seconds", "processor"), zip(*ratios, strict=True), strict=True):
        logs = [math.log(value) for value in values]
        width = 1.96 * statistics.stdev(logs) / math.sqrt(len(logs))
        mean = statistics.fmean(logs)
        low, high = (math.exp(mean + sign * width) for sign in (-1, 1))
        lines.append(f"{name}: ahead / not {math.exp(mean):.3f} (95 % {low:.3f} to {high:.3f})")
    return "\n".join(lines)


def main() -> None:
    """Read the arguments and print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", type=int, default=24)
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    arguments = parser.parse_args()
    print(compare(arguments.blocks, arguments.overrides))


if __name__ == "__main__":
    main()
