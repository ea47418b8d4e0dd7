"""The commands from end to end, on the shortest of runs."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from short_run import SHORT, Command

from zoo.cli.run_end import evaluation_line
from zoo.core import build
from zoo.core.recorder import Recorder
from zoo.core.trainer import Trainer


def metrics(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_train_leaves_a_complete_run_folder(finished: Path) -> None:
    names = {p.name for p in finished.iterdir()}
    assert {"config.yaml", "metrics.jsonl", "summary.json", "checkpoints"} <= names
    summary = json.loads((finished / "summary.json").read_text())
    required = (
        "status algo env dataset model seed env_steps updates tokens wall_s peak_rss_gib eval"
        " eval_best"
    )
    assert set(required.split()) <= set(summary)
    assert summary["status"] == "finished"
    assert summary["env_steps"] == 256
    assert summary["eval"]["episodes"] == 2
    assert metrics(finished)[-1]["env_steps"] == 256


def test_train_says_what_it_did(zoo: Command, tmp_path: Path) -> None:
    status, out, err = zoo("train", *SHORT, f"run_dir={tmp_path}/run")
    assert (status, err) == (0, "")
    assert f"run folder: {tmp_path}/run" in out
    assert "finished after 256 env steps" in out
    assert "evaluation: return_mean" in out


def test_logger_none_prints_no_progress(zoo: Command, tmp_path: Path) -> None:
    _, out, _ = zoo("train", *SHORT, f"run_dir={tmp_path}/run", "logger=none")
    assert not [line for line in out.splitlines() if line.startswith("steps ")]


def test_show_config_prints_yaml_and_trains_nothing(
    zoo: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    status, out, _ = zoo("train", *SHORT, "--show-config")
    assert status == 0
    assert yaml.safe_load(out)["rollout"]["num_envs"] == 4
    assert not list(tmp_path.iterdir())


def test_show_config_of_a_run_prints_its_settings_and_trains_nothing(
    zoo: Command, run_copy: Path
) -> None:
    before = {p: p.stat().st_mtime_ns for p in run_copy.rglob("*")}
    status, out, err = zoo("train", "--resume", str(run_copy), "--show-config")
    assert (status, err) == (0, "")
    assert yaml.safe_load(out)["rollout"]["num_envs"] == 4
    assert {p: p.stat().st_mtime_ns for p in run_copy.rglob("*")} == before


def test_eval_prints_one_json_object(zoo: Command, finished: Path) -> None:
    status, out, _ = zoo("eval", str(finished), "--episodes", "3", "--json")
    assert status == 0
    result = json.loads(out)
    assert {"return_mean", "return_std", "return_ci95", "episodes"} <= set(result)
    assert result["episodes"] == 3
    assert zoo("eval", str(finished), "--episodes", "3", "--json")[1] == out


def test_eval_of_the_best_checkpoint_repeats_the_logged_figure(
    zoo: Command, finished: Path
) -> None:
    best = json.loads((finished / "summary.json").read_text())["eval_best"]
    _, out, _ = zoo("eval", str(finished / "checkpoints" / "best.pt"), "--json")
    assert json.loads(out)["return_mean"] == best["return_mean"]


def test_an_interval_stands_behind_its_figure_and_an_unknown_one_is_a_question_mark() -> None:
    known = {"return_mean": 9.0, "return_std": 1.0, "return_ci95": 0.5, "episodes": 2}
    assert evaluation_line(known) == "return_mean 9.000 ± 0.500  return_std 1.000  episodes 2"
    for width in (None, math.nan):  # of one episode; in a summary null
        of_one = {"return_mean": 9.0, "return_ci95": width}
        assert evaluation_line(of_one) == "return_mean 9.000 ± ?"
    text = {"greedy_strict": 0.5, "accuracy_ci95": 0.1, "greedy_strict_ci95": 0.2, "n": 3}
    text |= {"accuracy_strict": 0.25, "env_steps": 0, "updates": 7}
    line = "greedy_strict 0.500 ± 0.200  n 3  accuracy_strict 0.250 ± 0.100"
    assert evaluation_line(text) == line


def test_eval_for_people(zoo: Command, finished: Path) -> None:
    status, out, _ = zoo("eval", str(finished), "--episodes", "2", "--seed", "5")
    assert status == 0
    assert re.match(r"return_mean \d+\.\d+ ± \d+\.\d+  return_std \d", out)
    assert "ci95" not in out


def test_eval_says_the_same_on_any_number_of_environments(zoo: Command, finished: Path) -> None:
    said = [
        zoo("eval", str(finished), "--episodes", "5", "--num-envs", copies, "--json")[1]
        for copies in ("1", "3", "8")
    ]
    assert json.loads(said[0])["episodes"] == 5
    assert said[0] == said[1] == said[2]


def test_enjoy_plays_episodes(zoo: Command, finished: Path) -> None:
    status, out, _ = zoo("enjoy", str(finished), "--episodes", "2", "--render", "none")
    assert status == 0
    assert [line.split(":")[0] for line in out.splitlines()] == ["episode 0", "episode 1"]


def test_an_interrupted_run_saves_says_how_to_go_on_and_goes_on_exactly(
    zoo: Command, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, round_ = tmp_path / "run", Trainer.round

    def interrupted(self: Trainer) -> dict[str, float]:
        os.kill(os.getpid(), signal.SIGINT)
        return round_(self)

    monkeypatch.setattr(Trainer, "round", interrupted)
    status, out, _ = zoo("train", *SHORT, f"run_dir={folder}", "logger=none")
    assert status == 130
    assert f"go on with: zoo train --resume {folder}" in out
    assert json.loads((folder / "summary.json").read_text())["status"] == "interrupted"
    assert metrics(folder)[-1]["env_steps"] == 128

    monkeypatch.setattr(Trainer, "round", round_)
    status, out, err = zoo("train", "--resume", str(folder))
    assert (status, err) == (0, "")
    assert "finished after 256 env steps" in out

    def learned(path: Path) -> list[dict[str, float]]:
        return [
            {k: v for k, v in row.items() if not k.startswith(("time", "speed", "wall"))}
            for row in metrics(path)
            if "loss/policy" in row
        ]

    assert learned(folder) == learned(finished)


def test_a_second_ctrl_c_ends_at_once(
    zoo: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def twice(self: Trainer) -> dict[str, float]:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        raise AssertionError("the second signal did not end the run")

    monkeypatch.setattr(Trainer, "round", twice)
    handler = signal.getsignal(signal.SIGINT)
    status, _, err = zoo("train", *SHORT, f"run_dir={tmp_path}/run", "logger=none")
    assert status == 130
    assert err.endswith("interrupted\n")
    assert signal.getsignal(signal.SIGINT) == handler


def test_sigterm_saves_like_ctrl_c(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command = [sys.executable, "-m", "zoo.cli", "train", *SHORT, f"run_dir={folder}"]
    process = subprocess.Popen(
        [*command, "total_steps=100_000_000", "eval.every=null"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    for _ in range(600):
        if (folder / "metrics.jsonl").exists():
            break
        time.sleep(0.1)
    process.terminate()
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "interrupted after" in out
    assert (folder / "checkpoints" / "last.pt").exists()


def test_resume_of_a_finished_run_says_so(zoo: Command, run_copy: Path) -> None:
    before = (run_copy / "metrics.jsonl").read_text()
    status, out, _ = zoo("train", "--resume", str(run_copy))
    assert status == 0
    assert "this run is finished: 256 env steps" in out
    assert (run_copy / "metrics.jsonl").read_text() == before


def test_a_run_that_died_with_its_budget_spent_is_brought_to_its_end(
    zoo: Command, run_copy: Path
) -> None:
    summary = json.loads((run_copy / "summary.json").read_text())
    (run_copy / "summary.json").write_text(json.dumps({**summary, "status": "failed"}))
    status, out, _ = zoo("train", "--resume", str(run_copy))
    assert (status, "finished after 256 env steps" in out) == (0, True)
    assert json.loads((run_copy / "summary.json").read_text())["status"] == "finished"


def test_what_the_build_says_is_heard_on_resume(
    zoo: Command, run_copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = build.load

    def noisy(path: Path, recorder: Recorder) -> Trainer:
        recorder.notice("other data than before")
        return load(path, recorder)

    monkeypatch.setattr(build, "load", noisy)
    config = run_copy / "config.yaml"
    settings = yaml.safe_load(config.read_text())
    settings["logger"] = {"console": {"_target_": "zoo.core.loggers.Console"}}
    config.write_text(yaml.safe_dump(settings))
    assert "other data than before" in zoo("train", "--resume", str(run_copy))[1]


def test_a_bug_shows_its_traceback_and_is_kept(
    zoo: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: Trainer) -> dict[str, float]:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(Trainer, "round", broken)
    with pytest.raises(ZeroDivisionError):
        zoo("train", *SHORT, f"run_dir={tmp_path}/run", "logger=none")
    assert "ZeroDivisionError: a bug" in (tmp_path / "run" / "errors.log").read_text()
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "failed"


def test_a_bug_exits_with_status_1(tmp_path: Path) -> None:
    code = """
