"""Train an algorithm on an environment.

    zoo train algo=ppo env=CartPole-v1                    control, by its Gymnasium id
    zoo train algo=grpo env=gsm8k                         a language model, on what the machine has
    zoo train algo=grpo env=gsm8k env.path=data/gsm8k model=Qwen/Qwen3-0.6B updates=200
    zoo train algo=ppo env=Pendulum-v1 seed=3 algo.lr=3e-4 total_steps=200_000
    zoo train algo=ppo env=CartPole-v1 seeds=0..9         ten seeds at once, in one process
    zoo train --resume runs/ppo-CartPole-v1-20260131-120000

What stands on either side of `=` is Hydra's: group=choice for algo, env, model, rollout, logger and
preset, a.b=value for a setting; `zoo list` shows the choices, --show-config all settings of a run.
Fixed names: seed, run_dir, device, total_steps (control), updates (text), env.path, eval.every,
logger (console, tensorboard, wandb, none; [wandb,tensorboard] takes both).

Ctrl-C ends after the present round and saves (exit status 130); a second one ends at once.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from zoo.cli import seeds
from zoo.cli.run_end import evaluation_line, interrupts
from zoo.errors import UserError

if TYPE_CHECKING:
    from zoo.core.config import Config
    from zoo.core.recorder import Recorder
    from zoo.core.run_folder import RunFolder
    from zoo.core.trainer import Trainer

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="settings of the run")
    parser.add_argument(
        "--resume", metavar="DIR", help="go on with the run in this folder, exactly"
    )
    parser.add_argument(
        "--show-config", action="store_true", help="print the full settings and stop"
    )


def run(arguments: argparse.Namespace) -> int:
    """Train, and say where the results are."""
    if arguments.resume:
        return _resume(arguments)
    from zoo.core.config import compose

    several, overrides = seeds.asked(arguments.overrides)
    config = compose(overrides)
    if arguments.show_config:
        return _show(config)
    for note in config.notes:
        print(note, flush=True)
    if several is not None:
        return seeds.train(*seeds.started(config, several))
    return _train(_started(config))


def _resume(arguments: argparse.Namespace) -> int:
    path, overrides, only = arguments.resume, arguments.overrides, None
    several = bool(seeds.folders(path)) and not arguments.show_config
    if several:
        only, overrides = seeds.asked(overrides)
    if overrides:
        raise UserError(
            "--resume goes on exactly as the run was started: leave out"
            f" '{overrides[0]}', or start a new run."
        )
    if several:
        many, parent = seeds.resumed(path, only)
        if many is not None:
            return seeds.train(many, parent)
        print(f"these runs are finished; results: {parent}")
        return 0
    from zoo.core.run_folder import RunFolder

    folder = RunFolder.open(path)
    return _show(folder.config) if arguments.show_config else _train(_resumed(folder))


def _show(config: Config) -> int:
    import yaml

    print(yaml.safe_dump(config.to_dict(), sort_keys=False), end="")
    return 0


def _started(config: Config) -> Trainer:
    from zoo.core.build import build
    from zoo.core.run_folder import RunFolder, open_recorder

    folder = RunFolder.create(config)
    try:
        with _closed_on_failure(open_recorder(config, folder)) as recorder:
            return build(config, recorder)
    except (UserError, KeyboardInterrupt):
        folder.discard()  # nothing was trained, and the next try may use the same name
        raise
    except Exception:
        folder.append_error(traceback.format_exc())
        raise


def _resumed(folder: RunFolder) -> Trainer:
    from zoo.core.build import load
    from zoo.core.run_folder import open_recorder

    folder.lock()
    # The loggers come first: what the build has to say, a fallback for one, is for the user.
    with _closed_on_failure(open_recorder(folder.config, folder)) as recorder:
        trainer = load(folder.path, recorder)
    folder.truncate_after(trainer.counters["updates"])
    for logger in recorder.loggers:
        logger.done = trainer.done
    return trainer


@contextmanager
def _closed_on_failure(recorder: Recorder) -> Iterator[Recorder]:
    """Take the progress bar away before an error is printed."""
    try:
        yield recorder
    except BaseException:
        recorder.close()
        raise


def _train(trainer: Trainer) -> int:
    folder = trainer.recorder.folder
    if trainer.done >= trainer.total and folder.read_summary().get("status") == "finished":
        trainer.close()
        print(f"this run is finished: {_spent(trainer)}; results: {folder.path}")
        return 0
    go_on = f"go on with: zoo train --resume {shlex.quote(str(folder.path))}"
    try:
        with interrupts(trainer):
            summary = trainer.run()
    except KeyboardInterrupt:
        if (folder.checkpoints / "last.pt").exists():
            print(f"stopped at once; the last checkpoint stands: {go_on}", file=sys.stderr)
        raise
    finally:
        trainer.close()
    if summary["status"] == "interrupted":
        print(f"interrupted after {_spent(trainer)}, saved; {go_on}")
        return 130
    print(f"finished after {_spent(trainer)} in {summary['wall_s']:.0f} s")
    last, best = summary["eval"], summary["eval_best"]
    if last:
        print(f"evaluation{_when(trainer, last)}: {evaluation_line(last)}")
    if best and best != last:
        print(f"best evaluation{_when(trainer, best)}: {evaluation_line(best)}")
    if summary.get("eval_change"):
        from zoo.core.before_after import table

        print(table(summary["eval_change"]))
    print(f"results: {folder.path}")
    return 0


def _spent(trainer: Trainer, done: int | None = None) -> str:
    """Return how much of the budget was spent, as in ``1 update`` or ``256 env steps``."""
    done, unit = trainer.done if done is None else done, trainer.unit.replace("_", " ")
    return f"{done:,} {unit.removesuffix('s') if done == 1 else unit}"


def _when(trainer: Trainer, result: Mapping[str, Any]) -> str:
    """Say of which weights an evaluation is, where they aren't the final ones."""
    done = result[trainer.unit]
    if done == trainer.done:
        return ""
    return f" after {_spent(trainer, done)}, not at the end" if done else " before training"
