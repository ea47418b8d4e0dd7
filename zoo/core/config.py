"""From a list of overrides to the full settings of a run.

The overrides are Hydra's (``group=choice``, ``a.b=value``) and so is the composition, from the
groups in ``zoo/conf``. Later ones win:

    the knobs' dataclass defaults → conf/world/<world> → the chosen algo, env, model, rollout
    → conf/tuned/<algo>/: <world>, <family>, <world>@<model>, <env>, <env>@<model>;
      each of them first for the algorithm that a variant's file says it is ``tuned_as``
    → conf/preset/<preset> → your overrides

An algorithm, an environment, a model or a rollout is known here only by the ``_target_`` of its
file; the types and checks of its settings are those of the dataclass it calls ``Knobs``.
"""

from __future__ import annotations

import importlib.util
import json
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

from zoo.core import choices
from zoo.core.images import configured, shows_images
from zoo.core.overrides import INTERNAL, apply, as_overrides, parse
from zoo.core.paths import anchored
from zoo.core.schema import conform, defaults, like_default, plain
from zoo.core.settings import RunSettings
from zoo.core.worlds import WORLDS
from zoo.errors import UserError

__all__ = [
    "Config",
    "as_overrides",
    "compose",
    "default_text_model",
    "locate",
    "register",
    "with_defaults",
]

_ENTRIES = ("algo", "env", "model", "rollout")
_FILE_ONLY = ("_about_", "_choose_", "_for_images_")
_HUB_MODEL, _HUB_PRESET, _HUB_MEMORY_GIB = "Qwen/Qwen3-0.6B", "qwen3-0.6b-full", 22.0


#: classes given to the Python API, by their dotted path
_OWN: dict[str, type] = {}


@dataclass(frozen=True)
class Config:
    """The settings of a run: a plain tree that YAML can hold, and what it stands for.

    Attributes
    ----------
    tree : dict
        ``algo``, ``env``, ``model``, ``rollout`` (each with ``name``, ``_target_`` and its
        settings), ``eval``, ``checkpoint``, ``logger`` (name → settings), ``world``, ``preset``,
        ``seed``, ``run_dir``, ``device``, ``total_steps``, ``updates``.
    notes : tuple of str
        What was decided for the user and why; ``zoo train`` prints it first.
    """

    tree: dict[str, Any]
    notes: tuple[str, ...] = ()

    def __getitem__(self, key: str) -> Any:
        """Return the value at a dotted key, as in ``config["algo.lr"]``."""
        node: Any = self.tree
        for part in key.split("."):
            node = node[part]
        return node

    @property
    def world(self) -> str:
        """``"control"`` or ``"text"``."""
        return str(self.tree["world"])

    @property
    def knobs(self) -> Any:
        """The algorithm's knobs, checked; a new instance of its frozen dataclass."""
        return self.settings("algo")

    @property
    def run(self) -> RunSettings:
        """The settings outside the groups, checked."""
        values = {f.name: self.tree[f.name] for f in fields(RunSettings) if f.name in self.tree}
        checked: RunSettings = conform(values, RunSettings, "")
        return checked

    def target(self, group: str) -> Any:
        """Import and return what a group's choice stands for, usually a class."""
        return locate(self.tree[group]["_target_"])

    def settings(self, group: str) -> Any:
        """Return a group's settings as the dataclass its target declares, else as a dict.

        Raises
        ------
        UserError
            Where a value has the wrong type, or the dataclass refuses it.
        """
        entry = self.tree[group]
        values = {k: v for k, v in entry.items() if k not in INTERNAL}
        schema = _schema(entry)
        return conform(values, schema, group) if schema else values

    def checked(self, original: Mapping[str, Any]) -> Config:
        """Return the same settings in their right types; ``original`` is what the files say."""
        tree = {k: like_default(v, original[k], k) for k, v in self.tree.items() if k == "eval"}
        tree = {**self.tree, **tree}
        tree.update(plain(Config(tree).run))
        for group in _ENTRIES:
            values = self.settings(group)
            if not is_dataclass(values):
                values = like_default(values, original[group], group)
            kept = {k: v for k, v in tree[group].items() if k in INTERNAL}
            tree[group] = {**kept, **plain(values)}
        return Config(tree, self.notes)

    def to_dict(self) -> dict[str, Any]:
        """Return a copy of the tree, for ``config.yaml``."""
        copy: dict[str, Any] = json.loads(json.dumps(self.tree))
        return copy

    @classmethod
    def from_dict(cls, tree: Mapping[str, Any]) -> Config:
        """Take back a :meth:`to_dict`; what a run was started with is not composed anew."""
        return cls({str(k): plain(v) for k, v in tree.items()})


