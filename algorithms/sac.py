"""SAC: an actor that maximises value plus entropy, learned from replay.

Haarnoja et al. 2018, arXiv:1801.01290 and arXiv:1812.05905 (eqs. 5–9 and 18)::

    y      = r + γᵏ·(min_i Q'_i(s', a') + α·H(π(·|s')))     a' ~ π(·|s'), Q' the target networks
    L_Q    = ½·Σ_i (Q_i(s, a) − y)²
    L_π    = −min_i Q_i(s, a~π) − α·H(π(·|s))
    L_α    = log α·(H(π(·|s)) − H_target)

L_α and the last term of L_π are the entropy plugin's, with a learned α (``entropy.mode=auto``) or a
fixed one. On a Box H is the one-sample estimate −log π(a|s) of a squashed Gaussian; with Discrete
actions both expectations are exact sums (Christodoulou 2019, arXiv:1910.07207), and the code is the
same. What differs from the papers: with ``replay.n_step`` above 1 rewards of k steps are summed and
the entropies between are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from gymnasium import spaces

from zoo.core.algorithm import Algorithm
from zoo.core.learner import OptimizerKnobs
from zoo.core.protocols import Loss, Update
from zoo.core.replay import ReplayKnobs
from zoo.core.schema import in_range
from zoo.core.targets import Target
from zoo.plugins import EntropyKnobs, KLKnobs, RewardScaleKnobs
from zoo.policies.categorical_q import CategoricalQPolicy
from zoo.policies.exploration import NoiseKnobs
from zoo.policies.squashed import SquashedGaussianPolicy

if TYPE_CHECKING:
    from tensordict import TensorDict

__all__ = ["SAC"]


@dataclass(frozen=True)
class SACKnobs(OptimizerKnobs):
    """SAC's settings; the defaults are the second paper's, with fewer random steps at the start."""

    #: discount of future rewards per step
    gamma: float = 0.99
    #: how far the target networks move to the online ones at each update
    tau: float = 0.005
    #: updates between two such moves
    target_every: int = 1
    #: gradients are not clipped
    max_grad_norm: float = 0.0
    #: the memory of transitions, and how often it is learned from
    replay: ReplayKnobs = field(default_factory=ReplayKnobs)
    #: the temperature α: learned to hold a target entropy, or fixed
    entropy: EntropyKnobs = field(
        default_factory=lambda: EntropyKnobs(mode="auto", coefficient=1.0)
    )
    #: noise on top of the sampled actions, for tasks that need it to last over time
    noise: NoiseKnobs = field(default_factory=lambda: NoiseKnobs(std=0.0))
    #: divergence from a reference policy, by the exact estimator
    kl: KLKnobs = field(default_factory=KLKnobs)
    #: scaling of sampled rewards; what is stored and evaluated is raw
    reward_scale: RewardScaleKnobs = field(default_factory=RewardScaleKnobs)

    def __post_init__(self) -> None:
        """Refuse what can't be trained with."""
        super().__post_init__()
        self.replay.refuse_clamp(self.reward_scale.clamp)
        in_range(self, "gamma", low=0, high=1)
        in_range(self, "tau", low=0, high=1, above=True)
        in_range(self, "target_every", low=1)


class SAC(Algorithm):
    """Maximum-entropy actor-critic with twin critics."""

    name = "sac"
    Knobs = SACKnobs
    knobs: SACKnobs
    on_policy = False

    @classmethod
    def make_policy(
        cls, model: Any, observation_space: Any, action_space: Any, settings: Any, knobs: SACKnobs
    ) -> Any:
        """Return a squashed Gaussian for a Box, a categorical for Discrete; twin critics."""
        warmup = knobs.replay.learning_starts
        if isinstance(action_space, spaces.Discrete):
            return CategoricalQPolicy(observation_space, action_space, settings, warmup=warmup)
        noise = knobs.noise if knobs.noise.std else None
        return SquashedGaussianPolicy(
            observation_space, action_space, settings, noise=noise, warmup=warmup
        )

    def make_targets(self) -> dict[str, Target]:
        """Return the slow copy of the critics."""
        k = self.knobs
        return {"critics": Target(self.policy.critics, k.tau, every=k.target_every)}

    def losses(self, batch: TensorDict, update: Update) -> Iterator[Loss]:
        """Yield the critics' loss, then the actor's; the entropy plugin adds the temperature's."""
        observation, mask = batch["observation"], batch["mask"]
        with torch.no_grad():
            value, following = self.policy.expected_value(
                batch["next_observation"], self.targets["critics"]
            )
            value = value + self.coefficient("entropy") * following.entropy
            target = self.scaled_reward(batch) + batch["discount"] * value
        q = self.policy.q(observation, batch["action"])  # [2, B, 1]
        critic = self.weighted(0.5 * (q - target).square().sum(0), batch)
        yield Loss(
            "critic",
            {"critic": critic},
            mask,
            groups=("critic",),
            metrics={"critic/target": target} if update.diagnose else {},
            td_error=self.td_error(q, target, batch),
        )
        value, out = self.policy.expected_value(observation, reference=self.reference)
        metrics = {"policy/entropy": out.entropy.detach()} if update.diagnose else {}
        yield Loss("actor", {"policy": -value}, mask, groups=("policy",), out=out, metrics=metrics)
