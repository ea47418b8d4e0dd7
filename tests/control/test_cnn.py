"""The convolutional encoder, and policies that see images through it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from catch_env import Catch
from gymnasium import spaces
from torch import Tensor, nn

from zoo.algorithms import DQN, PPO, SAC, TD3
from zoo.core.config import compose
from zoo.core.images import shows_images
from zoo.envs.control import ControlEnv
from zoo.errors import UserError
from zoo.policies.categorical_q import CategoricalQPolicy
from zoo.policies.cnn import CNNKnobs, ConvolutionalEncoder
from zoo.policies.mlp import MLPKnobs, MLPPolicy
from zoo.policies.q_network import QNetworkPolicy
from zoo.policies.spaces import is_image
from zoo.policies.squashed import SquashedGaussianPolicy

#: small enough for 16 × 16 pixels
TINY = CNNKnobs(hidden_sizes=(32,), convolutions=((8, 4, 2), (16, 3, 1)))
QUICK = [
    "model=cnn",
    "model.convolutions=[[16,4,2],[32,3,1]]",
    "model.hidden_sizes=[64]",
    "eval.every=null",
    "eval.at_end=false",
    "threads=1",
]


def image(*shape: int) -> spaces.Box:
    return spaces.Box(0, 255, shape, np.uint8)


def picture(*shape: int) -> Tensor:
    return torch.randint(256, shape, dtype=torch.uint8)


class TinyRacing(gymnasium.Env[np.ndarray, np.ndarray]):
    """Noise to look at, and a Box to act in."""

    observation_space = image(16, 16, 3)
    action_space = spaces.Box(-1, 1, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.count = 0
        return self._draw(), {}

    def step(self, action: np.ndarray) -> Any:
        self.count += 1
        return self._draw(), float(action[0]), False, self.count == 9, {}

    def _draw(self) -> np.ndarray:
        return self.np_random.integers(256, size=(16, 16, 3), dtype=np.uint8)


# The encoder.


def test_nature_cnn_computes_what_an_independent_network_does() -> None:
    encoder = ConvolutionalEncoder(image(4, 84, 84), CNNKnobs())
    first, second, third = (nn.Conv2d(*a) for a in ((4, 32, 8, 4), (32, 64, 4, 2), (64, 64, 3, 1)))
    relu, flat = nn.ReLU(), nn.Flatten()
    network = nn.Sequential(first, relu, second, relu, third, relu, flat)
    own = dict(zip(network.state_dict(), encoder.state_dict().values(), strict=True))
    network.load_state_dict(own)
    seen = picture(3, 4, 84, 84)
    expected = network(seen.float() / 255)
    encoded = encoder(seen)
    assert encoder.size == expected.shape[1] == 64 * 7 * 7
    torch.testing.assert_close(encoded, expected)
    np.testing.assert_allclose(encoder.numpy(seen.numpy()), expected.detach(), atol=1e-5)
    weight = torch.randn_like(expected)
    (encoded * weight).sum().backward()
    (expected * weight).sum().backward()
    for own_parameter, other in zip(encoder.parameters(), network.parameters(), strict=True):
        torch.testing.assert_close(own_parameter.grad, other.grad, atol=1e-4, rtol=1e-4)


def test_gradient_agrees_with_finite_differences() -> None:
    space = spaces.Box(-1, 1, (2, 5, 5), np.float32)
    encoder = ConvolutionalEncoder(space, CNNKnobs(convolutions=((3, 3, 2), (2, 2, 1))))
    # (which a float64 input with a `.float()` inside would hide; so the layers themselves)
    layers = encoder.layers.double()
    x = torch.randn(2, 2, 5, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda v: layers[1](layers[0](v).relu()).relu(), x)


@pytest.mark.parametrize(
    ("shape", "channels"),
    [((4, 5, 3), "auto"), ((3, 4, 5), "auto"), ((3, 4, 5), "first"), ((4, 5, 3), "last")],
)
def test_a_filter_sees_the_channel_of_either_layout(shape: Any, channels: Any) -> None:
    # red is 51 everywhere, green 102, and blue is 255 in the lower left corner
    pixels = np.zeros((4, 5, 3), np.uint8)
    pixels[..., 0], pixels[..., 1], pixels[3, 0, 2] = 51, 102, 255
    if shape[0] == 3:
        pixels = pixels.transpose(2, 0, 1)
    knobs = CNNKnobs(convolutions=((2, 4, 1),), channels=channels)
    encoder = ConvolutionalEncoder(image(*shape), knobs)
    with torch.no_grad():
        weight = encoder.layers[0].weight.zero_()
        weight[0, 1] = 1.0  # the sum of green
        weight[1, 2, 3, 0] = 2.0  # twice the lower left of blue, which only the left window sees
        encoded = encoder(torch.from_numpy(pixels.copy())[None])
    torch.testing.assert_close(encoded, torch.tensor([[16 * 0.4, 16 * 0.4, 2.0, 0.0]]))


@pytest.mark.parametrize(
    ("shape", "channels"),
    [((40, 50), 1), ((4, 40, 50), 4), ((40, 50, 3), 3), ((4, 40, 50, 3), 12), ((4, 3, 40, 50), 12)],
)
def test_frames_and_colours_become_channels(shape: tuple[int, ...], channels: int) -> None:
    encoder = ConvolutionalEncoder(image(*shape), CNNKnobs())
    assert encoder.layers[0].in_channels == channels
    assert encoder(picture(2, 3, *shape)).shape == (6, encoder.size)


def test_a_stack_of_colour_frames_keeps_frames_apart() -> None:
    encoder = ConvolutionalEncoder(image(2, 36, 36, 3), CNNKnobs())
    seen = picture(1, 2, 36, 36, 3)
    joined = torch.cat([seen[:, 0], seen[:, 1]], -1).permute(0, 3, 1, 2).float() / 255
    expected = joined
    for layer in encoder.layers:
        expected = layer(expected).relu()
    torch.testing.assert_close(encoder(seen), expected.flatten(1))


def test_many_images_without_gradients_are_encoded_as_few_are() -> None:
    encoder = ConvolutionalEncoder(image(16, 16, 1), TINY)
    seen = picture(600, 16, 16, 1)
    with torch.no_grad():
        torch.testing.assert_close(encoder(seen), encoder(seen[:, None]))
        parts = torch.cat([encoder(part) for part in seen.split(100)])
        torch.testing.assert_close(encoder(seen), parts)


@pytest.mark.parametrize(
    ("space", "words"),
    [
        (spaces.Box(-1, 1, (4,)), "model=cnn reads images"),
        (spaces.Discrete(4), "model=cnn reads images"),
        (image(16, 16, 1), r"\[16, 16, 1\] are too small for model.convolutions=\[\[32, 8, 4\]"),
    ],
)
def test_what_is_no_image_is_refused(space: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        MLPPolicy(space, spaces.Discrete(2), CNNKnobs())


@pytest.mark.parametrize("layers", [(), ((8, 0, 1),)])
def test_layers_that_are_none_are_refused(layers: Any) -> None:
    with pytest.raises(UserError, match="convolutions must be a list of"):
        CNNKnobs(convolutions=layers)


def test_a_dense_layer_is_not_given_an_image_of_many_pixels() -> None:
    with pytest.raises(UserError, match=r"\[96, 96, 3\] would be 27,648 inputs.*use model=cnn"):
        MLPPolicy(image(96, 96, 3), spaces.Discrete(2), MLPKnobs())
    assert MLPPolicy(image(16, 16, 1), spaces.Discrete(2)).encoder.size == 256


# Policies around it.


def policies() -> dict[str, Any]:
    discrete, box = spaces.Discrete(3), spaces.Box(-1, 1, (2,), np.float32)
    shared = dataclasses.replace(TINY, shared=True)
    return {
        "ppo": MLPPolicy(image(16, 16, 1), discrete, shared),
        "ppo-box": MLPPolicy(image(16, 16, 1), box, TINY),
        "dqn": QNetworkPolicy(image(16, 16, 1), discrete, TINY, dueling=True),
        "sac": SquashedGaussianPolicy(image(16, 16, 1), box, TINY),
        "discrete-sac": CategoricalQPolicy(image(16, 16, 1), discrete, TINY),
    }


@pytest.mark.parametrize("name", ["ppo", "ppo-box", "sac", "discrete-sac"])
def test_what_acts_is_what_is_evaluated(name: str) -> None:
    policy = policies()[name]
    seen = picture(5, 16, 16, 1)
    action, log_prob = policy.act(seen.numpy(), np.random.default_rng(0))
    batch: Any = {"observation": seen[:, None], "action": torch.from_numpy(action)[:, None]}
    evaluated = policy.evaluate(batch).log_prob.squeeze(1)
    np.testing.assert_allclose(log_prob, evaluated.detach().numpy(), atol=1e-4)


@pytest.mark.parametrize("name", policies())
def test_every_parameter_is_moved_by_one_loss(name: str) -> None:
    policy = policies()[name]
    groups = policy.parameter_groups()
    listed = [id(p) for group in groups.values() for p in group]
    assert len(listed) == len(set(listed))
    assert set(listed) == {id(p) for p in policy.parameters()}
    owner = "critic" if "sac" in name else "policy"
    assert {id(p) for p in policy.encoder.parameters()} <= {id(p) for p in groups[owner]}


@pytest.mark.parametrize("algorithm", [PPO, DQN, SAC, TD3])
def test_images_stay_bytes_and_every_layer_learns(algorithm: Any) -> None:
    env = Catch if algorithm in (PPO, DQN) else TinyRacing
    small = ["rollout.num_envs=2"]
    if algorithm is not PPO:
        small += ["algo.replay={learning_starts: 20, batch_size: 8, capacity: 100}"]
    made = algorithm(env, overrides=[*QUICK, *small], seed=1)
    before = {n: p.clone() for n, p in made.policy.named_parameters()}
    made.train(64)
    assert all(not p.equal(before[n]) for n, p in made.policy.named_parameters())
    batch = made.trainer.rollout.collect(made.policy)
    assert batch["observation"].dtype == batch["next_observation"].dtype == torch.uint8
    if algorithm is not PPO:
        sampled = made.trainer.buffer.sample()
        assert sampled["observation"].dtype == sampled["next_observation"].dtype == torch.uint8
        slow = [p for target in made.targets.values() for p in target.module.parameters()]
        online = {p.data_ptr() for p in made.policy.parameters()}
        assert not online & {p.data_ptr() for p in slow}
        assert any(p.dim() == 4 for p in slow)
    made.close()


@pytest.mark.parametrize("algorithm", [PPO, DQN])
def test_a_run_on_images_resumes_bit_for_bit(algorithm: Any, tmp_path: Path) -> None:
    more = ["rollout.num_envs=2", "rollout.steps=16"]
    if algorithm is DQN:
        more += ["algo.replay={learning_starts: 40, batch_size: 8, capacity: 90}"]
    whole = algorithm(Catch, overrides=[*QUICK, *more], seed=3)
    whole.train(96)
    whole.save(tmp_path / "half.pt")
    parts = algorithm.load(tmp_path / "half.pt", env=Catch)
    for made in (whole, parts):
        made.train(96)
        made.close()
    state, other = whole.policy.state_dict(), parts.policy.state_dict()
    assert state.keys() == other.keys()
    weights = [name for name, value in state.items() if torch.is_tensor(value)]
    assert any("encoder" in name for name in weights)
    assert all(torch.equal(state[name], other[name]) for name in weights)


def test_a_run_says_before_it_begins_what_replay_will_take(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zoo.core.build.machine_gib", lambda: 0.04)
    small = "algo.replay.capacity=100_000"
    DQN(Catch, overrides=[*QUICK, small, "total_steps=90_000"]).close()
    assert (
        "replay will grow to 0.0 GiB (90,000 observations of 256 bytes)" in capsys.readouterr().err
    )
    DQN(Catch, overrides=[*QUICK, "algo.replay.capacity=10_000"]).close()
    assert "replay" not in capsys.readouterr().err


# Choosing it.


class Wide(Catch):
    """Catch on more pixels than the paper's convolutions need."""

    observation_space = image(48, 48, 1)


