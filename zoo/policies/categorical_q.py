"""The categorical actor with twin critics over actions: SAC's policy on discrete actions.

π = softmax of the actor's logits; the critics value every action at once, so the expectations that
the continuous form samples are exact sums (Christodoulou 2019, arXiv:1910.07207)::

    E_{a~π}[min_i Q_i(s, a)] = Σ_a π(a|s)·min_i Q_i(s, a)        H = −Σ_a π(a|s)·log π(a|s)
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
from zoo.policies.acting import CategoricalActor, ControlActor, Network
from zoo.policies.control import ControlPolicy, MLPKnobs
from zoo.policies.critics import TwinActionValues, smaller
from zoo.policies.off_policy_acting import warming_up
from zoo.policies.stacked import Stacked

if TYPE_CHECKING:
    from collections.abc import Callable

    from tensordict import TensorDict

__all__ = ["CategoricalQPolicy"]


class CategoricalQPolicy(ControlPolicy):
    """Actor and twin critics for Discrete actions.

    Parameters
    ----------
    observation_space, action_space : gymnasium.Space
        Of one environment; the actions Discrete.
    config : MLPKnobs, optional
        Shape and initialisation.
    warmup : int
        Environment steps acted uniformly at random at the start of training.

    Attributes
    ----------
    critics : TwinActionValues
        The module that a target network copies.

    Raises
    ------
    UserError
        For spaces that are not supported.
    """

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        config: MLPKnobs | None = None,
        *,
        warmup: int = 0,
    ) -> None:
        super().__init__(observation_space, action_space, config)
        self.refuse_shared("SAC")
        self.refuse_sde("discrete actions")
        if not isinstance(action_space, spaces.Discrete):
            raise UserError(f"a categorical policy needs Discrete actions (got {action_space}).")
        self.action_start, self.outputs = int(action_space.start), int(action_space.n)
        self.warmup, k = warmup, self.config
        sizes = [self.encoder.size, *k.hidden_sizes, self.outputs]
        self.network = Stacked(1, sizes, k.activation, k.orthogonal, head_gain=0.01)
        self.critics = TwinActionValues(self.encoder, self.outputs, k)

    # Acting.

    def actor(
        self, num_envs: int, steps: int = 1, rng: np.random.Generator | None = None
    ) -> ControlActor:
        """Return what acts for one fragment; without ``rng`` it takes the likeliest action."""
        network, shape = self.numpy_network(num_envs), (steps, num_envs, self.outputs)
        actor = CategoricalActor(network, self.action_start, shape, rng)
        return warming_up(actor, self, shape[:2], rng)

    def numpy_network(self, num_envs: int) -> Network:
        """Return the actor's logits, from NumPy to NumPy."""
        return self.in_numpy(
            lambda: self.network.numpy()[0], lambda x: self.network(self.encoder(x))[0], num_envs
        )

    def uniform(self, rng: np.random.Generator, shape: tuple[int, int]) -> tuple[np.ndarray, float]:
        """Draw actions uniformly, and their log-probability."""
        action = rng.integers(self.outputs, size=shape) + self.action_start
        return action, -math.log(self.outputs)

    # Learning.

    def logits(self, observation: Tensor) -> Tensor:
        """Return the actor's logits, [..., A], for observations [..., *obs]."""
        logits: Tensor = self.network(self.encoder(observation))
        return logits.view(*self.leading(observation), self.outputs)

    def q(self, observation: Tensor, action: Tensor, frozen: bool = False) -> Tensor:
        """Q₁ and Q₂ of actions [...], [2, ...]."""
        value = self.critics(observation, frozen)
        index = (action.long() - self.action_start)[None, ..., None]
        return value.gather(-1, index.expand(2, *index.shape[1:])).squeeze(-1)

    def expected_value(
        self,
        observation: Tensor,
        critics: Callable[[Tensor], Tensor] | None = None,
        reference: CategoricalQPolicy | None = None,
    ) -> tuple[Tensor, Evaluation]:
        """Return E_{a~π}[min_i Q_i(s, a)] and the entropy, exactly.

        Parameters
        ----------
        observation : Tensor
            [..., *obs].
        critics : callable, optional
            observation → [2, ..., A], such as a Target; by default the policy's own, as constants.
        reference : CategoricalQPolicy, optional
            Where given, ``kl`` is the exact KL(π ‖ reference).

        Returns
        -------
        value : Tensor
            [...] float32, without any entropy.
        evaluation : Evaluation
            [...] each: ``entropy``, and ``log_prob`` its negative, which is E[log π(a|s)].
        """
        logits = self.logits(observation)
        with torch.no_grad():
            value = smaller((critics or self.critics)(observation))
        log_probs = logits.log_softmax(-1)
        probs = log_probs.exp()
        entropy = -(probs * log_probs).sum(-1)
        kl = None if reference is None else self._divergence(logits, observation, reference)
        return (probs * value).sum(-1), Evaluation(-entropy, entropy, None, kl)

    @staticmethod
    def _divergence(logits: Tensor, observation: Tensor, reference: CategoricalQPolicy) -> Tensor:
        with torch.no_grad():
            other = reference.logits(observation)
        return divergence.categorical(logits, other)

    def evaluate(
        self, batch: TensorDict, reference: CategoricalQPolicy | None = None
    ) -> Evaluation:
        """Log-probabilities of a batch's actions, and entropies, with gradients.

        Parameters
        ----------
        batch : TensorDict
            ``observation`` [B, T, *obs] and ``action`` [B, T].
        reference : CategoricalQPolicy, optional
            Where given, ``kl`` is the exact KL(π ‖ reference) per step.

        Returns
        -------
        Evaluation
            Leaves [B, T] float32.
        """
        observation = batch["observation"]
        logits = self.logits(observation)
        index = batch["action"].long() - self.action_start
        log_prob = logits.log_softmax(-1).gather(-1, index.unsqueeze(-1)).squeeze(-1)
        kl = None if reference is None else self._divergence(logits, observation, reference)
        return Evaluation(log_prob, divergence.categorical_entropy(logits), None, kl)

    @torch.no_grad()
    def log_prob(self, batch: TensorDict) -> Tensor:
        """Log-probabilities of the batch's actions, [B, T], without gradients."""
        return self.evaluate(batch).log_prob

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """``policy`` and ``critic``."""
        return {
            "policy": list(self.network.parameters()),
            "critic": list(self.critics.parameters()),
        }
