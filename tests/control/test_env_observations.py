"""What is made of an environment's observations before a policy sees them."""

from __future__ import annotations

import sys
from typing import Any

import gymnasium
import numpy as np
import pytest
from catch_env import Catch
from gymnasium import spaces

from zoo.core import choices
from zoo.envs.control import ControlEnv
from zoo.envs.observations import PixelKnobs
from zoo.errors import UserError


class Colours(Catch):
    """Catch in colours: the paddle is green and the ball yellow."""

    observation_space = spaces.Box(0, 255, (16, 16, 3), np.uint8)

    def _draw(self) -> np.ndarray:
        grey = super()._draw()[..., 0]
        return np.stack([grey // 255 * 255, grey // 128 % 2 * 128, 0 * grey], -1)


def shown(env: Any, **knobs: Any) -> gymnasium.Env[Any, Any]:
    return ControlEnv("own", env, pixels=PixelKnobs(**knobs))()


def test_nothing_is_wrapped_unless_asked_for() -> None:
    env = shown(Catch)
    assert type(env) is Catch


def test_frames_are_stacked_newest_last_and_begin_with_the_first_repeated() -> None:
    env = shown(Catch, stack=3)
    plain = Catch()
    assert env.observation_space == spaces.Box(0, 255, (3, 16, 16, 1), np.uint8)
    first, second = plain.reset(seed=1)[0], plain.step(1)[0]
    seen = env.reset(seed=1)[0]
    assert seen.dtype == np.uint8
    assert np.array_equal(seen, [first, first, first])
    assert np.array_equal(env.step(1)[0], [first, first, second])
    assert np.array_equal(env.reset(seed=1)[0], [first, first, first])


def test_colours_become_grey() -> None:
    env = shown(Colours, grayscale=True, stack=2)
    assert env.observation_space.shape == (2, 16, 16)
    seen = env.reset(seed=1)[0]
    assert {int(v) for v in np.unique(seen)} == {0, 91, 145}  # .7154·128, and .2125·255 more


def test_images_are_resized_by_opencv_or_the_package_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "cv2", None)
    with pytest.raises(UserError, match=r"need OpenCV: `pip install 'algorithm-zoo\[pixels\]'`"):
        shown(Colours, resize=(8, 12))
    monkeypatch.undo()
    pytest.importorskip("cv2")
    env = shown(Colours, resize=(8, 12))
    assert env.observation_space.shape == env.reset(seed=1)[0].shape == (8, 12, 3)


def test_atari_games_get_their_usual_preprocessing() -> None:
    pytest.importorskip("ale_py")
    pytest.importorskip("cv2")
    name, named = choices.resolve("env", "ALE/Pong-v5")
    assert (name, named) == ("gymnasium", {"id": "ale_py:ALE/Pong-v5"})
    env = ControlEnv(named["id"], pixels=PixelKnobs(atari=True, stack=4))()
    seen, _ = env.reset(seed=0)
    assert (seen.shape, seen.dtype) == ((4, 84, 84), np.uint8)
    again, _ = env.reset(seed=0)
    assert np.array_equal(seen, again)
    env.close()


def test_atari_games_without_their_package_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ale_py", None)
    with pytest.raises(UserError, match=r"ale_py, which is not installed: `pip install 'algor"):
        choices.resolve("env", "ALE/Pong-v5")


@pytest.mark.parametrize(
    ("env", "knobs", "words"),
    [
        (Catch, {"atari": True}, "env.pixels.atari=true is for games"),
        (lambda: gymnasium.make("CartPole-v1"), {"stack": 4}, "env.pixels is for images"),
    ],
)
def test_preprocessing_that_does_not_fit_is_refused(env: Any, knobs: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        shown(env, **knobs)


@pytest.mark.parametrize("knobs", [{"stack": 0}, {"resize": (0, 84)}])
def test_images_of_no_size_are_refused(knobs: Any) -> None:
    with pytest.raises(UserError, match="Pixel needs"):
        PixelKnobs(**knobs)
