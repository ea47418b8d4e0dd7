"""The process that a user's reward function runs in: ``python -m zoo.envs.rewards.worker``.

Requests come in on standard input as pickles, each behind its length in 8 bytes; replies leave on
what was standard output as JSON, framed the same way. Both are moved to other descriptors first,
so that nothing the function prints or reads can touch them: its standard output and error are a
third pipe, its standard input is empty.

A fresh interpreter, neither a fork (locks of torch's threads) nor multiprocessing's spawn (which
runs an unguarded ``__main__`` again).
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import pickle
import signal
import struct
import sys
import traceback
from collections.abc import Callable
from typing import Any, BinaryIO

__all__ = ["HEADER", "main"]

HEADER = struct.Struct(">Q")
#: The function may use this share of the machine's memory.
MEMORY_SHARE = 0.5
#: The kernel ends a call that nobody else ended so long after its time limit.
ALARM_GRACE_S = 10.0
MAX_TRACEBACK = 4_000


class NoNumberError(Exception):
    """A reward function returned something that is no finite number."""


def main() -> None:
    """Serve requests until standard input ends."""
    requests = os.fdopen(os.dup(0), "rb")
    replies = os.fdopen(os.dup(1), "wb")
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    _be_the_first_to_go()
    process = os.getpid()
    function: Callable[..., Any] | None = None
    batch, timeout_s = False, 0.0
    while (request := _read(requests)) is not None:
        if "function" in request:
            sys.path[:] = request["path"]
            for name, value in request["environment"].items():
                os.environ.pop(name, None)
                if value is not None:
                    os.environ[name] = value
            batch, timeout_s = request["batch"], request["timeout_s"]
            try:
                function = pickle.loads(request["function"])
            except BaseException:  # a module of the user's may call sys.exit when it is imported
                _write(replies, {"failed": _traceback()})
            else:
                _write(replies, {"loaded": True})
            continue
        assert function is not None
        for index, call in enumerate(request["calls"]):
            reply = _call(function, call, request["sizes"][index] if batch else None, timeout_s)
            if os.getpid() != process:  # the function forked, and this is the child
                os._exit(0)
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(Exception):  # the function may have closed it
                    stream.flush()
            _write(replies, {"index": index, **reply})


def _call(
    function: Callable[..., Any], arguments: dict[str, Any], size: int | None, timeout_s: float
) -> dict[str, Any]:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, timeout_s + ALARM_GRACE_S)
    try:
        result = function(**arguments)
        if size is None:
            return {"value": _finite(result)}
        return _batch(result, size)
    except NoNumberError as error:
        return {"kind": "no number", "error": str(error)}
    except BaseException as error:  # SystemExit and KeyboardInterrupt too
        return {"kind": type(error).__name__, "error": _traceback()}
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _batch(result: Any, size: int) -> dict[str, Any]:
    if isinstance(result, (str, bytes, dict)) or not hasattr(result, "__len__"):
        raise NoNumberError(f"returned {_describe(result)} instead of a list of {size} numbers")
    if len(result) != size:
        raise NoNumberError(f"returned {len(result)} numbers for {size} completions")
    values: list[float | None] = []
    wrong = ""
    for value in result:
        try:
            values.append(_finite(value))
        except NoNumberError as error:
            values.append(None)
            wrong = wrong or str(error)
    return {"values": values, "kind": "no number", "error": wrong}


def _finite(value: Any) -> float:
    if value is None or isinstance(value, (str, bytes, bytearray, complex)):
        raise NoNumberError(f"returned {_describe(value)} instead of a number")
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise NoNumberError(f"returned {_describe(value)} instead of a number") from error
    if not math.isfinite(number):
        raise NoNumberError(f"returned {number}")
    return number


def _describe(value: Any) -> str:
    try:
        shown = repr(value)
    except Exception as error:
        shown = f"an object whose repr raises {type(error).__name__}"
    return f"{shown[:200]} ({type(value).__name__})"


def _traceback() -> str:
    """Return the present exception's traceback without this file's own frame, cut in the middle."""
    kind, error, frames = sys.exc_info()
    frames = frames.tb_next if frames is not None else None
    text = "".join(traceback.format_exception(kind, error, frames)).rstrip()
    half = MAX_TRACEBACK // 2
    return text if len(text) <= MAX_TRACEBACK else f"{text[:half]}\n  …\n{text[-half:]}"


def _be_the_first_to_go() -> None:
    """Bound the memory, and offer this process to the kernel first where memory runs out."""
    if not sys.platform.startswith("linux"):
        return
    import resource

    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with contextlib.suppress(OSError, ValueError):
        with open("/sys/fs/cgroup/memory.max", encoding="ascii") as limit:  # a container's
            memory = min(memory, int(limit.read()))
    with contextlib.suppress(OSError, ValueError):
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (int(memory * MEMORY_SHARE), hard))
    with contextlib.suppress(OSError):
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as adjustment:
            adjustment.write("1000")


def _read(stream: BinaryIO) -> dict[str, Any] | None:
    header = stream.read(HEADER.size)
    if len(header) < HEADER.size:
        return None
    body = stream.read(HEADER.unpack(header)[0])
    message: dict[str, Any] = pickle.loads(body)
    return message


def _write(stream: BinaryIO, message: dict[str, Any]) -> None:
    body = json.dumps(message).encode()
    stream.write(HEADER.pack(len(body)) + body)
    stream.flush()


if __name__ == "__main__":
    main()