@pytest.mark.parametrize(
    ("space", "seen"),
    [
        (image(96, 96, 3), True),
        (image(4, 84, 84), True),
        (image(36, 36), True),
        (image(16, 16, 3), False),
        (image(128), False),
        (spaces.Box(0, 1, (96, 96, 3), np.float32), False),
        (spaces.Discrete(9), False),
    ],
    ids=str,
)
def test_images_are_bytes_and_large_enough(space: Any, seen: bool) -> None:
    assert is_image(space) is seen


def test_images_choose_the_convolutional_model() -> None:
    config = compose(["algo=ppo", "env=own_control"], Wide)
    assert config["model.name"] == "cnn"
    assert config.settings("model") == CNNKnobs(shared=True)
    assert config.notes == ("model: cnn (observations are images)",)
    assert compose(["algo=ppo", "env=own_control"], Catch)["model.name"] == "mlp"
    assert compose(["algo=ppo", "env=own_control", "model=mlp"], Wide)["model.name"] == "mlp"
    assert compose(["algo=ppo", "env=own_control", "env.pixels.stack=2"], Wide).notes
    assert compose(["algo=sac", "env=own_control"], Wide)["algo.replay.capacity"] == 100_000


def test_known_environments_are_not_made_to_find_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any) -> Any:
        raise AssertionError("made")

    monkeypatch.setattr(ControlEnv, "__call__", fail)
    assert compose(["algo=ppo", "env=CartPole-v1"])["model.name"] == "mlp"


