"""What every policy of a control task is, whatever its networks and its algorithm."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from zoo.errors import UserError
from zoo.policies.acting import ControlActor, Network, numpy_layers, torch_network
from zoo.policies.normalizer import Normalizer
from zoo.policies.spaces import ObservationEncoder, refuse_pixels, require_supported

if TYPE_CHECKING:
    from tensordict import TensorDict

__all__ = ["ControlPolicy", "MLPKnobs"]

P = TypeVar("P", bound="ControlPolicy")


@dataclass(frozen=True)
class MLPKnobs:
    """Shape and initialisation of the networks; the defaults suit classic control and MuJoCo."""

    #: whether they are fastest on one thread
    small: ClassVar[bool] = True

    #: widths of the hidden layers, the same for actor and critic
    hidden_sizes: tuple[int, ...] = (64, 64)
    #: tanh keeps small networks stable; relu for wider ones
    activation: Literal["tanh", "relu"] = "tanh"
    #: orthogonal weights: gain √2 in hidden layers, .01 for the policy's head, 1 for the value's
    orthogonal: bool = True
    #: natural log of the Gaussian's initial standard deviation (continuous actions only)
    log_std_init: float = 0.0
    #: gSDE: noise as a function of the state, drawn seldom, explores smoothly (a Box only);
    #: log_std_init is then of the entries of the noise matrices, −3 is usual
    use_sde: bool = False
    #: gSDE: steps between two draws of the matrices, or at the start of each rollout or episode
    sde_sample_freq: int | Literal["rollout", "episode"] = "rollout"
    #: one trunk for actor and critic; off lets each learn features of its own
    shared: bool = False
    #: subtract the running mean of observations and divide by their running deviation
    normalize_observation: bool = False
    #: bound on normalised observations
    observation_clip: float = 10.0

    def __post_init__(self) -> None:
        """Refuse what can't be built."""
        if self.activation not in ("tanh", "relu"):
            raise UserError(f"activation must be tanh or relu (got {self.activation!r}).")
        if any(width < 1 for width in self.hidden_sizes):
            raise UserError(f"hidden_sizes must be positive (got {list(self.hidden_sizes)}).")
        if self.use_sde and not self.hidden_sizes:
            raise UserError(
                "use_sde needs hidden_sizes: its noise is a function of their features."
            )
        if isinstance(self.sde_sample_freq, int) and self.sde_sample_freq < 1:
            raise UserError(
                f"sde_sample_freq is a number of steps ≥ 1, rollout or episode (got"
                f" {self.sde_sample_freq})."
            )

        if not self.use_sde and self.sde_sample_freq != "rollout":
            raise UserError(
                f"sde_sample_freq={self.sde_sample_freq} does nothing without use_sde=true."
            )

    def make_encoder(self, space: spaces.Space[Any]) -> Any:
        """Return what turns observations into the vectors that the dense layers read."""
        refuse_pixels(space)
        assert isinstance(space, spaces.Box | spaces.Discrete)
        return ObservationEncoder(space)


