"""A headless Chromium to look at pages with: its DevTools protocol over two pipes.

Pipes need neither a port nor a WebSocket library: messages are JSON, each ended by a zero byte.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from typing import Any

from zoo.errors import UserError

__all__ = ["Tab", "find_browser", "open_tab"]

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_FLAGS = (
    "--headless=new",
    "--remote-debugging-pipe",
    "--disable-gpu",
    "--disable-dev-shm-usage",  # small in containers
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
)


def find_browser() -> str | None:
    """Return where a Chromium or Chrome is: $CHROME or one on the PATH, None if there is none."""
    named = os.environ.get("CHROME")
    return next(filter(None, map(shutil.which, [named] if named else _NAMES)), None)


class Tab:
    """One page of a running browser.

    Parameters
    ----------
    read, write : int
        File descriptors of the pipes from and to the browser.
    patience : float
        Seconds that an answer may take.
    """

    def __init__(self, read: int, write: int, patience: float) -> None:
        self._read, self._write, self._patience = read, write, patience
        self._rest, self._number, self._session = b"", 0, ""
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, /, **parameters: Any) -> dict[str, Any]:
        """Send a command and return its result; events that come before it are kept."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        left = memoryview(json.dumps(message).encode() + b"\0")
        while left:
            left = left[os.write(self._write, left) :]
        while True:
            answer = self._next()
            if answer.get("id") != self._number:
                self.events.append(answer)
            elif "error" in answer:
                raise RuntimeError(f"the browser refused {method}: {answer['error']['message']}")
            else:
                result: dict[str, Any] = answer["result"]
                return result

    def wait_for(self, method: str) -> None:
        """Return once an event of that name has come, now or earlier."""
        while not any(event.get("method") == method for event in self.events):
            self.events.append(self._next())

    def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression in the page, of a promise what it gives."""
        how = {"returnByValue": True, "awaitPromise": True}
        answer = self.call("Runtime.evaluate", expression=expression, **how)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']['text']}")
        return answer["result"].get("value")

    def _next(self) -> dict[str, Any]:
        end = time.monotonic() + self._patience
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._read], [], [], max(0.0, end - time.monotonic()))
            part = os.read(self._read, 1 << 20) if ready else b""
            if not part:
                raise RuntimeError("the browser ended, or did not answer.")
            self._rest += part
        message, _, self._rest = self._rest.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        return answer


@contextlib.contextmanager
def open_tab(patience: float = 60.0) -> Iterator[Tab]:
    """Start a browser with a profile of its own, and end it and the profile afterwards.

    Raises
    ------
    UserError
        Where none is installed.
    """
    browser = find_browser()
    if browser is None:
        raise UserError("there is no Chromium or Chrome here: install one, or name it in $CHROME.")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        theirs_in, ours_out = _pipe()
        ours_in, theirs_out = _pipe()
        flags = [*_FLAGS, f"--user-data-dir={profile}"]
        if os.geteuid() == 0:
            flags.append("--no-sandbox")  # which root can't have
        process = os.posix_spawn(
            browser,
            [browser, *flags],
            dict(os.environ),
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
                (os.POSIX_SPAWN_DUP2, theirs_in, 3),
                (os.POSIX_SPAWN_DUP2, theirs_out, 4),
            ],
            setpgroup=0,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        try:
            yield Tab(ours_in, ours_out, patience)
        finally:
            os.close(ours_in)
            os.close(ours_out)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process, signal.SIGKILL)
            os.waitpid(process, 0)


def _pipe() -> tuple[int, int]:
    """Return a pipe's two ends, numbered from 10 on: 3 and 4 are what the browser's shall be."""
    ends = os.pipe()
    read, write = (fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends)
    for end in ends:
        os.close(end)
    return read, write
