"""When two runs are of one thing: trained alike, with the same seeds, timed alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from zoo.benchmarks.records import Run

__all__ = ["differing", "flatten", "hardware", "timed_alike", "trained_alike"]

#: settings that do not change what is learned
_INCIDENTAL = (
    "checkpoint",
    "eval",
    "log_every",
    "logger",
    "made_with",
    "run_dir",
    "save",
    "seed",
    "threads",
)
#: where the library finds what a name stands for
_INTERNAL = ("_target_", "_schema_")
#: whose clocks go on while a policy is evaluated; that of our own runs stops
_RUNNING_CLOCKS = {"sb3", "tensorboard", "wandb"}


def trained_alike(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of a run's settings that bear on what it learns."""
    return {
        key: value
        for key, value in settings.items()
        if key.split(".")[0] not in _INCIDENTAL
        and key.rpartition(".")[2] not in _INTERNAL
        and not (key.startswith("objects.") and not value)  # a run from Python that was given none
    }


def differing(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the keys whose values are not the same in all, in the order they are met."""
    missing = object()
    keys = dict.fromkeys(k for s in settings for k in s)
    return [
        k for k in keys if any(s.get(k, missing) != settings[0].get(k, missing) for s in settings)
    ]


def hardware(run: Run) -> str | None:
    """Return the machine that a run was made on, in words; None where it is not known."""
    known = run.facts.get("hardware")
    if not known:
        return None
    parts = [known.get("processor"), f"{known.get('cpus')} CPUs", *known.get("accelerators", [])]
    return ", ".join(str(part) for part in parts if part)


def timed_alike(runs: list[Run]) -> bool:
    """Return whether times of these runs can be compared: one kind of clock, one machine.

    Runs of several seeds trained at once take the time of all of them.
    """
    kinds = {run.kind for run in runs}
    machines = {(hardware(run), run.facts.get("seeds_together", 1)) for run in runs}
    return len(machines) == 1 and not ("zoo" in kinds and kinds & _RUNNING_CLOCKS)


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return dotted key → value.

    Examples
    --------
    >>> flatten({"algo": {"name": "ppo", "betas": [0.9, 0.999]}, "seed": 1})
    {'algo.name': 'ppo', 'algo.betas': [0.9, 0.999], 'seed': 1}
    """
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat
