"""Write frames to a video as they are drawn: MP4 (H.264) by PyAV, GIF by Pillow.

Frames go to a file beside the final one, which takes its name once it is complete; so there is a
playable file or none, also where Ctrl-C or an error ends it early.
"""

from __future__ import annotations

import os
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Protocol

import numpy as np

from zoo.errors import UserError

__all__ = ["Video"]


class Video:
    """A video file that is being written; a context manager.

    Parameters
    ----------
    path : str or Path
        Ends in .mp4 or .gif; a file that is there already is replaced.

    Attributes
    ----------
    frames : int
        How many were written.

    Raises
    ------
    UserError
        For other endings, a place that can't be written to, and packages that are not installed.
    """

    def __init__(self, path: str | Path) -> None:
        self.path, self.frames = Path(path), 0
        kinds: dict[str, type[_Encoder]] = {".mp4": _MP4, ".gif": _GIF}
        encoder = kinds.get(self.path.suffix.lower())
        if encoder is None:
            raise UserError(f"--video takes a file that ends in .mp4 or .gif (got {path}).")
        self._part = self.path.with_name(f".{self.path.name}.{os.getpid()}.part")
        try:
            if self.path.is_dir():
                raise IsADirectoryError(21, "it is a folder")
            self._file = self._part.open("wb")
        except OSError as error:
            raise UserError(f"can't write {path}: {error.strerror}.") from error
        try:
            self._encoder = encoder(self._file)
        except ImportError as error:
            self._abandon()
            raise UserError(
                f"--video {path} needs the package {error.name}, which is not installed:"
                " `pip install 'algorithm-zoo[video]'`."
            ) from error

    def add(self, frame: np.ndarray, fps: float) -> None:
        """Append a frame [H, W, 3] uint8; the first one sets size and rate."""
        if not isinstance(frame, np.ndarray) or frame.ndim != 3 or frame.shape[2] != 3:
            raise UserError("this environment draws no images, so there is no video of it.")
        self._encoder.add(np.ascontiguousarray(frame), fps)
        self.frames += 1

    def __enter__(self) -> Video:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if self.frames:
                self._encoder.close()
                self._file.close()
                os.replace(self._part, self.path)
        finally:
            self._abandon()

    def _abandon(self) -> None:
        self._file.close()
        self._part.unlink(missing_ok=True)


class _Encoder(Protocol):
    def __init__(self, file: BinaryIO) -> None: ...

    def add(self, frame: np.ndarray, fps: float) -> None: ...

    def close(self) -> None: ...


class _MP4:
    def __init__(self, file: BinaryIO) -> None:
        import av

        self._frame = av.VideoFrame.from_ndarray
        self._container: Any = av.open(file, "w", format="mp4")
        self._stream: Any = None

    def add(self, frame: np.ndarray, fps: float) -> None:
        height, width = frame.shape[:2]
        # H.264 keeps colours at half the resolution, which needs even sides
        even = np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0)), "edge")
        if self._stream is None:
            rate = Fraction(fps).limit_denominator(1000)
            self._stream = self._container.add_stream("libx264", rate=rate)
            self._stream.height, self._stream.width = even.shape[:2]
            self._stream.pix_fmt = "yuv420p"  # what every player reads
        self._container.mux(self._stream.encode(self._frame(even, format="rgb24")))

    def close(self) -> None:
        self._container.mux(self._stream.encode(None))
        self._container.close()


class _GIF:
    """Frames are kept, a byte per pixel, until the end: Pillow writes all of them at once."""

    def __init__(self, file: BinaryIO) -> None:
        from PIL import Image

        self._image, self._file = Image, file
        self._frames: list[Any] = []
        self._milliseconds = 0

    def add(self, frame: np.ndarray, fps: float) -> None:
        self._milliseconds = max(20, round(100 / fps) * 10)  # less is shown as 100 by most viewers
        self._frames.append(self._image.fromarray(frame).quantize())

    def close(self) -> None:
        first, *rest = self._frames
        duration = self._milliseconds
        first.save(self._file, "GIF", save_all=True, append_images=rest, duration=duration, loop=0)
