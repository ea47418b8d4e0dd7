"""Whether an environment shows images, which decides what network reads its observations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from zoo.core.schema import conform

__all__ = ["configured", "shows_images"]


def shows_images(make: Callable[[], Any]) -> bool:
    """Make an environment and look at its observation space.

    An environment that can't be made shows nothing: what is wrong with it is said where it is made
    for the run.
    """
    from zoo.policies.spaces import is_image

    try:
        env = make()
    except Exception:
        return False
    try:
        return is_image(env.observation_space)
    finally:
        env.close()


def configured(
    target: Any,
    named: Mapping[str, Any],
    values: Sequence[tuple[str, Any]],
    own: Callable[..., Any] | None = None,
) -> Callable[[], Any]:
    """Return what makes the environment of a ``_target_`` with the overrides of its group.

    Parameters
    ----------
    target : type
        Its settings are the dataclass ``Knobs``.
    named : dict
        What the environment's name sets.
    values : sequence of (str, object)
        All overrides; those of ``env.`` are read.
    own : callable, optional
        Makes the environment instead.

    Raises
    ------
    UserError
        For overrides that don't fit.
    """
    tree: dict[str, Any] = dict(named)
    for key, value in values:
        group, *path = key.split(".")
        if group == "env" and path:
            node = tree
            for part in path[:-1]:
                node = node.setdefault(part, {})
            node[path[-1]] = value
    settings = vars(conform(tree, target.Knobs, "env"))
    made: Callable[[], Any] = target(
        **settings if own is None else {**settings, "id": "own", "make": own}
    )
    return made
