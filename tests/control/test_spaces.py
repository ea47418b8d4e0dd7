"""Every observation and action space runs, or is refused in one sentence that says what to do."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from zoo import algorithms
from zoo.core import choices
from zoo.envs.control import ControlEnv
from zoo.errors import UserError
from zoo.policies.mlp import MLPPolicy
from zoo.policies.q_network import QNetworkPolicy
from zoo.policies.spaces import require_supported
from zoo.rollouts.gymnasium import GymnasiumRollout

BOX = spaces.Box(-1, 1, (2,), np.float32)
OBSERVED: dict[str, tuple[spaces.Space[Any], int | str]] = {
    "box": (BOX, 2),
    "matrix": (spaces.Box(-1, 1, (2, 3), np.float32), 6),
    "float64": (spaces.Box(-1, 1, (2,), np.float64), 2),
    "whole-numbers": (spaces.Box(0, 9, (2,), np.int64), 2),
    "discrete": (spaces.Discrete(4, start=2), 4),
    "multi-discrete": (spaces.MultiDiscrete([2, 3]), 5),
    "multi-binary": (spaces.MultiBinary(3), 3),
    "dict": (spaces.Dict({"a": BOX, "b": spaces.Discrete(3)}), 5),
    "tuple": (spaces.Tuple([BOX, spaces.MultiBinary(2)]), 4),
    "nested": (spaces.Dict({"a": spaces.Tuple([BOX, BOX]), "b": spaces.Discrete(2)}), 6),
    "sequence": (spaces.Dict({"a": spaces.Sequence(BOX)}), "have no fixed length"),
    "text": (spaces.Text(5), "flatten them with gymnasium.wrappers.FlattenObservation"),
    "large-dict": (
        spaces.Dict({"a": spaces.Box(0, 255, (96, 96, 3), np.uint8)}),
        "flattened into 27,648 numbers: keep the parts that matter",
    ),
}
BOTH, SEVERAL = "algo=sac or algo=td3", "map the actions onto one Discrete"
WITH = {"ppo", "grpo"}
#: space → the algorithms that act in it, and what the others say
ACTED: dict[str, tuple[spaces.Space[Any], set[str], dict[str, str]]] = {
    "discrete": (spaces.Discrete(3, start=1), {*WITH, "sac", "dqn"}, {"td3": "a Box"}),
    "box": (BOX, {*WITH, "sac", "td3"}, {"dqn": BOTH}),
    "multi-discrete": (spaces.MultiDiscrete([2, 3], start=[0, 5]), WITH, {"": SEVERAL}),
    "multi-binary": (spaces.MultiBinary((2, 2)), WITH, {"": SEVERAL}),
    "whole-numbers": (spaces.Box(0, 9, (2,), np.int64), set(), {"": "declare them MultiDiscrete"}),
    "dict": (spaces.Dict({"a": BOX}), set(), {"": "with a gymnasium.ActionWrapper"}),
    "tuple": (spaces.Tuple([BOX]), set(), {"": "with a gymnasium.ActionWrapper"}),
}
SHORT = ["eval.every=null", "eval.at_end=false", "rollout.num_envs=2", "rollout.steps=8"]
MORE = {
    "ppo": ["algo.epochs=1"],
    "grpo": ["algo.group_size=2", "algo.epochs=1", "algo.minibatch_size=null"],
}
REPLAY = ["algo.replay.learning_starts=8", "algo.replay.batch_size=4"]


def env(observed: spaces.Space[Any], acted: spaces.Space[Any]) -> type[gymnasium.Env[Any, Any]]:
    class Sampled(gymnasium.Env[Any, Any]):
        observation_space = observed
        action_space = acted
        count = 0

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            super().reset(seed=seed)
            self.observation_space.seed(seed)
            self.count = 0
            return self.observation_space.sample(), {}

        def step(self, action: Any) -> Any:
            assert self.action_space.contains(action), action
            self.count += 1
            seen = self.observation_space.sample()
            return seen, float(np.sum(action)), False, self.count == 5, {}

    return Sampled


def one_sentence(refusal: Any) -> str:
    text = str(refusal.value)
    assert "\n" not in text and len(text) < 400
    return text


@pytest.mark.parametrize("name", OBSERVED)
def test_an_observation_space_runs_or_is_refused(name: str) -> None:
    space, expected = OBSERVED[name]
    make = env(space, spaces.Discrete(2))
    if isinstance(expected, str):
        with pytest.raises(UserError, match=expected) as refusal:
            algorithms.PPO(make, overrides=SHORT)
        one_sentence(refusal)
        return
    made = algorithms.PPO(make, overrides=[*SHORT, *MORE["ppo"]]).train(32)
    assert made.policy.encoder.size == expected
    assert np.isfinite(made.evaluate(episodes=2)["return_mean"])
    made.close()


#: GRPO's variants act by its policy
OWN = [name for name in choices.named("algo") if not choices.about("algo", name).get("tuned_as")]


@pytest.mark.parametrize("algo", OWN)
@pytest.mark.parametrize("name", ACTED)
def test_an_action_space_runs_or_is_refused(name: str, algo: str) -> None:
    space, runs, said = ACTED[name]
    overrides = [*SHORT, *MORE.get(algo, REPLAY)]
    cls = getattr(algorithms, algo.upper())
    if algo not in runs:
        with pytest.raises(UserError, match=said.get(algo, said.get(""))) as refusal:
            cls(env(BOX, space), overrides=overrides)
        one_sentence(refusal)
        return
    made = cls(env(BOX, space), overrides=overrides)
    before = [p.clone() for p in made.policy.parameters()]
    made.train(32)
    assert made.trainer.learner.steps > 0
    assert any(not p.equal(b) for p, b in zip(made.policy.parameters(), before, strict=True))
    made.evaluate(episodes=2)
    made.close()


def test_parts_are_flattened_in_gymnasium_s_order() -> None:
    space = spaces.Dict({"b": spaces.Discrete(3), "a": BOX})
    made = ControlEnv("own", env(space, spaces.Discrete(2)))()
    seen, _ = made.reset(seed=1)
    plain, _ = env(space, spaces.Discrete(2))().reset(seed=1)
    one_hot = [float(plain["b"] == value) for value in range(3)]
    np.testing.assert_allclose(seen, [*plain["a"], *one_hot])


def test_a_rollout_names_the_wrapper_for_what_it_is_given_itself() -> None:
    make = env(spaces.Dict({"a": BOX}), spaces.Discrete(2))
    with pytest.raises(UserError, match="FlattenObservation"):
        GymnasiumRollout(make, num_envs=1)
    require_supported(BOX, spaces.MultiBinary(2))


@pytest.mark.parametrize("vector", ["sync", "async"])
def test_several_choices_reach_the_environments_in_its_own_type(vector: Any) -> None:
    for space in (spaces.MultiDiscrete([2, 3], start=[0, 5]), spaces.MultiBinary((2, 2))):
        make = env(BOX, space)
        made = GymnasiumRollout(make, num_envs=2, steps=7, vector=vector, autoreset="same_step")
        policy = MLPPolicy(BOX, space)
        batch = made.collect(policy)
        assert batch["action"].shape == (2, 7, *space.shape)
        assert batch["reward"].eq(batch["action"].float().flatten(2).sum(-1)).all()
        torch.testing.assert_close(policy.evaluate(batch).log_prob, batch["log_prob"])
        made.close()


def test_a_policy_for_one_choice_says_who_makes_several() -> None:
    with pytest.raises(UserError, match="are for algo=ppo and algo=grpo"):
        QNetworkPolicy(BOX, spaces.MultiDiscrete([2, 2]))
