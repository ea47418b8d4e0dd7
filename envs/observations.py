"""What is made of an environment's observations before a policy sees them, by Gymnasium's wrappers.

Images are preprocessed as :class:`PixelKnobs` says; spaces with parts (Dict, Tuple, MultiDiscrete,
MultiBinary) are flattened into one vector.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium
from gymnasium import error, spaces, wrappers

from zoo.core.schema import in_range
from zoo.errors import UserError

__all__ = ["PixelKnobs", "prepared"]

_PARTS = (spaces.Dict, spaces.Tuple, spaces.MultiDiscrete, spaces.MultiBinary)
#: the longest vector that a space with parts is flattened into
_LONGEST = 10_000


@dataclass(frozen=True)
class PixelKnobs:
    """How images are preprocessed; all off unless set."""

    #: the usual preprocessing of Atari games: up to 30 no-ops at the start, every action for 4
    #: frames, the larger of the last two, 84 × 84 in grey (Machado et al. 2018, arXiv:1709.06009)
    atari: bool = False
    #: grey instead of colours
    grayscale: bool = False
    #: height and width that images are resized to
    resize: tuple[int, int] | None = None
    #: how many of the last images are seen together, along a first axis of their own
    stack: int = 1

    def __post_init__(self) -> None:
        """Refuse what shows nothing."""
        in_range(self, "resize", "stack", low=1)


def prepared(env: gymnasium.Env[Any, Any], knobs: PixelKnobs) -> gymnasium.Env[Any, Any]:
    """Wrap an environment; one that needs nothing is returned as it is.

    Raises
    ------
    UserError
        For preprocessing that does not fit the observations, and packages that it needs.
    """
    if knobs != PixelKnobs():
        try:
            env = _preprocessed(env, knobs)
        except error.DependencyNotInstalled as problem:
            raise UserError(
                "env.pixels.resize and env.pixels.atari need OpenCV: `pip install"
                " 'algorithm-zoo[pixels]'`."
            ) from problem
    return _flattened(env) if isinstance(env.observation_space, _PARTS) else env


def _preprocessed(env: gymnasium.Env[Any, Any], knobs: PixelKnobs) -> gymnasium.Env[Any, Any]:
    if knobs.atari:
        if not hasattr(env.unwrapped, "ale"):
            raise UserError(
                "env.pixels.atari=true is for games of the Arcade Learning Environment, as in"
                " env=ALE/Pong-v5: use env.pixels.grayscale, resize and stack for others."
            )
        env = wrappers.AtariPreprocessing(env)
    space = env.observation_space
    if not isinstance(space, spaces.Box) or len(space.shape) not in (2, 3):
        raise UserError(
            f"env.pixels is for images, and this environment shows {space}: leave it out."
        )
    if knobs.grayscale and len(space.shape) == 3:
        env = wrappers.GrayscaleObservation(env)
    if knobs.resize is not None:
        env = wrappers.ResizeObservation(env, knobs.resize)
    return wrappers.FrameStackObservation(env, knobs.stack) if knobs.stack > 1 else env


def _flattened(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    space = env.observation_space
    if not space.is_np_flattenable:
        raise UserError(
            f"observations of {space} have no fixed length, which networks need: turn them into a"
            " Box with a gymnasium.ObservationWrapper."
        )
    size = spaces.flatdim(space)
    if size > _LONGEST:
        raise UserError(
            f"observations of {space} would be flattened into {size:,} numbers: keep the parts that"
            " matter with gymnasium.wrappers.FilterObservation, or the image alone with a"
            " gymnasium.ObservationWrapper."
        )
    return wrappers.FlattenObservation(env)
