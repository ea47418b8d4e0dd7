"""Every cell of algorithm × kind of environment trains, or is refused with the reason."""

from __future__ import annotations

import pytest

from zoo.core import choices
from zoo.core.config import compose, locate
from zoo.errors import UserError

ENVS = {"discrete": "CartPole-v1", "continuous": "Pendulum-v1", "text": "gsm8k"}
ALGORITHMS = choices.named("algo")
GROUPS = [
    "rollout.num_envs=4",
    "algo.group_size=2",
    "algo.epochs=1",
    "env.max_episode_steps=20",
]
SMALL = {
    "ppo": ["rollout.steps=16", "rollout.num_envs=2", "algo.epochs=1"],
    **{
        name: GROUPS
        for name in ALGORITHMS
        if choices.about("algo", name).get("tuned_as", name) == "grpo"
    },
}
REPLAY = ["algo.replay.learning_starts=20", "algo.replay.batch_size=8", "rollout.steps=2"]


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("kind", ENVS)
def test_a_cell_is_served_or_refused_with_the_reason(name, kind):
    said = choices.about("algo", name)
    overrides = [f"algo={name}", f"env={ENVS[kind]}", "device=cpu"]
    if kind in said["serves"]:
        assert compose(overrides)["algo.name"] == name
        return
    with pytest.raises(UserError) as refused:
        compose(overrides)
    assert said["refuses"][kind] in str(refused.value)


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("kind", ["discrete", "continuous"])
def test_a_served_cell_of_control_moves_its_weights(name, kind):
    if kind not in choices.about("algo", name)["serves"]:
        pytest.skip("refused, as the other test sees")
    algorithm = locate(choices.read("algo", name)["_target_"])(
        ENVS[kind],
        overrides=[*SMALL.get(name, REPLAY), "eval.every=null", "eval.at_end=false"],
    )
    before = {n: p.clone() for n, p in algorithm.policy.named_parameters()}
    algorithm.train(64)
    moved = [n for n, p in algorithm.policy.named_parameters() if not p.equal(before[n])]
    algorithm.close()
    assert moved
    assert algorithm.trainer.learner.steps > 0