def compose(overrides: Sequence[str], make_env: Callable[..., Any] | None = None) -> Config:
    """Compose and check the settings of a run.

    Parameters
    ----------
    overrides : sequence of str
        ``algo=`` and ``env=`` at least.
    make_env : callable, optional
        Makes the environment where it was given as a function; what it shows decides the model.

    Raises
    ------
    UserError
        For an unknown key or choice, a value of the wrong type, or parts that do not go together.

    Examples
    --------
    >>> compose(["algo=ppo", "env=CartPole-v1", "algo.lr=1e-3"])["algo.lr"]  # doctest: +SKIP
    0.001
    """
    picked, values = parse(overrides)
    preset = picked.get("preset")
    if preset is not None:
        choices.resolve("preset", preset)
        picked = {**choices.read("preset", preset).get("_choose_", {}), **picked}
    for group, word in (("algo", "algorithm"), ("env", "environment")):
        if picked.get(group) is None:
            more = ", or any Gymnasium id or reasoning-gym task" if group == "env" else ""
            offered = ", ".join(choices.named(group))
            raise UserError(f"no {word} given: add {group}=NAME, one of {offered}{more}.")
    algo, own = choices.resolve("algo", picked["algo"])
    env, named = choices.resolve("env", picked["env"])
    world = choices.about("env", env)["world"]
    _refuse_unserved(algo, picked["env"], env, world)
    serves = preset and choices.about("preset", preset)["serves"]
    if serves and algo not in serves:
        raise UserError(f"preset={preset} is made for algo={' or '.join(serves)}, not for {algo}.")
    notes = []
    if world == "text" and "model" not in picked:
        picked["model"], offered_preset, reason = default_text_model(
            str(dict(values).get("device", "auto"))
        )
        if offered_preset and algo in choices.about("preset", offered_preset)["serves"]:
            preset = preset or offered_preset
        chosen = f"{picked['model']}, preset {preset}" if preset else picked["model"]
        notes.append(f"model: {chosen} ({reason})")
    said = choices.read("world", world)
    images = said.get("_for_images_")
    if images and "model" not in picked and _shows_images(env, named, values, make_env):
        picked = {**images, **picked}
        notes.append(f"model: {picked['model']} (observations are images)")
    picked = {**said["_choose_"], **picked}
    for group in ("model", "rollout"):
        if not picked[group]:
            fitting = _fitting(group, world)
            raise UserError(f"a run needs a {group}: use {fitting}, or leave {group}= out.")
    model, located = choices.resolve("model", picked["model"])
    rollout, _ = choices.resolve("rollout", picked["rollout"])
    files = {"algo": algo, "env": env, "model": model, "rollout": rollout}
    _refuse_other_world(picked, files, world)
    tuned = _tuned(algo, world, picked["env"], _tuned_name(picked["model"], located))
    base = _hydra(files, _loggers(picked.get("logger")), world, tuned, preset)
    base["algo"].update(own)
    tree = with_defaults(base)
    for group in _ENTRIES:
        tree[group]["name"] = picked[group]
    tree["env"].update(named)
    tree["model"].update(located)
    tree["preset"], tree["world"] = preset, world
    original: dict[str, Any] = plain(tree)
    original["eval"]["final"] = original["eval"]["options"]  # takes the same names and types
    for key, value in values:
        if key == "world":
            raise UserError(f"world={value} can't be set: env={picked['env']} is a {world} one.")
        if key in [w.budget for w in WORLDS.values()] and key != WORLDS[world].budget:
            raise UserError(
                f"{key} is no budget of a {world} task: env={picked['env']} counts"
                f" {WORLDS[world].budget}=…."
            )
        apply(tree, original, key, value)
    for group in ("env", "model", "rollout"):
        if tree[group].get("path") not in choices.names(group):  # model.path=tiny is no folder
            tree[group] = anchored(tree[group])
    config = Config(plain(tree), tuple(notes)).checked(original)
    budget = WORLDS[world].budget
    if config[budget] is None:
        raise UserError(f"{budget} takes a whole number, not null: it is what the run may spend.")
    return config


