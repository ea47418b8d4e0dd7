"""The Q-network: DQN's policy on discrete actions, with dueling streams where wanted.

    Q(s, a) = V(s) + A(s, a) − mean_a' A(s, a')        (Wang et al. 2016, arXiv:1511.06581, eq. 9)

The streams share all hidden layers but the last, of which each has one of its own.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from zoo.core.protocols import Evaluation
from zoo.errors import UserError
from zoo.functional import divergence
from zoo.policies.acting import ControlActor, Network
from zoo.policies.control import ControlPolicy, MLPKnobs
from zoo.policies.exploration import ExplorationKnobs, make_exploration
from zoo.policies.off_policy_acting import ValueActor, warming_up
from zoo.policies.spaces import ObservationEncoder
from zoo.policies.stacked import Stacked

if TYPE_CHECKING:
    from tensordict import TensorDict

__all__ = ["QNetwork", "QNetworkPolicy"]


class QNetwork(nn.Module):
    """Q(s, ·) of every discrete action at once.

    Parameters
    ----------
    encoder : ObservationEncoder
        Of the observations.
    actions : int
        A, how many there are.
    config : MLPKnobs
        Shape and initialisation; heads have gain 1 where weights are orthogonal.
    dueling : bool
        Whether values and advantages are streams of their own.
    """

    def __init__(
        self, encoder: ObservationEncoder, actions: int, config: MLPKnobs, dueling: bool = False
    ) -> None:
        super().__init__()
        self.encoder, self.dueling, self.actions = encoder, dueling, actions
        k, sizes = config, [encoder.size, *config.hidden_sizes]
        branch = sizes[-2:] if dueling else sizes
        if dueling and len(sizes) > 2:
            self.trunk = Stacked(1, sizes[:-1], k.activation, k.orthogonal, activate_last=True)
        self.advantage = Stacked(1, [*branch, actions], k.activation, k.orthogonal, head_gain=1.0)
        if dueling:
            self.value = Stacked(1, [*branch, 1], k.activation, k.orthogonal, head_gain=1.0)

    def forward(self, observation: Tensor) -> Tensor:
        """Value observations [..., *obs]: [..., A] float32."""
        x = self.encoder(observation)
        leading = observation.shape[: observation.dim() - len(self.encoder.shape)]
        if not self.dueling:
            return self.advantage(x).view(*leading, self.actions)
        if hasattr(self, "trunk"):
            x = self.trunk(x)[0]
        advantage = self.advantage(x)[0]
        q = self.value(x)[0] + advantage - advantage.mean(-1, keepdim=True)
        return q.view(*leading, self.actions)

    def preference_layers(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return (weight, bias) in NumPy of layers whose outputs differ from Q by a term without a.

        They say which action is best, and how much better, without the stream of V.
        """
        trunk = self.trunk.numpy()[0] if hasattr(self, "trunk") else []
        return [*trunk, *self.advantage.numpy()[0]]


