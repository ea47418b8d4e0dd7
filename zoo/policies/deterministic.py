"""The deterministic actor with twin critics: TD3's policy (Fujimoto et al. 2018, arXiv:1802.09477).

    a = middle + half·tanh μ(s)        (per dimension)

Exploration and smoothing noise are in units of ``half``, so one setting means the same for an
action within ±1 as for one within ±1000.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from zoo.policies.acting import ControlActor, Network
from zoo.policies.control import ControlPolicy, MLPKnobs
from zoo.policies.critics import TwinCritics
from zoo.policies.exploration import ActionNoise, NoiseKnobs
from zoo.policies.off_policy_acting import BoxActor, warming_up
from zoo.policies.squashing import ActionBounds
from zoo.policies.stacked import Stacked

if TYPE_CHECKING:
    from tensordict import TensorDict

    from zoo.core.protocols import Evaluation

__all__ = ["DeterministicPolicy"]


class DeterministicPolicy(ControlPolicy):
    """Actor and twin critics for Box actions.

    Parameters
    ----------
    observation_space, action_space : gymnasium.Space
        Of one environment; the actions a Box with finite bounds.
    config : MLPKnobs, optional
        Shape and initialisation.
    noise : NoiseKnobs, optional
        Exploration while training; by default Gaussian noise of deviation .1.
    warmup : int
        Environment steps acted uniformly at random at the start of training.

    Attributes
    ----------
    critics : TwinCritics
        Q₁ and Q₂. A target network copies the whole policy: ``Target(policy, tau).module``.

    Raises
    ------
    UserError
        For spaces that are not supported.
    """

    stochastic = False

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        config: MLPKnobs | None = None,
        *,
        noise: NoiseKnobs | None = None,
        warmup: int = 0,
    ) -> None:
        super().__init__(observation_space, action_space, config)
        self.refuse_shared("TD3")
        self.refuse_sde("TD3, whose noise is algo.noise")
        self.bounds, self.warmup = ActionBounds(action_space, "TD3"), warmup
        k, self.outputs = self.config, self.bounds.size
        sizes = [self.encoder.size, *k.hidden_sizes, self.outputs]
        self.network = Stacked(1, sizes, k.activation, k.orthogonal, head_gain=0.01)
        self.critics = TwinCritics(self.encoder, self.bounds, k)
        self.noise = ActionNoise(noise or NoiseKnobs(), self.outputs)

    # Acting.

    def actor(
        self, num_envs: int, steps: int = 1, rng: np.random.Generator | None = None
    ) -> ControlActor:
        """Return what acts for one fragment; without ``rng`` it adds no noise."""
        return warming_up(BoxActor(self, num_envs, steps, rng), self, (steps, num_envs), rng)

    def numpy_network(self, num_envs: int) -> Network:
        """Return the actor's forward before squashing, from NumPy to NumPy."""
        return self.in_numpy(
            lambda: self.network.numpy()[0], lambda x: self.network(self.encoder(x))[0], num_envs
        )

    def state_dependent(self, num_envs: int, rng: np.random.Generator | None) -> None:
        """No gSDE: there is no deviation that could depend on the state."""

    def uniform(self, rng: np.random.Generator, shape: tuple[int, int]) -> tuple[np.ndarray, float]:
        """Draw actions uniformly within the bounds, and their log-density."""
        return self.bounds.uniform(rng, shape)

    def get_extra_state(self) -> dict[str, Any]:
        """Return what exploration remembers."""
        return self.noise.state_dict()

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Continue from :meth:`get_extra_state`."""
        self.noise.load_state_dict(state)

    # Learning.

    def action(self, observation: Tensor) -> Tensor:
        """Return actions in the environment's units for observations [..., *obs]."""
        y = self.network(self.encoder(observation))[0].tanh()
        return self.bounds.unscaled(y).view(*self.leading(observation), *self.bounds.shape)

    def smoothed_action(self, observation: Tensor, std: float, clip: float) -> Tensor:
        """Return actions with target policy smoothing, by torch's own generator.

        ::

            y = tanh μ(s) + clip(ε, ±clip),  ε ~ N(0, std²);   a = middle + half·clip(y, ±1)

        Parameters
        ----------
        observation : Tensor
            [..., *obs].
        std, clip : float
            In units of half the action's range.

        Returns
        -------
        Tensor
            [..., *action shape], within the bounds.
        """
        y = self.network(self.encoder(observation))[0].tanh()
        noise = (std * torch.randn_like(y)).clamp(-clip, clip)
        smoothed = self.bounds.unscaled((y + noise).clamp(-1, 1))
        return smoothed.view(*self.leading(observation), *self.bounds.shape)

    def q(
        self, observation: Tensor, action: Tensor, frozen: bool = False, count: int | None = None
    ) -> Tensor:
        """Q₁ and Q₂, [2, ...]; see :class:`~zoo.policies.critics.TwinCritics`."""
        value: Tensor = self.critics(observation, action, frozen, count)
        return value

    def evaluate(
        self, batch: TensorDict, reference: DeterministicPolicy | None = None
    ) -> Evaluation:
        """Refuse: a deterministic policy has no log-probabilities."""
        raise TypeError("a deterministic policy has no log-probabilities: use action and q")

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """``policy`` and ``critic``."""
        return {
            "policy": list(self.network.parameters()),
            "critic": list(self.critics.parameters()),
        }