def default_text_model(device: str = "auto") -> tuple[str, str | None, str]:
    """Choose the language model for a user who named none.

    Returns
    -------
    model, preset, reason : str, str or None, str
        Qwen3-0.6B with its preset where there are an accelerator with the memory for it and a way
        to get the weights; the shipped ``tiny`` model elsewhere.
    """
    import torch

    if device == "cpu" or not torch.cuda.is_available():
        why = "device=cpu" if device == "cpu" else "no accelerator here"
        return "tiny", None, f"{why}; name another with model=FOLDER or model=OWNER/NAME"
    memory = torch.cuda.get_device_properties(0).total_memory / 2**30
    if memory < _HUB_MEMORY_GIB:
        need = f"{_HUB_MODEL} needs {_HUB_MEMORY_GIB:.0f} GiB of accelerator memory"
        return "tiny", None, f"{need} and this one has {memory:.0f}"
    missing = _unreachable(_HUB_MODEL)
    if missing:
        return "tiny", None, f"{_HUB_MODEL} can't be had: {missing}"
    return _HUB_MODEL, _HUB_PRESET, f"accelerator with {memory:.0f} GiB, hub in reach"


def locate(path: str, extra: str | None = None) -> Any:
    """Import the object at a dotted path; ``extra`` is what to install where it is missing.

    Raises
    ------
    UserError
        Where a package that it needs is not installed.
    """
    if path in _OWN:
        return _OWN[path]
    module, _, attribute = path.rpartition(".")
    try:
        return getattr(importlib.import_module(module), attribute)
    except AttributeError as error:
        raise UserError(f"the module {module} has no {attribute}.") from error
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] == "zoo":
            raise
        if extra is not None:
            raise UserError(
                f"{module} needs the package {error.name}, which is not installed:"
                f" `pip install 'algorithm-zoo[{extra}]'`."
            ) from error
        if module.startswith(error.name or module):
            raise UserError(
                f"can't import {path}: there is no module {error.name} in reach of Python (a file"
                " of your own is found from its folder, or with PYTHONPATH)."
            ) from error
        raise UserError(
            f"{path} needs the package {error.name}, which is not installed: try"
            " `pip install 'algorithm-zoo[all]'`."
        ) from error


def register(cls: type) -> str:
    """Make a class known by its dotted path even where it can't be imported; return the path.

    A class written in a notebook or a script lives in ``__main__``: this process knows it, and a
    later one has to be given it again.
    """
    path = f"{cls.__module__}.{cls.__qualname__}"
    _OWN[path] = cls
    return path


def _shows_images(
    env: str, named: Mapping[str, Any], values: Sequence[tuple[str, Any]], own: Any
) -> bool:
    """Say whether an environment's observations are images; those that are known have none."""
    changed = any(key.startswith("env.") for key, _ in values)
    if named.get("id") in choices.about("env", env).get("known", {}) and not changed:
        return False
    target = locate(choices.read("env", env)["_target_"])
    try:
        make = configured(target, named, values, own)
    except UserError:
        return False  # said in full where all settings are checked
    return shows_images(make)


def _refuse_unserved(algo: str, env_name: str, env: str, world: str) -> None:
    """Refuse an algorithm on a kind of environment that its file says it can't serve."""
    description = choices.about("algo", algo)
    if world == "text":
        kinds = {"text"}
    else:
        kind = choices.about("env", env).get("known", {}).get(env_name)
        kinds = {kind} if kind else {"discrete", "continuous"}
    if not kinds & set(description["serves"]):
        every = {n: choices.about("algo", n) for n in choices.named("algo")}
        others = [n for n, a in every.items() if kinds & set(a["serves"]) and "tuned_as" not in a]
        kind = " or ".join(sorted(kinds))
        why = description.get("refuses", {}).get(kind, "")
        advice = "" if "use algo=" in why else f" Use {' or '.join(f'algo={n}' for n in others)}."
        reason = f": {why}" if why else ""
        raise UserError(f"algo={algo} can't train on env={env_name} ({kind}){reason}.{advice}")


def _refuse_other_world(picked: Mapping[str, Any], files: Mapping[str, str], world: str) -> None:
    """Refuse a model or a rollout that the environment can't use."""
    for group in ("model", "rollout"):
        if world in choices.about(group, files[group])["world"]:
            continue
        raise UserError(
            f"{group}={picked[group]} doesn't go with env={picked['env']}, which is a {world}"
            f" environment: use {_fitting(group, world)}."
        )


def _fitting(group: str, world: str) -> str:
    """Write the choices of a group that a world's environments can use."""
    names = [n for n in choices.named(group) if world in choices.about(group, n)["world"]]
    return " or ".join(f"{group}={name}" for name in names)


