"""A reward item: a function, its name and its weight; and reading a list of them."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import inspect
import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from zoo.core.protocols import Completion, Prompt, Turn
from zoo.envs.rewards.builtin import BUILTIN, accuracy, overlong, score
from zoo.envs.rewards.model import RewardModel
from zoo.errors import UserError, nearest

__all__ = ["RewardItem", "read_rewards"]

#: What a reward function may ask for by the names of its parameters: one completion at a time…
SINGLE = (
    "completion",
    "answer",
    "question",
    "prompt",
    "token_ids",
    "finished",
    "metadata",
    "turns",
)
#: … or all of them at once, as lists of equal length.
BATCH = (
    "completions",
    "answers",
    "questions",
    "prompts",
    "token_ids",
    "finished",
    "metadata",
    "turns",
)

#: The name of a reward model, which is made from its options …
REWARD_MODEL = "reward_model"
#: … and scores a whole batch within so many seconds, if nothing else is said.
MODEL_TIMEOUT_S = 600.0

_FIELDS = ("name", "function", "weight", "timeout_s", "batch")


@dataclass(frozen=True)
class RewardItem:
    """One named reward.

    Attributes
    ----------
    name : str
        Under this name it is logged.
    function : callable
        Called with keyword arguments, those it names in its signature. One completion at a time:
        ``completion`` (str), ``answer`` (str), ``question`` (str), ``prompt``
        (:class:`~zoo.core.protocols.Prompt`), ``token_ids`` (list of int), ``finished`` (bool: it
        ended on a stop token), ``metadata`` (dict) and ``turns`` (list of
        :class:`~zoo.core.protocols.Turn`, both sides of a dialogue; a single one elsewhere);
        returns a float. Or, where it names
        ``completions``, ``answers``, ``questions`` or ``prompts``, all at once as lists; returns
        one float each. ``**kwargs`` receives everything.
    weight : float
        Factor in the total. With 0 the item is only logged.
    timeout_s : float
        Seconds of wall-clock time that one call may take, above 0.
    batch : bool, optional
        Whether it takes all completions at once; None reads it from the signature.
    options : mapping
        Further keyword arguments of the function.

    Raises
    ------
    UserError
        For a value that makes no sense or a function that asks for something unknown.
    """

    name: str
    function: Callable[..., Any]
    weight: float = 1.0
    timeout_s: float = 5.0
    batch: bool | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    #: Names of the arguments that it is called with; filled in from the signature.
    arguments: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not re.fullmatch(r"[A-Za-z_][\w.-]*", self.name):
            raise UserError(
                f"a reward's name must be a word of letters, digits, '_', '-' and '.'"
                f" (got {self.name!r}): name it with RewardItem('my_name', function)"
            )
        where = f"reward '{self.name}'"
        if not callable(self.function):
            raise UserError(f"{where}: function must be callable (got {self.function!r})")
        object.__setattr__(self, "weight", _number(where, "weight", self.weight))
        object.__setattr__(self, "timeout_s", _number(where, "timeout_s", self.timeout_s))
        if self.timeout_s <= 0:
            raise UserError(f"{where}: timeout_s must be above 0 seconds (got {self.timeout_s:g})")
        batch, arguments = _arguments(where, self.function, self.batch, self.options)
        object.__setattr__(self, "batch", batch)
        object.__setattr__(self, "arguments", arguments)
        _check_options(where, self.function, self.options)

    @property
    def builtin(self) -> bool:
        """Whether it comes with the library, and so is bounded and runs in this process."""
        return self.function in BUILTIN.values()

    @property
    def graded(self) -> tuple[Literal["accuracy", "score"], Literal["strict", "lenient"]] | None:
        """Which of the environment's own grades this item pays, None for any other item."""
        if self.function is not accuracy and self.function is not score:
            return None
        which = "lenient" if self.options.get("grade") == "lenient" else "strict"
        return ("accuracy" if self.function is accuracy else "score"), which  # type: ignore[return-value]

    def calls(
        self, prompts: Sequence[Prompt], completions: Sequence[Completion]
    ) -> list[dict[str, Any]]:
        """Return the keyword arguments of every call: one for each completion, or one for all."""
        if not self.batch:
            return [
                {**self.options, **_pick(self.arguments, _single(prompt, completion))}
                for prompt, completion in zip(prompts, completions, strict=True)
            ]
        rows = [_single(p, c) for p, c in zip(prompts, completions, strict=True)]
        singular = dict(zip(BATCH, SINGLE, strict=True))
        columns = {name: [row[singular[name]] for row in rows] for name in self.arguments}
        return [{**self.options, **columns}] if rows else []


