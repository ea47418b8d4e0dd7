"""DQN: one network that values every action, learned from replay.

Mnih et al. 2015 (Nature 518), with double Q-learning (van Hasselt et al. 2016, arXiv:1509.06461),
and as options dueling streams (Wang et al. 2016, arXiv:1511.06581), prioritised replay (Schaul et
al. 2016, arXiv:1511.05952) and n-step targets::

    a* = argmax_a Q(s', a)                 with Q' in place of Q where double=false
    y  = r + γᵏ·Q'(s', a*)
    L  = w·huber(Q(s, a) − y)

Q' is a copy that is replaced every ``target_every`` updates, or follows slowly (``tau`` below 1).
What differs from the paper: Adam instead of RMSProp, and double Q-learning is on by default.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch

from zoo.core.algorithm import Algorithm
from zoo.core.learner import OptimizerKnobs
from zoo.core.protocols import Loss, Update
from zoo.core.replay import ReplayKnobs
from zoo.core.schema import in_range
from zoo.core.targets import Target
from zoo.functional.value import value_loss
from zoo.plugins import KLKnobs, RewardScaleKnobs
from zoo.policies.exploration import ExplorationKnobs
from zoo.policies.q_network import QNetworkPolicy

if TYPE_CHECKING:
    from tensordict import TensorDict

__all__ = ["DQN"]


@dataclass(frozen=True)
class DQNKnobs(OptimizerKnobs):
    """DQN's settings."""

    #: the step size that small networks take
    lr: float = 1e-4
    #: discount of future rewards per step
    gamma: float = 0.99
    #: choose the next action by the online network, and value it by the target's
    double: bool = True
    #: separate streams for the state's value and the actions' advantages
    dueling: bool = False
    #: how far the target network moves at a time; 1 replaces it
    tau: float = 1.0
    #: updates between two such moves
    target_every: int = 1_000
    #: huber bounds the pull of large errors; mse does not
    value_loss: Literal["mse", "huber"] = "huber"
    #: bound on the gradient's norm
    max_grad_norm: float = 10.0
    #: epsilon, boltzmann, gumbel or ucb, and its schedule
    exploration: ExplorationKnobs = field(default_factory=ExplorationKnobs)
    #: the memory of transitions, and how often it is learned from
    replay: ReplayKnobs = field(default_factory=lambda: ReplayKnobs(batch_size=32))
    #: divergence from a reference policy, by the exact estimator; needs softmax exploration
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


class DQN(Algorithm):
    """Deep Q-learning."""

    name = "dqn"
    Knobs = DQNKnobs
    knobs: DQNKnobs
    on_policy = False

    @classmethod
    def make_policy(
        cls, model: Any, observation_space: Any, action_space: Any, settings: Any, knobs: DQNKnobs
    ) -> QNetworkPolicy:
        """Return a Q-network that explores."""
        return QNetworkPolicy(
            observation_space,
            action_space,
            settings,
            dueling=knobs.dueling,
            exploration=knobs.exploration,
            warmup=knobs.replay.learning_starts,
        )

    def make_targets(self) -> dict[str, Target]:
        """Return the copy that targets are taken from."""
        k = self.knobs
        return {"network": Target(self.policy.network, k.tau, every=k.target_every)}

    def losses(self, batch: TensorDict, update: Update) -> Iterator[Loss]:
        """Yield the one loss."""
        k, slow = self.knobs, self.targets["network"]
        with torch.no_grad():
            following = batch["next_observation"]
            values = slow(following)
            if k.double:
                chosen = self.policy.q(following).argmax(-1, keepdim=True)
                value = values.gather(-1, chosen).squeeze(-1)
            else:
                value = values.amax(-1)
            target = self.scaled_reward(batch) + batch["discount"] * value
        index = self.policy.index(batch["action"]).unsqueeze(-1)
        q = self.policy.q(batch["observation"]).gather(-1, index).squeeze(-1)  # [B, 1]
        loss = self.weighted(value_loss(q, None, target, kind=k.value_loss), batch)
        out = None if self.reference is None else self.policy.evaluate(batch, self.reference)
        yield Loss(
            "dqn",
            {"value": loss},
            batch["mask"],
            groups=("policy",),
            out=out,
            metrics={"critic/target": target} if update.diagnose else {},
            td_error=self.td_error(q, target, batch),
        )
