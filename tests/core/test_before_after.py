"""Before and after, by hand: paired intervals, verdicts, and what is printed of them."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest

from zoo.core.before_after import change, clustered_ci95, table
from zoo.core.recorder import Recorder

Z = 1.959964


def measured(updates: int, values: dict[str, list[float]], first: int = 0, k: int = 4) -> Any:
    count = len(next(iter(values.values())))
    ids = [f"heldout/{i}" for i in range(first, first + count)]
    return {"updates": updates, "prompts": ids, "k": k, "values": values}


def test_the_differences_interval_is_of_the_pairs() -> None:
    before = measured(0, {"greedy_strict": [0.0, 0.0, 1.0, 1.0]})
    after = measured(9, {"greedy_strict": [0.0, 1.0, 1.0, 1.0]})
    found = change(before, after)
    assert (found["paired"], found["prompts"], found["updates"]) == (True, [4, 4], [0, 9])
    row = found["greedy_strict"]
    assert (row["before"], row["after"], row["difference"]) == (0.5, 0.75, 0.25)
    assert row["before_ci95"] == pytest.approx(Z * math.sqrt(1 / 3 / 4))
    assert row["after_ci95"] == pytest.approx(Z * 0.25)
    assert row["difference_ci95"] == pytest.approx(Z * 0.25)  # of 0, 1, 0, 0: std ½, over √4
    assert row["within_noise"]


def test_other_prompts_are_two_independent_means() -> None:
    before = measured(0, {"greedy_strict": [0.0, 0.0, 1.0, 1.0]})
    after = measured(9, {"greedy_strict": [0.0, 1.0, 1.0, 1.0]}, first=4)
    found = change(before, after)
    assert not found["paired"]
    width = Z * math.sqrt(1 / 12 + 1 / 16)
    assert found["greedy_strict"]["difference_ci95"] == pytest.approx(width)
    assert "over 4 and 4 other prompts" in table(found)


@pytest.mark.parametrize(("right", "noise"), [(0, True), (3, True), (4, False), (50, False)])
def test_within_noise_is_an_interval_that_holds_zero(right: int, noise: bool) -> None:
    """Of 50 prompts: all as before (Wilson's interval), three better, four better, all better."""
    before = measured(0, {"accuracy_strict": [0.0] * 50})
    after = measured(5, {"accuracy_strict": [1.0] * right + [0.0] * (50 - right)})
    row = change(before, after)["accuracy_strict"]
    assert row["within_noise"] is noise
    assert row["difference_ci95"] > 0


def test_a_loss_is_outside_noise_as_a_gain_is() -> None:
    before, after = (measured(u, {"pass_at_k": [float(v)] * 50}) for u, v in ((0, 1), (5, 0)))
    row = change(before, after)["pass_at_k"]
    assert (row["difference"], row["within_noise"]) == (-1.0, False)


def test_pass_at_another_k_is_another_figure() -> None:
    before = measured(0, {"pass_at_k": [0.5, 0.5], "greedy_strict": [0.0, 1.0]}, k=4)
    after = measured(5, {"pass_at_k": [0.5, 1.0], "greedy_strict": [0.0, 1.0]}, k=8)
    assert "pass_at_k" not in change(before, after)
    assert "greedy_strict" in change(before, after)


def test_the_table() -> None:
    each = {"greedy_strict": [0.0] * 40 + [1.0] * 10, "pass_at_k": [0.5] * 49 + [0.0]}
    later = {"greedy_strict": [0.0] * 10 + [1.0] * 40, "pass_at_k": [0.5] * 50}
    lines = table(change(measured(0, each), measured(1200, later))).splitlines()
    assert lines[0] == "held-out        update 0       update 1,200    difference"
    assert lines[1] == "greedy, strict  0.200 ± 0.112  0.800 ± 0.112   +0.600 ± 0.137"
    assert lines[2].startswith("pass@4") and lines[2].endswith("*  +0.010 ± 0.020  within noise")
    assert lines[3] == "± half of the 95 % interval over 50 prompts, the difference's over pairs"


def test_one_prompt_has_no_interval() -> None:
    one = change(measured(0, {"greedy_strict": [0.0]}), measured(1, {"greedy_strict": [1.0]}))
    assert one["greedy_strict"]["within_noise"]
    assert "+1.000 ± ?  within noise" in table(one)
    assert math.isnan(clustered_ci95(np.array([1.0])))


def test_a_run_compares_its_first_evaluation_with_its_last_and_resumes_doing_so() -> None:
    first, recorder = Recorder(), Recorder()
    for i, right in enumerate([0.0, 0.5, 1.0]):
        counters = {"env_steps": 0, "updates": 10 * i}
        outcomes = {"prompts": ["a", "b"], "k": 1, "values": {"greedy_strict": [right, right]}}
        (first if i < 2 else recorder).keep({"x": right}, counters, "x", outcomes)
        if i == 1:
            recorder.load_state_dict(first.state_dict())
    summary = recorder.summarise("finished", {"env_steps": 0, "updates": 20})
    assert summary["eval_change"]["updates"] == [0, 20]
    assert summary["eval_change"]["greedy_strict"]["difference"] == 1.0


def test_a_run_that_was_measured_once_compares_nothing() -> None:
    recorder = Recorder()
    outcomes = {"prompts": ["a"], "k": 1, "values": {"greedy_strict": [1.0]}}
    recorder.keep({"x": 1.0}, {"env_steps": 0, "updates": 7}, "x", outcomes)
    assert "eval_change" not in recorder.summarise("finished", {"env_steps": 0, "updates": 7})


def test_a_width_that_comes_from_no_spread_is_starred_and_explained() -> None:
    before = measured(0, {"greedy_strict": [0.0] * 4, "accuracy_strict": [0.0, 0.5, 0.0, 1.0]})
    after = measured(9, {"greedy_strict": [1.0] * 4, "accuracy_strict": [0.0, 1.0, 0.0, 1.0]})
    lines = table(change(before, after)).splitlines()
    cells = re.findall(r"\S+ ± \S+", lines[1])
    assert cells == ["0.000 ± 0.245*", "1.000 ± 0.245*", "+1.000 ± 0.245*"]
    assert "*" not in lines[2]
    assert lines[4].startswith("* all prompts agree: Wilson's")
    assert len(table(change(before, before | {"values": before["values"]})).splitlines()) == 5
    spread = {"accuracy_strict": [0.0, 0.5, 0.0, 1.0]}
    other = measured(9, {"accuracy_strict": [0.5, 0.5, 1.0, 1.0]})
    assert "*" not in table(change(measured(0, spread), other))