def read_rewards(specs: Any) -> list[RewardItem]:
    """Return the reward items that a user's list describes.

    Parameters
    ----------
    specs
        A list of any of: a name of a built-in item (``"accuracy"``); an import path
        (``"my_module.my_reward"``, ``"rewards.py:my_reward"``); a function; a
        :class:`RewardItem`; a mapping with ``name`` or ``function``, and ``weight``,
        ``timeout_s``, ``batch`` or the function's own options. Or one mapping from name to weight
        (or to such a mapping): ``{"accuracy": 1, "format": 0.1}``. None means accuracy alone.

    Raises
    ------
    UserError
        An unknown name, two items of one name, or an item that makes no sense.
    """
    if specs is None:
        specs = ["accuracy"]
    if isinstance(specs, Mapping) and not {"name", "function"} & set(specs):
        specs = [_named(str(name), entry) for name, entry in specs.items() if entry is not None]
    elif isinstance(specs, (str, Mapping, RewardItem)) or callable(specs):
        specs = [specs]
    if not isinstance(specs, Iterable):
        raise UserError(f"rewards must be a list of reward items (got {specs!r})")
    items = [_read(spec) for spec in specs]
    names = [item.name for item in items]
    for name in names:
        if names.count(name) > 1:
            raise UserError(
                f"two rewards are named '{name}': give one of them another name,"
                f" RewardItem('{name}_2', function)"
            )
    if not any(item.weight for item in items):
        raise UserError("no reward has a weight other than 0: there is nothing to train on")
    return items


def _named(name: str, entry: Any) -> Any:
    if isinstance(entry, Mapping):
        return {"name": name, **entry}
    return {"name": name, "weight": entry}


def _read(spec: Any) -> RewardItem:
    if isinstance(spec, RewardItem):
        return spec
    if isinstance(spec, RewardModel):
        return _item(REWARD_MODEL, spec, timeout_s=MODEL_TIMEOUT_S)
    if isinstance(spec, str):
        name, function = _find(spec)
        return _item(name, _reward_model({}) if function is RewardModel else function)
    if isinstance(spec, Mapping):
        return _read_mapping(spec)
    if callable(spec):
        return _item(_name_of(spec), spec)
    raise UserError(
        f"a reward is a name, a function, a RewardItem or a mapping with 'name' (got {spec!r})"
    )


def _read_mapping(spec: Mapping[str, Any]) -> RewardItem:
    given = {str(key): value for key, value in spec.items()}
    function = given.get("function", given.get("name"))
    if function is None:
        raise UserError(f"a reward needs a 'name' or a 'function' (got {given})")
    if isinstance(function, str):
        name, function = _find(function)
    elif callable(function):
        name = _name_of(function)
    else:
        raise UserError(f"a reward's function must be callable (got {function!r})")
    options = {key: value for key, value in given.items() if key not in _FIELDS}
    if function is RewardModel:
        given.setdefault("timeout_s", MODEL_TIMEOUT_S)
        function, options = _reward_model(options), {}
    settings = {key: given[key] for key in ("weight", "timeout_s", "batch") if key in given}
    return _item(given.get("name") or name, function, options=options, **settings)


def _reward_model(options: dict[str, Any]) -> RewardModel:
    known = [field.name for field in dataclasses.fields(RewardModel)]
    for name in options:
        if name not in known:
            raise UserError(f"reward_model has no option '{name}'.{nearest(name, known)}")
    if "path" not in options:
        raise UserError("reward_model needs a path: a folder, or OWNER/NAME on the hub")
    return RewardModel(**options)


def _item(name: Any, function: Callable[..., Any], **settings: Any) -> RewardItem:
    return RewardItem(name, function, **settings)


def _name_of(function: Callable[..., Any]) -> str:
    inner = function
    while hasattr(inner, "func"):  # functools.partial
        inner = inner.func
    return str(getattr(inner, "__name__", type(inner).__name__))


