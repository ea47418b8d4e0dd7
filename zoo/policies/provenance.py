"""What a model folder says of how its weights were trained, and what of it a run leaves out.

Settings are tuned for a shipped model by its name, which a folder has not. So ``zoo export`` writes
those of the run into the folder, and a run that begins from it names the ones that it lacks. None
is applied by itself: a run's settings are what its command says.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from zoo.core.overrides import INTERNAL, as_overrides
from zoo.errors import UserError
from zoo.policies.language_loading import SHIPPED

__all__ = ["FILE", "lacking", "read", "write"]

FILE = "zoo.yaml"
_GROUPS = ("algo", "env", "model", "rollout")
#: settings that belong to the weights, whatever trains them on
_KEPT = {
    "algo": ("lr", "betas"),
    "model": ("temperature", "instruct", "template"),
    "rollout": ("max_new_tokens",),
}
#: how the same numbers are computed, which another machine does in another way
_COMPUTED = ("micro_batch_size", "max_tokens_per_micro_batch", "precision", "adam_state")
_HEAD = "# How these weights were trained; `zoo train model=FOLDER` says what of it a run lacks.\n"


def write(settings: Mapping[str, Any], folder: Path) -> None:
    """Write a run's settings, or those that :func:`read` gave, into a model's folder."""
    kept = {
        group: {k: v for k, v in settings[group].items() if k == "name" or k not in INTERNAL}
        for group in _GROUPS
        if group in settings
    }
    (folder / FILE).write_text(_HEAD + yaml.safe_dump(kept, sort_keys=False), "utf-8")


def read(folder: Path) -> dict[str, Any]:
    """Return what a folder says, nothing where it says nothing.

    Raises
    ------
    UserError
        Where its file is no mapping of groups.
    """
    file = folder / FILE
    if not file.is_file():
        return {}
    try:
        said = yaml.safe_load(file.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        said = None
    if not isinstance(said, dict) or not all(isinstance(said.get(g, {}), dict) for g in _GROUPS):
        raise UserError(
            f"{file} should hold the settings that the model was trained with, and can't be read:"
            " delete it, or write it again with `zoo export`."
        )
    return said


def lacking(settings: Mapping[str, Any]) -> str:
    """Say which settings of the run that made its model a run doesn't have; empty for none.

    Parameters
    ----------
    settings : mapping
        The run's, as in config.yaml.
    """
    model = settings["model"]
    if model["name"] in SHIPPED or not model.get("path"):
        return ""
    folder = Path(model["path"]).expanduser()
    then = read(folder)
    overrides = []
    for group, kept in _KEPT.items():
        said, now = then.get(group, {}), settings[group]
        if group == "algo" and said.get("name") == now["name"]:
            kept = tuple(key for key in said if key not in (*_COMPUTED, "name"))
        known = {key: said[key] for key in kept if key in said and key in now}
        overrides += as_overrides(_apart(known, now), f"{group}.")
    if not overrides:
        return ""
    return (
        f"note: {folder} was trained with settings that this run doesn't have, and none is taken"
        f" over by itself; add those that should hold here, too: {' '.join(overrides)}"
    )


def _apart(then: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """Return what differs, of mappings the differing members only."""
    return {
        key: _apart(value, now[key])
        if isinstance(value, Mapping) and isinstance(now.get(key), Mapping)
        else value
        for key, value in then.items()
        if key not in now or now[key] != value
    }
