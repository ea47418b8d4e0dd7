"""`zoo train … seeds=0..9`: runs of several seeds at once, in one process."""

from __future__ import annotations

import shlex
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoo.cli.run_end import evaluation_line, interrupts
from zoo.errors import UserError

if TYPE_CHECKING:
    from zoo.core.config import Config
    from zoo.core.many_seeds import ManySeeds
    from zoo.core.run_folder import RunFolder
    from zoo.core.trainer import Trainer

__all__ = ["asked", "folders", "resumed", "started", "train"]


def asked(overrides: Sequence[str]) -> tuple[tuple[int, ...] | None, list[str]]:
    """Return the seeds that ``seeds=`` names, None where it is not given, and the other overrides.

    Raises
    ------
    UserError
        Where it names none, or there is a ``seed=`` besides.
    """
    from zoo.benchmarks.suite import seeds
    from zoo.core.overrides import parse

    given = [text for text in overrides if text.partition("=")[0] == "seeds"]
    others = [text for text in overrides if text not in given]
    if not given:
        return None, others
    if any(text.partition("=")[0] == "seed" for text in others):
        raise UserError("seed= and seeds= can't both be given: seeds=[3] trains one.")
    return seeds(parse(given)[1][-1][1], "seeds="), others


def folders(path: str) -> list[Path]:
    """Return the folders of several seeds in one that is none of a run; none where it is one."""
    folder = Path(path).expanduser()
    if (folder / "config.yaml").is_file():
        return []
    return [place.parent for place in sorted(folder.glob("seed-*/config.yaml"), key=_number)]


def started(config: Config, seeds: Sequence[int]) -> tuple[ManySeeds, Path]:
    """Make a run for each seed, in folders side by side; return them and the folder of folders."""
    from zoo.core.build import build
    from zoo.core.config import Config
    from zoo.core.many_seeds import ManySeeds, refuse_world
    from zoo.core.run_folder import RunFolder, fresh_name

    refuse_world(config.world)
    parent = Path(config["run_dir"] or fresh_name(config)).expanduser()
    if (parent / "config.yaml").is_file():
        raise UserError(f"{parent} is a run folder: choose another run_dir= for those of seeds.")
    made: list[RunFolder] = []
    trainers: list[Trainer] = []
    try:
        for seed in seeds:
            tree = {**config.tree, "seed": seed, "run_dir": str(parent / f"seed-{seed}")}
            made.append(RunFolder.create(Config(tree, config.notes)))
            trainers.append(build(made[-1].config, _recorder(made[-1], speaks=not trainers)))
        return ManySeeds(trainers), parent
    except (UserError, KeyboardInterrupt):
        for trainer in trainers:
            trainer.close()
        for folder in made:
            folder.discard()
        with suppress(OSError):  # it may hold something else
            parent.rmdir()
        raise
    except Exception:
        made[-1].append_error(traceback.format_exc())
        raise


def resumed(path: str, only: Sequence[int] | None) -> tuple[ManySeeds | None, Path]:
    """Go on with the runs of a folder that are not finished, None where all are.

    Parameters
    ----------
    path : str
        The folder of the seeds' folders.
    only : sequence of int, optional
        The seeds to go on with; all by default.
    """
    from zoo.core.build import load
    from zoo.core.many_seeds import ManySeeds
    from zoo.core.run_folder import RunFolder

    parent = Path(path).expanduser()
    trainers: list[Trainer] = []
    for place in folders(path):
        folder = RunFolder.open(place)
        if only is not None and folder.config["seed"] not in only:
            continue
        if folder.read_summary().get("status") == "finished":
            continue
        folder.lock()
        trainers.append(load(folder.path, _recorder(folder, speaks=not trainers)))
        folder.truncate_after(trainers[-1].counters["updates"])
    return ManySeeds(trainers) if trainers else None, parent


def _count(seeds: Sequence[int]) -> str:
    return f"{len(seeds)} seed{'s' * (len(seeds) != 1)}"


def _number(place: Path) -> tuple[int, str]:
    number = place.parent.name.removeprefix("seed-")
    return (int(number) if number.isdigit() else -1, number)


def _recorder(folder: RunFolder, speaks: bool) -> Any:
    """Make a run's recorder; one of them has the terminal."""
    from zoo.core.config import Config
    from zoo.core.run_folder import open_recorder

    loggers = folder.config["logger"].items()
    kept = {name: options for name, options in loggers if speaks or name != "console"}
    return open_recorder(Config({**folder.config.tree, "logger": kept}), folder)


def train(many: ManySeeds, parent: Path) -> int:
    """Train, and say where the results are; return the exit status."""
    seeds = [trainer.config["seed"] for trainer in many.trainers]
    go_on = f"go on with: zoo train --resume {shlex.quote(str(parent))}"
    spoken = len(many.trainers[0].recorder.loggers) > 0
    if spoken:
        print(f"{_count(seeds)} at once in {parent}; figures are seed {seeds[0]}'s", flush=True)
    try:
        with interrupts(many):
            summaries = many.run()
    except KeyboardInterrupt:
        if all((t.recorder.folder.checkpoints / "last.pt").exists() for t in many.trainers):
            print(f"stopped at once; the last checkpoints stand: {go_on}", file=sys.stderr)
        raise
    finally:
        many.close()
    steps = many.trainers[0].done
    if any(summary["status"] == "interrupted" for summary in summaries):
        print(f"interrupted after {steps:,} steps of each seed, saved; {go_on}")
        return 130
    seconds = max(summary["wall_s"] for summary in summaries)
    print(f"finished after {steps:,} steps of each of {_count(seeds)} in {seconds:.0f} s")
    for seed, summary in zip(seeds, summaries, strict=True):
        if summary["eval"]:
            print(f"seed {seed}: {evaluation_line(summary['eval'])}")
    print(f"results: {parent}; together: zoo report {shlex.quote(str(parent))}")
    return 0