class ControlPolicy(nn.Module):
    """Observations, the normaliser and the parts of the protocol that all control policies share.

    Parameters
    ----------
    observation_space, action_space : gymnasium.Space
        Of one environment.
    config : MLPKnobs, optional
        Shape and initialisation.

    Attributes
    ----------
    done, total : int
        Environment steps spent and the whole budget, as the Trainer tells before each rollout;
        exploration reads them.

    Raises
    ------
    UserError
        For spaces that are not supported.
    """

    stepwise = True
    sampler_is_exact = True
    has_critic = True
    #: whether there is an action distribution, hence log-probabilities and an entropy
    stochastic: bool = True
    #: whether an action may be several choices at once (MultiDiscrete, MultiBinary)
    several_choices: ClassVar[bool] = False
    normalizer: Normalizer | None

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        config: MLPKnobs | None = None,
    ) -> None:
        super().__init__()
        require_supported(observation_space, action_space, self.several_choices)
        self.config = config or MLPKnobs()
        self.version = self.done = self.total = 0
        self.encoder = self.config.make_encoder(observation_space)
        self.normalizer = None
        if self.config.normalize_observation:
            if self.encoder.discrete or self.encoder.dtype != np.float32:
                raise UserError(
                    f"normalize_observation needs a floating-point Box (got {observation_space}):"
                    " whole numbers are scaled by their space already."
                )
            self.normalizer = Normalizer(self.encoder.shape, self.config.observation_clip)

    def refuse_shared(self, algorithm: str) -> None:
        """Refuse one trunk for actor and critics, whose losses move it in turn.

        Raises
        ------
        UserError
            Where the knobs ask for it.
        """
        if self.config.shared:
            raise UserError(
                f"model.shared=true is for algorithms that move actor and critic in one step;"
                f" {algorithm} moves them in turn: leave it at false."
            )

    def refuse_sde(self, who: str) -> None:
        """Refuse state-dependent exploration where there is no Gaussian to draw from.

        Raises
        ------
        UserError
            Where the knobs ask for it.
        """
        if self.config.use_sde:
            raise UserError(
                "model.use_sde=true is for policies that draw continuous actions (PPO, GRPO and SAC"
                f" on a Box), not for {who}: leave it at false."
            )

    @property
    def device(self) -> torch.device:
        """Where the parameters are, and where batches belong."""
        return next(self.parameters()).device

    @property
    def observation_nbytes(self) -> int:
        """Bytes of one observation as it is stored."""
        return int(np.prod(self.encoder.shape, dtype=int)) * int(self.encoder.dtype.itemsize)

    def leading(self, observation: Tensor) -> torch.Size:
        """Return the shape of observations [..., *obs] without that of one."""
        return observation.shape[: observation.dim() - len(self.encoder.shape)]

    def actor(
        self, num_envs: int, steps: int = 1, rng: np.random.Generator | None = None
    ) -> ControlActor:
        """Return what acts for one fragment; without ``rng`` it takes the likeliest action."""
        raise TypeError(f"{type(self).__name__} must define actor(num_envs, steps, rng)")

    def in_numpy(
        self,
        layers: Callable[[], Sequence[tuple[np.ndarray, np.ndarray]]],
        forward: Callable[[Tensor], Tensor],
        num_envs: int,
        activate_last: bool = False,
    ) -> Network:
        """Return a forward from NumPy to NumPy for observations [N, *obs].

        Through what ``layers`` returns, (weight [out, in], bias [out]) on the parameters' memory,
        where that is the CPU's; elsewhere through ``forward``, which computes the same in torch.
        """
        if self.device.type != "cpu":
            return torch_network(forward, self.device)
        run = numpy_layers(layers(), self.config.activation, num_envs, activate_last)
        encode = self.encoder.numpy
        return lambda observation, outputs: run(encode(observation), outputs)

    def act(
        self, observation: np.ndarray, rng: np.random.Generator, deterministic: bool = False
    ) -> tuple[np.ndarray, np.ndarray]:
        """Act once on [N, *obs] observations, normalised where the policy has a normaliser.

        Returns
        -------
        action : ndarray
            [N] int64, or [N, *action shape] float32.
        log_prob : ndarray
            [N] float32, natural log, summed over the action's dimensions.
        """
        actor = self.actor(len(observation), 1, None if deterministic else rng)
        return actor(observation, 0), actor.log_prob(1)[0]

    def micro_batches(
        self, minibatch: TensorDict, size: int | None, tokens: int | None = None
    ) -> Sequence[TensorDict]:
        """Cut a mini-batch into parts of at most ``size`` rows; there are no tokens here."""
        if size is None or size >= minibatch.batch_size[0]:
            return [minibatch]
        return list(minibatch.split(size))

    def reference_copy(self: P) -> P:
        """Return a frozen copy of the policy as it stands."""
        twin = copy.deepcopy(self).eval()
        return twin.requires_grad_(False)
