"""Add an adapter to its base's weights, and write the whole model as a transformers folder.

    zoo merge runs/grpo-gsm8k-… --out merged
    zoo merge my-adapter --out merged --dtype bfloat16

RUN is a run folder, a checkpoint file, or a peft folder. A base that was trained on in 4 bits is
unpacked: the result is what was trained, in the base's dtype.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from zoo.cli.export import add_output, dtype_of, policy_of, say_how_prompted
from zoo.errors import UserError

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("run", metavar="RUN", help="run folder, checkpoint file or adapter folder")
    add_output(parser)


def run(arguments: argparse.Namespace) -> int:
    """Write the folder."""
    from zoo.policies import provenance
    from zoo.policies.adapters import is_adapted
    from zoo.policies.export import save_merged

    policy, settings = _policy(arguments.run)
    if not is_adapted(policy.model):
        raise UserError(
            f"{arguments.run} was trained as a whole and has no adapter to merge: `zoo export`"
            " writes it."
        )
    save_merged(policy, arguments.out, dtype_of(arguments))
    if settings:
        provenance.write(settings, arguments.out)
    print(f"model: {arguments.out}")
    say_how_prompted(policy, arguments.out)
    return 0


def _policy(run: str) -> tuple[Any, dict[str, Any]]:
    from zoo.policies import provenance
    from zoo.policies.adapters import is_adapter_folder
    from zoo.policies.language import LanguagePolicy

    folder = Path(run).expanduser()
    if (folder / "model.safetensors").is_file() and not is_adapter_folder(folder):
        raise UserError(f"{run} is a whole model already: there is no adapter to merge.")
    if is_adapter_folder(folder):
        return LanguagePolicy.load(str(folder)), provenance.read(folder)
    return policy_of(run)
