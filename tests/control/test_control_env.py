"""Making environments by name."""

from __future__ import annotations

import cloudpickle
import pytest
from counter_env import Counter

from zoo.envs.control import ControlEnv
from zoo.errors import UserError


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("CartPol-v1", "Did you mean 'CartPole-v1'"),
        ("cartpole-v1", "Did you mean 'CartPole-v1'"),
        ("CartPole-v7", "Did you mean 'CartPole-v1'"),
        ("LunarLander-v2", "old version.*Did you mean 'LunarLander-v3'"),
        ("nowhere:Thing-v0", "No module named 'nowhere'"),
        ("ALE/Thing-v5", "module in front"),
    ],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_unknown_names_are_refused_with_the_nearest(name: str, hint: str) -> None:
    with pytest.raises(UserError, match=hint) as refusal:
        ControlEnv(name)()
    assert "\n" not in str(refusal.value)


def test_time_limits_and_options_are_passed_on() -> None:
    env = ControlEnv("CartPole-v1", max_episode_steps=7, options={"sutton_barto_reward": True})()
    env.reset(seed=0)
    steps = [env.step(i % 2) for i in range(7)]
    assert [s[3] for s in steps] == [False] * 6 + [True]
    assert steps[0][1] == 0.0


def test_settings_that_make_no_environment_are_refused() -> None:
    with pytest.raises(UserError, match="CartPole-v1' refuses env.options={'foo': 3}: .*'foo'.$"):
        ControlEnv("CartPole-v1", options={"foo": 3})()
    with pytest.raises(UserError, match="max_episode_steps ≥ 1 .got -3"):
        ControlEnv("CartPole-v1", max_episode_steps=-3)
    with pytest.raises(UserError, match="env.id is empty"):
        ControlEnv(None)  # type: ignore[arg-type]


def test_a_function_makes_the_environment_instead() -> None:
    made = ControlEnv("mine", make=lambda: Counter(9), max_episode_steps=2)
    env = cloudpickle.loads(cloudpickle.dumps(made))()
    env.reset(seed=0)
    assert [env.step(0)[3] for _ in range(2)] == [False, True]
