"""Actions of several choices: log-probability, entropy and divergence are sums over the choices."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import distributions

from zoo.algorithms import PPO
from zoo.policies.factored import FactoredActor, Factors
from zoo.policies.mlp import MLPPolicy

MIXED = spaces.MultiDiscrete([2, 4, 3], start=[0, 10, -1])
BOX = spaces.Box(-1, 1, (2,), np.float32)


def test_a_hand_worked_action() -> None:
    factors = Factors(spaces.MultiDiscrete([2, 3]))
    # odds 1 : 3, and 1 : 1 : 2
    logits = torch.log(torch.tensor([[1.0, 3.0, 1.0, 1.0, 2.0]]))
    log_prob, entropy = factors.evaluate(logits, torch.tensor([[1, 2]]))
    assert log_prob.item() == pytest.approx(math.log(3 / 4) + math.log(1 / 2))
    one = -(1 / 4 * math.log(1 / 4) + 3 / 4 * math.log(3 / 4))
    two = -(2 / 4 * math.log(1 / 4) + 1 / 2 * math.log(1 / 2))
    assert entropy.item() == pytest.approx(one + two)
    even = torch.zeros(1, 5)
    expected = math.log(2) - one + math.log(3) - two  # KL to uniform: log n − H
    assert factors.kl(logits, even).item() == pytest.approx(expected)
    assert factors.kl(logits, logits).item() == 0.0


def test_choices_agree_with_torch_distributions() -> None:
    factors = Factors(MIXED)
    logits, other = torch.randn(6, 9, requires_grad=True), torch.randn(6, 9)
    index = torch.stack([torch.randint(n, (6,)) for n in (2, 4, 3)], 1)
    log_prob, entropy = factors.evaluate(logits, index + torch.tensor([0, 10, -1]))
    parts = [distributions.Categorical(logits=part) for part in logits.split([2, 4, 3], -1)]
    others = [distributions.Categorical(logits=part) for part in other.split([2, 4, 3], -1)]
    expected = sum(part.log_prob(index[:, k]) for k, part in enumerate(parts))
    torch.testing.assert_close(log_prob.squeeze(1), expected)
    torch.testing.assert_close(entropy.squeeze(1), sum(part.entropy() for part in parts))
    kl = sum(distributions.kl_divergence(p, q) for p, q in zip(parts, others, strict=True))
    torch.testing.assert_close(factors.kl(logits, other).squeeze(1), kl)
    loss = (log_prob + 0.1 * entropy).sum()
    (gradient,) = torch.autograd.grad(loss, logits)
    other_loss = expected.sum() + 0.1 * sum(part.entropy().sum() for part in parts)
    torch.testing.assert_close(gradient, torch.autograd.grad(other_loss, logits)[0])
    assert gradient.isfinite().all()


def test_binary_choices_are_bernoulli_in_the_difference_of_their_logits() -> None:
    factors = Factors(spaces.MultiBinary((2, 2)))
    logits, action = torch.randn(5, 8), torch.randint(2, (5, 2, 2))
    log_prob, entropy = factors.evaluate(logits, action)
    pairs = logits.view(5, 2, 2, 2)
    bernoulli = distributions.Bernoulli(logits=pairs[..., 1] - pairs[..., 0])
    expected = bernoulli.log_prob(action.float()).sum((1, 2))
    torch.testing.assert_close(log_prob.squeeze(1), expected)
    torch.testing.assert_close(entropy.squeeze(1), bernoulli.entropy().sum((1, 2)))


def test_choices_agree_with_stable_baselines3() -> None:
    sb3 = pytest.importorskip("stable_baselines3.common.distributions")
    theirs = sb3.MultiCategoricalDistribution([2, 4, 3])
    logits, index = torch.randn(6, 9), torch.tensor([[1, 3, 2]] * 6)
    theirs.proba_distribution(logits)
    factors = Factors(spaces.MultiDiscrete([2, 4, 3]))
    log_prob, entropy = factors.evaluate(logits, index)
    torch.testing.assert_close(log_prob.squeeze(1), theirs.log_prob(index))
    torch.testing.assert_close(entropy.squeeze(1), theirs.entropy())


def test_sampled_choices_have_the_frequencies_of_their_distributions() -> None:
    logits = np.log(np.array([1, 3, 4, 1, 1, 2, 6, 2, 2], np.float32))
    expected = [[1 / 4, 3 / 4], [4 / 8, 1 / 8, 1 / 8, 2 / 8], [6 / 10, 2 / 10, 2 / 10]]

    def network(observation: np.ndarray, outputs: np.ndarray) -> None:
        outputs[...] = logits

    actor = FactoredActor(network, Factors(MIXED), 1, 20_000, np.random.default_rng(0))
    action = actor(np.zeros((20_000, 2), np.float32), 0)
    for k, (start, chances) in enumerate(zip((0, 10, -1), expected, strict=True)):
        share = np.bincount(action[:, k] - start, minlength=len(chances)) / 20_000
        np.testing.assert_allclose(share, chances, atol=0.015)
    for joint in ((0, 10), (1, 13)):  # choices are independent
        both = np.mean((action[:, 0] == joint[0]) & (action[:, 1] == joint[1]))
        assert both == pytest.approx(expected[0][joint[0]] * expected[1][joint[1] - 10], abs=0.01)
    likeliest = FactoredActor(network, Factors(MIXED), 1, 1, None)
    assert likeliest(np.zeros((1, 2), np.float32), 0).tolist() == [[1, 10, -1]]


@pytest.mark.parametrize("space", [MIXED, spaces.MultiBinary(4)], ids=str)
def test_what_acts_is_what_is_evaluated(space: Any) -> None:
    policy = MLPPolicy(BOX, space)
    with torch.no_grad():
        policy.policy_layers[-1].weight.mul_(100)
    seen = np.random.default_rng(1).normal(size=(7, 2)).astype(np.float32)
    action, log_prob = policy.act(seen, np.random.default_rng(0))
    assert all(space.contains(row.astype(space.dtype)) for row in action)
    batch: Any = {
        "observation": torch.from_numpy(seen)[:, None],
        "action": torch.from_numpy(action)[:, None],
    }
    evaluated = policy.evaluate(batch, policy.reference_copy())
    np.testing.assert_allclose(log_prob, evaluated.log_prob.squeeze(1).detach(), atol=1e-5)
    assert evaluated.kl is not None and evaluated.kl.abs().max() < 1e-6


class Lights(gymnasium.Env[np.ndarray, np.ndarray]):
    """Switch on exactly the lights that are asked for, and turn the dial to their number."""

    observation_space = spaces.MultiBinary(3)
    action_space = spaces.MultiDiscrete([2, 2, 2, 4])

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.count = 0
        return self._ask(), {}

    def step(self, action: np.ndarray) -> Any:
        self.count += 1
        right = (action[:3] == self.asked).sum() + (action[3] == self.asked.sum())
        return self._ask(), float(right) / 4, False, self.count == 10, {}

    def _ask(self) -> np.ndarray:
        self.asked = self.np_random.integers(2, size=3, dtype=np.int8)
        return self.asked


OVERRIDES = ["eval.every=null", "eval.at_end=false", "rollout.steps=64", "algo.lr=3e-3"]


def test_ppo_learns_several_choices_at_once() -> None:
    made = PPO(Lights, seed=1, overrides=[*OVERRIDES, "algo.gamma=0"]).train(12_000)
    assert made.evaluate(episodes=20)["return_mean"] > 9.5  # 10 at most; at random 5.6
    made.close()


def test_a_run_with_several_choices_resumes_bit_for_bit(tmp_path: Path) -> None:
    whole = PPO(Lights, seed=1, overrides=[*OVERRIDES, "rollout.steps=17"]).train(150)
    whole.save(tmp_path / "half.pt")
    parts = PPO.load(tmp_path / "half.pt", env=Lights)
    for made in (whole, parts):
        made.train(150)
        made.close()
    for one, other in zip(whole.policy.parameters(), parts.policy.parameters(), strict=True):
        assert torch.equal(one, other)
