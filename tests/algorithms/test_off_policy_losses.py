"""SAC's, TD3's and DQN's own lines, with numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch
from gymnasium import spaces
from tensordict import TensorDict
from torch import nn

from zoo.algorithms.dqn import DQN, DQNKnobs
from zoo.algorithms.sac import SAC, SACKnobs
from zoo.algorithms.td3 import TD3, TD3Knobs
from zoo.core.protocols import Evaluation, Update
from zoo.plugins import Entropy, EntropyKnobs, RewardScale, RewardScaleKnobs
from zoo.policies.control import MLPKnobs
from zoo.policies.exploration import NoiseKnobs


def transitions(**changes):
    """Two transitions: the first goes on, the second terminated."""
    leaves = {
        "observation": torch.tensor([[[0.0]], [[1.0]]]),
        "next_observation": torch.tensor([[[1.0]], [[0.0]]]),
        "action": torch.tensor([[1], [0]]),
        "reward": torch.tensor([[2.0], [3.0]]),
        "discount": torch.tensor([[0.5], [0.0]]),
        "weight": torch.tensor([[1.0], [0.25]]),
        "mask": torch.ones(2, 1, dtype=torch.bool),
        **changes,
    }
    return TensorDict(leaves, batch_size=[2])


class Table(nn.Module):
    """Values of two states (the observation is the row) and two actions."""

    def __init__(self, values):
        super().__init__()
        self.values = nn.Parameter(torch.tensor(values))

    def forward(self, observation):
        return self.values[observation.squeeze(-1).long()]


class QPolicy(nn.Module):
    """What DQN asks of a policy."""

    def __init__(self, values):
        super().__init__()
        self.network = Table(values)

    def q(self, observation):
        return self.network(observation)

    def index(self, action):
        return action


def dqn(online, slow, **knobs):
    algorithm = DQN.bind(DQNKnobs(**knobs), QPolicy(online))
    algorithm.targets["network"].module.values.data = torch.tensor(slow)
    return algorithm


def the_loss(algorithm, batch=None, step=0):
    batch = transitions() if batch is None else batch
    return next(algorithm.losses(batch, Update(step=step)))


def test_double_q_learning_chooses_by_the_online_and_values_by_the_target_network():
    online, slow = [[1.0, 4.0], [6.0, 5.0]], [[0.0, 0.0], [10.0, 20.0]]
    loss = the_loss(dqn(online, slow, value_loss="mse"))
    # y = 2 + .5·10 (online's best in state 1 is action 0) and 3; Q(0,1) = 4, Q(1,0) = 6
    assert loss.metrics["critic/target"].tolist() == [[7.0], [3.0]]
    assert loss.terms["value"].tolist() == [[0.5 * 9.0], [0.25 * 0.5 * 9.0]]
    assert loss.td_error.tolist() == [3.0, 3.0]


def test_without_double_the_target_network_chooses_too():
    online, slow = [[1.0, 4.0], [6.0, 5.0]], [[0.0, 0.0], [10.0, 20.0]]
    loss = the_loss(dqn(online, slow, double=False))
    assert loss.metrics["critic/target"].tolist() == [[12.0], [3.0]]


def test_the_huber_loss_of_dqn_is_linear_from_one_on():
    loss = the_loss(dqn([[1.0, 4.0], [6.0, 5.0]], [[0.0, 0.0], [10.0, 20.0]]))
    assert loss.terms["value"].tolist() == [[3 - 0.5], [0.25 * 2.5]]


def test_dqns_gradient_pulls_the_taken_action_to_its_target_and_no_other():
    algorithm = dqn([[1.0, 4.0], [6.0, 5.0]], [[0.0, 0.0], [10.0, 20.0]], value_loss="mse")
    the_loss(algorithm).terms["value"].sum().backward()
    assert algorithm.policy.network.values.grad.tolist() == [[0.0, -3.0], [0.75, 0.0]]
    assert algorithm.targets["network"].module.values.grad is None


class Critics(nn.Module):
    """Q₁ = w₁·a, Q₂ = w₂·a."""

    def __init__(self, first, second):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([first, second]))

    def forward(self, observation, action):
        return self.weight[:, None, None] * action


class SoftPolicy(nn.Module):
    """Acts by ``mean``; its entropy is a parameter's value."""

    def __init__(self):
        super().__init__()
        self.critics = Critics(1.0, 3.0)
        self.mean, self.entropy = nn.Parameter(torch.tensor(2.0)), nn.Parameter(torch.tensor(0.7))

    def q(self, observation, action):
        return self.critics(observation, action)

    def expected_value(self, observation, critics=None, reference=None):
        action = self.mean.expand(len(observation), 1)
        frozen = self.critics.weight.detach()[:, None, None] * action
        value = (frozen if critics is None else critics(observation, action)).amin(0)
        entropy = self.entropy.expand(len(observation), 1)
        return value, Evaluation(-entropy, entropy)