def _loggers(picked: Any) -> list[str]:
    """Return the loggers' files; the console stays unless ``none`` is among them."""
    if picked is None:
        return ["console"]
    listed = [str(n) for n in (picked if isinstance(picked, list) else [picked])]
    if "none" in listed:
        return [n for n in listed if n != "none" and choices.resolve("logger", n)]
    return ["console", *(n for n in listed if choices.resolve("logger", n) and n != "console")]


def _tuned(algo: str, world: str, env: str, model: str) -> list[str]:
    """Return the tuned files there are for this run, the most general first.

    A variant shares those of the algorithm that it is ``tuned_as``; its own come after them.
    """
    family = _family(env) if world == "control" else ""
    env = choices.short_name(env)
    candidates = (world, family, f"{world}@{model}", env, f"{env}@{model}")
    owners = dict.fromkeys([choices.about("algo", algo).get("tuned_as", algo), algo])
    files = [f"{owner}/{n}" for n in candidates for owner in owners]
    return [n for n in files if (choices.CONF / "tuned" / f"{n}.yaml").is_file()]


def _tuned_name(model: str, located: Mapping[str, Any]) -> str:
    """Return what a model's tuned settings go by; a folder has none, whatever it is called."""
    short = choices.short_name(model)
    folder = located and Path(located["path"]).is_dir()
    return "" if folder or (located and short in choices.names("model")) else short


def _family(env: str) -> str:
    """Return which of Gymnasium's families an environment is of: ``mujoco``, ``box2d``, …"""
    from gymnasium import registry

    entry = str(getattr(registry.get(env), "entry_point", ""))
    return entry.removeprefix("gymnasium.envs.").split(".")[0].partition(":")[0]


def _hydra(
    files: dict[str, str], loggers: list[str], world: str, tuned: list[str], preset: str | None
) -> Any:
    """Let Hydra compose the files; the defaults list is made here because it has to be."""
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.core.config_store import ConfigStore
    from omegaconf import OmegaConf

    listed: list[Any] = [{"world@_global_": world}]
    listed += [{group: name} for group, name in files.items()]
    listed += [{f"logger@logger.{name}": name} for name in loggers]
    if tuned:
        listed.append({"tuned@_global_": tuned})
    if preset is not None:
        listed.append({"preset@_global_": preset})
    ConfigStore.instance().store("zoo_run", {"defaults": [*listed, "_self_"]})
    with initialize_config_dir(str(choices.CONF), version_base="1.3"):
        return OmegaConf.to_container(hydra_compose("zoo_run"), resolve=True)


def with_defaults(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Put the dataclasses' defaults under what the files say, and drop what only ``list`` reads.

    Settings of an older version are completed as well: a knob it did not have yet stands at its
    default, which leaves things as they were.
    """
    tree = _merge(plain(RunSettings()), {k: v for k, v in tree.items() if k not in _FILE_ONLY})
    for group in _ENTRIES:
        entry = tree[group]
        entry.pop("_about_", None)
        schema = _schema(entry)
        if schema and group == "rollout":  # what is tuned for another rollout is not for this one
            known = {*INTERNAL, *(f.name for f in fields(schema))}
            entry = {key: value for key, value in entry.items() if key in known}
        tree[group] = _merge(defaults(schema), entry) if schema else entry
    for options in tree.setdefault("logger", {}).values():
        options.pop("_about_", None)
    return tree


def _schema(entry: Mapping[str, Any]) -> type | None:
    """Return the dataclass of a choice's settings: ``_schema_``, else the target's ``Knobs``."""
    if "_schema_" in entry:
        named: type | None = locate(entry["_schema_"]) if entry["_schema_"] else None
        return named
    knobs: type | None = getattr(locate(entry["_target_"]), "Knobs", None)
    return knobs


def _merge(under: dict[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(under)
    for key, value in over.items():
        old = merged.get(key)
        merged[key] = (
            _merge(old, value) if isinstance(old, dict) and isinstance(value, Mapping) else value
        )
    return merged


def _unreachable(model: str) -> str:
    """Return why a hub model can't be had, or an empty string where it can."""
    if importlib.util.find_spec("transformers") is None:
        return "the package transformers is not installed"
    from huggingface_hub import constants, try_to_load_from_cache

    if isinstance(try_to_load_from_cache(model, "config.json"), str):
        return ""
    if constants.HF_HUB_OFFLINE:
        return "it is not in the cache and HF_HUB_OFFLINE is set"
    address = f"{constants.ENDPOINT}/{model}/resolve/main/config.json"
    try:
        with urllib.request.urlopen(urllib.request.Request(address, method="HEAD"), timeout=5):
            return ""
    except OSError as error:
        return f"the hub is out of reach ({error})"
