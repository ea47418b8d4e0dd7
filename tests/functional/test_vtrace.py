"""V-trace against literal values, GAE where nothing is corrected, and the paper's own sums."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from zoo.functional.returns import gae
from zoo.functional.vtrace import vtrace, vtrace_loop


def flags(*rows: list[int]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.bool)


def random_steps(seed: int, rows: int = 3, steps: int = 9) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def coin() -> torch.Tensor:
        return torch.rand(rows, steps, generator=generator) < 0.2

    reward, value, next_value = torch.randn(3, rows, steps, generator=generator)
    terminated = coin()
    return {
        "reward": reward,
        "value": value,
        "next_value": next_value,
        "terminated": terminated,
        "truncated": coin() & ~terminated,
        "mask": ~coin(),
        "weight": 2 * torch.rand(rows, steps, generator=generator),
    }


def test_the_equations_by_hand():
    reward, value = torch.tensor([[1.0, 2.0, 3.0]]), torch.ones(1, 3)
    next_value, weight = torch.tensor([[1.0, 1.0, 4.0]]), torch.tensor([[0.5, 2.0, 1.0]])
    never = flags([0, 0, 0])
    advantage, target = vtrace(reward, value, next_value, never, never, weight, gamma=0.5, lam=1.0)
    # δ = [.5, 1.5, 4]; D₂ = 4, D₁ = 2·1.5 + ½·min(1, 2)·4 = 5, D₀ = ½·.5 + ½·½·5 = 1.5
    assert target.tolist() == [[2.5, 6.0, 5.0]]
    # A₂ = δ₂, A₁ = 1.5 + ½·4, A₀ = .5 + ½·5
    assert advantage.tolist() == [[3.0, 3.5, 4.0]]


def test_lambda_shortens_both_by_hand():
    reward, value = torch.tensor([[1.0, 2.0]]), torch.zeros(1, 2)
    never, weight = flags([0, 0]), torch.tensor([[0.5, 0.5]])
    advantage, target = vtrace(reward, value, value, never, never, weight, gamma=1.0, lam=0.5)
    # D₁ = ½·2 = 1, D₀ = ½·1 + ½·½·1 = .75; A₀ = 1 + ½·1
    assert target.tolist() == [[0.75, 1.0]]
    assert advantage.tolist() == [[1.5, 2.0]]


@given(st.integers(0, 10**6))
@settings(max_examples=30, deadline=None)
def test_with_weights_of_one_it_is_gae(seed: int):
    steps = random_steps(seed)
    steps.pop("weight")
    ones = torch.ones(3, 9)
    for ours, theirs in zip(vtrace(**steps, weight=ones), gae(**steps), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-6)


@given(st.integers(0, 10**6), st.sampled_from([(0.99, 0.95), (1.0, 1.0), (0.9, 0.0)]))
@settings(max_examples=30, deadline=None)
def test_golden_04_loop_and_vectorised_agree(seed: int, discounts: tuple[float, float]):
    steps = random_steps(seed)
    fast, slow = (
        vtrace(**steps, gamma=discounts[0], lam=discounts[1]),
        vtrace_loop(**steps, gamma=discounts[0], lam=discounts[1]),
    )
    for one, other in zip(fast, slow, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


def test_one_step_is_its_own_advantage_in_both_forms():
    one = {name: value[:1, :1] for name, value in random_steps(3).items()}
    one |= {"terminated": flags([1]), "mask": flags([1]), "weight": torch.tensor([[0.5]])}
    gain = one["reward"] - one["value"]
    for form in (vtrace, vtrace_loop):
        advantage, target = form(**one)
        assert torch.equal(advantage, gain)
        torch.testing.assert_close(target, one["value"] + 0.5 * gain)


def test_golden_04_compiled_agrees():
    steps = random_steps(7)
    compiled = torch.compile(vtrace, backend="eager")
    for one, other in zip(compiled(**steps), vtrace(**steps), strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-6)


def published(
    reward: torch.Tensor,
    value: torch.Tensor,
    next_value: torch.Tensor,
    terminated: torch.Tensor,
    rho: torch.Tensor,
    gamma: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """IMPALA's equations as they stand there (and in torchrl's vtrace), sums and products.

    v_s = V_s + Σ_{t≥s} γ^{t−s} (Π_{s≤i<t} c_i) ρ_t δ_t, and ρ_s (r_s + γ v_{s+1} − V_s) is what
    multiplies the gradient of log π.
    """
    steps = len(reward)
    c = rho.clamp(max=1.0)
    v = value.clone()
    going = ~terminated
    for s in range(steps):
        for t in range(s, steps):
            if t > s and terminated[s:t].any():
                break
            delta = rho[t] * (reward[t] + gamma * going[t] * next_value[t] - value[t])
            v[s] += gamma ** (t - s) * c[s:t].prod() * delta
    following = torch.cat([v[1:], next_value[-1:]])
    return v, rho * (reward + gamma * going * following - value)


def test_it_agrees_with_the_published_sums():
    steps = random_steps(3, rows=1, steps=12)
    value = torch.randn(13, generator=torch.Generator().manual_seed(0))
    rho, terminated = steps["weight"].clamp(max=1.5), steps["terminated"]
    v, gradient = published(
        steps["reward"][0], value[:-1], value[1:], terminated[0], rho[0], gamma=0.97
    )
    never = torch.zeros_like(terminated)
    advantage, target = vtrace(
        steps["reward"], value[None, :-1], value[None, 1:], terminated, never, rho, None, 0.97, 1.0
    )
    torch.testing.assert_close(target[0], v, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close((rho * advantage)[0], gradient, atol=1e-5, rtol=1e-5)


def test_golden_01_truncation_bootstraps_whatever_the_weights():
    reward, value = torch.ones(1, 5), torch.full((1, 5), 10.0)
    weight = torch.tensor([[0.1, 3.0, 1.0, 0.0, 2.0]])
    ends = flags([0, 0, 0, 0, 0]), flags([0, 0, 0, 0, 1])
    advantage, target = vtrace(reward, value, value, *ends, weight, gamma=0.9, lam=0.95)
    torch.testing.assert_close(advantage, torch.zeros(1, 5), atol=1e-5, rtol=0)
    torch.testing.assert_close(target, value)


def test_golden_02_a_following_episode_never_reaches_the_one_before():
    steps = random_steps(0, 1, 6)
    never, cut = flags([0] * 6), flags([0, 0, 1, 0, 0, 1])
    steps |= {"terminated": never, "truncated": cut, "mask": ~never}
    before = vtrace(**steps)
    steps["value"][:, 3:], steps["next_value"][:, 3:], steps["weight"][:, 3:] = 1e6, -1e6, 7.0
    after = vtrace(**steps)
    for one, other in zip(before, after, strict=True):
        assert torch.equal(one[:, :3], other[:, :3])


def test_golden_03_termination_does_not_bootstrap():
    reward, value, weight = torch.ones(1, 3), torch.full((1, 3), 2.0), torch.full((1, 3), 0.5)
    ends = flags([0, 0, 1]), flags([0, 0, 0])
    advantage, target = vtrace(reward, value, value, *ends, weight, gamma=0.99, lam=1.0)
    assert advantage[0, -1] == -1.0
    assert target[0, -1] == 1.5  # 2 + ½·(1 − 2)


def test_dead_steps_may_hold_nan_and_let_nothing_through():
    steps = random_steps(1, 1, 5)
    steps["mask"] = flags([1, 1, 0, 1, 1])
    expected = vtrace(**steps)
    for name in ("reward", "value", "next_value", "weight"):
        steps[name][0, 2] = torch.nan
    for one, other in zip(vtrace(**steps), expected, strict=True):
        assert torch.equal(one, other)
        assert one[0, 2] == 0.0


def test_a_weight_that_would_broadcast_is_refused():
    x, flag = torch.zeros(2, 3), torch.zeros(2, 3, dtype=torch.bool)
    with pytest.raises(ValueError, match="weight"):
        vtrace(x, x, x, flag, flag, torch.ones(2, 1))
