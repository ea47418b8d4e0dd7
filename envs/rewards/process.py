"""The parent's side of a reward process: calls with a hard time limit each.

A call that hangs, even in C code that never returns to Python, has its process killed; a new one
takes over with the next call, so every other completion is still scored. A function that hangs or
dies again and again is given up for the rest of the batch, which bounds the time a batch takes.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import selectors
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from zoo.envs.rewards.worker import HEADER
from zoo.errors import UserError

__all__ = ["Failure", "RewardProcess"]

#: Starting Python, and importing what the function needs, may take so long.
LOAD_S = 120.0
#: Kills in a row, and in one batch, after which the rest of the batch is not tried.
KILLS_IN_A_ROW = 3
KILLS_IN_A_BATCH = 12
#: What a function prints in one batch is shown up to so many bytes.
MAX_OUTPUT = 20_000
MAX_REPLY = 64 * 2**20
#: Set so that the process finds this package, whatever lies in the present folder. The process
#: puts them back, for the programs that a reward may start.
STARTUP_VARIABLES = ("PYTHONPATH", "PYTHONSAFEPATH")


@dataclass(frozen=True)
class Failure:
    """Why a call gave no number.

    Attributes
    ----------
    kind : str
        One word or two; failures of one kind are told once.
    detail : str
        A sentence or a traceback.
    """

    kind: str
    detail: str


class ProcessDied(Exception):
    """The process ended, or sent something that is no reply."""


class RewardProcess:
    """Calls one function in a process of its own.

    Parameters
    ----------
    name : str
        Of the reward, for messages.
    function : callable
        Anything that cloudpickle can carry: a closure, a lambda, what a notebook defined.
    timeout_s : float
        Seconds that one call may take. Starting the process and importing isn't counted.
    batch : bool
        Whether one call answers with a list.

    Raises
    ------
    UserError
        The function can't be carried to another process.
    """

    def __init__(
        self, name: str, function: Callable[..., Any], *, timeout_s: float, batch: bool = False
    ) -> None:
        import cloudpickle

        self.name = name
        self.timeout_s = timeout_s
        self.batch = batch
        try:
            self._function = cloudpickle.dumps(function)
        except Exception as error:  # whatever the closure's objects raise when pickled
            raise UserError(
                f"reward '{name}' cannot be carried to its own process: {type(error).__name__}:"
                f" {error}. Let it open files, locks and connections itself, when it is called."
            ) from error
        self._connection: _Connection | None = None
        self._loaded_once = False

    def run(
        self, calls: Sequence[Mapping[str, Any]], sizes: Sequence[int] | None = None
    ) -> list[float | Failure]:
        """Make the calls in order and return one number or failure for each expected number.

        Parameters
        ----------
        calls
            Keyword arguments of each call.
        sizes
            For a batch function, how many numbers each call must return.

        Raises
        ------
        UserError
            The function can't even be loaded in its process (a missing import).
        """
        expected = list(sizes) if self.batch and sizes is not None else [1] * len(calls)
        answers: list[list[float | Failure]] = []
        in_a_row = kills = 0
        try:
            while len(answers) < len(calls):
                if in_a_row == KILLS_IN_A_ROW or kills == KILLS_IN_A_BATCH:
                    reason = f"its process had to be ended {kills} times before in this batch"
                    answers += [
                        [Failure("not tried", reason)] * n for n in expected[len(answers) :]
                    ]
                    break
                before = len(answers)
                ended = self._attempt(calls, expected, answers)
                if ended is not None:
                    in_a_row = 1 if len(answers) > before else in_a_row + 1
                    kills += 1
                    answers.append([ended] * expected[len(answers)])
        except BaseException:  # interrupted in the middle: replies would no longer match
            self.close()
            raise
        if self._connection is not None:
            self._connection.show_output(self.name)
        return [answer for group in answers for answer in group]

    def close(self) -> None:
        """End the process. A later :meth:`run` starts another one."""
        if self._connection is not None:
            self._connection.show_output(self.name)
            self._connection.kill()
            self._connection = None

    def _attempt(
        self,
        calls: Sequence[Mapping[str, Any]],
        expected: list[int],
        answers: list[list[float | Failure]],
    ) -> Failure | None:
        """Make calls until all are answered (None) or the process has to be given up (why)."""
        first = len(answers)
        try:
            connection = self._connected()
            connection.send({"calls": list(calls[first:]), "sizes": expected[first:]})
            while len(answers) < len(calls):
                reply = connection.receive(self.timeout_s)
                if reply is None:
                    self.close()
                    return Failure("timed out", f"took longer than {self.timeout_s:g} s")
                if reply.get("index") != len(answers) - first:
                    raise ProcessDied("sent something that is no reply")
                answers.append(_read(reply, expected[len(answers)]))
        except ProcessDied as death:
            self.close()
            return Failure("process died", f"its process {death}")
        return None

    def _connected(self) -> _Connection:
        if self._connection is None:
            self._connection = connection = _Connection()
            connection.send(
                {
                    "function": self._function,
                    "path": sys.path,
                    "environment": {name: os.environ.get(name) for name in STARTUP_VARIABLES},
                    "batch": self.batch,
                    "timeout_s": self.timeout_s,
                }
            )
            reply = connection.receive(LOAD_S)
            if reply is None:
                raise ProcessDied(f"did not start within {LOAD_S:g} s")
            if "failed" in reply:
                if not self._loaded_once:
                    detail = str(reply["failed"])
                    raise UserError(
                        f"reward '{self.name}' cannot be loaded in its own process:"
                        f" {detail.splitlines()[-1]}"
                    )
                raise ProcessDied(f"could not load it again: {reply['failed']}")
            self._loaded_once = True
        return self._connection


def _read(reply: dict[str, Any], size: int) -> list[float | Failure]:
    if "value" in reply:
        return [float(reply["value"])]
    failure = Failure(str(reply.get("kind")), str(reply.get("error")))
    if "values" not in reply:
        return [failure] * size
    return [failure if value is None else float(value) for value in reply["values"]]


class _Connection:
    """A running worker process and the three pipes to it."""

    def __init__(self) -> None:
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        startup = dict(zip(STARTUP_VARIABLES, (path, "1"), strict=True))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "zoo.envs.rewards.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            env={**os.environ, **startup},
            start_new_session=True,  # Ctrl-C reaches the parent only
        )
        assert self._process.stdin and self._process.stdout and self._process.stderr
        self._requests, self._replies = self._process.stdin, self._process.stdout
        self._output = self._process.stderr
        for pipe in (self._requests, self._replies, self._output):
            os.set_blocking(pipe.fileno(), False)
        self._finalizer = weakref.finalize(self, _end, self._process)
        self._outgoing = memoryview(b"")
        self._received = bytearray()
        self._printed = bytearray()
        self._dropped = False

    def send(self, message: dict[str, Any]) -> None:
        """Queue a message; it leaves while :meth:`receive` waits for the reply."""
        import cloudpickle

        body = cloudpickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
        self._outgoing = memoryview(HEADER.pack(len(body)) + body)

    def receive(self, timeout_s: float) -> dict[str, Any] | None:
        """Return the next reply, or None when none came in time."""
        deadline = time.monotonic() + timeout_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._replies, selectors.EVENT_READ)
            selector.register(self._output, selectors.EVENT_READ)
            if self._outgoing:
                selector.register(self._requests, selectors.EVENT_WRITE)
            while (reply := self._next_reply()) is None:
                left = deadline - time.monotonic()
                if left <= 0:
                    return None
                # Children of the process may hold its pipes open, so its end is asked for too.
                ended = self._process.poll() is not None
                ready = selector.select(0 if ended else min(left, 0.5))
                for key, _ in ready:
                    self._serve(selector, key.fileobj)
                if ended and not any(key.fileobj is self._replies for key, _ in ready):
                    raise ProcessDied(_how_it_ended(self._process.returncode))
        return reply

    def show_output(self, name: str) -> None:
        """Pass on what the function printed."""
        with contextlib.suppress(OSError, ValueError):
            self._read_output(self._output.fileno())
        text = self._printed.decode(errors="replace").rstrip()
        if text:
            print(f"[reward {name}] {text}", file=sys.stderr)
        if self._dropped:
            print(f"[reward {name}] … (further output is not shown)", file=sys.stderr)
        self._printed.clear()
        self._dropped = False

    def kill(self) -> None:
        """End the process and its children at once."""
        self._finalizer()

    def _serve(self, selector: selectors.BaseSelector, pipe: Any) -> None:
        if pipe is self._requests:
            try:
                written = os.write(pipe.fileno(), self._outgoing[: 2**16])
            except BlockingIOError:
                return
            except BrokenPipeError:
                written = len(self._outgoing)  # its end is noticed at the other pipe
            self._outgoing = self._outgoing[written:]
            if not self._outgoing:
                selector.unregister(pipe)
        elif pipe is self._output:
            if not self._read_output(pipe.fileno()):
                selector.unregister(pipe)
        else:
            data = os.read(pipe.fileno(), 2**16)
            if not data:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(2.0)
                raise ProcessDied(_how_it_ended(self._process.returncode))
            self._received += data

    def _read_output(self, descriptor: int) -> bool:
        data = os.read(descriptor, 2**16)
        room = MAX_OUTPUT - len(self._printed)
        self._printed += data[:room]
        self._dropped = self._dropped or len(data) > room
        return bool(data)

    def _next_reply(self) -> dict[str, Any] | None:
        if len(self._received) < HEADER.size:
            return None
        (size,) = HEADER.unpack_from(self._received)
        if size > MAX_REPLY:
            raise ProcessDied("sent something that is no reply")
        if len(self._received) < HEADER.size + size:
            return None
        body = bytes(self._received[HEADER.size : HEADER.size + size])
        del self._received[: HEADER.size + size]
        try:
            reply = json.loads(body)
        except ValueError:
            reply = None
        if not isinstance(reply, dict):
            raise ProcessDied("sent something that is no reply")
        return reply


def _how_it_ended(code: int | None) -> str:
    if code is None:
        return "closed its pipe"
    if code < 0:
        try:
            return f"was ended by {signal.Signals(-code).name}"
        except ValueError:
            return f"was ended by signal {-code}"
    return f"exited with status {code}"


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(OSError):
        process.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(5.0)
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
