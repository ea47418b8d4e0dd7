"""The Gymnasium rollout: transitions, episodes, budgets, seeds, errors."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from counter_env import Counter
from gymnasium import spaces

from zoo.core.batch import check
from zoo.errors import UserError
from zoo.functional.returns import gae
from zoo.policies.mlp import MLPKnobs, MLPPolicy
from zoo.rollouts.gymnasium import GymnasiumRollout, RolloutError

WAYS = [
    {"vector": vector, "autoreset": mode}
    for vector in ("sync", "async")
    for mode in (None, "next_step", "same_step", "disabled")
]


def rollout(env: Any = Counter, **options: Any) -> tuple[GymnasiumRollout, MLPPolicy]:
    made = GymnasiumRollout(env, **options)
    knobs = MLPKnobs(hidden_sizes=(8,), normalize_observation=options.pop("normalize", False))
    return made, MLPPolicy(made.observation_space, made.action_space, knobs)


def transitions(batch: Any) -> list[tuple[int, int]]:
    before = batch["observation"][..., 0].long().flatten().tolist()
    after = batch["next_observation"][..., 0].long().flatten().tolist()
    return list(zip(before, after, strict=True))


@pytest.mark.parametrize("way", WAYS)
def test_golden_05_no_transition_joins_two_episodes(way: dict[str, Any]) -> None:
    made, policy = rollout(lambda: Counter(3, stagger=2), num_envs=4, steps=20, **way)
    reference, _ = rollout(lambda: Counter(3, stagger=2), num_envs=4, steps=20)
    batch, expected = made.collect(policy), reference.collect(policy)
    assert set(transitions(batch)) == {(0, 1), (1, 2), (2, 3), (3, 4)}
    ends = batch["terminated"] | batch["truncated"]
    assert ends.sum() > 8
    assert (batch["observation"][:, 1:][ends[:, :-1]] == 0).all()
    for key in expected.keys():  # noqa: SIM118  a TensorDict iterates over rows
        assert torch.equal(batch[key], expected[key]), key
    again, expected = made.collect(policy), reference.collect(policy)
    assert torch.equal(again["observation"], expected["observation"])
    assert made.report() == reference.report()
    assert made.state_dict()["episodes"] == reference.state_dict()["episodes"]
    made.close()


def test_golden_05_holds_for_a_single_counter_by_hand() -> None:
    made, policy = rollout(num_envs=1, steps=5)
    batch = check(made.collect(policy))
    assert transitions(batch) == [(0, 1), (1, 2), (2, 3), (0, 1), (1, 2)]
    assert batch["terminated"].tolist() == [[False, False, True, False, False]]
    assert batch["reward"].tolist() == [[1.0, 2.0, 3.0, 1.0, 2.0]]


def test_golden_02_truncation_bootstraps_the_final_observation() -> None:
    made, policy = rollout(lambda: Counter(3, truncate=True), num_envs=1, steps=6)
    batch = made.collect(policy)
    assert batch["truncated"].tolist() == [[False, False, True] * 2]
    assert not batch["terminated"].any()
    value = torch.tensor([[10.0, 11.0, 12.0, 50.0, 51.0, 52.0]])
    # V(3) of the final observation, not V(0) of the next episode's first
    next_value = torch.tensor([[11.0, 12.0, 13.0, 51.0, 52.0, 53.0]])

    def advantage(first: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
        keys = ("reward", "terminated", "truncated", "mask")
        reward, terminated, truncated, mask = (batch[k] for k in keys)
        return gae(reward, first, following, terminated, truncated, mask, gamma=0.9, lam=0.8)[0]

    one = advantage(value, next_value)
    value[:, 3:], next_value[:, 3:] = 0.0, 7.0
    other = advantage(value, next_value)
    assert torch.equal(one[:, :3], other[:, :3])
    assert not torch.equal(one[:, 3:], other[:, 3:])
    torch.testing.assert_close(one[0, 2].item(), 3 + 0.9 * 13 - 12, rtol=0, atol=1e-5)


def test_values_are_those_of_the_true_next_observations() -> None:
    made, policy = rollout(lambda: Counter(3, stagger=3, truncate=True), num_envs=3, steps=17)
    batch = made.collect(policy)

    def direct(observation: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(policy.value_layers[0](observation))
        return policy.value_layers[1](x).squeeze(-1)

    value, next_value = policy.values(batch)
    with torch.no_grad():
        torch.testing.assert_close(value, direct(batch["observation"]))
        torch.testing.assert_close(next_value, direct(batch["next_observation"]))


@pytest.mark.parametrize("way", WAYS[:2] + WAYS[4:6])
def test_golden_17_four_environments_ending_together_give_four_returns(way: Any) -> None:
    made, policy = rollout(num_envs=4, steps=4, **way)
    made.collect(policy)
    records = made.report().records
    assert [(r["env"], r["return"], r["length"], r["step"]) for r in records] == [
        (i, 6.0, 3, 12) for i in range(4)
    ]
    assert made.report().metrics["return/mean"] == 6.0
    made.collect(policy)  # steps 5…8: the episodes that began before end at 6
    assert [(r["return"], r["length"]) for r in made.report().records] == [(6.0, 3)] * 4
    made.close()


def test_stored_rewards_are_the_episodes_returns() -> None:
    made, policy = rollout(lambda: Counter(2, stagger=9), num_envs=5, steps=7)
    stored, returned, running = 0.0, 0.0, 0.0
    for _ in range(6):
        stored += made.collect(policy)["reward"].sum().item()
        returned += sum(r["return"] for r in made.report().records)
        running = sum(made.state_dict()["return"])
    assert stored == returned + running


@pytest.mark.parametrize(("budget", "done"), [(100, 105), (10, 15), (15, 15), (10_000, 150)])
def test_golden_19_budgets_are_met_to_the_next_multiple(budget: int, done: int) -> None:
    made, policy = rollout(num_envs=15, steps=10)
    batch = made.collect(policy, budget=budget)
    assert int(batch["mask"].sum()) == done == made.env_steps


def test_golden_19_a_run_of_ten_thousand_steps_does_ten_thousand_and_five() -> None:
    made, policy = rollout(num_envs=15, steps=10)
    done = 0
    while done < 10_000:
        done += int(made.collect(policy, budget=10_000 - done)["mask"].sum())
    assert done == 10_005 == made.env_steps


def seeds_of(seed: int) -> list[list[int | None]]:
    made, policy = rollout(num_envs=4, steps=30, seed=seed)
    made.collect(policy)
    return [env.unwrapped.seeds for env in made.envs.envs]  # type: ignore[attr-defined]


def test_golden_16_runs_share_no_environment_stream() -> None:
    streams = [set(s) for seed in (0, 1) for s in seeds_of(seed)]
    assert all(len(s) == 11 for s in streams)  # every episode had a seed of its own
    assert len(set.union(*streams)) == 8 * 11


def test_golden_16_the_same_seed_gives_the_same_data() -> None:
    batches = []
    for seed in (3, 3, 4):
        torch.manual_seed(0)
        made, policy = rollout("CartPole-v1", num_envs=4, steps=30, seed=seed)
        batches.append(made.collect(policy))
    for key in batches[0].keys():  # noqa: SIM118
        assert torch.equal(batches[0][key], batches[1][key])
    assert not torch.equal(batches[0]["observation"], batches[2]["observation"])
    assert not torch.equal(batches[0]["action"], batches[2]["action"])


def test_golden_22_one_environment_one_step() -> None:
    made, policy = rollout(num_envs=1, steps=1)
    seen = [transitions(check(made.collect(policy)))[0] for _ in range(4)]
    assert seen == [(0, 1), (1, 2), (2, 3), (0, 1)]


@pytest.mark.parametrize("way", WAYS)
def test_groups_are_whole_episodes_from_one_reset(way: dict[str, Any]) -> None:
    made, policy = rollout(lambda: Counter(2, stagger=6), num_envs=6, group_size=3, **way)
    for first in (0, 2):
        batch = check(made.collect(policy))
        assert batch["group"].tolist() == [first] * 3 + [first + 1] * 3
        length = batch["mask"].sum(1)
        assert batch.shape == (6,) and batch["mask"].shape[1] == length.max()
        assert torch.equal(batch["mask"], torch.arange(int(length.max())) < length[:, None])
        for row, n in enumerate(length.tolist()):
            assert batch["next_observation"][row, :n, 0].tolist() == list(range(1, n + 1))
            assert batch["terminated"][row].nonzero().tolist() == [[n - 1]]
        # one seeded reset: the environment's own draw of its length is the group's
        assert len(set(length[:3].tolist())) == len(set(length[3:].tolist())) == 1
        assert (batch["reward"] * ~batch["mask"]).sum() == 0
        assert [r["length"] for r in made.report().records] == length.tolist()
    made.close()


def test_groups_differ_between_groups_and_rounds() -> None:
    made, policy = rollout("CartPole-v1", num_envs=6, group_size=3)
    first = torch.cat([made.collect(policy)["observation"][:, 0] for _ in range(2)])
    assert len({tuple(x.tolist()) for x in first}) == 4
    assert torch.equal(first[0], first[2]) and not torch.equal(first[0], first[3])


def test_a_budget_cuts_group_episodes_and_does_not_count_them() -> None:
    made, policy = rollout(lambda: Counter(5, stagger=20), num_envs=4, group_size=2)
    batch = check(made.collect(policy, budget=18))
    assert int(batch["mask"].sum()) == 20 == made.env_steps
    assert batch["mask"].shape == (4, 5)
    cut = batch["truncated"][:, -1]
    assert cut.any() and not (cut & batch["terminated"][:, -1]).any()
    assert len(made.report().records) == int((~cut).sum())


class Raises(Counter):
    """Raises at its second step where the third reset of the process group's file says so."""

    def __init__(self, folder: Path) -> None:
        super().__init__(50)
        self.folder = folder

    def reset(self, **options: Any) -> Any:
        result = super().reset(**options)
        self.bad = self.seeds[-1] == int((self.folder / "seed").read_text())
        return result

    def step(self, action: int) -> Any:
        if self.bad and self.count == 1:
            raise ZeroDivisionError("the wheel came off")
        return super().step(action)


