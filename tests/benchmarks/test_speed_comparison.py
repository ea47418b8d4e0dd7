"""What comparisons of speed and the table of a step's parts do with the numbers they are given."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from zoo.benchmarks import step_budget
from zoo.benchmarks.peers import alternate, sb3_off_policy, zoo_side
from zoo.benchmarks.readers import read


def side(seconds: float, cpu_s: float) -> list[str]:
    """Return a command that claims to have trained, after a line of another's own."""
    result = {"seconds": seconds, "cpu_s": cpu_s, "steps": 100, "return": 7.5}
    said = json.dumps({**result, "peak_rss_gib": 0.5, "versions": {"other": "1.0"}})
    return [sys.executable, "-c", f"print('hello'); print({said!r})"]


def test_both_sides_run_in_turn_and_their_medians_are_divided(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["speed"])
    out = tmp_path / "speed.results.json"
    arguments = alternate.arguments_of("x", ["sac"]).parse_args(
        ["sac", "--runs", "2", "--out", str(out)]
    )
    task = {"algo": "sac", "env": "Pendulum-v1", "steps": 100}
    alternate.alternate(task, {"zoo": side(2.0, 1.0), "SB3": side(6.0, 4.0)}, arguments)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[2] for line in lines[:4]] == ["zoo", "SB3", "SB3", "zoo"]
    assert lines[4:] == [
        "ratio of the median steps per second: 3.00",
        "ratio of the median steps per CPU second: 4.00",
    ]
    runs = read([str(out)]).runs
    assert sorted({run.label for run in runs}) == ["SB3 SAC", "zoo SAC"]
    assert runs[0].facts["cpu_s"] == 1.0 and runs[0].curves["evaluation"].value.tolist() == [7.5]


def test_hyperparameters_reach_our_side_whatever_the_tuned_settings_are() -> None:
    knobs, overrides = zoo_side.translated({**sb3_off_policy.TASKS["dqn"], "threads": 1})
    assert knobs["double"] is False and knobs["target_every"] == 128 and knobs["lr"] == 2.3e-3
    assert {
        "rollout.steps=256",
        "algo.replay.updates_per_step=0.5",
        "algo.replay.n_step=1",
        "algo.lr_schedule=constant",
        "model.hidden_sizes=[256, 256]",
    } <= set(overrides)


def test_a_parts_time_is_without_the_parts_inside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(step_budget.time, "thread_time", lambda: clock[0])

    class Work:
        def outer(self) -> float:
            clock[0] += 1.0
            return sum(self.inner()) + clock[0]

        def inner(self):
            for value in (10.0, 20.0):
                clock[0] += value
                yield value

    watch = step_budget.Stopwatch()
    watch.wrap(Work, "outer", "outer")
    watch.wrap(Work, "inner", "inner")
    assert Work().outer() == 61.0
    assert watch.seconds == {"outer": 1.0, "inner": 30.0}
