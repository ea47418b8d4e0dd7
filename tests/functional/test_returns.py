"""Returns and advantages against literal values, properties, and Stable-Baselines3."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from zoo.functional import returns


def flags(*rows: list[int]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.bool)


def random_rollout(seed: int, rows: int, steps: int, ended: float = 0.15):
    generator = torch.Generator().manual_seed(seed)

    def coin() -> torch.Tensor:
        return torch.rand(rows, steps, generator=generator) < ended

    reward, value, next_value = torch.randn(3, rows, steps, generator=generator)
    terminated = coin()
    truncated = coin() & ~terminated
    return reward, value, next_value, terminated, truncated, ~coin()


def test_golden_01_truncation_bootstraps_so_the_advantage_of_a_right_critic_is_zero():
    reward, value = torch.ones(1, 5), torch.full((1, 5), 10.0)
    terminated, truncated = flags([0, 0, 0, 0, 0]), flags([0, 0, 0, 0, 1])
    advantage, target = returns.gae(
        reward, value, value, terminated, truncated, gamma=0.9, lam=0.95
    )
    torch.testing.assert_close(advantage, torch.zeros(1, 5), atol=1e-6, rtol=0)
    torch.testing.assert_close(target, value)


def test_golden_02_a_following_episode_never_reaches_the_one_before():
    reward, value, next_value, _, _, _ = random_rollout(0, 1, 6)
    none, cut = flags([0] * 6), flags([0, 0, 1, 0, 0, 1])
    before, _ = returns.gae(reward, value, next_value, none, cut)
    value[:, 3:], next_value[:, 3:], reward[:, 3:] = 1e6, -1e6, 1e6
    after, _ = returns.gae(reward, value, next_value, none, cut)
    assert torch.equal(before[:, :3], after[:, :3])
    # the last step of the first episode bootstraps from its own final observation
    expected = reward[0, 2] + 0.99 * next_value[0, 2] - value[0, 2]
    torch.testing.assert_close(after[0, 2], expected)


def test_golden_03_termination_does_not_bootstrap():
    reward, value = torch.ones(1, 3), torch.full((1, 3), 2.0)
    advantage, target = returns.gae(
        reward, value, value, flags([0, 0, 1]), flags([0, 0, 0]), gamma=0.99, lam=1.0
    )
    # δ = [.98, .98, −1]; A = δ + .99·A'
    torch.testing.assert_close(advantage, torch.tensor([[0.9701, -0.01, -1.0]]))
    torch.testing.assert_close(target, torch.tensor([[2.9701, 1.99, 1.0]]))


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    rows=st.integers(1, 4),
    steps=st.integers(1, 40),
    gamma=st.floats(0, 1),
    lam=st.floats(0, 1),
    masked=st.booleans(),
)
def test_golden_04_loop_and_doubling_agree(seed, rows, steps, gamma, lam, masked):
    *rollout, mask = random_rollout(seed, rows, steps)
    live = mask if masked else None
    fast = returns.gae(*rollout, live, gamma, lam)
    plain = returns.gae_loop(*rollout, live, gamma, lam)
    scale = 1 + plain[0].abs().max().item()
    for one, other in zip(fast, plain, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6 * scale, rtol=1e-6)


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_golden_04_compiled_agrees(backend):
    compiled = torch.compile(returns.gae, backend=backend, fullgraph=True, dynamic=False)
    rollout = random_rollout(1, 4, 33)
    for one, other in zip(compiled(*rollout), returns.gae_loop(*rollout), strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-6)


def test_long_undiscounted_rows_stay_exact():
    ones, zeros = torch.ones(2, 5000), torch.zeros(2, 5000)
    never = torch.zeros(2, 5000, dtype=torch.bool)
    advantage, _ = returns.gae(ones, zeros, zeros, never, never, gamma=1.0, lam=1.0)
    assert torch.equal(advantage[0], torch.arange(5000, 0, -1).float())


def test_gae_agrees_with_stable_baselines3():
    buffers = pytest.importorskip("stable_baselines3.common.buffers")
    gymnasium = pytest.importorskip("gymnasium")
    reward, value, _, terminated, _, _ = random_rollout(3, 2, 17)
    space = gymnasium.spaces.Box(-1, 1, (1,))
    buffer = buffers.RolloutBuffer(17, space, space, gamma=0.97, gae_lambda=0.9, n_envs=2)
    starts = torch.cat([torch.zeros(2, 1), terminated[:, :-1].float()], 1)
    buffer.rewards[:] = reward.T.numpy()
    buffer.values[:] = value.T.numpy()
    buffer.episode_starts[:] = starts.T.numpy()
    last = torch.tensor([0.3, -0.7])
    buffer.compute_returns_and_advantage(last, terminated[:, -1].numpy().astype(np.float32))
    next_value = torch.cat([value[:, 1:], last[:, None]], 1)
    advantage, target = returns.gae(
        reward, value, next_value, terminated, torch.zeros_like(terminated), gamma=0.97, lam=0.9
    )
    torch.testing.assert_close(advantage, torch.tensor(buffer.advantages).T)
    torch.testing.assert_close(target, torch.tensor(buffer.returns).T)


def test_numbers_that_do_not_count_may_be_nan():
    reward, value = torch.ones(1, 4), torch.zeros(1, 4)
    next_value = torch.tensor([[0.0, torch.nan, torch.nan, torch.nan]])
    reward[0, 2:] = torch.nan
    mask = flags([1, 1, 0, 0])
    advantage, target = returns.gae(
        reward, value, next_value, flags([0, 1, 0, 0]), flags([0] * 4), mask, 0.5, 1.0
    )
    assert advantage.tolist() == [[1.5, 1.0, 0.0, 0.0]]
    assert target.tolist() == [[1.5, 1.0, 0.0, 0.0]]


def test_a_dead_step_is_passed_over():
    reward, zeros = torch.tensor([[1.0, 5.0, 1.0]]), torch.zeros(1, 3)
    never = flags([0, 0, 0])
    advantage, _ = returns.gae(reward, zeros, zeros, never, never, flags([1, 0, 1]), 1.0, 1.0)
    assert advantage.tolist() == [[2.0, 0.0, 1.0]]


def test_shapes_that_would_broadcast_are_refused():
    x, flag = torch.zeros(2, 3), torch.zeros(2, 3, dtype=torch.bool)
    with pytest.raises(ValueError, match="next_value"):
        returns.gae(x, x, torch.zeros(2, 1), flag, flag)
    with pytest.raises(ValueError, match="2-dimensional"):
        returns.discounted(x[0], flag[0], flag[0], 0.9)


def test_discounted_returns_end_at_both_flags_and_bootstrap_at_one():
    reward = torch.tensor([[1.0, 2.0, 4.0, 8.0, 16.0]])
    terminated, truncated = flags([0, 1, 0, 0, 0]), flags([0, 0, 0, 1, 0])
    plain = returns.discounted(reward, terminated, truncated, 0.5)
    assert plain.tolist() == [[2.0, 2.0, 8.0, 8.0, 16.0]]
    bootstrap = torch.full((1, 5), 100.0)
    bootstrapped = returns.discounted(reward, terminated, truncated, 0.5, bootstrap)
    # 8 + .5·100, 4 + .5·58, 16 + .5·100 at the row's end
    assert bootstrapped.tolist() == [[2.0, 2.0, 33.0, 58.0, 66.0]]
    mask = flags([1, 1, 1, 0, 0])
    cut = returns.discounted(reward, terminated, truncated & mask, 0.5, bootstrap, mask)
    assert cut.tolist() == [[2.0, 2.0, 54.0, 0.0, 0.0]]


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), gamma=st.floats(0, 1))
def test_discounted_return_is_gae_with_lambda_one_plus_value(seed, gamma):
    reward, value, next_value, terminated, truncated, _ = random_rollout(seed, 3, 12)
    # telescoping needs V(s') of a step to be V of the next step within an episode
    inside = ~(terminated | truncated)
    next_value[:, :-1] = torch.where(inside[:, :-1], value[:, 1:], next_value[:, :-1])
    _, target = returns.gae(reward, value, next_value, terminated, truncated, None, gamma, 1.0)
    plain = returns.discounted(reward, terminated, truncated, gamma, next_value)
    torch.testing.assert_close(target, plain, atol=1e-5, rtol=1e-5)


def test_golden_13_a_short_episode_bootstraps_by_its_length_unless_terminated():
    reward = torch.tensor([[1.0, 2.0]])
    total, discount, index = returns.n_step(reward, flags([0, 0]), flags([0, 1]), 0.5, 3)
    assert total.tolist() == [[2.0, 2.0]]
    assert discount.tolist() == [[0.25, 0.5]]
    assert index.tolist() == [[1, 1]]
    total, discount, index = returns.n_step(reward, flags([0, 1]), flags([0, 0]), 0.5, 3)
    assert total.tolist() == [[2.0, 2.0]]
    assert discount.tolist() == [[0.0, 0.0]]
    assert index.tolist() == [[1, 1]]


def test_n_step_never_joins_two_episodes():
    reward = torch.tensor([[1.0, 10.0, 100.0, 1000.0, 10000.0]])
    terminated, truncated = flags([0, 1, 0, 0, 0]), flags([0, 0, 0, 0, 0])
    total, discount, index = returns.n_step(reward, terminated, truncated, 1.0, 3)
    assert total.tolist() == [[11.0, 10.0, 11100.0, 11000.0, 10000.0]]
    assert discount.tolist() == [[0.0, 0.0, 1.0, 1.0, 1.0]]
    assert index.tolist() == [[1, 1, 4, 4, 4]]


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), n=st.integers(1, 6), steps=st.integers(1, 9))
def test_n_step_is_the_sum_written_out(seed, n, steps):
    reward, _, _, terminated, truncated, _ = random_rollout(seed, 2, steps, 0.3)
    flags_before = terminated.clone(), truncated.clone()
    total, discount, index = returns.n_step(reward, terminated, truncated, 0.9, n)
    for row in range(2):
        for t in range(steps):
            expected, k = 0.0, 0
            while True:
                expected += 0.9**k * reward[row, t + k].item()
                k += 1
                last = t + k - 1
                if terminated[row, last] or truncated[row, last] or k == n or last == steps - 1:
                    break
            assert total[row, t].item() == pytest.approx(expected, abs=1e-5)
            assert index[row, t].item() == last
            gamma_k = 0.0 if terminated[row, last] else 0.9**k
            assert discount[row, t].item() == pytest.approx(gamma_k, abs=1e-6)
    assert torch.equal(terminated, flags_before[0]) and torch.equal(truncated, flags_before[1])


def test_group_advantage_is_scaled_by_the_sample_standard_deviation():
    group = torch.zeros(4, dtype=torch.long)
    advantage = returns.group_advantage(torch.tensor([1.0, 0, 0, 0]), group)
    expected = torch.tensor([1.4997, -0.4999, -0.4999, -0.4999])
    torch.testing.assert_close(advantage, expected, atol=5e-5, rtol=0)


@pytest.mark.parametrize("scale", ["group", "batch"])
def test_two_completions_are_scaled_by_their_sample_deviation(scale):
    reward, group = torch.tensor([1.0, 0.0]), torch.zeros(2, dtype=torch.long)
    expected = 0.5 / (0.5**0.5 + 1e-4)
    advantage = returns.group_advantage(reward, group, scale=scale)
    torch.testing.assert_close(advantage, torch.tensor([expected, -expected]))


def test_group_advantage_scale_by_batch_or_not_at_all():
    reward = torch.tensor([1.0, 0.0, 3.0, 3.0])
    group = torch.tensor([7, 7, -2, -2])
    bare = returns.group_advantage(reward, group, "none")
    assert bare.tolist() == [0.5, -0.5, 0.0, 0.0]
    # mean 1.75, squares .5625 + 3.0625 + 2·1.5625 = 6.75, std √(6.75/3) = 1.5
    batch = returns.group_advantage(reward, group, "batch")
    torch.testing.assert_close(batch, torch.tensor([0.5, -0.5, 0, 0]) / 1.5001)


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
@pytest.mark.parametrize("reward", [[0.35] * 8, [0.1] * 3, [1 / 3] * 7])
def test_golden_31_equal_rewards_give_exactly_zero(reward, scale):
    reward = torch.tensor([*reward, 0.0, 1.0])
    group = torch.tensor([0] * (len(reward) - 2) + [1, 1])
    advantage = returns.group_advantage(reward, group, scale)
    assert advantage[:-2].eq(0).all()
    assert advantage[-1] > 0.4
    assert returns.live_groups(reward, group).tolist() == [False] * (len(reward) - 2) + [True] * 2


def test_rewards_closer_than_a_share_of_the_larger_one_are_equal() -> None:
    group = torch.tensor([0, 0, 1, 1])
    for unit in (1.0, -1.0, 100.0, 0.01):
        reward = unit * torch.tensor([1.0, 0.5, 1.0, 0.39])  # apart by .5 and by .61 of it
        live = returns.live_groups(reward, group, tolerance=0.6)
        assert live.tolist() == [False, False, True, True]


def test_golden_31_no_gradient_from_equal_rewards():
    from zoo.functional import surrogate

    log_prob = torch.zeros(3, 2, requires_grad=True)
    advantage = returns.group_advantage(torch.tensor([0.1] * 3), torch.zeros(3, dtype=torch.long))
    surrogate.clipped(log_prob, advantage[:, None].expand(3, 2), 0.2, 0.2).sum().backward()
    assert log_prob.grad.eq(0).all()


def test_rewards_that_differ_by_one_rounding_step_are_live():
    reward = torch.tensor([0.35, 0.35 + 2**-24])
    assert returns.live_groups(reward, torch.zeros(2, dtype=torch.long)).all()


def test_invalid_rows_get_zero_and_leave_the_baseline_alone():
    reward = torch.tensor([1.0, torch.nan, 0.0, 50.0, 0.0, 0.0])
    group = torch.tensor([3, 3, 3, 3, 3, 3])
    valid = torch.tensor([True, False, True, False, True, True])
    advantage = returns.group_advantage(reward, group, valid=valid)
    expected = torch.tensor([1.4997, 0, -0.4999, 0, -0.4999, -0.4999])
    torch.testing.assert_close(advantage, expected, atol=5e-5, rtol=0)
    # over the batch: mean of the valid .25, squares .5625 + 3·.0625 = .75, std √(.75/3) = .5
    batch = returns.group_advantage(reward, group, "batch", valid)
    torch.testing.assert_close(batch, torch.tensor([0.75, 0, -0.25, 0, -0.25, -0.25]) / 0.5001)
    assert returns.live_groups(reward, group, valid).tolist() == valid.tolist()
    alone = returns.group_advantage(
        torch.tensor([5.0, 7.0]), torch.tensor([0, 0]), valid=torch.tensor([True, False])
    )
    assert alone.tolist() == [0.0, 0.0]
    nobody = returns.group_advantage(reward, group, "batch", torch.zeros(6, dtype=torch.bool))
    assert nobody.tolist() == [0.0] * 6


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_group_advantage_does_not_depend_on_labels_or_order(seed):
    generator = torch.Generator().manual_seed(seed)
    reward = torch.randint(0, 3, (12,), generator=generator).float()
    group = torch.arange(12) // 4
    order = torch.randperm(12, generator=generator)
    one = returns.group_advantage(reward, group)
    other = returns.group_advantage(reward[order], 100 - 7 * group[order])
    torch.testing.assert_close(one[order], other)
    assert one.view(3, 4).sum(1).abs().max() < 1e-5


def test_an_unknown_scale_is_refused():
    with pytest.raises(ValueError, match="std"):
        returns.group_advantage(torch.zeros(2), torch.zeros(2).long(), scale="std")


def test_golden_07_normalising_a_single_element_leaves_it_alone():
    last = torch.linspace(-1, 1, 65)[64:]
    assert returns.normalize(last).tolist() == [1.0]
    masked = returns.normalize(torch.tensor([[5.0, torch.nan]]), flags([1, 0]))
    assert masked.tolist() == [[5.0, 0.0]]
    assert returns.normalize(torch.zeros(0)).shape == (0,)
    assert returns.normalize(torch.ones(2), torch.zeros(2, dtype=torch.bool)).tolist() == [0, 0]


def test_normalised_live_entries_have_mean_zero_and_std_one():
    advantage = torch.tensor([[1.0, 3.0, torch.nan], [5.0, 1e9, 7.0]])
    mask = flags([1, 1, 0], [1, 0, 1])
    normal = returns.normalize(advantage, mask)
    # mean 4, std √(20/3)
    expected = torch.tensor([[-3.0, -1.0, 0.0], [1.0, 0.0, 3.0]]) / (20 / 3) ** 0.5
    torch.testing.assert_close(normal, expected)


def test_two_entries_are_divided_by_their_sample_deviation_and_eps():
    normal = returns.normalize(torch.tensor([1.0, 3.0]), eps=0.5)
    expected = 1 / (2**0.5 + 0.5)  # centred to ±1, of which the sample deviation is √2
    torch.testing.assert_close(normal, torch.tensor([-expected, expected]))


def test_equal_advantages_normalise_to_exactly_zero():
    equal = torch.full((8,), 0.35)
    assert returns.normalize(equal).eq(0).all()
    live = torch.arange(8) < 7
    assert returns.normalize(equal.where(live, -9.0), live).eq(0).all()
    assert returns.normalize(equal.where(live, 9.0), live).eq(0).all()
