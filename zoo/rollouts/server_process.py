"""A server that is started for a run and ends with it."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import socket
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["ServerProcess", "free_port"]

#: seconds in which a process whose connections broke is seen to have ended
_SEEN_S = 2.0
#: lines of the log that a failure shows
_LINES = 6


def free_port() -> int:
    """Return a port of 127.0.0.1 that nothing listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class ServerProcess:
    """A command in a process group of its own, which Ctrl-C on the run's terminal doesn't reach.

    It is ended with everything that it started: by `end`, or where the interpreter exits.

    Parameters
    ----------
    command : sequence of str
        The program and its arguments.
    environment : mapping
        All of its variables.
    folder : Path
        Where it runs.
    """

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], folder: Path
    ) -> None:
        #: seconds between asking it to end and making it
        self.patience_s = 10.0
        handle, name = tempfile.mkstemp(prefix="zoo-vllm-", suffix=".log")
        #: what it prints; kept where it ended by itself
        self.log = Path(name)
        with os.fdopen(handle, "wb") as log:
            self._process = subprocess.Popen(
                command,
                env=dict(environment),
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        atexit.register(self.end)

    def death(self, wait_s: float = 0.0) -> str | None:
        """Say how it ended, with the last lines of its log; None while it runs."""
        try:
            code = self._process.wait(wait_s)
        except subprocess.TimeoutExpired:
            return None
        how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit status {code}"
        lines = [line for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        last = "\n".join(lines[-_LINES:])
        return f"it ended {how}; the last lines of its log, {self.log}:\n{last}"

    def why(self) -> str:
        """Say how it ended, waiting a moment for that; empty where it runs on."""
        death = self.death(_SEEN_S)
        return "" if death is None else f": {death}"

    def end(self) -> None:
        """End it and what it started, and remove the log of one that ran until now."""
        atexit.unregister(self.end)
        ran = self._process.poll() is None
        self._signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(self.patience_s)
        self._signal(signal.SIGKILL)  # also of what an ended one has left running
        self._process.wait()
        if ran:
            self.log.unlink(missing_ok=True)

    def _signal(self, number: signal.Signals) -> None:
        try:
            os.killpg(self._process.pid, number)
        except (ProcessLookupError, PermissionError):
            return  # nobody is left
