"""A user's reward function may do anything: it is bounded, counted and told, never a silent 0."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from zoo.core.protocols import Completion, Scores
from zoo.envs.rewards import RewardItem
from zoo.envs.text import QuestionEnv, make_prompt
from zoo.errors import UserError

PROMPT = make_prompt("6 + 12?", "18", "x")


def score(function: Any, texts: list[str], **settings: Any) -> Scores:
    item = RewardItem("mine", function, **settings)
    with QuestionEnv("t", [PROMPT], [PROMPT], rewards=["accuracy", item]) as env:
        return env.score([PROMPT] * len(texts), [Completion(t, [1, 2], True) for t in texts])


def same(values: list[float], expected: list[float | None]) -> bool:
    return [None if math.isnan(v) else v for v in values] == expected


def test_every_argument_arrives() -> None:
    def asks(
        completion: str,
        answer: str,
        question: str,
        prompt: Any,
        token_ids: list[int],
        finished: bool,
        metadata: dict[str, Any],
    ) -> float:
        assert (completion, answer, question) == ("hello", "18", "6 + 12?")
        assert prompt.id == "x"
        assert token_ids == [1, 2]
        assert finished is True
        assert metadata == {}
        return 0.25

    def takes_all(**everything: Any) -> float:
        return float(len(everything))

    assert score(asks, ["hello"]).items["mine"] == [0.25]
    assert score(takes_all, ["hello"]).items["mine"] == [8.0]


def test_a_batch_function_gets_lists() -> None:
    def lengths(completions: list[str], answers: list[str], finished: list[bool]) -> list[int]:
        assert answers == ["18", "18"]
        assert finished == [True, True]
        return [len(text) for text in completions]

    assert score(lengths, ["ab", "abc"]).items["mine"] == [2.0, 3.0]
    assert score(lambda completions: np.ones(2), ["ab", "abc"]).items["mine"] == [1.0, 1.0]


def test_golden_37_a_reward_that_raises_is_counted_and_its_traceback_kept_once() -> None:
    def raises(completion: str) -> float:
        if completion.startswith("bad"):
            raise KeyError("no such thing")
        return 1.0

    scores = score(raises, ["bad", "good", "bad too", "good"])
    assert same(scores.items["mine"], [None, 1.0, None, 1.0])
    assert same(scores.total, [None, 1.0, None, 1.0])
    assert scores.failures == {"mine": 2}
    assert len(scores.errors) == 1
    assert scores.errors[0].startswith("reward 'mine' on completion 0, prompt x (KeyError):")
    assert 'raise KeyError("no such thing")' in scores.errors[0] or "in raises" in scores.errors[0]


@pytest.mark.parametrize(
    "value",
    [math.nan, math.inf, -math.inf, None, "1.0", b"1", 1j, [1.0], {}, np.ones(2), torch.ones(2),
     object(), 10**400],
)  # fmt: skip
def test_golden_37_a_reward_that_returns_no_number_is_counted(value: Any) -> None:
    def returns(completion: str) -> Any:
        if completion == "object":
            return object()
        return value if completion == "bad" else 0.5

    text = "object" if type(value) is object else "bad"
    scores = score(returns, [text, "good"])
    assert same(scores.items["mine"], [None, 0.5])
    assert scores.failures == {"mine": 1}
    assert "returned" in scores.errors[0]


@pytest.mark.parametrize(
    ("value", "expected"),
    [(True, 1.0), (3, 3.0), (np.float32(0.5), 0.5), (np.array(2.0), 2.0),
     (torch.tensor(0.25, requires_grad=True), 0.25)],
)  # fmt: skip
def test_whatever_is_one_number_counts(value: Any, expected: float) -> None:
    assert score(lambda completion: value, ["x"]).items["mine"] == [expected]


def test_golden_37_a_hang_is_cut_off_and_the_rest_is_scored() -> None:
    def sleeps(completion: str) -> float:
        if completion == "sleep":
            time.sleep(1e6)
        if completion == "compute":
            return float(9**9**9**9)
        return float(ord(completion))

    start = time.monotonic()
    scores = score(sleeps, ["a", "sleep", "b", "compute", "c"], timeout_s=0.5)
    assert same(scores.items["mine"], [97.0, None, 98.0, None, 99.0])
    assert scores.failures == {"mine": 2}
    assert [e for e in scores.errors if "timed out" in e] == scores.errors
    assert time.monotonic() - start < 30


def test_golden_37_a_function_that_always_hangs_is_given_up_for_the_batch() -> None:
    start = time.monotonic()
    scores = score(lambda completion: time.sleep(1e6), ["x"] * 500, timeout_s=0.3)
    assert scores.failures == {"mine": 500}
    assert time.monotonic() - start < 30
    assert any("had to be ended 3 times" in error for error in scores.errors)


def test_golden_37_a_completion_full_of_powers_hangs_nothing() -> None:
    start = time.process_time()
    with QuestionEnv("t", [PROMPT], [PROMPT], rewards=["accuracy", "format"]) as env:
        scores = env.score([PROMPT], [Completion("#### 9**9**9**9", [1], True)])
    assert scores.total == [0.0]
    assert time.process_time() - start < 5


@pytest.mark.parametrize("how", ["os._exit", "sys.exit", "abort", "close", "garbage", "kill"])
def test_a_function_that_ends_its_process_costs_one_value(how: str) -> None:
    def leaves(completion: str, how: str = how) -> float:
        if completion != "bad":
            return 1.0
        if how == "os._exit":
            os._exit(3)
        elif how == "sys.exit":
            sys.exit(0)
        elif how == "abort":
            os.abort()
        elif how == "close":
            os.closerange(0, 100)
        elif how == "garbage":
            for descriptor in range(3, 20):
                try:
                    os.write(descriptor, b"\xff" * 100)
                except OSError:
                    continue
        elif how == "kill":
            os.killpg(0, signal.SIGTERM)
        return 1.0

    scores = score(leaves, ["a", "bad", "b"], timeout_s=3.0)
    assert same(scores.items["mine"], [1.0, None, 1.0])
    assert scores.failures == {"mine": 1}
    assert len(scores.errors) == 1


def test_what_a_function_prints_disturbs_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    def chats(completion: str) -> float:
        print("hello from", completion)
        sys.stdout.buffer.write(b"\x00\x00\x00\x00\x00\x00\x00\x01{")
        os.write(1, b"\xff\xfe raw")
        print("and", completion, file=sys.stderr)
        assert sys.stdin.read() == ""
        return 1.0

    scores = score(chats, ["a", "b"])
    assert scores.items["mine"] == [1.0, 1.0]
    assert "[reward mine] hello from a" in capsys.readouterr().err


def test_programs_that_a_function_starts_see_the_users_own_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)

    def looks(completion: str) -> float:
        assert os.environ["PYTHONPATH"] == "/somewhere"
        assert "PYTHONSAFEPATH" not in os.environ
        return 1.0

    assert score(looks, ["a"]).items["mine"] == [1.0]


def test_endless_printing_is_cut_off(capsys: pytest.CaptureFixture[str]) -> None:
    def prints(completion: str) -> float:
        while completion == "bad":
            print("x" * 1000)
        return 1.0

    scores = score(prints, ["a", "bad", "b"], timeout_s=0.5)
    assert same(scores.items["mine"], [1.0, None, 1.0])
    printed = capsys.readouterr().err
    assert len(printed) < 50_000
    assert "further output is not shown" in printed


def test_forks_and_threads_leave_the_replies_in_order() -> None:
    def forks(completion: str) -> float:
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
        if os.fork() == 0:
            return 99.0
        return float(completion)

    scores = score(forks, ["1", "2", "3"])
    assert scores.items["mine"] == [1.0, 2.0, 3.0]


def test_memory_is_bounded() -> None:
    def hoards(completion: str) -> float:
        block = bytearray(1 << 50) if completion == "bad" else b""
        return float(len(block)) + 1.0

    scores = score(hoards, ["bad", "a"])
    assert same(scores.items["mine"], [None, 1.0])
    assert "MemoryError" in scores.errors[0]


def test_a_batch_function_fails_for_its_wrong_values_only() -> None:
    scores = score(lambda completions: [1.0, None, float("nan"), 2.0], ["x"] * 4)
    assert same(scores.items["mine"], [1.0, None, None, 2.0])
    assert scores.failures == {"mine": 2}
    scores = score(lambda completions: [1.0], ["x"] * 3)
    assert scores.failures == {"mine": 3}
    assert "returned 1 numbers for 3 completions" in scores.errors[0]
    assert score(lambda completions: "123", ["x"] * 3).failures == {"mine": 3}


def test_a_failing_item_of_weight_zero_spoils_no_total() -> None:
    scores = score(lambda completion: None, ["#### 18"], weight=0)
    assert scores.total == [1.0]
    assert scores.failures == {"mine": 1}


def test_the_process_is_kept_between_batches_and_ends_with_the_environment() -> None:
    item = RewardItem("mine", lambda completion: float(os.getpid()))
    env = QuestionEnv("t", [PROMPT], [PROMPT], rewards=[item])
    completion = Completion("x", [1], True)
    first, second = (env.score([PROMPT], [completion]).total[0] for _ in range(2))
    assert first == second != os.getpid()
    assert os.getpgid(int(first)) != os.getpgid(0)  # Ctrl-C doesn't reach it
    env.close()
    assert not psutil.pid_exists(int(first))
    assert env.score([PROMPT], [completion]).total[0] != first
    env.close()


def test_no_completion_needs_no_process() -> None:
    scores = score(lambda completions: 1 / 0, [])
    assert scores.items == {"accuracy": [], "mine": []}
    assert scores.failures == {}


def test_a_function_that_cannot_be_loaded_is_the_users_mistake() -> None:
    class Spiteful:
        def __reduce__(self) -> Any:
            return (int, ("no number",))

        def __call__(self, completion: str) -> float:
            return 1.0

    with pytest.raises(UserError, match="cannot be loaded in its own process: ValueError"):
        score(Spiteful(), ["x"])


def test_an_unguarded_script_is_not_run_again(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        textwrap.dedent("""
        print("script runs")
        from zoo.core.protocols import Completion
        from zoo.envs.text import QuestionEnv, make_prompt
        FACTOR = 3
        def mine(completion):
            return FACTOR * len(completion)
        prompt = make_prompt("q", "1", "x")
        env = QuestionEnv("t", [prompt], [prompt], rewards=[mine])
        print(env.score([prompt], [Completion("ab", [1], True)]).total)
        """)
    )
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout == "script runs\n[6.0]\n"
    assert done.stderr == ""


def test_an_interrupt_in_the_middle_leaves_a_usable_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def reads(completion: str) -> float:
        return float(completion)

    item = RewardItem("mine", reads)
    with QuestionEnv("t", [PROMPT], [PROMPT], rewards=[item]) as env:

        def numbers(*values: int) -> list[Completion]:
            return [Completion(str(value), [1], True) for value in values]

        from zoo.envs.rewards import process

        read = process._read

        def interrupted(*args: Any) -> Any:
            raise KeyboardInterrupt

        monkeypatch.setattr(process, "_read", interrupted)
        with pytest.raises(KeyboardInterrupt):
            env.score([PROMPT] * 3, numbers(1, 2, 3))
        monkeypatch.setattr(process, "_read", read)
        assert env.score([PROMPT] * 2, numbers(7, 8)).total == [7.0, 8.0]
