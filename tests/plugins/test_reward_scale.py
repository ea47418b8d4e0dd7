"""Reward scaling: returns across fragments and episodes, clamp, resume, refusals."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from zoo.errors import UserError
from zoo.plugins import Facts, RewardScale, RewardScaleKnobs

RETURN_STD = RewardScaleKnobs("return_std")


def fragment(reward, terminated=None, truncated=None, mask=None) -> TensorDict:
    reward = torch.as_tensor(reward, dtype=torch.float32)
    none = torch.zeros_like(reward, dtype=torch.bool)

    def flags(given, default):
        return default if given is None else torch.as_tensor(given, dtype=torch.bool)

    return TensorDict(
        {
            "reward": reward,
            "terminated": flags(terminated, none),
            "truncated": flags(truncated, none),
            "mask": flags(mask, ~none),
        },
        batch_size=[len(reward)],
    )


def test_rewards_are_divided_by_the_std_of_discounted_returns():
    plugin = RewardScale(RETURN_STD, gamma=0.5)
    batch = fragment([[1.0, 2.0]])
    metrics = plugin.on_rollout(batch, None)
    # G = 1, 2.5: std .75
    torch.testing.assert_close(batch["reward"], torch.tensor([[4 / 3, 8 / 3]]))
    assert metrics == {"reward/scale": pytest.approx(4 / 3)}
    batch = fragment([[4.0]])
    plugin.on_rollout(batch, None)
    # the row goes on: G = .5·2.5 + 4 = 5.25
    std = float(np.std([1.0, 2.5, 5.25]))
    torch.testing.assert_close(batch["reward"], torch.tensor([[4.0 / std]]))


@pytest.mark.parametrize("kind", ["terminated", "truncated"])
def test_golden_06_either_end_of_an_episode_zeroes_the_running_return(kind):
    plugin = RewardScale(RETURN_STD, gamma=1.0)
    plugin.on_rollout(fragment([[1.0, 10.0, 100.0]], **{kind: [[0, 1, 0]]}), None)
    expected = [1.0, 11.0, 100.0]
    assert plugin.coefficient == pytest.approx(1 / np.std(expected))
    # also where the end falls on the fragment's last step
    plugin.on_rollout(fragment([[0.0]], **{kind: [[1]]}), None)
    plugin.on_rollout(fragment([[7.0]]), None)
    assert plugin.coefficient == pytest.approx(1 / np.std([*expected, 100.0, 7.0]))


def test_dead_steps_do_not_count():
    plugin = RewardScale(RETURN_STD, gamma=0.5)
    batch = fragment(
        [[1.0, 50.0, 2.0], [float("nan"), 3.0, 60.0]],
        terminated=[[0, 0, 0], [0, 0, 1]],
        mask=[[1, 0, 1], [0, 1, 0]],
    )
    plugin.on_rollout(batch, None)
    assert plugin.coefficient == pytest.approx(1 / np.std([1.0, 2.5, 3.0]))
    plugin.on_rollout(fragment([[0.0], [0.0]]), None)
    assert plugin.coefficient == pytest.approx(1 / np.std([1.0, 2.5, 3.0, 1.25, 1.5]))


def test_fragments_cut_anywhere_give_the_statistics_of_the_whole():
    generator = torch.Generator().manual_seed(0)
    reward = torch.randn(3, 40, generator=generator) + 5
    terminated = torch.rand(3, 40, generator=generator) < 0.1
    truncated = (torch.rand(3, 40, generator=generator) < 0.1) & ~terminated
    mask = torch.rand(3, 40, generator=generator) < 0.8
    expected, running = [], [0.0] * 3
    for t in range(40):
        for n in range(3):
            if not mask[n, t]:
                continue
            running[n] = 0.9 * running[n] + reward[n, t].item()
            expected.append(running[n])
            if terminated[n, t] or truncated[n, t]:
                running[n] = 0.0
    for cuts in ([40], [1] * 40, [7, 13, 20]):
        plugin, position = RewardScale(RETURN_STD, gamma=0.9), 0
        for steps in cuts:
            part = slice(position, position + steps)
            flags = (x[:, part] for x in (terminated, truncated, mask))
            plugin.on_rollout(fragment(reward[:, part], *flags), None)
            position += steps
        assert plugin.coefficient == pytest.approx(1 / np.std(expected), rel=1e-9)


def test_returns_that_do_not_vary_give_no_scale():
    plugin = RewardScale(RETURN_STD, gamma=0.5)
    batch = fragment([[3.0], [3.0]])
    plugin.on_rollout(batch, None)
    assert batch["reward"].tolist() == [[3.0], [3.0]]
    nearly = RewardScale(RETURN_STD)
    nearly.on_rollout(fragment([[1.0], [1.00001]]), None)
    assert nearly.coefficient == 1.0
    plugin.on_rollout(fragment([[0.0]], mask=[[0]]), None)
    assert plugin.coefficient == 1.0


def test_only_the_reward_changes():
    batch = fragment([[1.0, 2.0]])
    others = {k: v.clone() for k, v in batch.items() if k != "reward"}
    RewardScale(RETURN_STD).on_rollout(batch, None)
    assert all(torch.equal(batch[k], v) for k, v in others.items())
    assert set(batch.keys()) == {*others, "reward"}


def test_constant_factor_and_clamp():
    batch = fragment([[1.0, -40.0]])
    RewardScale(RewardScaleKnobs("constant", factor=0.1, clamp=2.0)).on_rollout(batch, None)
    torch.testing.assert_close(batch["reward"], torch.tensor([[0.1, -2.0]]))
    batch = fragment([[1.0, -40.0]])
    RewardScale(RewardScaleKnobs(clamp=5.0)).on_rollout(batch, None)
    assert batch["reward"].tolist() == [[1.0, -5.0]]
    batch = fragment([[1.0, -40.0]])
    assert RewardScale(RewardScaleKnobs()).on_rollout(batch, None) == {}
    assert batch["reward"].tolist() == [[1.0, -40.0]]


def test_with_replay_rollouts_stay_raw_and_samples_are_scaled():
    plugin = RewardScale.build(RETURN_STD, Facts("sac", "control", gamma=0.5, on_policy=False))
    batch = fragment([[1.0, 2.0]])
    plugin.on_rollout(batch, None)
    assert batch["reward"].tolist() == [[1.0, 2.0]]
    torch.testing.assert_close(plugin.scale(torch.tensor([3.0])), torch.tensor([4.0]))


def test_an_interrupted_run_continues_with_the_same_statistics():
    first, second = RewardScale(RETURN_STD), RewardScale(RETURN_STD)
    first.on_rollout(fragment([[1.0, 2.0], [3.0, -1.0]]), None)
    state = first.state_dict()
    second.load_state_dict(state)
    one, other = fragment([[0.5, 5.0], [2.0, 2.0]]), fragment([[0.5, 5.0], [2.0, 2.0]])
    first.on_rollout(one, None)
    second.on_rollout(other, None)
    assert torch.equal(one["reward"], other["reward"])
    third = RewardScale(RETURN_STD)
    third.load_state_dict(state)  # the state kept still is what it was
    assert third.coefficient == pytest.approx(1 / np.std([1.0, 2.99, 3.0, 1.97]))


@pytest.mark.parametrize("knobs", [{"factor": 0.0}, {"factor": -1.0}, {"clamp": 0.0}])
def test_settings_that_cannot_work_are_refused(knobs):
    with pytest.raises(UserError, match="positive"):
        RewardScaleKnobs(**knobs)


def test_runs_where_scaling_makes_no_sense_are_refused():
    grouped = Facts("grpo", "control", group_scale="group")
    for mode in ("return_std", "constant"):
        with pytest.raises(UserError, match="grpo: its advantage is already divided"):
            RewardScale.build(RewardScaleKnobs(mode), grouped)
    assert RewardScale.build(RewardScaleKnobs(clamp=1.0), grouped).coefficient == 1.0
    with pytest.raises(UserError, match="paid once"):
        RewardScale.build(RETURN_STD, Facts("ppo", "text"))
    unscaled = Facts("grpo", "control", gamma=0.7, group_scale="none")
    assert RewardScale.build(RETURN_STD, unscaled).gamma == 0.7
