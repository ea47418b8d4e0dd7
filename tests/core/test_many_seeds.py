"""Seeds trained at once are each what they would be alone."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from zoo.algorithms import DQN, GRPO, PPO
from zoo.core.algorithm import Algorithm
from zoo.core.many_seeds import ManySeeds, together
from zoo.core.stacked_learner import minibatches
from zoo.errors import UserError

SEEDS = (0, 3, 7)
#: whose schedules do not depend on how a budget is cut
SMALL = [
    "rollout.num_envs=2",
    "rollout.steps=32",
    "algo.epochs=2",
    "algo.lr_schedule=constant",
    "algo.clip_schedule=constant",
]
#: settings that reach every part: shuffled mini-batches of unequal size, normalisers, schedules
RUNS: dict[str, tuple[str, list[str]]] = {
    "cartpole": ("CartPole-v1", ["rollout.num_envs=4", "rollout.steps=64"]),
    "cartpole-everything": (
        "CartPole-v1",
        [
            "rollout.num_envs=3",
            "rollout.steps=50",
            "algo.minibatch_size=64",
            "algo.epochs=3",
            "algo.reward_scale.mode=return_std",
            "algo.entropy={mode: scheduled, coefficient: 0.01, final: 0.0}",
            "algo.kl={coefficient: 0.01, estimator: k3, where: loss}",
            "algo.value_clip=0.2",
            "algo.critic_lr=1e-3",
            "algo.weight_decay=0.01",
            "model.normalize_observation=true",
            "model.shared=true",
            "model.activation=relu",
        ],
    ),
    "cartpole-twin-critics": (
        "CartPole-v1",
        ["rollout.num_envs=2", "rollout.steps=40", "algo.epochs=1", "algo.double_q=true"],
    ),
    "pendulum": (
        "Pendulum-v1",
        ["rollout.num_envs=2", "rollout.steps=64", "algo.epochs=2", "algo.minibatch_size=48"],
    ),
    "pendulum-normalised": (
        "Pendulum-v1",
        [
            "rollout.num_envs=2",
            "rollout.steps=210",  # episodes end at 200, all at once
            "algo.epochs=1",
            "model.normalize_observation=true",
            "env.max_episode_steps=60",
        ],
    ),
}


def _made(env: str, overrides: list[str], **options: Any) -> list[PPO]:
    return [PPO(env, seed=seed, overrides=overrides, **options) for seed in SEEDS]


def _assert_close(one: Algorithm, other: Algorithm, within: float) -> None:
    for (name, p), q in zip(one.policy.named_parameters(), other.policy.parameters(), strict=True):
        np.testing.assert_allclose(
            q.detach().numpy(), p.detach().numpy(), rtol=0, atol=within, err_msg=name
        )


@pytest.mark.parametrize(("env", "overrides"), RUNS.values(), ids=RUNS)
def test_the_first_round_is_that_of_the_seeds_own_run(env: str, overrides: list[str]) -> None:
    alone, group = _made(env, overrides), _made(env, overrides)
    steps = alone[0].trainer.rollout.num_envs * alone[0].trainer.rollout.steps
    for algorithm in alone:
        algorithm.train(steps)
    together(group, steps)
    for one, other in zip(alone, group, strict=True):
        _assert_close(one, other, 1e-5)
        own, same = one.trainer.rollout, other.trainer.rollout
        np.testing.assert_allclose(same._observation, own._observation, atol=1e-6)
        assert same.report().records == own.report().records
        assert same._rng.bit_generator.state == own._rng.bit_generator.state
        assert same.envs.episodes() == own.envs.episodes()
        assert other.trainer.buffer.generator.get_state().equal(
            one.trainer.buffer.generator.get_state()
        )
        for p, q in zip(one.plugins, other.plugins, strict=True):
            _assert_same_state(p.state_dict(), q.state_dict())
        ours, theirs = other.trainer.learner.state_dict(), one.trainer.learner.state_dict()
        _assert_same_state(ours, theirs)
        assert other.trainer.counters["env_steps"] == steps
        if one.policy.normalizer is not None:
            assert float(one.policy.normalizer.count) == float(other.policy.normalizer.count)


def _assert_same_state(one: Any, other: Any) -> None:
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            _assert_same_state(one[key], other[key])
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            _assert_same_state(a, b)
    elif isinstance(one, torch.Tensor):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)
    else:
        assert one == pytest.approx(other, abs=1e-6)


def test_figures_are_those_of_the_seeds_own_run() -> None:
    env, overrides = RUNS["cartpole-everything"]
    alone, group = _made(env, overrides), _made(env, overrides)
    rows: list[list[dict[str, Any]]] = [[], []]
    for which, algorithms in enumerate((alone, group)):
        for algorithm in algorithms:
            algorithm.trainer.recorder.loggers = [_Kept(rows[which])]
            algorithm.trainer.total = 450  # three rounds
    for algorithm in alone:
        algorithm.trainer.run()
    ManySeeds([algorithm.trainer for algorithm in group]).run()
    # the group's come round by round, and those of the others seed by seed
    rows[1].sort(key=lambda row: row["updates"])
    rows[0].sort(key=lambda row: row["updates"])
    assert len(rows[0]) == len(rows[1]) == 3 * len(SEEDS)
    for one, other in zip(*rows, strict=True):
        assert other.pop("seeds_together") == len(SEEDS)
        assert one.keys() == other.keys()
        clocks = ("time/", "speed/", "wall_s")
        for key in one:
            if not key.startswith(clocks):
                assert other[key] == pytest.approx(one[key], rel=1e-3, abs=1e-4), key


class _Kept:
    done = total = 0

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = rows

    def log(self, updates: int, row: dict[str, Any], records: Any) -> None:
        self.rows.append(dict(row))

    def notice(self, text: str) -> None: ...

    def close(self) -> None: ...


def test_a_seed_goes_on_alone_after_training_with_others_and_the_other_way_round() -> None:
    group, alone = _made("CartPole-v1", SMALL), PPO("CartPole-v1", seed=3, overrides=SMALL)
    together(group, 128)
    moments = group[1].trainer.learner.optimizer.state.values()
    for tensor in (*group[1].policy.parameters(), *(s["exp_avg"] for s in moments)):
        assert tensor.untyped_storage().nbytes() == tensor.nbytes  # no longer a part of a stack
    group[1].train(64)
    alone.train(192)
    _assert_close(alone, group[1], 1e-4)
    assert alone.trainer.rollout.report().records == group[1].trainer.rollout.report().records
    group[0].train(64), group[2].train(64)
    together(group, 64)
    alone.train(64)
    _assert_close(alone, group[1], 1e-4)


def test_seeds_that_are_behind_catch_up_first() -> None:
    group, alone = _made("CartPole-v1", SMALL), PPO("CartPole-v1", seed=7, overrides=SMALL)
    group[0].train(128)
    for algorithm in group:
        algorithm.trainer.total = 192
    ManySeeds([algorithm.trainer for algorithm in group]).run()
    alone.train(192)
    assert [algorithm.trainer.done for algorithm in group] == [192] * 3
    _assert_close(alone, group[2], 1e-4)


def test_a_checkpoint_made_among_others_holds_its_own_seed_alone_and_loads(tmp_path: Any) -> None:
    group, alone = _made("CartPole-v1", SMALL), PPO("CartPole-v1", seed=3, overrides=SMALL)
    many = ManySeeds([algorithm.trainer for algorithm in group])
    group[2].trainer.recorder.loggers = [_Saves(group, tmp_path)]
    for algorithm in group:
        algorithm.trainer.total = 128
    many.run()
    alone.train(64)
    alone.save(tmp_path / "alone.pt")
    sizes = [(tmp_path / f"{name}.pt").stat().st_size for name in ("1", "alone")]
    assert sizes[0] < 1.1 * sizes[1]
    loaded = PPO.load(tmp_path / "1.pt")
    assert loaded.trainer.done == 64
    loaded.trainer.total = 128
    loaded.trainer.run()
    _assert_close(loaded, group[1], 1e-4)


class _Saves(_Kept):
    """Saves every seed the first time that the last of them has ended a round."""

    def __init__(self, group: list[PPO], folder: Any) -> None:
        self.group, self.folder = group, folder

    def log(self, updates: int, row: dict[str, Any], records: Any) -> None:
        if updates == 1:
            for i, algorithm in enumerate(self.group):
                algorithm.save(self.folder / f"{i}.pt")


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
def test_evaluations_are_those_of_each_policy_by_itself_to_the_last_bit(env: str) -> None:
    overrides = ["rollout.num_envs=2", "rollout.steps=64", "eval.at_end=true", "eval.every=128"]
    group = _made(env, [*overrides, "eval.options.episodes=9"])
    together(group, 128)
    measured = [algorithm.trainer.recorder.evaluations["last"] for algorithm in group]
    again = [algorithm.evaluate() for algorithm in group]
    for one, other in zip(measured, again, strict=True):
        assert {k: one[k] for k in other} == other
    sampled = [algorithm.evaluate(deterministic=False, episodes=5) for algorithm in group]
    assert len({tuple(r.values()) for r in sampled}) > 1


def test_minibatches_follow_each_seeds_own_order() -> None:
    from tensordict import TensorDict

    from zoo.core.buffer import RolloutBuffer

    buffers = [[RolloutBuffer(2, 3, seed) for seed in (4, 5)] for _ in range(2)]
    for own in buffers:
        for number, buffer in enumerate(own):
            data = {"x": torch.arange(8) + 100 * number}
            buffer.extend(TensorDict(data, batch_size=[8]))
    joint = [batch["x"].tolist() for batch in minibatches(buffers[0])]
    alone = [[batch["x"].tolist() for batch in buffer.minibatches()] for buffer in buffers[1]]
    assert joint == [first + second for first, second in zip(*alone, strict=True)]
    assert [len(batch) for batch in joint] == [6, 6, 4] * 2


def test_a_seed_whose_gradient_is_not_finite_is_skipped_and_the_others_learn() -> None:
    overrides = ["rollout.num_envs=2", "rollout.steps=32", "algo.epochs=2"]
    alone, group = _made("CartPole-v1", overrides), _made("CartPole-v1", overrides)
    before = [p.detach().clone() for p in group[1].policy.parameters()]
    for algorithms in (alone, group):
        algorithms[1].prepare = _poisoned(algorithms[1])  # type: ignore[method-assign]
    for algorithm in alone:
        algorithm.train(64)
    together(group, 64)
    assert [a.trainer.learner.skipped for a in group] == [a.trainer.learner.skipped for a in alone]
    assert [a.trainer.learner.skipped for a in group] == [0, 2, 0]
    assert all(p.equal(q) for p, q in zip(before, group[1].policy.parameters(), strict=True))
    for row in (0, 2):
        _assert_close(alone[row], group[row], 1e-5)


def _poisoned(algorithm: PPO) -> Any:
    def prepare(batch: Any) -> Any:
        batch = PPO.prepare(algorithm, batch)
        batch["advantage"][0] = torch.nan
        return batch

    return prepare


class Image(gymnasium.Env[Any, Any]):
    """Shows grey pictures of 40 × 40, and ends at once."""

    observation_space = gymnasium.spaces.Box(0, 255, (40, 40, 1), np.uint8)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros((40, 40, 1), np.uint8), {}

    def step(self, action: Any) -> Any:
        return np.zeros((40, 40, 1), np.uint8), 0.0, True, False, {}


def images() -> Any:
    return Image()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: [DQN("CartPole-v1", seed=s) for s in (0, 1)], "on-policy"),
        (lambda: [PPO("CartPole-v1", seed=0) for _ in (0, 1)], "must differ"),
        (lambda: [PPO("CartPole-v1", seed=s, lr=10.0**-s) for s in (2, 3)], "differ in algo"),
        (
            lambda: [
                PPO("CartPole-v1", seed=s, entropy={"mode": "auto", "coefficient": 0.1})
                for s in (0, 1)
            ],
            "entropy term that adapts",
        ),
        (
            lambda: [
                PPO("CartPole-v1", seed=s, overrides=["rollout.autoreset=disabled"]) for s in (0, 1)
            ],
            "rollout.autoreset",
        ),
        (lambda: [PPO("CartPole-v1", seed=s, target_kl=0.01) for s in (0, 1)], "target_kl"),
        (
            lambda: [PPO("Pendulum-v1", seed=s, overrides=["model.use_sde=true"]) for s in (0, 1)],
            "multilayer",
        ),
        (lambda: [GRPO("CartPole-v1", seed=s) for s in (0, 1)], "fragments, not on groups as grpo"),
        (
            lambda: [PPO(images, seed=s) for s in (0, 1)],
            "multilayer",
        ),
        (lambda: [], "no seeds"),
    ],
    ids=[
        "replay",
        "one-seed-twice",
        "other-settings",
        "adaptive-term",
        "autoreset",
        "target-kl",
        "sde",
        "groups",
        "images",
        "none",
    ],
)
def test_what_is_not_trained_at_once_is_refused_in_a_sentence(make: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        ManySeeds([algorithm.trainer for algorithm in make()]).run()
