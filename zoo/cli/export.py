"""Write a run's language model as a folder that transformers, peft and vLLM read.

    zoo export runs/grpo-gsm8k-… --out my-model
    zoo export runs/grpo-gsm8k-…/checkpoints/best.pt --out my-model --dtype bfloat16

A folder stands for its last checkpoint. Of a run with an adapter (model.lora.rank) the adapter is
written; `zoo merge` writes the whole model. model=my-model trains it on with the settings of the
new command, which says what of the run's, in my-model/zoo.yaml, it does without.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from zoo.errors import UserError

__all__ = ["add_arguments", "add_output", "dtype_of", "policy_of", "run", "say_how_prompted"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("run", metavar="RUN", help="run folder or checkpoint file")
    add_output(parser)


def add_output(parser: argparse.ArgumentParser) -> None:
    """Declare where the model goes, and in which dtype."""
    parser.add_argument("--out", required=True, type=Path, metavar="FOLDER", help="a new folder")
    parser.add_argument(
        "--dtype", choices=("float32", "bfloat16", "float16"), help="the parameters' own by default"
    )


def run(arguments: argparse.Namespace) -> int:
    """Write the folder and say what it holds."""
    from zoo.policies import provenance
    from zoo.policies.export import save

    policy, settings = policy_of(arguments.run)
    what = save(policy, arguments.out, dtype_of(arguments))
    provenance.write(settings, arguments.out)
    print(f"{what}: {arguments.out}")
    say_how_prompted(policy, arguments.out)
    return 0


def say_how_prompted(policy: Any, out: Path) -> None:
    """Print how the weights have to be prompted, where that isn't the usual way."""
    knobs = policy.knobs
    given = [] if knobs.instruct else ["model.instruct=false"]
    given += [f"model.template.{name}={value}" for name, value in knobs.template.items()]
    if given:
        print(f"it was prompted with {' '.join(given)}: give that beside model={out}")


def dtype_of(arguments: argparse.Namespace) -> Any:
    """Return the torch dtype that was asked for, None where none was."""
    import torch

    return getattr(torch, arguments.dtype) if arguments.dtype else None


def policy_of(run: str) -> tuple[Any, dict[str, Any]]:
    """Return the language policy of a run, with the weights of a checkpoint, and its settings.

    Raises
    ------
    UserError
        Where there is no checkpoint, or it is a control task's.
    """
    from zoo.core.checkpoint import load_run
    from zoo.core.config import Config

    path = Path(run).expanduser()
    file = path / "checkpoints" / "last.pt" if path.is_dir() else path
    state = load_run(file)
    config = Config.from_dict(state["config"])
    if config.world != "text":
        raise UserError(
            f"{run} is a control task's: its networks are in {file}, for `zoo.algorithms` and"
            " torch.load; only language models have folders."
        )
    critics = config.target("algo").critics(config.knobs)
    policy = config.target("model").load(config.settings("model"), critic=critics)
    policy.load_state_dict(state["policy"])
    return policy, config.tree
