"""Control tasks: any environment that Gymnasium knows by its id, or a function that makes one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import gymnasium
from gymnasium import error

from zoo.core.schema import in_range
from zoo.envs.observations import PixelKnobs, prepared
from zoo.errors import UserError, nearest

__all__ = ["ControlEnv", "ControlKnobs"]

#: what to install for the environments that need more than Gymnasium itself
_EXTRAS = {"box2d": "box2d", "mujoco": "mujoco", "toy_text": "toy-text", "ale_py": "atari"}


@dataclass(frozen=True)
class ControlKnobs:
    """Which environment it is."""

    #: a Gymnasium id; of a function given to the Python API, its name
    id: str | None = None
    #: another time limit than the registered one
    max_episode_steps: int | None = None
    #: further keyword arguments of gymnasium.make, as in env.options.gravity=3
    options: dict[str, Any] = field(default_factory=dict)
    #: preprocessing of image observations
    pixels: PixelKnobs = field(default_factory=PixelKnobs)

    def __post_init__(self) -> None:
        """Refuse episodes without a step."""
        in_range(self, "max_episode_steps", low=1)


@dataclass(frozen=True)
class ControlEnv:
    """Make one environment each time it is called.

    Parameters
    ----------
    id : str
        A Gymnasium id, ``CartPole-v1``; with its module in front where that registers it,
        ``my_package:MyEnv-v0``.
    make : callable, optional
        Makes the environment instead; ``id`` is then only its name.
    max_episode_steps : int, optional
        Another time limit than the registered one.
    options : dict
        Further keyword arguments of :func:`gymnasium.make`.
    pixels : PixelKnobs
        Preprocessing of image observations.

    Raises
    ------
    UserError
        When called, for an unknown id (naming the nearest known one) and for packages that are
        missing.

    Examples
    --------
    >>> ControlEnv("CartPole-v1")().action_space
    Discrete(2)
    """

    Knobs: ClassVar[type] = ControlKnobs

    id: str
    make: Callable[..., gymnasium.Env[Any, Any]] | None = None
    max_episode_steps: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    pixels: PixelKnobs = field(default_factory=PixelKnobs)

    def __post_init__(self) -> None:
        """Refuse what names no environment."""
        if not self.id:
            raise UserError("env.id is empty: give a Gymnasium id, as in env=CartPole-v1.")
        ControlKnobs(self.id, self.max_episode_steps)

    def __call__(self, render_mode: str | None = None) -> gymnasium.Env[Any, Any]:
        """Make an environment."""
        options: dict[str, Any] = dict(self.options)
        if render_mode is not None:
            options["render_mode"] = render_mode
        if self.make is not None:
            env = self.make(**options)
            if self.max_episode_steps is not None:
                env = gymnasium.wrappers.TimeLimit(env, self.max_episode_steps)
        else:
            if self.pixels.atari:
                options.setdefault("frameskip", 1)  # its wrapper skips frames itself
            env = _registered(self.id, self.max_episode_steps, options)
        return prepared(env, self.pixels)


def _registered(
    name: str, max_episode_steps: int | None, options: Mapping[str, Any]
) -> gymnasium.Env[Any, Any]:
    try:
        # The passive checker repeats its checks at every step; spaces and values are checked here.
        return gymnasium.make(
            name, max_episode_steps=max_episode_steps, disable_env_checker=True, **options
        )
    except (error.NameNotFound, error.NamespaceNotFound, error.VersionNotFound) as problem:
        raise UserError(f"Gymnasium knows no environment '{name}'.{_nearest(name)}") from problem
    except error.DeprecatedEnv as problem:
        raise UserError(f"'{name}' is an old version that is gone.{_nearest(name)}") from problem
    except (error.DependencyNotInstalled, ImportError) as problem:
        raise UserError(f"'{name}' needs a package: {_missing(name, problem)}") from problem
    except TypeError as problem:
        if not options or "unexpected keyword argument" not in str(problem):
            raise
        reason = str(problem).split(" was raised from")[0]
        raise UserError(f"'{name}' refuses env.options={dict(options)}: {reason}.") from problem


def _nearest(name: str) -> str:
    """Prefer the newest version of the same name, then the most similar id."""
    if "/" in name:
        return " Ids with a '/' need their package's module in front: env='package:Name/Env-v0'."
    base = name.rpartition("-v")[0] or name
    same = [spec for spec in gymnasium.registry.values() if spec.name.lower() == base.lower()]
    if same:
        newest = max(same, key=lambda spec: spec.version or 0)
        return f" Did you mean '{newest.id}'?"
    return nearest(name, gymnasium.registry)


def _missing(name: str, problem: Exception) -> str:
    spec = gymnasium.registry.get(name)
    where = str(spec.entry_point) if spec is not None else ""
    extra = next((extra for part, extra in _EXTRAS.items() if part in where), None)
    if extra is not None:
        return f"pip install 'gymnasium[{extra}]'."
    return f"{str(problem).splitlines()[0]}{_nearest(name)}"
