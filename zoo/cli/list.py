"""Show what there is to choose from.

zoo list                 algorithms, environments, models, rollouts, loggers, presets
zoo list env             one of these in full: every name that env= takes
zoo list --matrix        which algorithm runs on which kind of environment
"""

from __future__ import annotations

import argparse

from zoo.core import choices

__all__ = ["add_arguments", "run"]

_TITLES = {
    "algo": "Algorithms (algo=)",
    "env": "Environments (env=)",
    "model": "Models (model=)",
    "rollout": "Rollouts (rollout=)",
    "logger": "Loggers (logger=)",
    "preset": "Presets (preset=)",
}
_KINDS = {"discrete": "discrete control", "continuous": "continuous control", "text": "text"}
_MANY = {
    ("env", "gymnasium"): "any Gymnasium id",
    ("env", "reasoning_gym"): "any reasoning-gym task",
    ("model", "language"): "a folder or OWNER/NAME",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("group", nargs="?", choices=choices.GROUPS, help="show this one in full")
    parser.add_argument("--matrix", action="store_true", help="who runs on whom")


def run(arguments: argparse.Namespace) -> int:
    """Print the lists; nothing heavy is imported for them."""
    if arguments.matrix:
        print("\n".join(matrix()))
        return 0
    groups = [arguments.group] if arguments.group else list(choices.GROUPS)
    print("\n\n".join("\n".join(section(group)) for group in groups))
    if arguments.group == "env":
        print("\n".join(["", *every_environment()]))
    return 0


def section(group: str) -> list[str]:
    """Return a group's lines: a title, then each name with its summary."""
    rows = [
        (_MANY.get((group, name), name), choices.about(group, name).get("summary", ""))
        for name in [*choices.named(group), *(n for g, n in _MANY if g == group)]
    ]
    width = max((len(name) for name, _ in rows), default=0)
    return [_TITLES[group], *(f"  {name:<{width}}  {summary}".rstrip() for name, summary in rows)]


def matrix() -> list[str]:
    """Return the table of algorithms and kinds of environment, and the reasons for each gap."""
    names = choices.named("algo")
    width = max(map(len, names))
    lines = [" " * width + "  " + "  ".join(_KINDS.values())]
    reasons = []
    for name in names:
        said = choices.about("algo", name)
        cells = []
        for kind, title in _KINDS.items():
            cells.append(f"{'yes' if kind in said['serves'] else '–':<{len(title)}}")
            if kind not in said["serves"]:
                reasons.append(f"{name} on {title}: {said['refuses'][kind]}")
        lines.append(f"{name:<{width}}  " + "  ".join(cells).rstrip())
    return [*lines, *([""] if reasons else []), *reasons]


def every_environment() -> list[str]:
    """Return the Gymnasium ids with tuned or known kinds, and the reasoning-gym tasks there are."""
    known = choices.about("env", "gymnasium")["known"]
    lines = ["Gymnasium ids whose kind is known (all others work as well)"]
    lines += [f"  {name}  {kind}" for name, kind in known.items()]
    tasks = choices.reasoning_tasks()
    if not tasks:
        return [*lines, "", "reasoning-gym is not installed: pip install 'algorithm-zoo[llm]'"]
    return [*lines, "", "reasoning-gym tasks", *(f"  {name}" for name in tasks)]
