"""The commands on a language model: the shortest of runs with the shipped one."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from short_run import Command
from test_metrics_documented import listed

from zoo.cli import main

pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("text")
    rows = [
        json.dumps(
            {"question": f"Ann has {n} figs and buys 2. How many?", "answer": f"#### {n + 2}"}
        )
        for n in range(12)
    ]
    data = folder / "data"
    data.mkdir()
    (data / "train.jsonl").write_text("\n".join(rows[:8]) + "\n")
    (data / "test.jsonl").write_text("\n".join(rows[8:]) + "\n")
    arguments = [
        *("algo=grpo", "env=gsm8k", "model=tiny", f"env.path={data}", f"run_dir={folder}/run"),
        *("updates=2", "algo.group_size=2", "rollout.prompts=2", "rollout.max_new_tokens=8"),
        *("eval.at_start=false", "eval.options.prompts=2", "logger=none"),
    ]
    assert main(["train", *arguments]) == 0
    return folder / "run"


def test_the_summary_names_the_real_dataset(run: Path) -> None:
    summary = json.loads((run / "summary.json").read_text())
    assert summary["dataset"].startswith("gsm8k (folder ")
    assert summary["updates"] == 2
    assert summary["tokens"] > 0
    assert {"accuracy_strict", "accuracy_lenient"} <= set(summary["eval"])


def test_a_run_ends_with_what_it_changed(zoo: Command, run: Path, tmp_path: Path) -> None:
    data = run.parent / "data"
    command = [
        *("train", "algo=grpo", "env=gsm8k", "model=tiny", f"env.path={data}", "updates=1"),
        *("algo.group_size=2", "rollout.prompts=2", "rollout.max_new_tokens=8", "logger=none"),
        *("eval.options.prompts=3", "eval.options.samples=2"),
    ]
    status, out, _ = zoo(*command, f"run_dir={tmp_path}/a")
    assert status == 0
    assert "finished after 1 update in" in out
    assert re.search(r"^held-out +update 0 +update 1 +difference$", out, re.MULTILINE)
    assert re.search(r"^pass@2 +0\.\d+ ± .* within noise$", out, re.MULTILINE)
    changed = json.loads((tmp_path / "a/summary.json").read_text())["eval_change"]
    assert (changed["updates"], changed["prompts"], changed["paired"]) == ([0, 1], [3, 3], True)
    assert {"greedy_strict", "accuracy_lenient", "pass_at_k"} <= set(changed)
    status, out, _ = zoo(*command, "eval.at_end=false", f"run_dir={tmp_path}/b")
    assert re.search(r"^evaluation before training: .*accuracy_strict ", out, re.MULTILINE)
    assert "evaluation: " not in out
    assert "held-out" not in out


def test_completions_are_kept_with_their_rewards(run: Path) -> None:
    rows = [json.loads(line) for line in (run / "completions.jsonl").read_text().splitlines()]
    assert {row["updates"] for row in rows} == {1, 2}
    assert all("figs" in row["prompt"] and "accuracy" in row["items"] for row in rows)


def test_every_figure_of_a_text_run_is_documented(run: Path) -> None:
    seen: set[str] = set(json.loads((run / "summary.json").read_text()))
    for name in ("metrics.jsonl", "completions.jsonl"):
        for line in (run / name).read_text().splitlines():
            seen |= set(json.loads(line))
    patterns = listed()
    assert not [key for key in sorted(seen) if not any(p.fullmatch(key) for p in patterns)]


def test_eval_prints_one_json_object_with_pass_at_k(zoo: Command, run: Path) -> None:
    command = ["eval", str(run), "--prompts", "2", "--samples", "2", "--k", "2", "--json"]
    status, out, _ = zoo(*command)
    assert status == 0
    result = json.loads(out)
    keys = {"accuracy_strict", "accuracy_lenient", "accuracy_ci95", "pass_at_k", "n"}
    assert keys <= set(result)
    assert (result["n"], result["k"]) == (2, 2)
    assert zoo(*command)[1] == out
    line = zoo(*command[:-1])[1]
    assert re.search(r"  accuracy_strict \d\.\d+ ± \d\.\d+  ", line)
    assert "ci95" not in line


def test_eval_says_when_the_questions_are_others(zoo: Command, run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    assert zoo("eval", str(copy), "--prompts", "1")[2] == ""
    summary = json.loads((copy / "summary.json").read_text())
    (copy / "summary.json").write_text(json.dumps({**summary, "dataset": "gsm8k (hub)"}))
    for path in (copy, copy / "checkpoints" / "last.pt"):
        status, out, err = zoo("eval", str(path), "--prompts", "1", "--json")
        assert err == f"note: this run's dataset was gsm8k (hub); here it is {summary['dataset']}\n"
        assert status == 0 and json.loads(out)


def test_enjoy_prints_prompts_and_completions(zoo: Command, run: Path) -> None:
    status, out, _ = zoo("enjoy", str(run), "--prompts", "2")
    assert status == 0
    assert out.count(">>> ") == 2
    assert len(re.findall(r"expected \d+; total ", out)) == 2


def test_eval_options_of_control_are_refused(zoo: Command, run: Path) -> None:
    status, _, err = zoo("eval", str(run), "--episodes", "4")
    assert status == 2
    assert "--episodes does not apply to this run: it is a text one" in err