@pytest.mark.parametrize("way", [{}, {"autoreset": "next_step"}, {"vector": "async"}])
def test_an_environment_that_raises_is_named_with_its_traceback(
    way: dict[str, Any], tmp_path: Path
) -> None:
    from zoo.rollouts.gymnasium_envs import EpisodeSeeds

    (tmp_path / "seed").write_text(str(EpisodeSeeds(0, 0)(2, 0)))
    made, policy = rollout(lambda: Raises(tmp_path), num_envs=4, steps=5, **way)
    with pytest.raises(
        RolloutError, match="Environment 2 raised ZeroDivisionError: the wheel"
    ) as e:
        made.collect(policy)
    assert e.value.index == 2
    assert "in step" in e.value.traceback and "ZeroDivisionError" in e.value.traceback
    made.close()


def test_a_dead_worker_process_is_reported(tmp_path: Path) -> None:
    class Dies(Counter):
        def step(self, action: int) -> Any:
            if self.count == 2:
                os._exit(3)
            return super().step(action)

    made, policy = rollout(Dies, num_envs=2, steps=5, vector="async")
    with pytest.raises(RolloutError, match="process of environment"):
        made.collect(policy)
    made.close()


def test_ctrl_c_reaches_the_workers_and_leaves_them_alive() -> None:
    made, policy = rollout(num_envs=2, steps=5, vector="async")
    made.collect(policy)
    for process in made.envs.vector.processes:  # type: ignore[attr-defined]
        os.kill(process.pid, signal.SIGINT)
    assert made.collect(policy)["mask"].all()
    made.close()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler  # here it still counts


