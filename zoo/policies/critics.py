"""Twin critics: two Q-networks that know nothing of each other, as one stacked module.

Both learn the same targets from other initial weights; the smaller of their values counters the
overestimation that bootstrapping feeds on (Fujimoto et al. 2018, arXiv:1802.09477). A target
network is ``Target(policy.critics, tau)``, called as the module itself.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from zoo.policies.control import MLPKnobs
from zoo.policies.spaces import ObservationEncoder
from zoo.policies.squashing import ActionBounds
from zoo.policies.stacked import Stacked

__all__ = ["TwinActionValues", "TwinCritics", "smaller"]


class TwinCritics(nn.Module):
    """Q₁(s, a) and Q₂(s, a) of continuous actions.

    Actions come in the environment's units and are scaled to [−1, 1] first, so that a wide range
    does not drown the observation.

    Parameters
    ----------
    encoder : ObservationEncoder
        Of the observations.
    bounds : ActionBounds
        Of the actions.
    config : MLPKnobs
        Shape and initialisation; the heads have gain 1 where weights are orthogonal.
    """

    def __init__(self, encoder: ObservationEncoder, bounds: ActionBounds, config: MLPKnobs) -> None:
        super().__init__()
        self.encoder, self.bounds = encoder, bounds
        sizes = [encoder.size + bounds.size, *config.hidden_sizes, 1]
        self.networks = Stacked(2, sizes, config.activation, config.orthogonal, head_gain=1.0)

    def forward(
        self, observation: Tensor, action: Tensor, frozen: bool = False, count: int | None = None
    ) -> Tensor:
        """Value observations [..., *obs] and actions [..., *action shape].

        Parameters
        ----------
        observation, action : Tensor
            With the same leading dimensions.
        frozen : bool
            Treat the weights as constants: the actor's backward pass goes through them to the
            action and computes no gradient of theirs.
        count : int, optional
            1 computes Q₁ only.

        Returns
        -------
        Tensor
            [2, ...] float32, or [count, ...].
        """
        x = torch.cat([self.encoder(observation), self.bounds.scaled(action)], 1)
        value = self.networks(x, frozen, count)
        return value.view(len(value), *action.shape[: action.dim() - len(self.bounds.shape)])


class TwinActionValues(nn.Module):
    """Q₁(s, ·) and Q₂(s, ·) of every discrete action at once.

    Parameters
    ----------
    encoder : ObservationEncoder
        Of the observations.
    actions : int
        A, how many there are.
    config : MLPKnobs
        Shape and initialisation; the heads have gain 1 where weights are orthogonal.
    """

    def __init__(self, encoder: ObservationEncoder, actions: int, config: MLPKnobs) -> None:
        super().__init__()
        self.encoder = encoder
        sizes = [encoder.size, *config.hidden_sizes, actions]
        self.networks = Stacked(2, sizes, config.activation, config.orthogonal, head_gain=1.0)

    def forward(self, observation: Tensor, frozen: bool = False) -> Tensor:
        """Value observations [..., *obs]: [2, ..., A] float32; ``frozen`` as in TwinCritics."""
        leading = observation.shape[: observation.dim() - len(self.encoder.shape)]
        value = self.networks(self.encoder(observation), frozen)
        return value.view(2, *leading, -1)


def smaller(value: Tensor) -> Tensor:
    """Return the elementwise smaller of two critics, [2, ...] → [...]."""
    first, second = value.unbind()
    return torch.minimum(first, second)
