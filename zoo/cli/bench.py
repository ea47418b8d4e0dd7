"""Run a suite: algorithms × environments × seeds, each run in a process of its own.

    zoo bench smoke                                     both algorithms, both worlds, in minutes
    zoo bench classic --seeds 10 --jobs 2               ten seeds, two runs at a time
    zoo bench classic --only ppo/CartPole-v1 algo.lr=3e-4 --out runs/bench/lr
    zoo bench my_suite.yaml --seeds 0..4 --ray auto     a suite of your own, on a Ray cluster
    zoo bench classic --list                            what it would run and what of it is done

The same command goes on where it was stopped or killed: runs that finished are left alone,
interrupted ones are resumed exactly, failed ones tried again. Ctrl-C lets the runs under way save;
a second one kills them.

Exit status: 0 all finished, 1 a run failed, 2 your mistake, 130 interrupted.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from zoo.cli.eval import positive
from zoo.errors import UserError

if TYPE_CHECKING:
    from zoo.benchmarks.life import Step
    from zoo.benchmarks.manifest import Manifest
    from zoo.benchmarks.processes import Executor
    from zoo.benchmarks.suite import Suite

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("suite", metavar="SUITE", help="name of a suite, or path of its file")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="settings of every run")
    parser.add_argument("--seeds", metavar="N", help="how many seeds, a range 0..4, or 0,3,5")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="LABEL/ENV",
        help="only these runs; a label or an environment will do (repeatable)",
    )
    parser.add_argument("--out", metavar="DIR", help="results (default: runs/bench/<suite>)")
    parser.add_argument(
        "--jobs", type=positive, metavar="N", help="runs at a time (default: what the cores carry)"
    )
    parser.add_argument(
        "--timeout", type=positive, metavar="SECONDS", help="kill a run that takes longer"
    )
    parser.add_argument(
        "--ray", metavar="ADDRESS", help="run on a Ray cluster: auto, local, or HOST:PORT"
    )
    parser.add_argument(
        "--list", action="store_true", help="show what there is to do, and do nothing"
    )


def run(arguments: argparse.Namespace) -> int:
    """Execute a suite, and say where the results are."""
    from zoo.benchmarks import suite as suites
    from zoo.benchmarks.locks import holding
    from zoo.benchmarks.manifest import Manifest
    from zoo.benchmarks.runner import plan, wait_for_orphans

    suite = suites.load(
        arguments.suite,
        only_seeds=arguments.seeds,
        only=arguments.only,
        overrides=arguments.overrides,
    )
    out = Path(arguments.out or Path("runs", "bench", suite.name)).expanduser()
    if arguments.list:
        print("\n".join(_overview(suite, plan(suite.jobs, Manifest(out, suite), out))))
        return 0
    _make(out)
    with holding(out):
        wait_for_orphans(suite.jobs, out)
        manifest = Manifest(out, suite)
        executor = _executor(arguments.ray, out)
        try:
            status = _execute(arguments, suite, manifest, out, executor)
        finally:
            executor.close()
        if status != 130:
            _report(out)
    return status


def _execute(
    arguments: argparse.Namespace,
    suite: Suite,
    manifest: Manifest,
    out: Path,
    executor: Executor,
) -> int:
    """Run what is to be run and return the exit status."""
    from zoo.benchmarks.live import Lines, LiveTable
    from zoo.benchmarks.manifest import now
    from zoo.benchmarks.processes import share
    from zoo.benchmarks.progress import Progress
    from zoo.benchmarks.runner import Runner, plan
    from zoo.core.run_folder import made_with

    steps = plan(suite.jobs, manifest, out)
    slots, threads = share(suite.jobs, executor, arguments.jobs)
    manifest.facts = {
        "command": arguments.typed,
        "made_with": made_with(),
        "execution": {
            "where": f"ray {arguments.ray}" if arguments.ray else "local",
            "cores": executor.cores,
            "jobs": slots,
            "threads": threads,
        },
        "started": now(),
        "ended": None,
    }
    for line in (*suite.notes, *_overview(suite, steps)):
        print(line)
    print(f"{slots} at a time, {_counted(threads, 'thread')} each; results: {out}", flush=True)
    progress = Progress(suite.jobs, manifest.records, out, slots)
    with LiveTable(progress) if sys.stdout.isatty() else Lines(progress) as view:
        runner = Runner(
            suite.jobs, steps, manifest, out, executor, slots, threads, arguments.timeout, view
        )
        runner.run()
    manifest.facts["ended"] = now()
    manifest.write()
    return _tell(suite, manifest, out)


def _tell(suite: Suite, manifest: Manifest, out: Path) -> int:
    """Say which runs failed, and whether all is done; return the exit status."""
    records = [manifest.records[job.folder] for job in suite.jobs]
    failed = [record for record in records if record.status == "failed"]
    for record in failed:
        name = f"{record.label} on {record.env}, seed {record.seed}"
        print(f"failed: {name}: {record.error} (log: {out / str(record.log)})")
    left = sum(record.status not in ("finished", "failed") for record in records)
    if left:
        print(
            f"{_counted(left, 'run')} left; the same command goes on: {manifest.facts['command']}"
        )
        return 130
    return 1 if failed else 0


def _overview(suite: Suite, steps: dict[str, Step]) -> list[str]:
    """Return a line for each group of runs: what of it is done, and what is to be done."""
    groups: dict[tuple[str, str], list[str]] = {}
    for job in suite.jobs:
        groups.setdefault((job.label, job.env), []).append(steps[job.folder].value)
    widths = [max(len(group[i]) for group in groups) for i in range(2)]
    lines = [f"{suite.name}: {_counted(len(suite.jobs), 'run')}. {suite.about}".strip()]
    for (label, env), values in groups.items():
        counts = ", ".join(f"{values.count(value)} {value}" for value in dict.fromkeys(values))
        lines.append(f"  {label:<{widths[0]}}  {env:<{widths[1]}}  {counts}")
    return lines


def _report(out: Path) -> None:
    """Write the report on what the folder holds by now, and say what follows from it."""
    from zoo.benchmarks.comparison import Options, compare
    from zoo.benchmarks.readers import read
    from zoo.benchmarks.report import write
    from zoo.cli.report import announce

    file = out / "report.html"
    command = shlex.join(["zoo", "report", str(out), "-o", str(file)])
    try:
        page = compare(read([str(out)]), Options(command=command))
        written = write(page, file)
    except UserError as error:
        print(f"no report: {error}")
        return
    announce(page, written)


def _make(out: Path) -> None:
    """Make the folder of results, which no run's folder may hold: that one would be mistaken."""
    for folder in (out.absolute(), *out.absolute().parents):
        if (folder / "config.yaml").is_file() and (folder / "checkpoints").is_dir():
            raise UserError(f"--out {out} is in the run folder {folder}: choose another one.")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"can't make the folder {out}: {error.strerror}.") from error


def _executor(address: str | None, out: Path) -> Executor:
    if address is None:
        from zoo.benchmarks.processes import LocalProcesses

        return LocalProcesses()
    from zoo.benchmarks.ray_cluster import RayCluster

    return RayCluster(address, out.resolve())


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