@pytest.mark.parametrize("way", [{}, {"autoreset": "next_step"}, {"vector": "async"}])
def test_a_factory_that_raises_is_named_with_its_traceback(way: dict[str, Any]) -> None:
    def broken() -> gymnasium.Env[Any, Any]:
        raise ZeroDivisionError("no wheel")

    with pytest.raises(
        RolloutError, match="Environment 0 could not be made: ZeroDiv.*no wheel"
    ) as e:
        GymnasiumRollout(broken, num_envs=2, **way)
    assert e.value.index == 0 and "in broken" in e.value.traceback


def test_a_factory_that_ends_its_worker_is_a_sentence() -> None:
    trainer = os.getpid()

    def dies() -> Counter:
        if os.getpid() != trainer:
            os._exit(3)
        return Counter()

    with pytest.raises(RolloutError, match="died while it was made.*rollout.vector=sync"):
        GymnasiumRollout(dies, num_envs=2, vector="async")


@pytest.mark.parametrize("group_size", [None, 2])
def test_a_batch_goes_where_the_policy_is(group_size: int | None) -> None:
    class Elsewhere(MLPPolicy):
        @property
        def device(self) -> torch.device:
            return torch.device("meta")

        def numpy_network(self, num_envs: int) -> Any:
            return lambda observation, outputs: None

    made, policy = rollout(num_envs=2, steps=5, group_size=group_size)
    assert made.collect(policy)["reward"].device.type == "cpu"
    batch = made.collect(Elsewhere(made.observation_space, made.action_space, policy.config))
    assert {leaf.device.type for leaf in batch.values()} == {"meta"}


