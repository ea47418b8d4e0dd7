"""What there is to choose from: the files of ``zoo/conf`` and the names that stand for more.

Each file ``conf/<group>/<name>.yaml`` is one choice. Its ``_target_`` is the dotted path of what
serves it and ``_about_`` says what ``zoo list`` shows and what it can be combined with; both are
read here without importing anything heavy. Three choices stand for many names: an environment that
Gymnasium knows, a reasoning-gym task, a model folder or hub name.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import re
from pathlib import Path
from typing import Any

import yaml

from zoo.errors import UserError, nearest

__all__ = [
    "CONF",
    "GROUPS",
    "about",
    "named",
    "names",
    "read",
    "reasoning_tasks",
    "resolve",
    "short_name",
]

CONF = Path(__file__).resolve().parent.parent / "conf"
GROUPS = ("algo", "env", "model", "rollout", "logger", "preset")
_WORDS = {"algo": "algorithm", "env": "environment"}
#: namespaces of Gymnasium ids whose package registers them only when it is imported
_NAMESPACES = {"ALE": "ale_py"}


def names(group: str) -> list[str]:
    """Return the names of a group's files, sorted."""
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


@functools.cache
def read(group: str, name: str) -> dict[str, Any]:
    """Return the content of ``conf/<group>/<name>.yaml``; do not change it."""
    return yaml.safe_load((CONF / group / f"{name}.yaml").read_text("utf-8")) or {}


def about(group: str, name: str) -> dict[str, Any]:
    """Return what a choice says of itself: ``summary``, ``world``, ``serves``, …"""
    return read(group, name).get("_about_", {})


def resolve(group: str, name: str) -> tuple[str, dict[str, Any]]:
    """Find what a name stands for.

    Returns
    -------
    choice : str
        The file of the group that serves it.
    settings : dict
        What the name sets in it: nothing, or the one setting that holds the name.

    Raises
    ------
    UserError
        Where nothing has that name; the nearest one is suggested.
    """
    known = names(group)
    if name in known:
        return name, {}
    if group == "env":
        return _environment(name, known)
    if group == "model":
        return _model(name, known)
    if group == "algo" and "." in name:
        return "own", {"_target_": name}
    word = _WORDS.get(group, group)
    offered = named(group)
    raise UserError(
        f"unknown {word} '{name}': there is {', '.join(offered)}.{nearest(name, offered)}"
    )


def short_name(name: str) -> str:
    """Return the part of a model or environment name that may stand in a file name.

    Examples
    --------
    >>> short_name("Qwen/Qwen3-0.6B")
    'Qwen3-0.6B'
    """
    last = name.rstrip("/").replace(":", "/").split("/")[-1]
    return re.sub(r"[^A-Za-z0-9._-]+", "-", last) or "unnamed"


def named(group: str) -> list[str]:
    """Return the names to offer: those that stand for one thing, which a name can stand for."""
    hidden = ("stands_for_many", "hidden")
    return [n for n in names(group) if not any(about(group, n).get(h) for h in hidden)]


def _environment(name: str, known: list[str]) -> tuple[str, dict[str, Any]]:
    import gymnasium

    module, _, registered_as = name.rpartition(":")
    module = module or _NAMESPACES.get(name.partition("/")[0], "")
    try:
        if module:  # it registers the environment when it is imported
            importlib.import_module(module)
        gymnasium.spec(registered_as)
    except ModuleNotFoundError as error:
        if error.name in _NAMESPACES.values():
            raise UserError(
                f"env={name} needs the package {error.name}, which is not installed:"
                " `pip install 'algorithm-zoo[pixels]'`."
            ) from error
        raise UserError(
            f"can't import {error.name} for env={name}: there is no such module in reach of Python"
            " (a file of your own is found with PYTHONPATH)."
        ) from error
    except (gymnasium.error.Error, ImportError):
        registered = list(gymnasium.registry)
    else:
        return "gymnasium", {"id": f"{module}:{registered_as}" if module else name}
    tasks = reasoning_tasks()
    if name in tasks:
        return "reasoning_gym", {"task": name}
    hint = nearest(name, [*known, *registered, *tasks])
    missing = "" if tasks else " (reasoning-gym is not installed)"
    raise UserError(
        f"unknown environment '{name}': it is neither {' nor '.join(named('env'))}, nor a Gymnasium"
        f" id, nor a reasoning-gym task{missing}; `zoo list` shows them.{hint}"
    )


@functools.cache
def reasoning_tasks() -> tuple[str, ...]:
    """Return the names of reasoning-gym's tasks, none where it is not installed."""
    if importlib.util.find_spec("reasoning_gym") is None:
        return ()
    import reasoning_gym
    from reasoning_gym.factory import DATASETS

    del reasoning_gym  # importing the package is what registers its tasks
    return tuple(sorted(DATASETS))


def _model(name: str, known: list[str]) -> tuple[str, dict[str, Any]]:
    path = Path(name).expanduser()
    if path.is_dir():
        return "language", {"path": str(path)}
    takes = f"model= takes {', '.join(named('model'))}, a folder, or OWNER/NAME on the hub"
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise UserError(f"no model folder at '{path.absolute()}': {takes}.")
    if "/" not in name:
        raise UserError(f"unknown model '{name}': {takes}.{nearest(name, known)}")
    return "language", {"path": name}
