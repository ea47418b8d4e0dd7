"""What is said to a vLLM server, over HTTP."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, CancelledError, Future, ThreadPoolExecutor, wait
from pathlib import Path
from threading import Event
from typing import Any
from urllib.parse import quote, urlsplit

from zoo.errors import UserError

__all__ = ["Refused", "ServerClient"]

#: seconds that an answer may take which needs no work
_SOON_S = 10.0
#: seconds between looks at whether the sampling is to stop
_LOOK_S = 0.2


class Refused(UserError):
    """The server answered, with an error.

    Attributes
    ----------
    status : int
        Of HTTP.
    message : str
        The server's.
    """

    def __init__(self, text: str, status: int, message: str) -> None:
        super().__init__(text)
        self.status, self.message = status, message


class ServerClient:
    """Requests to one server; no proxy is asked.

    Parameters
    ----------
    url : str
        http://host:port, https too.
    timeout_s : float
        Seconds that an answer may take.
    why : callable
        Says what is known of a server that doesn't answer, to be put after the rest.
    """

    def __init__(self, url: str, timeout_s: float, why: Callable[[], str] = str) -> None:
        self.url, self.timeout_s, self._why = url.rstrip("/"), timeout_s, why
        self._parts = urlsplit(self.url)

    # By the names of vLLM's in-process engine.

    def collective_rpc(self, method: str, args: Sequence[str] = ()) -> list[Any]:
        """Call a method of the workers and return each one's answer."""
        body = {"method": method, "args": list(args)}
        answer = self.ask("/collective_rpc", body)
        return list(answer["results"]) if answer else []

    def reset_prefix_cache(self) -> None:
        """Forget the keys and values of earlier prompts."""
        if not self.ask("/reset_prefix_cache", {})["success"]:
            raise UserError(
                f"the vLLM server at {self.url} can't empty its prefix cache, as other requests"
                " are running: give a run a server of its own."
            )

    def load_adapter(self, name: str, folder: Path) -> None:
        """Let the server read an adapter, which requests can then ask for as their model."""
        self._told("/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(folder)})

    def unload_adapter(self, name: str) -> None:
        """Let the server forget an adapter."""
        self._told("/v1/unload_lora_adapter", {"lora_name": name}, min(self.timeout_s, _SOON_S))

    def sleep(self, level: int) -> None:
        """Give memory back."""
        self.ask(f"/sleep?level={level}", {})

    def wake_up(self, tags: Sequence[str]) -> None:
        """Take memory again."""
        self.ask("/wake_up?" + "&".join(f"tags={quote(tag)}" for tag in tags), {})

    # HTTP.

    def ask(self, path: str, body: Any = None, timeout_s: float | None = None) -> Any:
        """Return what the server answers; without a body it is a GET.

        Raises
        ------
        Refused
            Where it answers with an error.
        UserError
            Where it can't be reached or doesn't answer in time.
        """
        return self._parsed(path, self._told(path, body, timeout_s))

    def _told(self, path: str, body: Any, timeout_s: float | None = None) -> str:
        connection = self._connection(self.timeout_s if timeout_s is None else timeout_s)
        try:
            return self._answer(connection, path, body)
        finally:
            connection.close()

    def ask_all(self, path: str, bodies: Sequence[Any], together: int, stop: Event) -> list[Any]:
        """Return the answers to several requests, in their order.

        Parameters
        ----------
        together : int
            Requests that are under way at a time.
        stop : Event
            Set by another thread, it ends the waiting; the server drops what nobody waits for.
        """
        ended = Event()
        running: set[http.client.HTTPConnection] = set()

        def one(body: Any) -> Any:
            connection = self._connection(self.timeout_s)
            running.add(connection)
            try:
                if ended.is_set():
                    return None
                return self._parsed(path, self._answer(connection, path, body))
            finally:
                running.discard(connection)
                connection.close()

        pool = ThreadPoolExecutor(together, thread_name_prefix="zoo-vllm")
        try:
            asked = [pool.submit(one, body) for body in bodies]
            waiting: set[Future[Any]] = set(asked)
            while waiting:
                done, waiting = wait(waiting, _LOOK_S, FIRST_EXCEPTION)
                for future in done:
                    future.result()
                if stop.is_set():
                    raise CancelledError("the sampling was stopped")
            return [future.result() for future in asked]
        finally:
            ended.set()
            pool.shutdown(wait=False, cancel_futures=True)
            for connection in list(running):
                _break(connection)

    def _connection(self, timeout_s: float) -> http.client.HTTPConnection:
        secure = self._parts.scheme == "https"
        kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        return kind(str(self._parts.hostname), self._parts.port, timeout=timeout_s)

    def _answer(self, connection: http.client.HTTPConnection, path: str, body: Any) -> str:
        try:
            connection.request(
                "GET" if body is None else "POST",
                self._parts.path + path,
                None if body is None else json.dumps(body),
                {"Content-Type": "application/json"},
            )
            response = connection.getresponse()
            text = response.read().decode(errors="replace")
        except TimeoutError as error:
            raise UserError(
                f"the vLLM server at {self.url} did not answer {path} within"
                f" {connection.timeout:g} s: raise rollout.timeout_s if it is only slow."
            ) from error
        except (OSError, http.client.HTTPException) as error:
            told = self._why() or f" ({error or type(error).__name__}): is it running there?"
            raise UserError(f"the vLLM server at {self.url} does not answer{told}") from error
        if response.status != 200:
            message = _message(text)
            told = f"the vLLM server at {self.url} answered {path} with {response.status}"
            raise Refused(f"{told}: {message}{self._why()}", response.status, message)
        return text

    def _parsed(self, path: str, text: str) -> Any:
        try:
            return json.loads(text) if text else None
        except ValueError as error:
            raise UserError(
                f"what answers at {self.url}{path} is no vLLM server (no JSON: {text[:60]!r})."
            ) from error


def _message(text: str) -> str:
    """Return what an error's body says."""
    try:
        found = json.loads(text)
        found = found.get("error", found)
        return str(found.get("message") or found.get("detail") or found)
    except (ValueError, AttributeError):
        return text.strip()[:200] or "without a reason"


def _break(connection: http.client.HTTPConnection) -> None:
    """End a connection that another thread waits on."""
    if connection.sock is not None:
        try:
            connection.sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # it has ended by itself
