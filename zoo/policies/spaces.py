"""Which Gymnasium spaces the networks understand, and how an observation becomes a vector."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from zoo.errors import UserError

__all__ = ["ObservationEncoder", "is_image", "refuse_pixels", "require_supported", "stored_dtype"]

#: the smallest side of an image that Mnih et al.'s convolutions fit on
_IMAGE_SIDE = 36
#: the most values of an image that a dense layer is given
_MOST_PIXELS = 10_000


def require_supported(
    observation_space: spaces.Space[Any],
    action_space: spaces.Space[Any],
    several_choices: bool = True,
) -> None:
    """Refuse spaces that the networks don't understand.

    Parameters
    ----------
    observation_space, action_space : gymnasium.Space
        Of one environment.
    several_choices : bool
        Whether an action may be several choices at once.

    Raises
    ------
    UserError
        For observations that have not been flattened, Box actions of whole numbers, and actions of
        spaces without a distribution over them.
    """
    if not isinstance(observation_space, spaces.Box | spaces.Discrete):
        raise UserError(
            f"observations must be a Box or Discrete (got {observation_space}): flatten them with"
            " gymnasium.wrappers.FlattenObservation."
        )
    space = action_space
    if isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary):
        if not several_choices:
            raise UserError(
                f"actions of several choices at once ({space}) are for algo=ppo and algo=grpo, of"
                " which each choice has a distribution of its own: use these, or map the actions"
                " onto one Discrete with a gymnasium.ActionWrapper."
            )
    elif isinstance(space, spaces.Box) and not np.issubdtype(space.dtype, np.floating):
        raise UserError(
            f"actions of whole numbers in a Box ({space}) have no distribution here: declare them"
            " MultiDiscrete, or wrap the environment in a gymnasium.ActionWrapper."
        )
    elif not isinstance(space, spaces.Box | spaces.Discrete):
        raise UserError(
            f"actions must be Discrete, MultiDiscrete, MultiBinary or a floating-point Box (got"
            f" {space}): make one of these of them with a gymnasium.ActionWrapper."
        )


def is_image(space: spaces.Space[Any]) -> bool:
    """Say whether observations are images to be seen by convolutions: uint8, from 36 × 36 on."""
    if not isinstance(space, spaces.Box) or space.dtype != np.uint8:
        return False
    return 2 <= len(space.shape) <= 4 and sorted(space.shape)[-2] >= _IMAGE_SIDE


def refuse_pixels(space: spaces.Space[Any]) -> None:
    """Refuse images that would make the first dense layer the whole network.

    Raises
    ------
    UserError
        For images of more than 10,000 values.
    """
    size = int(np.prod(space.shape or (), dtype=int))
    if isinstance(space, spaces.Box) and len(space.shape) > 1 and size > _MOST_PIXELS:
        raise UserError(
            f"observations of shape {list(space.shape)} would be {size:,} inputs of a multi-layer"
            " perceptron: use model=cnn, or smaller images with env.pixels.grayscale=true"
            " env.pixels.resize=[84,84]."
        )


def stored_dtype(space: spaces.Space[Any]) -> np.dtype[Any]:
    """Return the type that observations are kept in: float32, or their own if whole numbers."""
    floating = np.issubdtype(space.dtype, np.floating)
    return np.dtype(np.float32) if floating else np.dtype(space.dtype)


class ObservationEncoder:
    """Turn observations into the float32 vectors that a network reads.

    A Discrete observation becomes one-hot, uint8 values are divided by 255, other Box values are
    taken as they are; all are flattened.

    Parameters
    ----------
    space : Box or Discrete
        The space of one observation.

    Attributes
    ----------
    size : int
        Length of the vector.
    shape : tuple of int
        Shape of one observation.
    dtype : numpy dtype
        How observations are stored: float32, or the space's own type where that is whole numbers.
    """

    def __init__(self, space: spaces.Box | spaces.Discrete) -> None:
        self.shape: tuple[int, ...] = tuple(space.shape or ())
        self.discrete = isinstance(space, spaces.Discrete)
        self.start = int(space.start) if isinstance(space, spaces.Discrete) else 0
        self.size = (
            int(space.n)
            if isinstance(space, spaces.Discrete)
            else int(np.prod(self.shape, dtype=int))
        )
        self.dtype = stored_dtype(space)
        self.scale = 1 / 255 if self.dtype == np.uint8 else None
        self._plain = np.issubdtype(space.dtype, np.floating) and len(self.shape) == 1

    def numpy(self, observation: np.ndarray) -> np.ndarray:
        """Encode [N, *shape] as [N, size] float32; no copy where it is that already."""
        if self._plain:
            return observation
        if self.discrete:
            encoded = np.zeros((len(observation), self.size), np.float32)
            encoded[np.arange(len(observation)), observation - self.start] = 1.0
            return encoded
        flat = observation.reshape(len(observation), self.size).astype(np.float32)
        return flat if self.scale is None else flat * np.float32(self.scale)

    def __call__(self, observation: Tensor) -> Tensor:
        """Encode [..., *shape] as [M, size] float32, M the product of the leading dimensions."""
        if self._plain:
            return observation.reshape(-1, self.size)
        if self.discrete:
            index = observation.reshape(-1).long() - self.start
            return torch.nn.functional.one_hot(index, self.size).float()
        flat = observation.reshape(-1, self.size).float()
        return flat if self.scale is None else flat * self.scale