class QNetworkPolicy(ControlPolicy):
    """A Q-network that acts by its values.

    Parameters
    ----------
    observation_space, action_space : gymnasium.Space
        Of one environment; the actions Discrete.
    config : MLPKnobs, optional
        Shape and initialisation.
    dueling : bool
        Whether values and advantages are streams of their own.
    exploration : ExplorationKnobs, optional
        How it explores while training; by default ε-greedily.
    warmup : int
        Environment steps acted uniformly at random at the start of training.

    Attributes
    ----------
    network : QNetwork
        The module that a target network copies.
    stochastic : bool
        Whether it has an action distribution, softmax(Q/temperature): Boltzmann and Gumbel-max.

    Raises
    ------
    UserError
        For spaces that are not supported.
    """

    has_critic = False

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        config: MLPKnobs | None = None,
        *,
        dueling: bool = False,
        exploration: ExplorationKnobs | None = None,
        warmup: int = 0,
    ) -> None:
        super().__init__(observation_space, action_space, config)
        self.refuse_shared("DQN")
        self.refuse_sde("DQN")
        if not isinstance(action_space, spaces.Discrete):
            raise UserError(
                f"DQN values every action by itself, so it needs Discrete ones (got"
                f" {action_space}): use algo=sac or algo=td3."
            )
        assert isinstance(observation_space, spaces.Box | spaces.Discrete)
        self.action_start, self.actions = int(action_space.start), int(action_space.n)
        self.warmup = warmup
        self.network = QNetwork(self.encoder, self.actions, self.config, dueling)
        seen = observation_space
        if self.normalizer is not None:  # what is normalised has left the bounds of its space
            seen = spaces.Box(-np.inf, np.inf, self.encoder.shape)
        self.exploration = make_exploration(exploration or ExplorationKnobs(), seen, self.actions)
        self.stochastic = self.exploration.temperature is not None

    # Acting.

    def actor(
        self, num_envs: int, steps: int = 1, rng: np.random.Generator | None = None
    ) -> ControlActor:
        """Return what acts for one fragment; without ``rng`` it takes the largest value."""
        return warming_up(ValueActor(self, num_envs, steps, rng), self, (steps, num_envs), rng)

    def numpy_network(self, num_envs: int) -> Network:
        """Return the values up to a term that is the same for all actions, from NumPy to NumPy."""
        return self.in_numpy(self.network.preference_layers, self.network, num_envs)

    def uniform(self, rng: np.random.Generator, shape: tuple[int, int]) -> tuple[np.ndarray, float]:
        """Draw actions uniformly, and their log-probability."""
        action = rng.integers(self.actions, size=shape) + self.action_start
        return action, -math.log(self.actions)

    def get_extra_state(self) -> dict[str, Any]:
        """Return what exploration remembers."""
        return self.exploration.state_dict()

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Continue from :meth:`get_extra_state`."""
        self.exploration.load_state_dict(state)

    # Learning.

    def q(self, observation: Tensor) -> Tensor:
        """Return Q(s, ·), [..., A], of observations [..., *obs]."""
        value: Tensor = self.network(observation)
        return value

    def index(self, action: Tensor) -> Tensor:
        """Return which column of Q stored actions [...] are, int64."""
        return action.long() - self.action_start if self.action_start else action.long()

    def evaluate(self, batch: TensorDict, reference: QNetworkPolicy | None = None) -> Evaluation:
        """Log-probabilities of a batch's actions under softmax(Q/temperature), with gradients.

        Parameters
        ----------
        batch : TensorDict
            ``observation`` [B, T, *obs] and ``action`` [B, T].
        reference : QNetworkPolicy, optional
            Where given, ``kl`` is the exact KL(π ‖ reference) per step.

        Returns
        -------
        Evaluation
            Leaves [B, T] float32.

        Raises
        ------
        TypeError
            Where exploration is no softmax of the values.
        """
        observation = batch["observation"]
        logits = self._logits(observation)
        log_prob = logits.log_softmax(-1)
        log_prob = log_prob.gather(-1, self.index(batch["action"]).unsqueeze(-1)).squeeze(-1)
        kl = None
        if reference is not None:
            with torch.no_grad():
                other = reference._logits(observation)
            kl = divergence.categorical(logits, other)
        return Evaluation(log_prob, divergence.categorical_entropy(logits), None, kl)

    def _logits(self, observation: Tensor) -> Tensor:
        temperature = self.exploration.temperature
        if temperature is None:
            raise TypeError("without a temperature a Q-network has no log-probabilities: use q")
        return self.q(observation) / temperature

    @torch.no_grad()
    def log_prob(self, batch: TensorDict) -> Tensor:
        """Log-probabilities of the batch's actions, [B, T], without gradients."""
        return self.evaluate(batch).log_prob

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """``policy``, which is all there is."""
        return {"policy": list(self.parameters())}
