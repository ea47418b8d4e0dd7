"""zoo enjoy --video: every frame of every episode in one playable file, or no file at all."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from short_run import Command

from zoo.cli.video import Video
from zoo.errors import UserError
from zoo.rollouts.gymnasium_evaluation import _drawn


def picture(i: int, height: int = 34, width: int = 50) -> np.ndarray:
    """A red bar that moves to the right by 5 pixels a frame."""
    frame = np.full((height, width, 3), 200, np.uint8)
    frame[:, 5 * i : 5 * i + 5] = (255, 0, 0)
    return frame


def read(path: Path) -> tuple[list[np.ndarray], float]:
    av = pytest.importorskip("av")
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        return [f.to_ndarray(format="rgb24") for f in container.decode(stream)], float(
            stream.average_rate
        )


@pytest.mark.parametrize("name", ["a.mp4", "a.gif", "A.MP4"])
def test_every_frame_is_written_at_the_environment_s_rate(name: str, tmp_path: Path) -> None:
    pytest.importorskip("av")
    with Video(tmp_path / name) as video:
        for i in range(9):
            video.add(picture(i), 25)
    frames, fps = read(tmp_path / name)
    assert (len(frames), fps, video.frames) == (9, 25, 9)
    for i, frame in enumerate(frames):
        assert frame.shape == (34, 50, 3)
        red = np.argwhere(frame[17, :, 1] < 100).ravel()
        assert abs(red.mean() - (5 * i + 2)) < 1
    assert [p.name for p in tmp_path.iterdir()] == [name]


def test_odd_sides_get_a_pixel_more(tmp_path: Path) -> None:
    pytest.importorskip("av")
    with Video(tmp_path / "a.mp4") as video:
        video.add(picture(0, 33, 51), 30)
    assert read(tmp_path / "a.mp4")[0][0].shape == (34, 52, 3)


@pytest.mark.parametrize("name", ["a.mp4", "a.gif"])
@pytest.mark.parametrize("stop", [KeyboardInterrupt, RuntimeError])
def test_what_ends_early_leaves_a_playable_file(name: str, stop: Any, tmp_path: Path) -> None:
    pytest.importorskip("av")

    def record() -> None:
        with Video(tmp_path / name) as video:
            video.add(picture(0), 50)
            video.add(picture(1), 50)
            raise stop

    with pytest.raises(stop):
        record()
    assert len(read(tmp_path / name)[0]) == 2


@pytest.mark.parametrize("name", ["a.mp4", "a.gif"])
def test_what_ends_before_the_first_frame_leaves_nothing(name: str, tmp_path: Path) -> None:
    pytest.importorskip("av")
    (tmp_path / name).write_text("an older one")
    with pytest.raises(KeyboardInterrupt), Video(tmp_path / name):
        raise KeyboardInterrupt
    assert [p.read_text() for p in tmp_path.iterdir()] == ["an older one"]


def test_enjoy_records_all_episodes_in_one_file(
    zoo: Command, finished: Path, tmp_path: Path
) -> None:
    pytest.importorskip("av")
    pytest.importorskip("pygame")
    file = tmp_path / "two.mp4"
    status, out, err = zoo("enjoy", str(finished), "--episodes", "2", "--video", str(file))
    assert status == 0, err
    lengths = [int(line.split(", ")[1].split()[0]) for line in out.splitlines()[:2]]
    frames, fps = read(file)
    assert len(frames) == sum(lengths) + 2  # the first observation of each, too
    assert (fps, frames[0].shape) == (50, (400, 600, 3))  # CartPole's own
    assert out.splitlines()[2] == f"video: {file} ({len(frames)} frames)"
    again = zoo("enjoy", str(finished), "--episodes", "2", "--render", "none")[1]
    assert out.splitlines()[:2] == again.splitlines()


def test_ctrl_c_half_way_keeps_what_was_drawn(
    zoo: Command, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("av")
    pytest.importorskip("pygame")
    add, file = Video.add, tmp_path / "half.mp4"

    def interrupted(self: Video, frame: np.ndarray, fps: float) -> None:
        if self.frames == 7:
            raise KeyboardInterrupt
        add(self, frame, fps)

    monkeypatch.setattr(Video, "add", interrupted)
    status, out, err = zoo("enjoy", str(finished), "--video", str(file))
    assert (status, err.splitlines()[-1]) == (130, "interrupted")
    assert f"video: {file} (7 frames)" in out
    assert len(read(file)[0]) == 7


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--video", "x.avi"], "--video takes a file that ends in .mp4 or .gif (got x.avi)"),
        (["--video", "nowhere/x.mp4"], "can't write nowhere/x.mp4: No such file or directory."),
        (["--video", "folder.mp4"], "can't write folder.mp4: it is a folder."),
        (["--video", "x.mp4", "--render", "none"], "--video draws frames"),
    ],
)
def test_a_video_that_cannot_be_is_refused(
    zoo: Command,
    finished: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("folder.mp4").mkdir()
    status, _, err = zoo("enjoy", str(finished), *arguments)
    assert status == 2 and err.startswith("error: ") and words in err
    assert [p.name for p in tmp_path.iterdir()] == ["folder.mp4"]


@pytest.mark.parametrize(("name", "module"), [("a.mp4", "av"), ("a.gif", "PIL")])
def test_the_package_is_named_where_it_is_missing(
    zoo: Command,
    finished: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    module: str,
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    status, _, err = zoo("enjoy", str(finished), "--video", str(tmp_path / name))
    assert status == 2
    assert f"needs the package {module}" in err and "pip install 'algorithm-zoo[video]'" in err
    assert not list(tmp_path.iterdir())


def test_mujoco_without_opengl_says_what_to_set() -> None:
    class Robot:
        mujoco_renderer = None

        @property
        def unwrapped(self) -> Robot:
            return self

        def render(self) -> Any:
            raise AttributeError("'NoneType' object has no attribute 'glGetError'")

    with pytest.raises(UserError, match="MUJOCO_GL=egl .* MUJOCO_GL=osmesa") as refusal:
        _drawn(Robot())  # type: ignore[arg-type]
    assert "\n" not in str(refusal.value)
