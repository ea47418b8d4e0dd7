"""Sampling from a vLLM server: one that is started for the run, or one that runs already.

What is asked, and what is made of the answers, is what `VLLMSampler` asks of an engine in this
process. New weights go over as a safetensors file, which the server's workers read in place, and
new adapters as a folder, which the server loads by a new name.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from zoo.core.schema import in_range
from zoo.errors import UserError
from zoo.rollouts.engine_adapter import MERGED, adapter_settings, has_room
from zoo.rollouts.engine_requests import Completed
from zoo.rollouts.engine_settings import (
    ENVIRONMENT,
    EngineKnobs,
    VLLMRolloutKnobs,
    engine_settings,
    length_limit,
    refuse_other_device,
    refuse_sleep,
    require_vllm,
)
from zoo.rollouts.engine_weights import write_config, write_weights
from zoo.rollouts.server_client import Refused, ServerClient
from zoo.rollouts.server_process import ServerProcess, free_port
from zoo.rollouts.vllm import VLLMSampler

__all__ = ["VLLMServerKnobs", "VLLMServerSampler", "server_command"]

#: how a server is started; `vllm serve` is the same, and does not start in the package for CPUs
_PROGRAM = ("-m", "vllm.entrypoints.openai.api_server")
#: makes a server listen for weights, and for adapters
_DEV_MODE = {"VLLM_SERVER_DEV_MODE": "1"}
_ADAPTERS = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}
#: requests that are under way at a time at most
_TOGETHER = 64
#: seconds between looks at a server that starts
_LOOK_S = 0.5


@dataclass(frozen=True)
class VLLMServerKnobs(VLLMRolloutKnobs):
    """How much is sampled per update, and by which server."""

    #: http://host:port of a server that runs already; null: one is started, and ends with the run
    url: str | None = None
    #: seconds that the server may take to start, to take new weights, or to answer a request
    timeout_s: float = 600.0

    def __post_init__(self) -> None:
        """Refuse an address that is none, and settings that no running server takes."""
        super().__post_init__()
        in_range(self, "timeout_s", low=0.0, above=True)
        if self.url is None:
            return
        if not _is_address(self.url):
            raise UserError(f"rollout.url={self.url!r} must be like http://127.0.0.1:8000.")
        if self.engine != EngineKnobs():
            raise UserError(
                "rollout.engine.* says how a server is started, and the one at rollout.url was"
                " started already: leave them out, and give the server's own command those."
            )


class VLLMServerSampler(VLLMSampler):
    """A vLLM server that follows the policy's weights.

    Parameters
    ----------
    knobs : VLLMServerKnobs
        Its ``url``, or the ``engine`` that is started.

    Raises
    ------
    UserError
        Where a server is to be started and vLLM is not installed, or it was to sleep without an
        accelerator.
    """

    Knobs = VLLMServerKnobs
    knobs: VLLMServerKnobs
    _llm: ServerClient | None

    def __init__(self, knobs: VLLMServerKnobs) -> None:
        if knobs.url is None:
            require_vllm("vllm_server")
            refuse_sleep(knobs.engine)
        self._set(knobs)
        self._process: ServerProcess | None = None
        self._name: str | None = None  # of the weights, or the base, that were handed over last

    @property
    def notices(self) -> list[str]:
        """What a user should know of this way to sample, said once."""
        return [
            "rollout=vllm_server: which rows run together depends on when the server gets them, so"
            " a resumed run may draw other samples than the uninterrupted one."
        ]

    def close(self) -> None:
        """End the server that was started; one that ran already goes on."""
        if self.knobs.url is not None:
            with contextlib.suppress(UserError):  # it may have ended before
                self._drop_adapter()
        self._llm = self._holds = self._held = self._adapter = None
        if self._process is not None:
            self._process.end()
            self._process = None
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    # Parts of the above.

    def _start(self, policy: Any) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="zoo-vllm-")
        if self.knobs.url is not None:
            client = ServerClient(self.knobs.url, self.knobs.timeout_s)
            self._limit = self._connect(client, policy)
            self._llm = client
            return
        refuse_other_device("vllm_server", policy)
        folder = Path(self._folder.name)
        write_config(policy.model, folder)
        self._limit = length_limit(self.knobs, policy)
        settings = engine_settings(self.knobs, policy, folder, self._limit)
        port = free_port()
        where = {"host": "127.0.0.1", "port": port, "disable_uvicorn_access_log": True}
        environment = {**ENVIRONMENT, "VLLM_LOGGING_LEVEL": "INFO", **os.environ}
        environment |= self._listening(policy)
        self._process = ServerProcess(server_command(settings | where), environment, folder)
        client = ServerClient(f"http://127.0.0.1:{port}", self.knobs.timeout_s, self._process.why)
        try:
            self._wait(client, self._process, policy)
            self._connect(client, policy)
        except BaseException:
            self.close()
            raise
        self._llm = client

    def _wait(self, client: ServerClient, process: ServerProcess, policy: Any) -> None:
        """Wait until the server answers."""
        ready = ServerClient(client.url, client.timeout_s)  # without a look at why it doesn't yet
        deadline = time.monotonic() + self.knobs.timeout_s
        while (death := process.death(_LOOK_S)) is None:
            try:
                ready.ask("/health", timeout_s=min(5.0, self.knobs.timeout_s))
                return
            except UserError:
                if time.monotonic() > deadline:
                    raise UserError(
                        f"the vLLM server was not ready within {self.knobs.timeout_s:g} s: raise"
                        " rollout.timeout_s if it is only slow."
                    ) from None
        apart = f"; {MERGED}" if self.knobs.apart(policy.model) else ""
        raise UserError(
            f"the vLLM server can't start with {type(policy.model).__name__} (rollout=hf samples"
            f" without it{apart}): {death}"
        )

    def _connect(self, client: ServerClient, policy: Any) -> int:
        """Refuse a server that would draw something else; return its limit of tokens."""
        try:
            served = client.collective_rpc("what_is_served")
        except Refused as error:
            if error.status != 404 and "what_is_served" not in error.message:
                raise
            raise UserError(
                f"the server at {client.url} can't be given weights: start it with"
                f" `{self._advice(policy)}`."
            ) from error
        config = policy.model.config
        need = {
            "architecture": type(policy.model).__name__,
            "vocab_size": config.vocab_size,
            "dtype": str(policy.sampling_dtype()).removeprefix("torch."),
            "logprobs_mode": "processed_logprobs",
            "generation_config": "vllm",
        }
        for name, value in need.items():
            if served[0][name] != value:
                raise UserError(
                    f"the server at {client.url} runs with {name}={served[0][name]} and the policy"
                    f" needs {value}: start it with `{self._advice(policy)}`."
                )
        if self.knobs.apart(policy.model):
            need_room = adapter_settings(policy.model, policy.sampling_dtype())
            if not has_room(served[0]["adapters"], need_room):
                raise UserError(
                    f"the server at {client.url} has no room for this adapter: start it with"
                    f" `{self._advice(policy)}`, or {MERGED}."
                )
        limit = int(client.ask("/v1/models")["data"][0]["max_model_len"])
        if limit < (needed := length_limit(self.knobs, policy)):
            raise UserError(
                f"the server at {client.url} takes {limit} tokens of a prompt and its completion,"
                f" and rollout.max_prompt_tokens + rollout.max_new_tokens are {needed}: start it"
                f" with `{self._advice(policy)}`."
            )
        return limit

    def _listening(self, policy: Any) -> dict[str, str]:
        return _DEV_MODE | (_ADAPTERS if self.knobs.apart(policy.model) else {})

    def _advice(self, policy: Any) -> str:
        """Return the command that starts a server for this policy."""
        limit = length_limit(self.knobs, policy)
        settings = engine_settings(self.knobs, policy, Path("FOLDER_OF_THE_MODEL"), limit)
        port = urlsplit(self.knobs.url or "").port or 8000
        command = server_command(settings | {"host": "127.0.0.1", "port": port}, "python")
        return (
            " ".join(f"{name}={value}" for name, value in self._listening(policy).items())
            + " "
            + shlex.join(command)
        )

    def _prepare(self, policy: Any) -> None:
        # Started anew, or given others by another run, a server has not what it was given last.
        if self._holds is not None and not self._has_ours():
            self._holds = None
        super()._prepare(policy)

    def _has_ours(self) -> bool:
        assert self._llm is not None
        served = self._llm.collective_rpc("what_is_served")
        return all(one["weights_name"] == self._name for one in served)

    def _hand_over(self, policy: Any, *, merged: bool) -> int:
        assert self._llm is not None
        assert self._folder is not None
        folder, name = Path(self._folder.name), uuid.uuid4().hex
        handed = write_weights(policy.model, policy.sampling_dtype(), folder, merged=merged)
        try:
            self._llm.collective_rpc("read_weights", (str(folder), name))
        except Refused as error:
            raise UserError(f"{error} {_readable(folder)}.") from error
        finally:
            (folder / "model.safetensors").unlink()
        self._name = name
        return handed

    def _take_adapter(self, folder: Path) -> None:
        assert self._llm is not None
        try:
            self._llm.load_adapter(folder.name, folder)
        except Refused as error:
            raise UserError(f"{error} {_readable(folder)}; {MERGED}.") from error

    def _drop_adapter(self) -> None:
        if self._adapter is not None and self._llm is not None:
            with contextlib.suppress(Refused):  # a server that was started anew doesn't know it
                self._llm.unload_adapter(self._adapter.name)
        super()._drop_adapter()

    def _run(self, prompts: list[list[int]], asked: list[dict[str, Any]]) -> list[list[Completed]]:
        assert self._llm is not None
        model = {} if self._adapter is None else {"model": self._adapter.name}
        bodies = [
            {
                **one,
                **model,
                "prompt": ids,
                "return_token_ids": True,
                "return_tokens_as_token_ids": True,  # texts would need a tokenizer
            }
            for ids, one in zip(prompts, asked, strict=True)
        ]
        answers = self._llm.ask_all("/v1/completions", bodies, _TOGETHER, self.stop)
        if not self._has_ours():
            raise UserError(
                f"another run has given the server at {self._llm.url} other weights while this one"
                " sampled: give each run a server of its own."
            )
        return [_completed(answer) for answer in answers]


def server_command(settings: Mapping[str, Any], python: str = sys.executable) -> list[str]:
    """Return the command that starts a server with settings by the names of vLLM's arguments."""
    command = [python, *_PROGRAM]
    for name, value in settings.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            command.append(f"--{flag}" if value else f"--no-{flag}")
        elif isinstance(value, list):
            command += [f"--{flag}", *map(str, value)]
        elif value is not None:
            command += [f"--{flag}", str(value)]
    return command


def _completed(answer: Mapping[str, Any]) -> list[Completed]:
    choices = sorted(answer["choices"], key=lambda choice: int(choice["index"]))
    return [
        Completed(one["token_ids"], one["logprobs"]["token_logprobs"], one["finish_reason"])
        for one in choices
    ]


def _readable(folder: Path) -> str:
    return (
        f"It has to read {folder}, as this user on this machine; TMPDIR says where that folder is"
        " made"
    )


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number
        return False
