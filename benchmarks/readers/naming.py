"""Label, task and seed of somebody else's run, from its path and the files beside it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from zoo.benchmarks.readers.arguments import Argument
from zoo.benchmarks.readers.zoo_runs import flatten, settings_of
from zoo.errors import UserError

__all__ = [
    "Identity",
    "algorithm_in",
    "env_in",
    "identify",
    "run_name",
    "seed_in",
]

#: what labels a run of somebody else's where its path holds it
_ALGORITHM = re.compile(
    r"a2c|ars|crossq|ddpg|dqn|grpo|her|maskableppo|ppo|qrdqn|recurrentppo|sac|td3|tqc|trpo"
)
_PART = re.compile(r"eval(uation)?s?|logs|monitors?|tb|tensorboard|train(ing)?", re.IGNORECASE)
_EXPLICIT_SEED = re.compile(r"(?:^|[^a-z])seed[-_=]?(\d+)(?!\d)|_s(\d+)(?=$|_)", re.IGNORECASE)
_LAST_NUMBER = re.compile(r"[-_](\d{1,6})$")
_LOOKS_LIKE_ENV = re.compile(r"[A-Z][A-Za-z0-9]*(?:-[A-Za-z0-9]+)*?-v\d+(?![A-Za-z0-9])")
_CLEANRL = re.compile(r"(?P<env>.+?)__(?P<name>.+)__(?P<seed>\d+)__\d{9,}")


@dataclass(frozen=True)
class Identity:
    """Whose run it is: label, task, seed, settings, and what has to be said about them."""

    label: str
    env: str
    seed: int | None
    settings: Mapping[str, Any]
    remarks: tuple[str, ...] = ()


def identify(
    path: Path,
    argument: Argument,
    *,
    library: str = "",
    said: Mapping[str, Any] | None = None,
    counted: bool = False,
) -> Identity:
    """Find out label, task and seed of a run.

    Parameters
    ----------
    path : Path
        Its folder or file.
    argument : Argument
        What the user wrote; their label and task stand.
    library : str
        Goes before the algorithm's name in the label.
    said : mapping, optional
        What the run's own files say: ``env``, ``seed``, ``algo``, ``settings``, and the ``name``
        to take where no algorithm is known.
    counted : bool
        Whether the number at the end of the folder's name counts runs, so that it is no seed.

    Raises
    ------
    UserError
        Where nothing says of which task it is.
    """
    own = {**_saved_arguments(path), **{k: v for k, v in (said or {}).items() if v is not None}}
    named = _CLEANRL.fullmatch(run_name(path))
    own_env = str(own["env"]) if own.get("env") else (named["env"] if named else None)
    env = argument.env or own_env or env_in(path)
    if env is None:
        label = argument.label or "LABEL"
        raise UserError(
            f"{path} doesn't say which environment it is of: name it, as in"
            f" '{label}@CartPole-v1={path}'."
        )
    seed = own.get("seed")
    if seed is None:
        seed = int(named["seed"]) if named else seed_in(path, counted)
    algorithm = own.get("algo") or (named["name"] if named else algorithm_in(path))
    name = f"{library} {algorithm}".strip() if algorithm else own.get("name") or _group(path, env)
    label = argument.label or str(name)
    remarks: tuple[str, ...] = ()
    if own_env is not None and env != own_env:
        remarks = (f"its own files say {own_env}, and it stands under {env} as asked for",)
    settings = own.get("settings") or {}
    return Identity(label, env, seed if isinstance(seed, int) else None, settings, remarks)


def is_part(name: str) -> bool:
    """Return whether a folder of this name belongs to the run whose folder it is in."""
    return _PART.fullmatch(name) is not None


def run_name(path: Path) -> str:
    """Return the name of the run's folder: parts of a run (``eval``, ``tb``) don't count."""
    components = _components(path)
    return next((name for name in components if not is_part(name)), components[0])


def env_in(path: Path) -> str | None:
    """Return the task that a path names: one that Gymnasium knows, or what looks like one.

    Examples
    --------
    >>> env_in(Path("logs/ppo/CartPole-v1_1")), env_in(Path("runs/sac-BreakoutNoFrameskip-v4-s2"))
    ('CartPole-v1', 'BreakoutNoFrameskip-v4')
    """
    import gymnasium

    known, components = gymnasium.registry, _components(path)
    spaced = [f"{outer}/{inner}" for inner, outer in pairwise(components)]
    for name in (*spaced, *components):  # phys2d/CartPole-v1 goes before CartPole-v1
        space = r"[A-Za-z]\w*/" if "/" in name else ""
        for start in _starts(name):
            found = re.match(
                space + r"[A-Za-z0-9][A-Za-z0-9_-]*?-v\d+(?![A-Za-z0-9])", name[start:]
            )
            if found and found[0] in known:
                return found[0]
    for name in components:
        for start in _starts(name):
            found = _LOOKS_LIKE_ENV.match(name[start:])
            if found and not _algorithms(found[0]):
                return found[0]
    return None


def seed_in(path: Path, counted: bool = False) -> int | None:
    """Return the seed that a path names.

    A number at the end of the folder's name is taken for one, unless what stands before it is a
    task alone (``CartPole-v1_2``) or ``counted`` says that a library counts its runs there.

    Examples
    --------
    >>> seed_in(Path("logs/seed=3")), seed_in(Path("ppo_s4/eval")), seed_in(Path("ppo-5"))
    (3, 4, 5)
    """
    for component in _components(path)[:4]:
        found = _EXPLICIT_SEED.search(component)
        if found:
            return int(found[1] or found[2])
    name = run_name(path)
    last = _LAST_NUMBER.search(name)
    if last is None or counted:
        return None
    before = name[: last.start()]
    return None if _LOOKS_LIKE_ENV.fullmatch(before) and not _algorithms(before) else int(last[1])


def algorithm_in(path: Path) -> str | None:
    """Return the algorithm that a path names, in capitals.

    Examples
    --------
    >>> algorithm_in(Path("logs/ppo/CartPole-v1_1"))
    'PPO'
    """
    for component in _components(path):
        for word in _algorithms(component):
            return word.upper()
    return None


def _saved_arguments(path: Path) -> dict[str, Any]:
    """Return ``env``, ``seed``, ``algo`` and ``settings`` from the files beside the results.

    rl-zoo's lie there or in a folder below that has the task's name; ours lie there or above.
    """
    folder = path if path.is_dir() else path.parent
    for file in (folder / "args.yml", *sorted(folder.glob("*/args.yml"))):
        arguments = _yaml(file)
        if arguments:
            seed, algorithm = arguments.get("seed"), arguments.get("algo")
            saved = {
                "env": arguments.get("env"),
                "algo": str(algorithm).upper() if algorithm else None,
                "seed": seed if isinstance(seed, int) and seed >= 0 else None,
                "settings": flatten(_yaml(file.with_name("config.yml"))) or None,
            }
            return {key: value for key, value in saved.items() if value is not None}
    for file in (folder / "config.yaml", folder.parent / "config.yaml"):
        settings = settings_of(_yaml(file))
        if "world" in settings:
            names = {"env": "env.name", "algo": "algo.name", "seed": "seed"}
            return {**{k: settings.get(v) for k, v in names.items()}, "settings": settings}
    return {}


class _Loader(yaml.SafeLoader):
    """Reads YAML that holds Python's ordered mappings, and takes no other object for what it is."""


