"""Hydra's overrides: read them, write them, and set what they say.

``group=choice`` picks a file, ``a.b=value`` sets a value; lists are ``[1,2]`` and mappings
``{a: 1}``. A bare value that the grammar can't hold (``~/a=b``) is taken as text.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from zoo.core import choices
from zoo.errors import UserError

__all__ = ["INTERNAL", "apply", "as_overrides", "parse"]

#: what a choice's file says to the library, and no override may set
INTERNAL = ("_target_", "_schema_", "name")
_GRAMMAR_WORDS = ("true", "false", "null", "inf", "nan")


def parse(overrides: Sequence[str]) -> tuple[dict[str, Any], list[tuple[str, Any]]]:
    """Split overrides into the choices of groups and the values of settings, in order."""
    picked: dict[str, Any] = {}
    values: list[tuple[str, Any]] = []
    for text in overrides:
        if "=" not in text and not text.startswith("~"):
            raise UserError(f"'{text}' is no override: write it as key=value, as in algo=ppo.")
        override = _parse_one(text)
        key = override.key_or_group
        if override.is_sweep_override():
            raise UserError(
                f"'{text}' names several values and a run takes one: write a list as {key}=[…],"
                " and several runs as several commands."
            )
        if override.is_delete():
            raise UserError(f"'{text}' deletes a setting: set it to null instead.")
        value = override.value()
        if key in choices.GROUPS:
            picked[key] = value if key == "logger" or value is None else str(value)
        else:
            values.append((key, value))
    return picked, values


def _parse_one(text: str) -> Any:
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    parser = OverridesParser.create()
    key, _, value = text.partition("=")
    try:
        return parser.parse_override(text)
    except HydraException as error:
        if value[:1] not in ("[", "{", "'", '"'):  # a bare text that the grammar can't hold: ~/a=b
            try:
                return parser.parse_override(f"{key}={_quote(value)}")
            except HydraException:
                pass  # the key is at fault; the first message says so
        raise UserError(
            f"can't read the override '{text}': a list is [1,2] and a mapping {{a: 1}}, whose keys"
            " are plain words; a text that holds other signs stands in quotes."
        ) from error


def as_overrides(settings: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Write plain values as overrides, quoted so that they come back as they are.

    Examples
    --------
    >>> as_overrides({"seed": 1, "env": "a b", "algo": {"lr": 0.1}})
    ['seed=1', "env='a b'", 'algo.lr=0.1']
    """
    written: list[str] = []
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            written += as_overrides(value, f"{prefix}{key}.")
        else:
            written.append(f"{prefix}{key}={_quote(value)}")
    return written


def apply(tree: dict[str, Any], original: Mapping[str, Any], key: str, value: Any) -> None:
    """Set a dotted key that has to exist; a mapping that the files leave empty takes any name."""
    *parents, last = key.split(".")
    known: Any = original
    node = tree
    for depth, part in enumerate([*parents, last]):
        free = known == {}
        if not free and (not isinstance(known, dict) or part not in known or part in INTERNAL):
            raise UserError(_no_setting(original, key))
        known = {} if free else known[part]
        if depth < len(parents):
            node = node.setdefault(part, {})
    if isinstance(value, Mapping) and isinstance(known, dict) and known:
        for name, inner in value.items():
            apply(tree, original, f"{key}.{name}", inner)
    else:
        node[last] = value


def _no_setting(tree: Mapping[str, Any], key: str) -> str:
    """Say that a key does not exist; the nearest is sought among its siblings, then everywhere."""
    everywhere = list(_keys(tree))
    parent, _, last = key.rpartition(".")
    elsewhere = [k for k in everywhere if k.rpartition(".")[2] == last]
    if elsewhere:
        return f"no setting '{key}'. Did you mean '{elsewhere[0]}'?"
    siblings = {k.rpartition(".")[2]: k for k in everywhere if k.rpartition(".")[0] == parent}
    initials = "".join(word[:1] for word in last.split("_"))
    close = [n for n in siblings if n.startswith(last) or n == initials]  # coef, learning_rate
    close = close or difflib.get_close_matches(last, siblings, n=1, cutoff=0.6)
    found = [siblings[n] for n in close] or difflib.get_close_matches(key, everywhere, 1, 0.75)
    if found:
        return f"no setting '{key}'. Did you mean '{found[0]}'?"
    return f"no setting '{key}': `zoo train … --show-config` prints all that this run has."


def _keys(tree: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in tree.items():
        if name in INTERNAL:
            continue
        yield f"{prefix}{name}"
        if isinstance(value, Mapping):
            yield from _keys(value, f"{prefix}{name}.")


def _quote(value: Any) -> str:
    """Write a value in the grammar of overrides."""
    if hasattr(value, "tolist"):  # NumPy's scalars and arrays, tensors
        value = value.tolist()
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{_quote(str(k))}:{_quote(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(_quote(v) for v in value) + "]"
    text = str(value)
    if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_./-]*", text) and text.lower() not in _GRAMMAR_WORDS:
        return text
    # Only backslashes in front of a quote are escapes in this grammar.
    escaped = re.sub(r"(\\*)('|$)", lambda m: m[1] * 2 + ("\\'" if m[2] else ""), text)
    return f"'{escaped}'"
