"""What is said to a vLLM server and made of its answers, against one that answers as recorded."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from process_groups import running, until
from safetensors.torch import load_file
from small_models import make_policy

from zoo.core.config import compose
from zoo.errors import UserError
from zoo.policies.adapters import LoraKnobs, adapt
from zoo.rollouts.engine_requests import request
from zoo.rollouts.engine_weights import checkpoint_weights
from zoo.rollouts.sampling import Samples, SamplingParams
from zoo.rollouts.server_client import ServerClient
from zoo.rollouts.server_process import ServerProcess, free_port
from zoo.rollouts.vllm_server import VLLMServerKnobs, VLLMServerSampler, server_command

LIMITS = {"max_prompt_tokens": 12, "max_new_tokens": 4}
PARAMS = SamplingParams(0.6, 4, frozenset({7, 2}))


class Server(ThreadingHTTPServer):
    """Answers as version 0.32 did, and writes down what it was asked."""

    daemon_threads, request_queue_size = True, 256

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.asked: list[tuple[str, Any]] = []
        self.served: dict[str, Any] = {
            "weights_name": None,
            "architecture": "Qwen3ForCausalLM",
            "vocab_size": 64,
            "dtype": "float32",
            "logprobs_mode": "processed_logprobs",
            "generation_config": "vllm",
            "adapters": {"max_lora_rank": 8, "lora_target_modules": None},
        }
        self.weights: list[dict[str, torch.Tensor]] = []
        self.adapters: list[str] = []
        #: answers in place of the usual ones, by path: status and body, or what to call
        self.instead: dict[str, Any] = {}
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    def answer(self, path: str, body: Any) -> tuple[int, Any]:
        self.asked.append((path, body))
        instead = self.instead.get(path)
        if callable(instead):
            instead = instead(body)
        if instead is not None:
            return instead  # type: ignore[no-any-return]
        if path == "/v1/models":
            return 200, {"data": [{"id": "m", "max_model_len": 16}]}
        if path == "/reset_prefix_cache":
            return 200, {"success": True}
        if path == "/v1/completions":
            return 200, {"choices": [_choice(body, i) for i in range(body["n"])][::-1]}
        if path == "/collective_rpc" and body["method"] == "what_is_served":
            return 200, {"results": [self.served]}
        if path == "/collective_rpc" and body["method"] == "read_weights":
            folder, self.served["weights_name"] = body["args"]
            self.weights.append(load_file(Path(folder) / "model.safetensors"))
            return 200, {"results": [None]}
        if path == "/v1/load_lora_adapter":
            assert (Path(body["lora_path"]) / "adapter_model.safetensors").is_file()
            self.adapters.append(body["lora_name"])
            return 200, f"Success: LoRA adapter '{body['lora_name']}' added successfully."
        if path == "/v1/unload_lora_adapter":
            self.adapters.remove(body["lora_name"])
            return 200, f"Success: LoRA adapter '{body['lora_name']}' removed successfully."
        return 404, {"detail": "Not Found"}


def _choice(body: Any, index: int) -> dict[str, Any]:
    """The prompt's first token, the sample's place, and then a stop token where that is odd."""
    token = [body["prompt"][0], 10 + index] + [2] * (index % 2)
    return {
        "index": index,
        "text": "",
        "logprobs": {
            "text_offset": [13 * i for i in range(len(token))],
            "token_logprobs": [-0.5 * (i + 1) for i in range(len(token))],
            "tokens": [f"token_id:{id_}" for id_ in token],
            "top_logprobs": [{f"token_id:{id_}": -0.5} for id_ in token],
        },
        "finish_reason": "stop" if index % 2 else "length",
        "stop_reason": 2 if index % 2 else None,
        "token_ids": token,
    }


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        body = json.loads(self.rfile.read(length)) if length else None
        status, answer = self.server.answer(self.path, body)
        text = (answer if isinstance(answer, str) else json.dumps(answer)).encode()
        try:
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)
        except OSError:
            self.close_connection = True  # nobody waits for it

    do_GET = do_POST  # noqa: N815

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Logs of servers that failed are kept, for a reader."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@pytest.fixture
def server() -> Iterator[Server]:
    started = Server()
    yield started
    started.shutdown()
    started.server_close()


def sampler(server: Server, **knobs: Any) -> VLLMServerSampler:
    return VLLMServerSampler(VLLMServerKnobs(**{**LIMITS, "url": server.url, **knobs}))


def sample(
    made: VLLMServerSampler,
    policy: Any,
    prompts: list[list[int]] | None = None,
    repeats: int = 2,
    params: SamplingParams = PARAMS,
) -> Samples:
    generator = torch.Generator().manual_seed(5)
    asked = [[5, 6], [8], [9, 9, 9]] if prompts is None else prompts
    return made.generate(policy, asked, repeats, params, generator)


def test_golden_26_a_request_has_every_parameter_the_token_ids_and_a_seed_of_its_own(
    server: Server,
) -> None:
    sample(sampler(server), make_policy("qwen3"))
    bodies = [body for path, body in server.asked if path == "/v1/completions"]
    seeds = torch.randint(2**62, (3,), generator=torch.Generator().manual_seed(5)).tolist()
    extra = {"return_token_ids": True, "return_tokens_as_token_ids": True}
    expected = [
        {**request(PARAMS, 2, seed, len(prompt)), "prompt": prompt, **extra}
        for seed, prompt in zip(seeds, [[5, 6], [8], [9, 9, 9]], strict=True)
    ]
    bodies.sort(key=lambda body: body["prompt"][0])
    assert bodies == expected


def test_answers_are_in_the_prompts_order_whichever_comes_first(server: Server) -> None:
    def slow_first(body: Any) -> None:
        time.sleep(0.2 if body["prompt"][0] == 5 else 0.0)

    server.instead["/v1/completions"] = slow_first
    samples = sample(sampler(server), make_policy("qwen3"))
    assert samples.token[:, :2].tolist() == [
        [5, 10], [5, 11], [8, 10], [8, 11], [9, 10], [9, 11],
    ]  # fmt: skip
    assert samples.length.tolist() == [2, 3] * 3
    assert samples.finished.tolist() == [False, True] * 3
    assert samples.log_prob.tolist() == [[-0.5, -1.0, 0.0], [-0.5, -1.0, -1.5]] * 3


def test_more_prompts_than_requests_at_a_time_all_get_an_answer(server: Server) -> None:
    prompts = [[5 + i % 50] for i in range(150)]
    samples = sample(sampler(server), make_policy("qwen3"), prompts, 1)
    assert samples.token[:, 0].tolist() == [prompt[0] for prompt in prompts]


def test_golden_39_weights_are_read_whole_before_sampling_and_only_when_they_changed(
    server: Server,
) -> None:
    policy, made = make_policy("qwen3"), sampler(server)
    for step in range(3):
        sample(made, policy)
        assert ("sampler/sync_s" in made.metrics) == (step != 1)
        made.metrics.clear()
        if step == 1:
            with torch.no_grad():
                next(policy.model.parameters()).add_(1.0)
            policy.version += 1
    first, second = server.weights
    for name, value in checkpoint_weights(policy.model, torch.float32):
        assert torch.equal(second[name], value)
    assert any(not torch.equal(first[name], second[name]) for name in first)
    folder = Path(next(b["args"][0] for _, b in server.asked if b and "args" in b and b["args"]))
    assert list(folder.iterdir()) == []  # the files are gone
    made.close()
    assert not folder.exists()
    paths = [path for path, _ in server.asked]
    last_reset = len(paths) - paths[::-1].index("/reset_prefix_cache")
    assert paths[last_reset:].count("/v1/completions") == 3
    assert paths.count("/reset_prefix_cache") == 3


def test_a_server_started_anew_gets_the_weights_again(server: Server) -> None:
    policy, made = make_policy("qwen3"), sampler(server)
    sample(made, policy)
    server.served["weights_name"] = None
    sample(made, policy)
    assert len(server.weights) == 2


def test_weights_of_another_run_in_the_midst_of_sampling_are_noticed(server: Server) -> None:
    def taken(body: Any) -> None:
        server.served["weights_name"] = "theirs"

    server.instead["/v1/completions"] = taken
    with pytest.raises(UserError, match="another run has given the server"):
        sample(sampler(server), make_policy("qwen3"))


def adapted() -> Any:
    pytest.importorskip("peft")
    policy = make_policy("qwen3")
    adapt(policy.model, LoraKnobs(rank=2), "base")
    return policy


def test_an_adapter_goes_over_by_a_new_name_which_requests_ask_for(server: Server) -> None:
    policy, made, names = adapted(), sampler(server), []
    for step in range(3):
        sample(made, policy)
        (name,) = server.adapters  # the one before was put out
        names.append(name)
        bodies = [body for path, body in server.asked if path == "/v1/completions"]
        assert [body["model"] for body in bodies[3 * step :]] == [name] * 3
        policy.version += step
    assert names[0] == names[1] != names[2]
    assert len(server.weights) == 1
    for key, value in checkpoint_weights(policy.model, torch.float32, merged=False):
        assert torch.equal(server.weights[0][key], value)
    made.close()
    assert server.adapters == []


def test_a_server_started_anew_gets_the_adapter_again(server: Server) -> None:
    policy, made = adapted(), sampler(server)
    sample(made, policy)
    server.served["weights_name"] = None
    server.instead["/v1/unload_lora_adapter"] = (404, {"error": {"message": "cannot be found"}})
    sample(made, policy)
    assert len(server.weights) == len(server.adapters) == 2


@pytest.mark.parametrize("room", [None, {"max_lora_rank": 1, "lora_target_modules": None}])
def test_a_server_without_room_for_the_adapter_is_refused_and_takes_it_merged(
    server: Server, room: Any
) -> None:
    server.served["adapters"] = room
    with pytest.raises(UserError) as caught:
        sample(sampler(server), adapted())
    text = str(caught.value)
    assert "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1" in text and "rollout.adapter=merged" in text
    assert "--enable-lora --max-loras 1 --max-lora-rank 8 --lora-target-modules down_proj" in text
    sample(sampler(server, adapter="merged"), adapted())
    assert len(server.weights) == 1 and not server.adapters


def test_an_adapter_that_the_server_refuses_is_said_with_the_ways_out(server: Server) -> None:
    server.instead["/v1/load_lora_adapter"] = (500, {"error": {"message": "no such layer"}})
    with pytest.raises(UserError, match=r"500: no such layer.*It has to read .*adapter=merged"):
        sample(sampler(server), adapted())


@pytest.mark.parametrize("answer", [(404, {"detail": "Not Found"}), (500, None)])
def test_a_server_without_the_extension_is_refused_with_the_command(
    server: Server, answer: tuple[int, Any]
) -> None:
    missing = "Worker failed with error ''Worker' object has no attribute 'what_is_served''"
    server.instead["/collective_rpc"] = (answer[0], answer[1] or {"error": {"message": missing}})
    with pytest.raises(UserError) as caught:
        sample(sampler(server), make_policy("qwen3"))
    text = str(caught.value)
    assert "can't be given weights: start it with `VLLM_SERVER_DEV_MODE=1 python -m vllm" in text
    assert "--worker-extension-cls zoo.rollouts.vllm_worker.TakesWeights" in text
    assert f"--port {server.server_port}" in text


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("dtype", "bfloat16"),
        ("logprobs_mode", "raw_logprobs"),
        ("generation_config", "auto"),
        ("architecture", "LlamaForCausalLM"),
        ("vocab_size", 100),
    ],
)
def test_a_server_that_would_draw_something_else_is_refused(
    server: Server, name: str, value: Any
) -> None:
    server.served[name] = value
    with pytest.raises(UserError, match=f"runs with {name}={value} and the policy needs"):
        sample(sampler(server), make_policy("qwen3"))
    assert server.weights == []


def test_a_server_for_shorter_texts_is_refused(server: Server) -> None:
    with pytest.raises(UserError, match=r"takes 16 tokens .* are 17: start it"):
        sample(sampler(server, max_prompt_tokens=13), make_policy("qwen3"))


def test_what_the_server_says_of_an_error_is_passed_on(server: Server) -> None:
    server.instead["/v1/completions"] = (400, {"error": {"message": "no such seed"}})
    with pytest.raises(UserError, match=r"answered /v1/completions with 400: no such seed"):
        sample(sampler(server), make_policy("qwen3"))


def test_weights_that_the_server_cannot_read_are_said_with_the_folder(server: Server) -> None:
    def unreadable(body: Any) -> Any:
        if body["method"] == "read_weights":
            return 500, {"error": {"message": "No such file or directory: <path>"}}
        return None

    server.instead["/collective_rpc"] = unreadable
    with pytest.raises(UserError, match=r"No such file.*It has to read .*zoo-vllm-.*TMPDIR"):
        sample(sampler(server), make_policy("qwen3"))


def test_a_prefix_cache_that_stays_is_an_error(server: Server) -> None:
    server.instead["/reset_prefix_cache"] = (200, {"success": False})
    with pytest.raises(UserError, match="can't empty its prefix cache"):
        sample(sampler(server), make_policy("qwen3"))


def test_an_answer_that_takes_too_long_is_given_up(server: Server) -> None:
    server.instead["/v1/completions"] = lambda body: time.sleep(5)
    start = time.monotonic()
    with pytest.raises(UserError, match=r"not answer /v1/completions within 0.5 s.*timeout_s"):
        sample(sampler(server, timeout_s=0.5), make_policy("qwen3"))
    assert time.monotonic() - start < 4


def test_a_server_that_is_gone_is_one_sentence(server: Server) -> None:
    made, policy = sampler(server), make_policy("qwen3")
    sample(made, policy)
    server.shutdown()
    server.server_close()
    with pytest.raises(UserError, match=f"server at {server.url} does not answer.*running there"):
        sample(made, policy)


def test_something_else_at_the_address_is_refused(server: Server) -> None:
    server.instead["/collective_rpc"] = (200, "<html>")
    with pytest.raises(UserError, match="is no vLLM server"):
        sample(sampler(server), make_policy("qwen3"))


def test_a_stopped_sampling_waits_for_nothing(server: Server) -> None:
    made = sampler(server)
    server.instead["/v1/completions"] = lambda body: time.sleep(5)
    timer = threading.Timer(0.3, made.stop.set)
    timer.start()
    start = time.monotonic()
    with pytest.raises(CancelledError):
        sample(made, make_policy("qwen3"))
    assert time.monotonic() - start < 4
    until(lambda: not any(t.name.startswith("zoo-vllm") for t in threading.enumerate()))
    assert time.monotonic() - start < 4  # nor do its threads


def test_sleeping_and_waking_are_asked_for(server: Server) -> None:
    server.instead |= {"/sleep?level=2": (200, {}), "/wake_up?tags=kv_cache": (200, {})}
    client = ServerClient(server.url + "/", 5.0)
    client.sleep(2)
    client.wake_up(["kv_cache"])
    assert [path for path, _ in server.asked] == ["/sleep?level=2", "/wake_up?tags=kv_cache"]


def test_settings_become_the_arguments_of_the_command() -> None:
    settings = {"max_model_len": 16, "enforce_eager": True, "use_tqdm": False, "seed": None}
    settings |= {"lora_target_modules": ["q", "k"]}
    assert server_command(settings, "python") == [
        *("python", "-m", "vllm.entrypoints.openai.api_server"),
        *("--max-model-len", "16", "--enforce-eager", "--no-use-tqdm"),
        *("--lora-target-modules", "q", "k"),
    ]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("rollout.url=localhost:8000", "must be like http"),
        ("rollout.url=http://a:b", "must be like http"),
        ("rollout.timeout_s=0", "timeout_s"),
        ("rollout.engine.max_model_len=100", "max_prompt_tokens"),
    ],
)
def test_settings_that_cannot_work_are_refused_before_anything_runs(
    given: str, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        compose(["algo=grpo", "env=gsm8k", "model=tiny", "rollout=vllm_server", given])


def test_how_an_engine_is_started_is_not_for_one_that_runs() -> None:
    settings = ["rollout.url=http://a:1", "rollout.engine.enforce_eager=true"]
    with pytest.raises(UserError, match=r"rollout\.engine\.\* says how a server is started"):
        compose(["algo=grpo", "env=gsm8k", "model=tiny", "rollout=vllm_server", *settings])


def test_only_a_server_to_be_started_needs_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    VLLMServerSampler(VLLMServerKnobs(url="http://127.0.0.1:1"))
    with pytest.raises(UserError, match=r"rollout=vllm_server needs the package vllm"):
        VLLMServerSampler(VLLMServerKnobs())


# Processes that are no servers, started and ended as one.


def start(tmp_path: Path, program: str) -> ServerProcess:
    return ServerProcess([sys.executable, "-c", program], os.environ, tmp_path)


def test_a_process_that_fails_is_told_with_the_end_of_its_log(tmp_path: Path) -> None:
    process = start(tmp_path, "print('\\n'.join(map(str, range(20)))); raise SystemExit(3)")
    until(lambda: process.death() is not None)
    assert process.why().endswith(f"exit status 3; the last lines of its log, {process.log}:\n"
                                  + "\n".join(map(str, range(14, 20))))  # fmt: skip
    process.end()
    assert process.log.exists()  # to be read


def test_an_ended_process_takes_what_it_started_along(tmp_path: Path) -> None:
    child = "import time; time.sleep(60)"
    program = (
        "import signal, subprocess, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        f"subprocess.Popen([sys.executable, '-c', {child!r}]); print('up', flush=True);"
        "time.sleep(60)"
    )
    process = start(tmp_path, program)
    until(lambda: "up" in process.log.read_text())
    group = process._process.pid
    assert group != os.getpgid(0)
    assert len(running(group)) == 2
    process.patience_s = 0.2
    process.end()

    until(lambda: not running(group))
    assert not process.log.exists()


def test_a_server_that_cannot_start_is_told_with_its_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("zoo.rollouts.vllm_server.require_vllm", lambda choice: None)
    monkeypatch.setattr("zoo.rollouts.vllm_server._PROGRAM", ("-c", "raise SystemExit('no GPU')"))
    made = VLLMServerSampler(VLLMServerKnobs(**LIMITS))
    with pytest.raises(UserError, match=r"can't start with Qwen3ForCausalLM .*status 1.*\nno GPU"):
        sample(made, make_policy("qwen3"))
    assert made._process is None


def test_a_server_that_never_answers_is_given_up_and_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("zoo.rollouts.vllm_server.require_vllm", lambda choice: None)
    monkeypatch.setattr("zoo.rollouts.vllm_server._PROGRAM", ("-c", "import time; time.sleep(60)"))
    made = VLLMServerSampler(VLLMServerKnobs(**LIMITS, timeout_s=0.6))
    with pytest.raises(UserError, match=r"was not ready within 0\.6 s"):
        sample(made, make_policy("qwen3"))
    assert made._process is None


def test_a_free_port_can_be_listened_on() -> None:
    port = free_port()
    server = Server(port)
    server.server_close()
    assert server.server_port == port