def _pairs(loader: yaml.SafeLoader, node: yaml.Node) -> Any:
    if not isinstance(node, yaml.SequenceNode):
        return None
    inner = loader.construct_sequence(node, deep=True)
    return {str(key): value for key, value in inner[0]} if inner else {}


_Loader.add_constructor("tag:yaml.org,2002:python/object/apply:collections.OrderedDict", _pairs)
_Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda loader, tag, node: tag)


def _yaml(file: Path) -> dict[str, Any]:
    try:
        tree = yaml.load(file.read_text("utf-8"), _Loader)  # a safe loader: it runs nothing
    except (OSError, ValueError, TypeError, yaml.YAMLError):
        return {}
    return tree if isinstance(tree, dict) else {}


def _components(path: Path) -> list[str]:
    """Return the names in a path, the innermost first; a file's goes without its ending."""
    absolute = Path(os.path.abspath(path))
    if absolute.is_file():
        stem = absolute.name.split(".")[0]
        known = stem in {"evaluations", "progress", "monitor", "events"} or stem.isdecimal()
        absolute = absolute.parent if known else absolute.with_name(stem)
    return list(reversed(absolute.parts)) if len(absolute.parts) > 1 else [str(absolute)]


def _algorithms(name: str) -> list[str]:
    return [word for word in re.split(r"[^a-z0-9]+", name.lower()) if _ALGORITHM.fullmatch(word)]


def _group(path: Path, env: str) -> str:
    """Return what is left of the innermost folder's name without task, seed and running number."""
    for component in _components(path):
        rest = _LAST_NUMBER.sub("", _EXPLICIT_SEED.sub("", component.replace(env, "")))
        rest = rest.strip("-_=. ")
        if rest and not rest.isdecimal() and not is_part(rest):
            return rest
    return run_name(path)


def _starts(name: str) -> Iterable[int]:
    """Return where a task's name may begin in a folder's name."""
    return [0, *(m.end() for m in re.finditer(r"[-_.=@+ ]+", name))]
