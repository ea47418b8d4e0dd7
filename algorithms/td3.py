"""TD3: a deterministic actor, twin critics, smoothed targets and a delayed actor.

Fujimoto et al. 2018, arXiv:1802.09477 (algorithm 1)::

    a' = clip(μ'(s') + clip(N(0, σ), −c, c), bounds)     σ, c in units of half the action's range
    y  = r + γᵏ·min_i Q'_i(s', a')
    L_Q = Σ_i (Q_i(s, a) − y)²
    L_μ = −Q_1(s, μ(s))                                  every d-th update, as the targets' moves

What differs from the paper: the defaults are Stable-Baselines3's where they are about size, batches
of 256 after 100 random steps, for the paper's 100 after 1,000 or 10,000.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from zoo.core.algorithm import Algorithm
from zoo.core.learner import OptimizerKnobs
from zoo.core.protocols import Loss, Update
from zoo.core.replay import ReplayKnobs
from zoo.core.schema import in_range
from zoo.core.targets import Target
from zoo.plugins import RewardScaleKnobs
from zoo.policies.critics import smaller
from zoo.policies.deterministic import DeterministicPolicy
from zoo.policies.exploration import NoiseKnobs

if TYPE_CHECKING:
    from tensordict import TensorDict

__all__ = ["TD3"]


@dataclass(frozen=True)
class TD3Knobs(OptimizerKnobs):
    """TD3's settings."""

    #: the paper's step size
    lr: float = 1e-3
    #: discount of future rewards per step
    gamma: float = 0.99
    #: how far the target networks move to the online ones at each of the actor's updates
    tau: float = 0.005
    #: d: updates of the critics for each of the actor and the targets
    policy_delay: int = 2
    #: σ of the noise on target actions, in units of half the action's range
    target_noise: float = 0.2
    #: bound c on that noise, in the same units
    target_noise_clip: float = 0.5
    #: gradients are not clipped
    max_grad_norm: float = 0.0
    #: noise on actions while training: gaussian or ou
    noise: NoiseKnobs = field(default_factory=NoiseKnobs)
    #: the memory of transitions, and how often it is learned from
    replay: ReplayKnobs = field(default_factory=ReplayKnobs)
    #: scaling of sampled rewards; what is stored and evaluated is raw
    reward_scale: RewardScaleKnobs = field(default_factory=RewardScaleKnobs)

    def __post_init__(self) -> None:
        """Refuse what can't be trained with."""
        super().__post_init__()
        self.replay.refuse_clamp(self.reward_scale.clamp)
        in_range(self, "gamma", low=0, high=1)
        in_range(self, "tau", low=0, high=1, above=True)
        in_range(self, "policy_delay", low=1)
        in_range(self, "target_noise", "target_noise_clip", low=0)


class TD3(Algorithm):
    """Twin delayed deterministic policy gradient."""

    name = "td3"
    Knobs = TD3Knobs
    knobs: TD3Knobs
    on_policy = False

    @classmethod
    def make_policy(
        cls, model: Any, observation_space: Any, action_space: Any, settings: Any, knobs: TD3Knobs
    ) -> DeterministicPolicy:
        """Return a deterministic actor with twin critics."""
        return DeterministicPolicy(
            observation_space,
            action_space,
            settings,
            noise=knobs.noise,
            warmup=knobs.replay.learning_starts,
        )

    @property
    def cycle(self) -> int:
        """The actor moves with every so many updates."""
        return self.knobs.policy_delay

    def make_targets(self) -> dict[str, Target]:
        """Return the slow copy of actor and critics."""
        k = self.knobs
        return {"policy": Target(self.policy, k.tau, every=k.policy_delay)}

    def losses(self, batch: TensorDict, update: Update) -> Iterator[Loss]:
        """Yield the critics' loss and, every d-th update, the actor's."""
        k = self.knobs
        slow: Any = self.targets["policy"].module
        observation, mask = batch["observation"], batch["mask"]
        with torch.no_grad():
            following = batch["next_observation"]
            action = slow.smoothed_action(following, k.target_noise, k.target_noise_clip)
            value = smaller(slow.q(following, action))
            target = self.scaled_reward(batch) + batch["discount"] * value
        q = self.policy.q(observation, batch["action"])  # [2, B, 1]
        critic = self.weighted((q - target).square().sum(0), batch)
        yield Loss(
            "critic",
            {"critic": critic},
            mask,
            groups=("critic",),
            metrics={"critic/target": target} if update.diagnose else {},
            td_error=self.td_error(q, target, batch),
        )
        if (update.step + 1) % k.policy_delay == 0:
            action = self.policy.action(observation)
            value = self.policy.q(observation, action, frozen=True, count=1)[0]
            yield Loss("actor", {"policy": -value}, mask, groups=("policy",))
