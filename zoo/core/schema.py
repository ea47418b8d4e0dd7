"""Check plain values against a dataclass, and say what is wrong in the user's words.

The knobs of an algorithm are a frozen dataclass with real type hints. :func:`conform` builds it
from the plain tree that YAML and overrides give, and refuses what does not fit, naming the key.
"""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
from collections.abc import Mapping
from typing import Any

from zoo.errors import UserError, nearest

__all__ = ["conform", "defaults", "in_range", "like_default", "plain"]


def defaults(schema: type) -> dict[str, Any]:
    """Return a dataclass's defaults as a plain tree; a field without a default is left out."""
    tree: dict[str, Any] = {}
    for field in dataclasses.fields(schema):
        if field.default is not dataclasses.MISSING:
            tree[field.name] = plain(field.default)
        elif field.default_factory is not dataclasses.MISSING:
            tree[field.name] = plain(field.default_factory())
    return tree


def plain(value: Any) -> Any:
    """Turn dataclasses, tuples and mappings into what YAML holds; other values pass as they are."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return value


def conform(value: Any, hint: Any, key: str) -> Any:
    """Return ``value`` as the type that ``hint`` names; whole numbers serve as floats.

    Parameters
    ----------
    value : object
        From YAML or an override: plain scalars, lists and dicts.
    hint : type or typing construct
        A dataclass, ``Literal``, union, ``list``, ``tuple``, ``dict`` or a scalar type.
    key : str
        The dotted name for messages.

    Raises
    ------
    UserError
        Where the value does not fit.
    """
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any or hint is object:
        return value
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return _dataclass(value, hint, key)
    if origin is typing.Literal:
        if value in arguments:
            return value
        names = [str(a) for a in arguments]
        raise UserError(
            f"{key}={_show(value)} is not one of {', '.join(names)}.{nearest(str(value), names)}"
        )
    if origin in (typing.Union, types.UnionType):
        return _union(value, arguments, hint, key)
    if origin in (list, tuple) and isinstance(value, list | tuple):
        return _sequence(value, origin, arguments, key)
    if origin in (dict, Mapping) or hint is dict:
        if isinstance(value, Mapping):
            inner = arguments[1] if len(arguments) == 2 else Any
            return {k: conform(v, inner, f"{key}.{k}") for k, v in value.items()}
    elif hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    elif hint is int and isinstance(value, float) and value.is_integer():
        return int(value)  # 1e6 is how people write a million
    elif isinstance(hint, type) and type(value) is hint:  # True is no 1 here
        return value
    raise UserError(f"{key} takes {_name(hint)}, not {_show(value)}.")


def like_default(value: Any, default: Any, key: str) -> Any:
    """Return a value as the kind that a YAML default has; a null default takes anything."""
    if default is None or value is None:
        return value
    if isinstance(default, Mapping):
        if not isinstance(value, Mapping):
            raise UserError(f"{key} is a group of settings; set one of them, not {_show(value)}.")
        return {k: like_default(v, default.get(k), f"{key}.{k}") for k, v in value.items()}
    if isinstance(default, list):
        if not isinstance(value, list):
            raise UserError(f"{key} takes a list, not {_show(value)}.")
        return value
    return conform(value, type(default), key)


def in_range(
    settings: Any,
    *names: str,
    low: float,
    high: float = math.inf,
    above: bool = False,
    below: bool = False,
) -> None:
    """Refuse numbers of a dataclass outside [low, high], in its ``__post_init__``.

    Parameters
    ----------
    settings : dataclass
        ``PPOKnobs`` is called PPO in the message.
    names : str
        Its fields. None passes, of a tuple every member is checked; NaN and infinity never pass.
    low, high : float
        The bounds.
    above, below : bool
        Whether ``low``, or ``high``, is itself outside.

    Raises
    ------
    UserError
        For the first number outside.
    """
    for name in names:
        value = getattr(settings, name)
        for number in value if isinstance(value, tuple) else (value,):
            if number is None:
                continue
            over = number > low if above else number >= low
            under = number < high if below or high == math.inf else number <= high
            if not (over and under):
                span = f"{name} {'>' if above else '≥'} {low:g}"
                if high != math.inf:
                    signs = ("<" if above else "≤", "<" if below else "≤")
                    span = f"{low:g} {signs[0]} {name} {signs[1]} {high:g}"
                who = type(settings).__name__
                who = who.removesuffix("Knobs").removesuffix("Settings") or who
                raise UserError(f"{who} needs {span} (got {number}).")


def _dataclass(value: Any, schema: type, key: str) -> Any:
    if isinstance(value, schema):
        return value
    hints = typing.get_type_hints(schema)
    names = [f.name for f in dataclasses.fields(schema)]
    if not isinstance(value, Mapping):
        raise UserError(
            f"{key} is a group of settings ({', '.join(names)}); set one of them, as in"
            f" {key}.{names[0]}=…, not {_show(value)}."
        )
    for name in value:
        if name not in names:
            raise UserError(f"no setting '{_join(key, name)}'.{nearest(str(name), names)}")
    return schema(**{n: conform(v, hints[n], _join(key, n)) for n, v in value.items()})


def _join(key: str, name: object) -> str:
    return f"{key}.{name}" if key else str(name)


def _union(value: Any, arguments: tuple[Any, ...], hint: Any, key: str) -> Any:
    if value is None and type(None) in arguments:
        return None
    members = [a for a in arguments if a is not type(None)]
    # An exact match first, so that 1 stays a whole number where both int and float are allowed.
    for member in sorted(members, key=lambda m: not (isinstance(m, type) and type(value) is m)):
        if dataclasses.is_dataclass(member) and isinstance(value, Mapping):
            return conform(value, member, key)
        try:
            return conform(value, member, key)
        except UserError:
            continue
    if len(members) == 1:
        return conform(value, members[0], key)
    raise UserError(f"{key} takes {_name(hint)}, not {_show(value)}.")


def _sequence(value: Any, origin: Any, arguments: tuple[Any, ...], key: str) -> Any:
    if origin is tuple and Ellipsis not in arguments and arguments:
        if len(value) != len(arguments):
            raise UserError(f"{key} takes {len(arguments)} values, not {len(value)}.")
        return tuple(conform(v, a, f"{key}[{i}]") for i, (v, a) in enumerate(zip(value, arguments)))
    inner = arguments[0] if arguments else Any
    return origin(conform(v, inner, f"{key}[{i}]") for i, v in enumerate(value))


def _name(hint: Any) -> str:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    words = {
        int: "a whole number",
        float: "a number",
        bool: "true or false",
        str: "a text",
        type(None): "null",
        dict: "a mapping",
    }
    if hint in words:
        return words[hint]
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_name(a) for a in arguments)
    if origin is typing.Literal:
        return " or ".join(repr(a) for a in arguments)
    if origin in (list, tuple):
        return "a list"
    if origin is dict:
        return "a mapping"
    return "a group of settings" if dataclasses.is_dataclass(hint) else str(hint)


def _show(value: Any) -> str:
    if isinstance(value, str):
        return f"'{value}'"
    return json.dumps(value, default=str)
