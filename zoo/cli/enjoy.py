"""Watch a run: render episodes of a control run, or read completions of a language model.

zoo enjoy runs/ppo-CartPole-v1-…                      in a window, where there is a screen
zoo enjoy runs/ppo-CartPole-v1-… --video episodes.mp4 in a file, .mp4 or .gif
zoo enjoy runs/ppo-CartPole-v1-… --render none        returns only
zoo enjoy runs/grpo-gsm8k-… --prompts 3
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING, Any

from zoo.cli.eval import positive, seed
from zoo.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable

    from zoo.core.trainer import Trainer

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("run", metavar="RUN", help="run folder or checkpoint file")
    parser.add_argument(
        "--episodes", type=positive, default=3, help="episodes (control; default 3)"
    )
    parser.add_argument("--prompts", type=positive, default=3, help="prompts (text; default 3)")
    parser.add_argument("--seed", type=seed, default=0, help="seed of starts, prompts and sampling")
    parser.add_argument("--sample", action="store_true", help="sample instead of the greedy choice")
    parser.add_argument(
        "--render",
        choices=["human", "rgb_array", "ansi", "none"],
        help="render mode (control; default: human where there is a screen, else none)",
    )
    parser.add_argument(
        "--video",
        metavar="FILE",
        help="record all episodes in one file instead, .mp4 or .gif, as fast as the environment"
        " says it is shown (control; needs algorithm-zoo[video])",
    )


def run(arguments: argparse.Namespace) -> int:
    """Show episodes or completions."""
    from zoo.core.build import load

    trainer = load(arguments.run, needed=("env",))
    try:
        if arguments.video and trainer.rollout.world != "control":
            raise UserError("--video does not apply to this run: a language model has no frames.")
        show = _episodes if trainer.rollout.world == "control" else _completions
        show(trainer, arguments)
    finally:
        trainer.close()
    return 0


def _episodes(trainer: Trainer, arguments: argparse.Namespace) -> None:
    mode = arguments.render or ("rgb_array" if arguments.video else _default_mode())
    if arguments.video and mode != "rgb_array":
        raise UserError("--video draws frames, as --render rgb_array does: leave out --render.")
    if not arguments.video:
        _play(trainer, arguments, mode)
        return
    from zoo.cli.video import Video

    video = Video(arguments.video)
    try:
        with video:
            _play(trainer, arguments, mode, video.add)
    finally:
        if video.frames:
            print(f"video: {arguments.video} ({video.frames} frames)", flush=True)


def _play(
    trainer: Trainer,
    arguments: argparse.Namespace,
    mode: str,
    show: Callable[[Any, float], None] | None = None,
) -> None:
    rollout: Any = trainer.rollout
    for episode in rollout.enjoy(
        trainer.algorithm.policy,
        episodes=arguments.episodes,
        render_mode=None if mode == "none" else mode,
        seed=arguments.seed,
        deterministic=not arguments.sample,
        show=show,
    ):
        if mode == "ansi":
            print("\n".join(map(str, episode["frames"])))
        number, total, length = episode["episode"], episode["return"], episode["length"]
        print(f"episode {number}: return {total:.2f}, {length} steps", flush=True)


def _completions(trainer: Trainer, arguments: argparse.Namespace) -> None:
    rollout: Any = trainer.rollout
    for row in rollout.enjoy(
        trainer.algorithm.policy,
        prompts=arguments.prompts,
        seed=arguments.seed,
        greedy=not arguments.sample,
    ):
        rewards = "  ".join(f"{k} {v:g}" for k, v in row["rewards"].items())
        print(f"--- {row['id']}\n{row['prompt']}\n>>> {row['completion']}")
        print(f"    expected {row['answer']}; {rewards}\n")


def _default_mode() -> str:
    screen = sys.platform in ("darwin", "win32") or "DISPLAY" in os.environ
    return "human" if screen or "WAYLAND_DISPLAY" in os.environ else "none"