def test_values_that_are_not_finite_are_refused() -> None:
    class Broken(Counter):
        def step(self, action: int) -> Any:
            observation, _, *rest = super().step(action)
            return observation, float("nan") if self.count == 2 else 0.0, *rest

    made, policy = rollout(Broken, num_envs=2, steps=5)
    with pytest.raises(RolloutError, match="Environment 0 gave a reward .* step 1"):
        made.collect(policy)


def test_both_flags_at_once_mean_termination() -> None:
    class Both(Counter):
        def step(self, action: int) -> Any:
            observation, reward, over, _, info = super().step(action)
            return observation, reward, over, over, info

    for way in WAYS[:4]:
        made, policy = rollout(Both, num_envs=2, steps=6, **way)
        batch = check(made.collect(policy))
        assert batch["terminated"].sum() == 4 and batch["truncated"].sum() == 0


def test_continuous_actions_are_stored_as_sampled_and_clipped_for_the_environment() -> None:
    taken = []

    class Moves(Counter):
        action_space = spaces.Box(-0.1, 0.2, (2,), np.float64)

        def step(self, action: Any) -> Any:
            taken.append(action)
            return super().step(action)

    made, policy = rollout(Moves, num_envs=2, steps=6)
    batch = made.collect(policy)
    stored = batch["action"].swapaxes(0, 1).reshape(12, 2).numpy()
    assert batch["action"].dtype == torch.float32 and np.abs(stored).max() > 0.5
    np.testing.assert_allclose(np.stack(taken), np.clip(stored, -0.1, 0.2), rtol=1e-6)
    assert taken[0].dtype == np.float64
    out = policy.evaluate(batch)
    torch.testing.assert_close(out.log_prob, batch["log_prob"])


def test_numbers_that_do_not_fit_are_refused() -> None:
    with pytest.raises(UserError, match="num_envs=6 is no multiple of group_size=4.*num_envs=8"):
        GymnasiumRollout(Counter, num_envs=6, group_size=4)
    with pytest.raises(UserError, match="1 ≤ num_envs ≤ 65536"):
        GymnasiumRollout(Counter, num_envs=0)
    with pytest.raises(UserError, match="sync, async, native or envpool"):
        GymnasiumRollout(Counter, vector="thread")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="autoreset"):
        GymnasiumRollout(Counter, autoreset="never")


def test_discrete_observations_reach_the_network_one_hot() -> None:
    made, policy = rollout("FrozenLake-v1", num_envs=3, steps=20)
    batch = check(made.collect(policy))
    assert batch["observation"].dtype == torch.int64 and batch["observation"].shape == (3, 20)
    assert policy.encoder.size == 16
    torch.testing.assert_close(policy.evaluate(batch).log_prob, batch["log_prob"])
    value, next_value = policy.values(batch)
    assert value.shape == next_value.shape == (3, 20)


def test_gymnasium_environments_need_no_id() -> None:
    made, _ = rollout(lambda: gymnasium.make("Acrobot-v1"), num_envs=1, steps=1)
    assert made.observation_space.shape == (6,)