def _find(path: str) -> tuple[str, Callable[..., Any]]:
    """Return the name and the function that a built-in name or an import path stands for."""
    if path in BUILTIN:
        return path, BUILTIN[path]
    if path == REWARD_MODEL:
        return path, RewardModel
    module_path, colon, name = path.rpartition(":")
    if not colon:
        module_path, _, name = path.rpartition(".")
    if not module_path:
        names = [*BUILTIN, REWARD_MODEL]
        raise UserError(
            f"no reward is named '{path}': choose from {', '.join(names)}, or give the import"
            f" path of a function (my_module.my_reward).{nearest(path, names)}"
        )
    module = _module(path, module_path)
    function = getattr(module, name, None)
    if not callable(function):
        choices = [n for n, value in vars(module).items() if callable(value)]
        raise UserError(
            f"reward '{path}': {module_path} holds no function '{name}'.{nearest(name, choices)}"
        )
    return name, function


def _module(path: str, module_path: str) -> ModuleType:
    try:
        if module_path.endswith(".py"):
            return _module_from_file(module_path)
        if os.getcwd() not in sys.path:  # the zoo command does not start with it
            sys.path.append(os.getcwd())
        return importlib.import_module(module_path)
    except Exception as error:  # whatever the user's module does on import
        missing = isinstance(error, ModuleNotFoundError) and module_path.startswith(str(error.name))
        looked = f" (looked for in {os.getcwd()} and on Python's path)" if missing else ""
        raise UserError(
            f"reward '{path}': {module_path} cannot be imported: {type(error).__name__}:"
            f" {error}{looked}"
        ) from error


def _module_from_file(file: str) -> ModuleType:
    import cloudpickle

    spec = importlib.util.spec_from_file_location(Path(file).stem, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(spec.name, module)
    spec.loader.exec_module(module)
    # Its process could not import it by name.
    cloudpickle.register_pickle_by_value(module)
    return module


def _number(where: str, what: str, value: Any) -> float:
    try:
        number = math.nan if isinstance(value, (bool, str)) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise UserError(f"{where}: {what} must be a finite number (got {value!r})")
    return number


def _arguments(
    where: str, function: Callable[..., Any], batch: bool | None, options: Mapping[str, Any]
) -> tuple[bool, tuple[str, ...]]:
    """Return whether a function takes whole batches, and which arguments it asks for."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError) as error:
        raise UserError(
            f"{where}: the signature of {function!r} cannot be read: wrap it in a def"
        ) from error
    names = [p.name for p in parameters]
    if batch is None:
        batch = any(name in BATCH and name not in SINGLE for name in names)
    known = BATCH if batch else SINGLE
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return batch, tuple(name for name in known if name not in options)
    for parameter in parameters:
        needed = parameter.default is parameter.empty and parameter.name not in options
        if parameter.kind is parameter.VAR_POSITIONAL or not needed:
            continue
        if parameter.kind is parameter.POSITIONAL_ONLY or parameter.name not in known:
            if function is overlong and parameter.name in ("limit", "cache"):
                raise UserError(f"{where} needs the option '{parameter.name}', in tokens")
            raise UserError(
                f"{where}: the function asks for '{parameter.name}', which is not known: it may ask"
                f" for {', '.join(known)}.{nearest(parameter.name, known)}"
            )
    return batch, tuple(name for name in known if name in names and name not in options)


def _check_options(where: str, function: Callable[..., Any], options: Mapping[str, Any]) -> None:
    parameters = inspect.signature(function).parameters
    if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        for name in options:
            if name not in parameters:
                choices = [*_FIELDS, *(p for p in parameters if p not in SINGLE + BATCH)]
                raise UserError(f"{where} has no option '{name}'.{nearest(name, choices)}")
    if function not in BUILTIN.values():
        return
    for name, value in options.items():
        if name == "grade":
            if value not in ("strict", "lenient"):
                raise UserError(f"{where}: grade must be 'strict' or 'lenient' (got {value!r})")
        elif isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise UserError(f"{where}: {name} must be a whole number of tokens ≥ 1 (got {value!r})")
    if function is overlong and options["cache"] > options["limit"]:
        raise UserError(
            f"{where}: cache ({options['cache']}) must not exceed limit ({options['limit']})"
        )


def _single(prompt: Prompt, completion: Completion) -> dict[str, Any]:
    return {
        "completion": completion.text,
        "answer": prompt.answer,
        "question": prompt.question,
        "prompt": prompt,
        "token_ids": list(completion.token_ids),
        "finished": completion.finished,
        "metadata": prompt.metadata,
        "turns": list(completion.turns) or [_only_turn(completion)],
    }


def _only_turn(completion: Completion) -> Turn:
    return Turn("assistant", completion.text, list(completion.token_ids))


def _pick(names: Iterable[str], values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: values[name] for name in names}