def sac(alpha, **knobs):
    plugins = [Entropy(EntropyKnobs(coefficient=alpha))]
    algorithm = SAC.bind(SACKnobs(**knobs), SoftPolicy(), plugins)
    algorithm.targets["critics"].module.weight.data = torch.tensor([5.0, 4.0])
    return algorithm


ACTIONS = {"action": torch.tensor([[1.0], [2.0]])}


def test_sacs_target_is_the_smaller_slow_critic_plus_the_entropy():
    critic, _ = sac(alpha=0.5).losses(transitions(**ACTIONS), Update())
    # min(5, 4)·2 + .5·.7 = 8.35; y = 2 + .5·8.35 and 3
    assert critic.metrics["critic/target"].flatten().tolist() == pytest.approx([6.175, 3.0])
    # Q = (1, 3) and (2, 6): ½·w·Σ (Q − y)²
    first, second = 5.175**2 + 3.175**2, 1.0 + 9.0
    assert critic.terms["critic"].flatten().tolist() == pytest.approx([first / 2, second / 8])
    assert critic.td_error.tolist() == pytest.approx([(5.175 + 3.175) / 2, 2.0])
    assert critic.groups == ("critic",) and critic.out is None


def test_sacs_target_passes_no_gradient():
    algorithm = sac(alpha=0.5)
    critic, _ = algorithm.losses(transitions(**ACTIONS), Update())
    critic.terms["critic"].sum().backward()
    assert algorithm.policy.mean.grad is None and algorithm.policy.entropy.grad is None
    assert algorithm.targets["critics"].module.weight.grad is None


def test_sacs_actor_climbs_the_smaller_critic_and_leaves_the_critics_alone():
    algorithm = sac(alpha=0.5)
    _, actor = algorithm.losses(transitions(**ACTIONS), Update())
    assert actor.terms["policy"].flatten().tolist() == [-2.0, -2.0]  # min(1, 3)·2
    actor.terms["policy"].sum().backward()
    assert algorithm.policy.mean.grad.item() == pytest.approx(-2.0)
    assert algorithm.policy.critics.weight.grad is None
    assert actor.groups == ("policy",)


def test_sac_says_what_it_learns_towards_where_that_is_asked_for():
    algorithm = sac(alpha=0.5)
    for asked in (True, False):
        critic, actor = algorithm.losses(transitions(**ACTIONS), Update(diagnose=asked))
        assert ("critic/target" in critic.metrics) is asked
        assert ("policy/entropy" in actor.metrics) is asked


@pytest.mark.parametrize("std", [0.0, 0.1])
def test_sacs_policy_has_the_noise_that_was_asked_for(std):
    box = spaces.Box(-1.0, 1.0, (1,))
    knobs = SACKnobs(noise=NoiseKnobs(std=std))
    policy = SAC.make_policy(None, box, box, MLPKnobs(), knobs)
    assert (policy.noise is not None) is (std > 0)