import sys
from zoo.core.trainer import Trainer
def broken(self):
    raise ZeroDivisionError("a bug")
Trainer.round = broken
from zoo.cli import main
sys.exit(main(sys.argv[1:]))
"""
    command = [sys.executable, "-c", code, "train", *SHORT, f"run_dir={tmp_path}/run"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "ZeroDivisionError: a bug" in done.stderr


def test_list_shows_every_group(zoo: Command) -> None:
    status, out, _ = zoo("list")
    assert status == 0
    for word in ("ppo", "grpo", "gsm8k", "tiny", "mlp", "tensorboard", "qwen3-0.6b-full"):
        assert word in out
    assert "own" not in [line.split()[0] for line in out.splitlines() if line.strip()]


def test_the_matrix_names_every_algorithm_and_kind(zoo: Command) -> None:
    _, out, _ = zoo("list", "--matrix")
    head, *lines = out.splitlines()
    assert head.split("  ")[-3:] == ["discrete control", "continuous control", "text"]
    cells = {words[0]: words[1:4] for line in lines if len(words := line.split()) == 4}
    assert cells["ppo"] == cells["grpo"] == ["yes", "yes", "yes"]
    assert cells["sac"] == ["yes", "yes", "–"]
    assert "td3 on discrete control: its actor moves along the gradient of Q" in out


def test_list_env_names_the_reasoning_gym_tasks(zoo: Command) -> None:
    pytest.importorskip("reasoning_gym")
    _, out, _ = zoo("list", "env")
    assert "  countdown\n" in out
    assert "Pendulum-v1  continuous" in out


@pytest.mark.parametrize("command", ["train", "eval", "enjoy", "list"])
def test_help_gives_examples(zoo: Command, command: str, capsys: object) -> None:
    with pytest.raises(SystemExit) as ended:
        zoo(command, "--help")
    assert ended.value.code == 0


def test_no_command_prints_the_overview(zoo: Command) -> None:
    status, out, _ = zoo()
    assert status == 0
    assert "usage: zoo COMMAND" in out
    assert zoo("--version")[1].startswith("zoo ")
