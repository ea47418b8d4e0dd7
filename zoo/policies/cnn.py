"""A convolutional encoder for image observations (Mnih et al. 2015, Nature 518).

    32 filters 8 × 8, stride 4 → 64 of 4 × 4, stride 2 → 64 of 3 × 3, stride 1, a ReLU after each

It takes the place of the encoder that flattens, so every policy of a control task reads images as
it reads vectors: what follows (512 hidden units in the paper) are the policy's own dense layers.
Images stay as the environment gave them, uint8 for the most part, in rollouts and in replay; they
become float32, divided by 255, in here.

Where actor and critic are moved in turn (SAC, TD3) the encoder is shared and belongs to the critic:
the actor's loss does not reach it (Yarats et al. 2021, arXiv:1910.01741, found that to be stable).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from einops import rearrange
from gymnasium import spaces
from torch import Tensor, nn

from zoo.errors import UserError
from zoo.policies.control import MLPKnobs
from zoo.policies.spaces import stored_dtype

__all__ = ["CNNKnobs", "ConvolutionalEncoder"]

#: images per forward pass without gradients: their activations take 90 KB each
_CHUNK = 256


@dataclass(frozen=True)
class CNNKnobs(MLPKnobs):
    """Shape and initialisation of networks that see images."""

    small: ClassVar[bool] = False

    #: widths of the dense layers behind the convolutions
    hidden_sizes: tuple[int, ...] = (512,)
    #: of the dense layers; convolutions have ReLUs
    activation: Literal["tanh", "relu"] = "relu"
    #: filters, width and stride of each convolution
    convolutions: tuple[tuple[int, int, int], ...] = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
    #: which axis of an image holds its channels; auto takes the shorter one of first and last
    channels: Literal["auto", "first", "last"] = "auto"

    def __post_init__(self) -> None:
        """Refuse what can't be built."""
        super().__post_init__()
        if not self.convolutions or any(n < 1 for layer in self.convolutions for n in layer):
            raise UserError(
                "convolutions must be a list of [filters, width, stride], each 1 or more (got"
                f" {[list(layer) for layer in self.convolutions]})."
            )

    def make_encoder(self, space: spaces.Space[Any]) -> ConvolutionalEncoder:
        """Return what turns observations into the vectors that the dense layers read."""
        return ConvolutionalEncoder(space, self)


class ConvolutionalEncoder(nn.Module):
    """Turn images into vectors by convolutions.

    Parameters
    ----------
    space : Box
        [H, W], [H, W, C] or [C, H, W], each possibly with a stack of frames in front; frames become
        channels. uint8 values are divided by 255, others are taken as they are.
    config : CNNKnobs
        Layers and initialisation.

    Attributes
    ----------
    size : int
        Length of the vector.
    shape : tuple of int
        Shape of one observation.
    dtype : numpy dtype
        How observations are stored.

    Raises
    ------
    UserError
        For spaces that are no image, and images that are smaller than the layers need.

    Examples
    --------
    >>> encoder = ConvolutionalEncoder(spaces.Box(0, 255, (4, 84, 84), np.uint8), CNNKnobs())
    >>> encoder.size, encoder(torch.zeros(2, 3, 4, 84, 84, dtype=torch.uint8)).shape
    (3136, torch.Size([6, 3136]))
    """

    discrete = False

    def __init__(self, space: spaces.Space[Any], config: CNNKnobs) -> None:
        super().__init__()
        if not isinstance(space, spaces.Box) or not 2 <= len(space.shape) <= 4:
            raise UserError(
                f"model=cnn reads images, a Box of [H, W], [H, W, C] or [C, H, W] (got {space}):"
                " leave model= out, or use model=mlp."
            )
        self.shape: tuple[int, ...] = tuple(space.shape)
        self.dtype = stored_dtype(space)
        self.scale = 1 / 255 if self.dtype == np.uint8 else 1.0
        self._pattern, inputs, sides = _layout(self.shape, config.channels)
        layers = []
        for filters, width, stride in config.convolutions:
            layer = nn.Conv2d(inputs, filters, width, stride)
            if config.orthogonal:
                nn.init.orthogonal_(layer.weight, math.sqrt(2))
                nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
            layers.append(layer)
            inputs, sides = filters, [(side - width) // stride + 1 for side in sides]
            if min(sides) < 1:
                raise UserError(
                    f"images of shape {list(self.shape)} are too small for model.convolutions="
                    f"{[list(c) for c in config.convolutions]}: give smaller ones, as in"
                    " model.convolutions=[[32,3,2],[64,3,1]], or use model=mlp."
                )
        self.layers = nn.ModuleList(layers)
        self.size = inputs * math.prod(sides)

    def forward(self, observation: Tensor) -> Tensor:
        """Encode [..., *shape] as [M, size] float32, M the product of the leading dimensions."""
        images = observation.reshape(-1, *self.shape)
        if torch.is_grad_enabled() or len(images) <= _CHUNK:
            return self._encode(images)
        return torch.cat([self._encode(part) for part in images.split(_CHUNK)])

    def _encode(self, images: Tensor) -> Tensor:
        x = rearrange(images, self._pattern).float()
        if self.scale != 1.0:
            x = x * self.scale
        for layer in self.layers:
            x = layer(x).relu()
        return x.flatten(1)

    def numpy(self, observation: np.ndarray) -> np.ndarray:
        """Encode [N, *shape] as [N, size] float32; the parameters are on the CPU."""
        with torch.no_grad():
            encoded: np.ndarray = self(torch.from_numpy(observation)).float().numpy()
        return encoded


def _layout(shape: tuple[int, ...], channels: str) -> tuple[str, int, list[int]]:
    """Return how to bring images [M, *shape] to [M, C, H, W], C, and [H, W]."""
    if len(shape) == 2:
        return "m h w -> m 1 h w", 1, list(shape)
    *stack, a, b, c = shape
    frames, front = (stack[0], "k ") if stack else (1, "")
    first = channels == "first" or (channels == "auto" and a < c)
    axes, number, sides = ("c h w", a, [b, c]) if first else ("h w c", c, [a, b])
    joined = "(k c)" if stack else "c"
    return f"m {front}{axes} -> m {joined} h w", frames * number, sides
