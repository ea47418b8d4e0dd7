"""The squashed Gaussian actor with twin critics: SAC's policy on a Box.

The equations are in :mod:`zoo.policies.squashing`. Log-probabilities are densities of the action
scaled to [−1, 1]; per environment unit they would be smaller by Σ log(half), and so would be the
entropy that a target of −dim(A), chosen for [−1, 1], is compared with: whether an action is counted
in metres or in millimetres would change the temperature. It is a constant: gradients, ratios and
divergences are the same either way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from zoo.core.protocols import Evaluation
from zoo.functional import divergence
from zoo.policies.acting import ControlActor, Network
from zoo.policies.control import ControlPolicy, MLPKnobs
from zoo.policies.critics import TwinCritics, smaller
from zoo.policies.exploration import ActionNoise, NoiseKnobs
from zoo.policies.off_policy_acting import BoxActor, warming_up
from zoo.policies.squashing import (
    LOG_STD_RANGE,
    ActionBounds,
    squashed_log_prob,
    squashed_sample,
)
from zoo.policies.stacked import Stacked
from zoo.policies.state_dependent import MatrixNoise, StateDependentNetwork, marginal_log_std

if TYPE_CHECKING:
    from collections.abc import Callable

    from tensordict import TensorDict

__all__ = ["SquashedGaussianPolicy"]


class SquashedGaussianPolicy(ControlPolicy):
    """Actor and twin critics for Box actions.

    Parameters
    ----------
    observation_space, action_space : gymnasium.Space
        Of one environment; the actions a Box with finite bounds.
    config : MLPKnobs, optional
        Shape and initialisation; ``log_std_init`` is added to the bias of the log σ head.
    noise : NoiseKnobs, optional
        Noise on the sampled actions while training, for tasks that need it to last over time.
    warmup : int
        Environment steps acted uniformly at random at the start of training.

    Attributes
    ----------
    critics : TwinCritics
        The module that a target network copies.

    Raises
    ------
    UserError
        For spaces that are not supported.

    Examples
    --------
    >>> from gymnasium.spaces import Box
    >>> policy = SquashedGaussianPolicy(Box(-1, 1, (3,)), Box(-2, 2, (1,)))
    >>> action, log_prob = policy.sample(torch.zeros(5, 3))
    >>> action.shape, log_prob.shape, policy.q(torch.zeros(5, 3), action).shape
    (torch.Size([5, 1]), torch.Size([5]), torch.Size([2, 5]))
    """

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
        self.refuse_shared("SAC")
        self.bounds, self.warmup = ActionBounds(action_space, "SAC"), warmup
        k, size = self.config, self.bounds.size
        self.outputs = 2 * size
        self.sde: MatrixNoise | None = None
        hidden, act = [self.encoder.size, *k.hidden_sizes], k.activation
        if k.use_sde:
            self.network = Stacked(1, hidden, act, k.orthogonal, activate_last=True)
            self.head = Stacked(1, [hidden[-1], size], act, k.orthogonal, head_gain=0.01)
            self.log_std = nn.Parameter(torch.full((hidden[-1], size), k.log_std_init))
            self.sde = MatrixNoise(hidden[-1], size, k.sde_sample_freq)
        else:
            sizes = [*hidden, self.outputs]
            self.network = Stacked(1, sizes, act, k.orthogonal, head_gain=0.01)
            with torch.no_grad():
                self.network.biases[-1][:, size:] += k.log_std_init
        self.critics = TwinCritics(self.encoder, self.bounds, k)
        self.noise = None if noise is None else ActionNoise(noise, size)

    # Acting.

    def actor(
        self, num_envs: int, steps: int = 1, rng: np.random.Generator | None = None
    ) -> ControlActor:
        """Return what acts for one fragment; without ``rng`` it takes tanh μ."""
        return warming_up(BoxActor(self, num_envs, steps, rng), self, (steps, num_envs), rng)

    def numpy_network(self, num_envs: int) -> Network:
        """Return the actor's forward, μ and log σ beside each other, from NumPy to NumPy.

        With gSDE up to the last hidden features.
        """
        return self.in_numpy(
            lambda: self.network.numpy()[0],
            lambda x: self.network(self.encoder(x))[0],
            num_envs,
            activate_last=self.sde is not None,
        )

    def state_dependent(
        self, num_envs: int, rng: np.random.Generator | None
    ) -> StateDependentNetwork | None:
        """Return what acts in a fragment with gSDE, None without."""
        if self.sde is None:
            return None
        pair = self.head.weights[0][0], self.head.biases[0][0]
        weight, bias, log_std = (p.detach().cpu().numpy() for p in (*pair, self.log_std))
        features, explores = self.numpy_network(num_envs), self.training
        return StateDependentNetwork(
            features, (weight, bias), log_std, num_envs, self.sde, rng, explores
        )

    def uniform(self, rng: np.random.Generator, shape: tuple[int, int]) -> tuple[np.ndarray, float]:
        """Draw actions uniformly within the bounds, and their log-density."""
        return self.bounds.uniform(rng, shape)

    def get_extra_state(self) -> dict[str, Any]:
        """Return what exploration remembers."""
        return {} if self.noise is None else self.noise.state_dict()

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Continue from :meth:`get_extra_state`."""
        if self.noise is not None:
            self.noise.load_state_dict(state)

    # Learning.

    def distribution(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """Return μ and log σ of u, not yet clamped, for observations [..., *obs]; [M, dim] each."""
        outputs = self.network(self.encoder(observation))[0]
        if self.sde is not None:
            return self.head(outputs)[0], marginal_log_std(outputs, self.log_std)
        mean, log_std = outputs.chunk(2, 1)
        return mean, log_std

    def sample(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """Draw actions with gradients (reparameterised), by torch's own generator.

        Parameters
        ----------
        observation : Tensor
            [..., *obs].

        Returns
        -------
        action : Tensor
            [..., *action shape] in the environment's units.
        log_prob : Tensor
            [...] float32, natural log, of the action scaled to [−1, 1].
        """
        return self._draw(observation, *self.distribution(observation))

    def _draw(self, observation: Tensor, mean: Tensor, log_std: Tensor) -> tuple[Tensor, Tensor]:
        y, log_prob = squashed_sample(mean, log_std)
        leading = self.leading(observation)
        action = self.bounds.unscaled(y).view(*leading, *self.bounds.shape)
        return action, log_prob.view(leading)

    def q(
        self, observation: Tensor, action: Tensor, frozen: bool = False, count: int | None = None
    ) -> Tensor:
        """Q₁ and Q₂, [2, ...]; see :class:`~zoo.policies.critics.TwinCritics`."""
        value: Tensor = self.critics(observation, action, frozen, count)
        return value

    def expected_value(
        self,
        observation: Tensor,
        critics: Callable[[Tensor, Tensor], Tensor] | None = None,
        reference: SquashedGaussianPolicy | None = None,
    ) -> tuple[Tensor, Evaluation]:
        """Estimate E_{a~π}[min_i Q_i(s, a)] and the entropy by one sampled action.

        Parameters
        ----------
        observation : Tensor
            [..., *obs].
        critics : callable, optional
            (observation, action) → [2, ...], such as a Target; by default the policy's own, frozen.
        reference : SquashedGaussianPolicy, optional
            Where given, ``kl`` is the exact KL(π ‖ reference).

        Returns
        -------
        value : Tensor
            [...] float32, without any entropy.
        evaluation : Evaluation
            [...] each: ``log_prob`` of the sampled action, ``entropy`` its negative.
        """
        mean, log_std = self.distribution(observation)
        action, log_prob = self._draw(observation, mean, log_std)
        value = (
            self.critics(observation, action, frozen=True)
            if critics is None
            else critics(observation, action)
        )
        kl = None
        if reference is not None:
            kl = self._divergence(mean, log_std, observation, reference)
        return smaller(value), Evaluation(log_prob, -log_prob, None, kl)

    def _divergence(
        self,
        mean: Tensor,
        log_std: Tensor,
        observation: Tensor,
        reference: SquashedGaussianPolicy,
    ) -> Tensor:
        """KL of the Gaussians of u, which a bijection of both leaves as it is."""
        with torch.no_grad():
            ref_mean, ref_log_std = reference.distribution(observation)
        deviations = log_std.clamp(*LOG_STD_RANGE), ref_log_std.clamp(*LOG_STD_RANGE)
        kl = divergence.gaussian(mean, deviations[0], ref_mean, deviations[1])
        return kl.view(self.leading(observation))

    def evaluate(
        self, batch: TensorDict, reference: SquashedGaussianPolicy | None = None
    ) -> Evaluation:
        """Log-probabilities of a batch's actions, and entropies, with gradients.

        Parameters
        ----------
        batch : TensorDict
            ``observation`` [B, T, *obs] and ``action`` [B, T, *action shape]. Actions on or beyond
            their bounds are read as the nearest inside.
        reference : SquashedGaussianPolicy, optional
            Where given, ``kl`` is the exact KL(π ‖ reference) per step.

        Returns
        -------
        Evaluation
            Leaves [B, T] float32; the entropy, which has no closed form, is −log π of one sample.
        """
        observation = batch["observation"]
        mean, log_std = self.distribution(observation)
        log_prob = squashed_log_prob(self.bounds.scaled(batch["action"]), mean, log_std)
        _, sampled = self._draw(observation, mean, log_std)
        kl = None
        if reference is not None:
            kl = self._divergence(mean, log_std, observation, reference)
        return Evaluation(log_prob.view(observation.shape[:2]), -sampled, None, kl)

    @torch.no_grad()
    def log_prob(self, batch: TensorDict) -> Tensor:
        """Log-probabilities of the batch's actions, [B, T], without gradients."""
        return self.evaluate(batch).log_prob

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """``policy`` and ``critic``."""
        critic = list(self.critics.parameters())
        known = {id(p) for p in critic}
        return {"policy": [p for p in self.parameters() if id(p) not in known], "critic": critic}
