"""EnvPool's environments under the rollout's interface."""

from __future__ import annotations

import sys
import warnings
from typing import Any

import numpy as np
import pytest

from zoo.envs.control import ControlEnv
from zoo.errors import UserError
from zoo.rollouts.gymnasium import GymnasiumRollout


def _rollout(**options: Any) -> GymnasiumRollout:
    warnings.simplefilter("ignore")  # EnvPool's spaces lose precision on their way
    return GymnasiumRollout(
        ControlEnv("CartPole-v1", max_episode_steps=options.pop("limit", None)),
        vector="envpool",
        **{"num_envs": 3, "steps": 400, **options},
    )


def _policy(rollout: GymnasiumRollout) -> Any:
    import torch

    from zoo.policies.mlp import MLPPolicy

    torch.manual_seed(0)
    return MLPPolicy(rollout.observation_space, rollout.action_space)


@pytest.fixture
def _installed() -> None:
    pytest.importorskip("envpool")


@pytest.mark.usefixtures("_installed")
@pytest.mark.parametrize("limit", [None, 9], ids=["falls", "time-is-up"])
def test_no_transition_leads_from_an_episode_into_the_next(limit: int | None) -> None:
    rollout = _rollout(limit=limit)
    batch = rollout.collect(_policy(rollout))
    seen, following = (batch[key].numpy() for key in ("observation", "next_observation"))
    over = (batch["terminated"] | batch["truncated"]).numpy()
    np.testing.assert_array_equal(seen[:, 1:][~over[:, :-1]], following[:, :-1][~over[:, :-1]])
    assert over.sum() > 20
    assert (np.abs(seen[:, 1:][over[:, :-1]]) <= 0.05).all()  # where CartPole starts
    assert batch["truncated"].any() == (limit is not None)
    fell = following[batch["terminated"].numpy()]
    assert ((np.abs(fell[:, 2]) > 0.2094) | (np.abs(fell[:, 0]) > 2.4)).all()
    assert (batch["reward"] == 1).all()
    lengths = [record["length"] for record in rollout.report().records]
    assert sum(lengths) <= 1200 and (limit is None or max(lengths) == 9)


@pytest.mark.usefixtures("_installed")
def test_transitions_follow_gymnasium_s_equations() -> None:
    rollout = _rollout()
    batch = rollout.collect(_policy(rollout))
    env: Any = ControlEnv("CartPole-v1")().unwrapped
    for t in range(0, 300, 7):
        env.reset()
        env.state = batch["observation"][0, t].numpy().astype(np.float64)
        expected, reward, terminated, _, _ = env.step(int(batch["action"][0, t]))
        np.testing.assert_allclose(batch["next_observation"][0, t], expected, atol=1e-5)
        assert (reward, terminated) == (batch["reward"][0, t], batch["terminated"][0, t])


@pytest.mark.usefixtures("_installed")
def test_seeds_have_streams_of_their_own() -> None:
    batches = []
    for seed in (0, 0, 1):
        rollout = _rollout(seed=seed)
        batches.append(rollout.collect(_policy(rollout))["observation"])
    assert batches[0].equal(batches[1]) and not batches[0].equal(batches[2])
    starts = batches[0][:, 0]
    assert len(np.unique(starts.numpy(), axis=0)) == 3


@pytest.mark.usefixtures("_installed")
def test_resume_begins_new_episodes_and_says_so() -> None:
    rollout = _rollout()
    policy = _policy(rollout)
    rollout.collect(policy)
    state, again = rollout.state_dict(), _rollout()
    with pytest.warns(UserWarning, match="not bitwise"):
        again.load_state_dict(state)
    batch = again.collect(policy)
    assert again.episodes() >= [n + 1 for n in state["episodes"]]
    assert (np.abs(batch["observation"][:, 0]) <= 0.05).all()


@pytest.mark.usefixtures("_installed")
def test_what_envpool_can_not_do_is_refused() -> None:
    rollout = _rollout(num_envs=4, group_size=2)
    policy = _policy(rollout)
    with pytest.raises(UserError, match="given seed"):
        rollout.collect(policy)
    options = ControlEnv("CartPole-v1", options={"sutton_barto_reward": True})
    with pytest.raises(UserError, match=r"rollout\.vector=sync"):
        GymnasiumRollout(options, 2, vector="envpool")


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "envpool", None)
    with pytest.raises(UserError, match=r"pip install 'algorithm-zoo\[envpool\]'"):
        _rollout()
