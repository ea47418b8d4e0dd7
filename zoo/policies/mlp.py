"""Multilayer perceptron policies for control: an actor and, where wanted, a critic.

Discrete actions follow a categorical distribution (several choices at once one each), continuous
ones a Gaussian whose standard deviation does not depend on the state, unless ``use_sde`` makes it a
function of the actor's last hidden features (:mod:`zoo.policies.state_dependent`); its gradient
then stops at the features, which serve the mean, as in Stable-Baselines3. Continuous actions are
stored as sampled; the rollout clips them to the Box when it steps, so log-probabilities are those
of what was sampled (Andrychowicz et al. 2021, arXiv:2006.05990, found squashing to change little
for on-policy methods).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from zoo.core.protocols import Evaluation
from zoo.functional import divergence
from zoo.policies.acting import CategoricalActor, ControlActor, GaussianActor, Network
from zoo.policies.control import ControlPolicy, MLPKnobs
from zoo.policies.dense import dense, linear_layers
from zoo.policies.factored import FactoredActor, Factors
from zoo.policies.state_dependent import (
    MatrixNoise,
    StateDependentActor,
    StateDependentNetwork,
    marginal_log_std,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tensordict import TensorDict

__all__ = ["MLPKnobs", "MLPPolicy"]

_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


class MLPPolicy(ControlPolicy):
    """Actor and critic for Box or Discrete observations and actions of every supported space.

    Parameters
    ----------
    observation_space, action_space : gymnasium.Space
        Of one environment.
    config : MLPKnobs, optional
        Shape and initialisation.
    critic : int
        How many value networks there are: critic-free methods have none, twin critics are 2.

    Raises
    ------
    UserError
        For spaces that are not supported.

    Examples
    --------
    >>> from gymnasium.spaces import Box, Discrete
    >>> policy = MLPPolicy(Box(-1, 1, (4,)), Discrete(2))
    >>> action, log_prob = policy.act(np.zeros((8, 4), np.float32), np.random.default_rng(0))
    >>> action.shape, log_prob.shape
    ((8,), (8,))
    """

    several_choices = True

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        config: MLPKnobs | None = None,
        critic: int = 1,
    ) -> None:
        super().__init__(observation_space, action_space, config)
        self.has_critic = critic > 0
        self._critics = ("value_layers", "second_value_layers")[: int(critic)]
        #: the choices of an action that is several at once
        self.factors: Factors | None = None
        if isinstance(action_space, spaces.MultiDiscrete | spaces.MultiBinary):
            self.factors = Factors(action_space)
        self.discrete = self.factors is not None or isinstance(action_space, spaces.Discrete)
        self.action_shape: tuple[int, ...] = ()
        if isinstance(action_space, spaces.Discrete):
            self.action_start = int(action_space.start)
            self.outputs = int(action_space.n)
        elif self.factors is not None:
            self.action_start, self.outputs = 0, self.factors.outputs
        else:
            self.action_start, self.action_shape = 0, tuple(action_space.shape or ())
            self.outputs = int(np.prod(self.action_shape, dtype=int))
        self._build()

    def _build(self) -> None:
        sizes = [self.encoder.size, *self.config.hidden_sizes]
        self.sde: MatrixNoise | None = None
        if self.discrete:
            self.refuse_sde("discrete actions")
        else:
            shape: tuple[int, ...] = (self.outputs,)
            if self.config.use_sde:
                self.sde = MatrixNoise(sizes[-1], self.outputs, self.config.sde_sample_freq)
                shape = (sizes[-1], self.outputs)
            self.log_std = nn.Parameter(torch.full(shape, self.config.log_std_init))
        trunk = sizes if self.config.shared else sizes[:1]
        branch = sizes[-1:] if self.config.shared else sizes
        orthogonal = self.config.orthogonal
        self.trunk = linear_layers(trunk, orthogonal)
        self.policy_layers = linear_layers([*branch, self.outputs], orthogonal, head_gain=0.01)
        for name in self._critics:
            setattr(self, name, linear_layers([*branch, 1], orthogonal, head_gain=1.0))
        # the same parameters again, where finding them costs nothing
        self._layers_of: dict[str, list[tuple[Tensor, Tensor]]] = {
            name: [(layer.weight, layer.bias) for layer in layers if isinstance(layer, nn.Linear)]
            for name, layers in self.named_children()
            if isinstance(layers, nn.ModuleList)
        }

    # Acting.

    def actor(
        self, num_envs: int, steps: int = 1, rng: np.random.Generator | None = None
    ) -> ControlActor:
        """Return what acts for one fragment; without ``rng`` it takes the likeliest action."""
        network = self.numpy_network(num_envs)
        if self.factors is not None:
            return FactoredActor(network, self.factors, steps, num_envs, rng)
        if self.discrete:
            shape = (steps, num_envs, self.outputs)
            return CategoricalActor(network, self.action_start, shape, rng)
        log_std = self.log_std.detach().cpu().numpy()
        action = (steps, num_envs, *self.action_shape)
        if self.sde is None:
            return GaussianActor(network, log_std, action, rng)
        weight, bias = (p.detach().cpu().numpy() for p in self._layers_of["policy_layers"][-1])
        acting = StateDependentNetwork(
            network, (weight, bias), log_std, num_envs, self.sde, rng, self.training
        )
        return StateDependentActor(acting, action, rng is None)

    def numpy_network(self, num_envs: int) -> Network:
        """Return the actor's forward from NumPy to NumPy, on the device of the parameters.

        With gSDE up to the last hidden features.
        """
        if self.sde is not None:
            return self.in_numpy(
                self._acting_layers,
                lambda x: self._features(self._trunk(x)),
                num_envs,
                activate_last=True,
            )
        return self.in_numpy(
            self._acting_layers, lambda x: self._networks(x, "policy_layers")[0], num_envs
        )

    def _acting_layers(self) -> list[tuple[np.ndarray, np.ndarray]]:
        pairs = [*self._layers_of["trunk"], *self._layers_of["policy_layers"]]
        if self.sde is not None:
            pairs.pop()
        return [(weight.detach().numpy(), bias.detach().numpy()) for weight, bias in pairs]

    # Learning.

    def _networks(self, observation: Tensor, *names: str) -> tuple[Tensor, ...]:
        """Apply the named networks to [B, T, *obs]; [B·T, outputs] of each."""
        return self._branches(self._trunk(observation), *names)

    def _branches(self, x: Tensor, *names: str) -> tuple[Tensor, ...]:
        return dense(x, [self._layers_of[name] for name in names], self.config.activation)

    def _trunk(self, observation: Tensor) -> Tensor:
        x, layers = self.encoder(observation), self._layers_of["trunk"]
        if layers:
            (x,) = dense(x, [layers], self.config.activation, activate_last=True)
        return x

    def _features(self, x: Tensor) -> Tensor:
        """Return the actor's last hidden features, [M, L], of what the trunk gave."""
        hidden = self._layers_of["policy_layers"][:-1]
        return dense(x, [hidden], self.config.activation, activate_last=True)[0]

    def _distribution(
        self, observation: Tensor, critic: bool = False
    ) -> tuple[Tensor, Tensor, Sequence[Tensor]]:
        """Return logits, or μ and log σ ([dim] or [B·T, dim]); and values where wanted."""
        x, names = self._trunk(observation), self._critics if critic else ()
        if self.sde is None:
            outputs, *values = self._branches(x, "policy_layers", *names)
            return outputs, outputs if self.discrete else self.log_std, values
        features = self._features(x)
        mean = nn.functional.linear(features, *self._layers_of["policy_layers"][-1])
        log_std = marginal_log_std(features.detach(), self.log_std)
        return mean, log_std, self._branches(x, *names) if names else ()

    def evaluate(self, batch: TensorDict, reference: MLPPolicy | None = None) -> Evaluation:
        """Log-probabilities, entropies and values of a batch, with gradients.

        Parameters
        ----------
        batch : TensorDict
            ``observation`` [B, T, *obs] and ``action`` [B, T, …].
        reference : MLPPolicy, optional
            Where given, ``kl`` is the exact KL(π ‖ reference) per step.

        Returns
        -------
        Evaluation
            Leaves [B, T] float32.
        """
        observation, action = batch["observation"], batch["action"]
        shape = observation.shape[:2]
        outputs, log_std, values = self._distribution(observation, self.has_critic)
        kl = None
        if reference is not None:
            with torch.no_grad():
                other, other_log_std, _ = reference._distribution(observation)
            if self.discrete:
                kl = self._categorical_kl(outputs, other)
            else:
                kl = divergence.gaussian(outputs, log_std, other, other_log_std)[:, None]
        if self.discrete:
            log_prob, entropy = self._categorical(outputs, action)
        else:
            log_prob, entropy = self._gaussian(outputs, log_std, action)
        value = torch.stack(tuple(values), -1) if len(values) > 1 else values[0] if values else None
        leaves = (log_prob, entropy, value, kl)
        if shape[1] == 1:  # single steps have their shape already; a view costs a node
            return Evaluation(*leaves)
        return Evaluation(*(None if x is None else x.reshape(*shape, *x.shape[2:]) for x in leaves))  # type: ignore[arg-type]

    def _categorical_kl(self, logits: Tensor, other: Tensor) -> Tensor:
        if self.factors is not None:
            return self.factors.kl(logits, other)
        return divergence.categorical(logits, other)[:, None]

    def _categorical(self, logits: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        if self.factors is not None:
            return self.factors.evaluate(logits, action)
        log_probs = torch.log_softmax(logits, -1)
        index = action.reshape(-1, 1)
        chosen = log_probs.gather(1, index - self.action_start if self.action_start else index)
        return chosen, -(log_probs.exp() * log_probs).sum(-1, keepdim=True)

    def _gaussian(self, mean: Tensor, log_std: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        scaled = (action.reshape(mean.shape) - mean) * torch.exp(-log_std)
        normaliser = log_std.sum(-1, keepdim=True) + self.outputs * _HALF_LOG_2PI
        log_prob = -0.5 * scaled.square().sum(-1, keepdim=True) - normaliser
        return log_prob, (normaliser + 0.5 * self.outputs).expand(len(mean), 1)

    @torch.no_grad()
    def log_prob(self, batch: TensorDict) -> Tensor:
        """Log-probabilities of the batch's actions, [B, T], without gradients."""
        return self.evaluate(batch).log_prob

    @torch.no_grad()
    def values(self, batch: TensorDict) -> tuple[Tensor, Tensor]:
        """V(observation) and V(next_observation), [B, T] each; [B, T, 2] of twin critics.

        Inside an episode the next observation is the following step's own, whose value is known
        already; only the others (final observations, the last column) are computed besides.
        """
        observation, following = batch["observation"], batch["next_observation"]
        rows, steps = observation.shape[:2]
        other = torch.ones(rows, steps, dtype=torch.bool, device=observation.device)
        if steps > 1:
            differs = observation[:, 1:] != following[:, :-1]
            other[:, :-1] = differs.reshape(rows, steps - 1, -1).any(-1)
        everything = torch.cat([observation.flatten(0, 1), following[other]])
        values = torch.cat(self._networks(everything, *self._critics), 1)
        values = values if len(self._critics) > 1 else values[:, 0]
        value, extra = values[: rows * steps], values[rows * steps :]
        value = value.view(rows, steps, *values.shape[1:])
        next_value = torch.empty_like(value)
        next_value[:, :-1] = value[:, 1:]
        next_value[other] = extra
        return value, next_value

    # The rest of the protocol.

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """``policy`` (with the shared trunk and the deviation) and, if there is one, ``critic``."""
        critic = [p for name in self._critics for p in getattr(self, name).parameters()]
        known = {id(p) for p in critic}
        groups = {"policy": [p for p in self.parameters() if id(p) not in known]}
        return {**groups, "critic": critic} if critic else groups
