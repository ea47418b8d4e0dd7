"""Measure a run: raw rewards, frozen normaliser, environments or held-out prompts of its own.

    zoo eval runs/ppo-CartPole-v1-… --episodes 20
    zoo eval runs/grpo-gsm8k-… --prompts 500 --samples 8 --json
    zoo eval runs/grpo-gsm8k-…/checkpoints/best.pt
    zoo eval runs/ten-seeds                               each of the runs that seeds= left there

A folder stands for its last checkpoint. Control: mean return, its standard deviation and half its
95 % interval. Text: accuracy of greedy and sampled completions in both grades, and pass@k.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoo.cli import seeds
from zoo.cli.run_end import evaluation_line
from zoo.core.settings import require_seed
from zoo.errors import UserError

if TYPE_CHECKING:
    from zoo.core.trainer import Trainer

__all__ = ["add_arguments", "positive", "run", "seed"]

_OPTIONS = {
    "control": ("episodes", "num_envs", "seed"),
    "text": ("prompts", "samples", "k", "seed"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("run", metavar="RUN", help="run folder or checkpoint file")
    parser.add_argument("--episodes", type=positive, help="episodes (control)")
    parser.add_argument(
        "--num-envs",
        type=positive,
        help="environments stepped together (control; default 8); each has its own quota of the"
        " starts to play to the end, so it changes no figure of a deterministic policy",
    )
    parser.add_argument("--prompts", type=positive, help="held-out prompts (text)")
    parser.add_argument("--samples", type=positive, help="sampled completions per prompt (text)")
    parser.add_argument("--k", type=positive, help="k of pass@k, at most --samples (text)")
    parser.add_argument(
        "--seed", type=seed, help="seed of the evaluation's environments or sampling"
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object and nothing else"
    )


def run(arguments: argparse.Namespace) -> int:
    """Evaluate and print the figures, of each seed where the folder holds several."""
    from zoo.core.run_folder import finite

    several = seeds.folders(arguments.run)
    if not several:
        result = _evaluated(arguments.run, arguments)
        print(json.dumps(finite(result)) if arguments.json else evaluation_line(result))
        return 0
    results = {}
    for folder in several:
        results[folder.name] = result = _evaluated(str(folder), arguments)
        if not arguments.json:
            print(f"{folder.name}: {evaluation_line(result)}", flush=True)
    if arguments.json:
        print(json.dumps(finite(results)))
    return 0


def _evaluated(run: str, arguments: argparse.Namespace) -> dict[str, Any]:
    from zoo.core.build import load

    trainer = load(run, needed=("env",))
    try:
        _warn_of_other_questions(trainer, run)
        world = trainer.rollout.world
        given = {
            name: getattr(arguments, name)
            for name in dict.fromkeys(name for names in _OPTIONS.values() for name in names)
            if getattr(arguments, name) is not None
        }
        for name in given:
            if name not in _OPTIONS[world]:
                raise UserError(
                    f"{_flag(name)} does not apply to this run: it is a {world} one, which takes"
                    f" {', '.join(map(_flag, _OPTIONS[world]))}."
                )
        return trainer.evaluate(**given)
    finally:
        trainer.close()


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _warn_of_other_questions(trainer: Trainer, run: str) -> None:
    """Say so where the run was trained on other data than are to be had now."""
    path = Path(run)
    summary = (path if path.is_dir() else path.parent.parent) / "summary.json"
    rollout = trainer.rollout
    env = getattr(rollout, "env", None)
    now = getattr(rollout, "dataset", None) or getattr(env, "dataset", None)
    if now is None or not summary.is_file():
        return
    then = json.loads(summary.read_text("utf-8")).get("dataset")
    if then is not None and then != now:
        print(f"note: this run's dataset was {then}; here it is {now}", file=sys.stderr)


def seed(text: str) -> int:
    """Read a seed."""
    number = _whole(text)
    try:
        require_seed("it", number)
    except UserError as error:
        raise argparse.ArgumentTypeError(str(error).removeprefix("it ").rstrip(".")) from error
    return number


def positive(text: str) -> int:
    """Read a whole number from 1 on."""
    number = _whole(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return number


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"must be a whole number (got '{text}')") from error