def test_an_environment_that_cannot_be_made_shows_nothing() -> None:
    def broken() -> Any:
        raise RuntimeError("no")

    assert not shows_images(broken)
    with pytest.raises(UserError, match="no setting 'env.pixels.stak'"):
        compose(["algo=ppo", "env=own_control", "env.pixels.stak=2"], Wide)


# Learning.


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_ppo_learns_to_catch_from_pixels(seed: int) -> None:
    knobs = {"lr": 1e-3, "lr_schedule": "constant", "clip_low": 0.2, "clip_high": 0.2}
    overrides = [*QUICK, "rollout.steps=32", "algo.minibatch_size=64"]
    made = PPO(Catch, seed=seed, overrides=overrides, **knobs).train(20_000)
    assert made.evaluate(episodes=50)["return_mean"] >= 0.9
    made.close()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_dqn_learns_to_catch_from_pixels(seed: int) -> None:
    replay = "algo.replay={learning_starts: 500, capacity: 5000, n_step: 3, batch_size: 64}"
    overrides = [*QUICK, replay, "algo.exploration.fraction=0.5"]
    made = DQN(Catch, seed=seed, lr=1e-3, target_every=50, overrides=overrides).train(8_000)
    assert made.evaluate(episodes=50)["return_mean"] >= 0.9
    made.close()