def test_the_entropy_plugin_makes_sacs_temperature():
    plugin = Entropy(EntropyKnobs(mode="auto", coefficient=0.5, target=1.0))
    algorithm = SAC.bind(SACKnobs(), SoftPolicy(), [plugin])
    _, actor = algorithm.losses(transitions(**ACTIONS), Update())
    terms = plugin.terms(actor.out, transitions(**ACTIONS), Update())
    assert terms["entropy"].flatten().tolist() == pytest.approx([-0.35, -0.35])
    terms["temperature"].mean().backward()
    # d/d(log α) of log α·(H − H*) = .7 − 1 < 0: α rises while the entropy is below its target
    assert plugin.log_alpha.grad.item() == pytest.approx(-0.3)
    assert math.log(0.5) == pytest.approx(plugin.log_alpha.item())


def test_sampled_rewards_are_scaled_and_stored_ones_are_not():
    scale = RewardScale(RewardScaleKnobs(mode="constant", factor=10.0), at_sampling=True)
    algorithm = SAC.bind(SACKnobs(), SoftPolicy(), [scale])
    batch = transitions(**ACTIONS, discount=torch.zeros(2, 1))
    critic, _ = algorithm.losses(batch, Update())
    assert critic.metrics["critic/target"].flatten().tolist() == [20.0, 30.0]
    assert batch["reward"].flatten().tolist() == [2.0, 3.0]


class FirmPolicy(nn.Module):
    """Acts by ``mean``; smoothing adds what the test says."""

    added = 1.0

    def __init__(self):
        super().__init__()
        self.critics, self.mean = Critics(1.0, 3.0), nn.Parameter(torch.tensor(2.0))

    def action(self, observation):
        return self.mean.expand(len(observation), 1)

    def smoothed_action(self, observation, std, clip):
        assert (std, clip) == (0.2, 0.5)
        return self.action(observation) + self.added

    def q(self, observation, action, frozen=False, count=None):
        weight = self.critics.weight.detach() if frozen else self.critics.weight
        return weight[:count, None, None] * action


def td3(**knobs):
    algorithm = TD3.bind(TD3Knobs(**knobs), FirmPolicy())
    slow = algorithm.targets["policy"].module
    slow.critics.weight.data, slow.mean.data = torch.tensor([5.0, 4.0]), torch.tensor(1.0)
    return algorithm


def test_td3s_target_is_the_smaller_slow_critic_at_the_slow_actors_smoothed_action():
    critic = the_loss(td3(), transitions(**ACTIONS))
    # a' = 1 + 1, min(5, 4)·2 = 8; y = 2 + .5·8 and 3; Q = (1, 3) and (2, 6)
    assert critic.metrics["critic/target"].flatten().tolist() == [6.0, 3.0]
    assert critic.terms["critic"].flatten().tolist() == [25.0 + 9.0, 0.25 * (1.0 + 9.0)]
    assert critic.td_error.tolist() == [4.0, 2.0]


def test_td3s_actor_moves_every_second_update_along_the_first_critic():
    algorithm = td3()
    kinds = [
        [loss.name for loss in algorithm.losses(transitions(**ACTIONS), Update(step=step))]
        for step in range(4)
    ]
    assert kinds == [["critic"], ["critic", "actor"]] * 2
    *_, actor = algorithm.losses(transitions(**ACTIONS), Update(step=1))
    actor.terms["policy"].sum().backward()
    assert algorithm.policy.mean.grad.item() == pytest.approx(-2.0)  # −Q₁ = −1·mean, twice
    assert algorithm.policy.critics.weight.grad is None


def test_td3s_actor_moves_when_the_delay_is_over_for_the_first_time():
    algorithm = td3(policy_delay=3)
    kinds = [
        [loss.name for loss in algorithm.losses(transitions(**ACTIONS), Update(step=step))]
        for step in range(4)
    ]
    assert kinds == [["critic"], ["critic"], ["critic", "actor"], ["critic"]]


def test_td3s_targets_move_with_the_actor():
    target = td3(policy_delay=3, tau=0.5).targets["policy"]
    before = target.module.mean.item()
    for updates in (1, 2):
        target.follow(updates)
        assert target.module.mean.item() == before
    target.follow(3)
    assert target.module.mean.item() == pytest.approx((before + 2.0) / 2)
