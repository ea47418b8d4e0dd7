"""The command line: ``zoo COMMAND``; one short module per command.

Exit status: 0 done, 1 a bug (with its traceback), 2 the user's mistake (one line on standard error
starting ``error:``), 130 interrupted after saving.
"""

from __future__ import annotations

import argparse
import importlib
import os
import shlex
import sys
import warnings
from collections.abc import Sequence

import zoo
from zoo.errors import UserError, nearest

__all__ = ["main"]

_COMMANDS = {
    "train": "train an algorithm on an environment",
    "eval": "measure a run on episodes or held-out prompts",
    "enjoy": "watch a run act, or read its completions",
    "export": "write a run's language model as a folder for transformers, peft and vLLM",
    "merge": "add an adapter to its base and write the whole model",
    "bench": "run a suite of algorithms, environments and seeds",
    "report": "compare runs, and say what follows",
    "list": "show algorithms, environments, models and presets, and who runs on whom",
}


class Parser(argparse.ArgumentParser):
    """Argument errors as every other user error: one line, exit status 2."""

    def error(self, message: str) -> None:  # type: ignore[override]
        """Raise what :func:`main` prints."""
        raise UserError(f"{message} (see `{self.prog} --help`).")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status."""
    arguments = [*(sys.argv[1:] if argv is None else argv)]  # the command `list` hides the type
    try:
        return _run(arguments)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # `zoo list | head`
        sys.stderr.close()
        return 0


def _run(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_overview())
        return 0
    if arguments[0] in ("-V", "--version"):
        print(f"zoo {zoo.__version__}")
        return 0
    name, *rest = arguments
    if name not in _COMMANDS:
        raise UserError(
            f"unknown command '{name}': there is {', '.join(_COMMANDS)}.{nearest(name, _COMMANDS)}"
        )
    if not sys.warnoptions:
        _hush_dependencies()
    if not sys.stderr.isatty():  # a log file wants no bars of transformers' and the hub's
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    command = importlib.import_module(f"zoo.cli.{name}")
    parser = Parser(
        prog=f"zoo {name}",
        description=command.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_arguments(parser)
    parsed = parser.parse_intermixed_args(rest)
    parsed.typed = shlex.join(["zoo", *arguments])  # for the records that a command leaves
    status: int = command.run(parsed)
    return status


def _hush_dependencies() -> None:
    """Leave out what packages warn each other of; the user can change nothing about it."""
    for package in ("accelerate", "bitsandbytes", "peft", "torch", "transformers", "vllm"):
        warnings.filterwarnings("ignore", category=FutureWarning, module=rf"{package}(\.|$)")


def _overview() -> str:
    width = max(map(len, _COMMANDS))
    lines = [f"  {name:<{width}}  {summary}" for name, summary in _COMMANDS.items()]
    return "\n".join(
        [
            "usage: zoo COMMAND …",
            "",
            "Reinforcement learning on control tasks and language models with one loop.",
            "",
            *lines,
            "",
            "`zoo COMMAND --help` says more. A start: zoo train algo=ppo env=CartPole-v1",
        ]
    )
