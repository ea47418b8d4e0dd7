"""What the loggers show."""

from __future__ import annotations

import importlib
import io
import json
from pathlib import Path
from typing import Any

import pytest

from zoo.core import loggers
from zoo.core.config import compose
from zoo.core.loggers import Console, duration, figures, make_loggers, sample, short
from zoo.core.sample_table import columns
from zoo.errors import UserError


def console(world: str = "control", **options: Any) -> tuple[Console, io.StringIO]:
    task = {
        "control": ["algo=ppo", "env=CartPole-v1", "total_steps=1000"],
        "text": ["algo=grpo", "env=gsm8k", "model=tiny", "updates=10"],
    }
    stream = io.StringIO()
    return Console(compose(task[world]), Path("runs/x"), stream=stream, **options), stream


def test_the_console_writes_plain_lines_where_there_is_no_terminal() -> None:
    shown, stream = console(every_s=0.0)
    shown.log(1, {"env_steps": 250, "return/mean": 21.44, "policy/entropy": 0.6931}, [])
    shown.close()
    text = stream.getvalue()
    assert "\x1b" not in text
    head, line = text.splitlines()
    assert head == "run folder: runs/x"
    assert line.startswith("steps 250/1,000  return 21.4  entropy 0.693  left ")


def test_lines_come_at_intervals_and_for_evaluations_and_at_the_end() -> None:
    shown, stream = console(every_s=1e9)
    for step in (100, 200):
        shown.log(step, {"env_steps": step, "return/mean": float(step)}, [])
    shown.log(3, {"env_steps": 300, "eval/return_mean": 99.0}, [])
    shown.log(4, {"env_steps": 400}, [])
    shown.log(9, {"env_steps": 1000}, [])
    lines = stream.getvalue().splitlines()[1:]
    assert [line.split("/")[0] for line in lines] == ["steps 100", "steps 300", "steps 1,000"]
    assert "eval 99.0" in lines[2]  # the last evaluation stays in sight


RECORD = {
    "id": "train/1",
    "prompt": "What is [2] + 2?",
    "completion": "#### 4 [/] :smile:",
    "tokens": 5,
    "finished": False,
    "reward": 1.0,
    "items": {"accuracy": 1.0, "format": None},
}


def test_text_runs_show_a_table_of_completions_now_and_then() -> None:
    shown, stream = console("text", every_s=1e9, samples_every=3, samples=2)
    for update in (1, 2, 3, 4, 5):
        shown.log(update, {"updates": update}, [RECORD, RECORD, RECORD])
    text = stream.getvalue()
    assert text.count("sample") == 2  # its head, of rounds 1 and 4
    assert text.count("What is [2] + 2?") == text.count("#### 4 [/] :smile:") == 4
    assert text.count("reward 1") == text.count("accuracy 1") == text.count("format –") == 4
    assert text.count("5 tokens, cut") == 4


def test_no_table_where_none_is_asked_for_or_there_is_no_completion() -> None:
    shown, stream = console("text", every_s=1e9, samples_every=0)
    shown.log(1, {"updates": 1}, [RECORD])
    assert "reward 1" not in stream.getvalue()
    shown, stream = console(every_s=1e9)
    shown.log(1, {"env_steps": 1}, [{"return": 3.0, "length": 7}])
    assert "sample" not in stream.getvalue()


@pytest.mark.parametrize(
    ("wrong", "least"), [({"samples_every": -1}, 0), ({"samples": 0}, 1), ({"samples": "x"}, 1)]
)
def test_numbers_of_samples_that_are_none_are_refused(wrong: dict[str, Any], least: int) -> None:
    name = next(iter(wrong))
    with pytest.raises(UserError, match=rf"logger\.console\.{name} takes .* ≥ {least} \(got"):
        console("text", **wrong)


def test_long_texts_show_a_prompts_end_and_a_completions_start() -> None:
    shown, stream = console("text", every_s=1e9)
    shown.log(1, {}, [{"prompt": "X" * 300 + "Y", "completion": "V" + "W" * 300, "tokens": 9}])
    text = stream.getvalue()
    assert [text.count(letter) for letter in "XYVW"] == [239, 1, 1, 239]
    assert text.count("…") == 2


def test_columns_of_records_that_differ() -> None:
    names, rows = columns([RECORD, {"id": "train/2", "items": {"accuracy": 0}, "turns": [1]}])
    assert names[:4] == ["id", "prompt", "completion", "tokens"]
    assert names[-3:] == ["items/accuracy", "items/format", "turns"]
    assert rows[1] == ["train/2", None, None, None, None, None, 0, None, "[1]"]


def test_brackets_in_a_completion_are_no_markup() -> None:
    shown, stream = console("text")
    shown.notice("[bold]not bold[/bold] [/]")
    assert "[bold]not bold[/bold] [/]" in stream.getvalue()


def test_a_resumed_run_starts_its_estimate_where_it_stands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setattr(loggers.time, "monotonic", lambda: now[0])
    shown, stream = console(every_s=0.0, done=500)
    now[0] = 10.0
    shown.log(1, {"env_steps": 600}, [])  # 100 steps in 10 s, 400 left
    assert "left 40s" in stream.getvalue()


def test_the_budget_and_what_is_spent_of_it_can_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(loggers.time, "monotonic", lambda: now[0])
    shown, stream = console(every_s=0.0)
    now[0] = 7.0
    shown.total, shown.done = 16, 8
    now[0] = 8.0
    shown.log(1, {"env_steps": 12}, [])  # 4 steps in 1 s, 4 left
    shown.log(2, {"env_steps": 16}, [])
    lines = stream.getvalue().splitlines()[1:]
    assert lines[0].startswith("steps 12/16 ") and lines[0].endswith("left 1s")
    assert lines[1].startswith("steps 16/16") and "left" not in lines[1]


def test_the_bar_follows_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    shown, _ = console()
    shown.total, shown.done = 16, 4
    task = shown.progress.tasks[0]
    shown.close()
    assert (task.total, task.completed) == (16, 4)


@pytest.mark.parametrize(
    ("logger", "package"), [("tensorboard", "torch.utils.tensorboard"), ("wandb", "wandb")]
)
def test_a_missing_logger_names_what_to_install(
    logger: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(f"No module named '{logger}'", name=logger)

    config = compose(["algo=ppo", "env=CartPole-v1"])
    make = {"tensorboard": loggers.TensorBoard, "wandb": loggers.WandB}[logger]
    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(UserError, match=rf"^{package} needs .*{logger}.*algorithm-zoo\[loggers\]"):
        make(config, tmp_path)


def test_figures_that_are_not_there_are_left_out() -> None:
    assert figures("text", {"reward/mean": 0.25, "eval/accuracy_strict": None}) == "reward 0.250"


@pytest.mark.parametrize(
    ("value", "text"),
    [(12345.6, "12,346"), (12.34, "12.3"), (0.51234, "0.512"), (0.0, "0.000"), (1e-6, "1e-06")],
)
def test_numbers_are_short(value: float, text: str) -> None:
    assert short(value) == text


def test_durations_are_for_people() -> None:
    assert [duration(s) for s in (42, 125, 7500)] == ["42s", "2m05s", "2h05m"]


def test_long_completions_are_cut() -> None:
    assert sample({"completion": "a" * 500}).endswith("a" * 400 + "…")


def test_the_terminal_gets_a_bar_that_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    shown, stream = console()
    assert shown.progress is not None
    shown.log(1, {"env_steps": 500, "return/mean": 3.0}, [])
    shown.close()
    assert "50%" in stream.getvalue()


def test_tensorboard_writes_the_figures(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    config = compose(["algo=ppo", "env=CartPole-v1", "logger=[none,tensorboard]"])
    (logger,) = make_loggers(config, tmp_path)
    logger.log(7, {"return/mean": 21.5, "policy/entropy": float("nan"), "note": "x"}, [])
    logger.notice("a notice")
    logger.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert events.Tags()["scalars"] == ["return/mean"]
    assert [(e.step, e.value) for e in events.Scalars("return/mean")] == [(7, 21.5)]


def test_wandb_works_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    config = compose(["algo=ppo", "env=CartPole-v1", "logger=[none,wandb]"])
    (logger,) = make_loggers(config, tmp_path)
    logger.log(1, {"return/mean": 21.5}, [])
    logger.log(2, {"return/mean": 21.5}, [RECORD, {**RECORD, "reward": 0.25}])
    logger.notice("a notice")
    logger.close()
    (folder,) = (tmp_path / "wandb").glob("offline-run-*")
    (file,) = folder.glob("files/media/table/completions_*.table.json")
    table = json.loads(file.read_text())
    assert table["columns"][0] == "id" and "items/accuracy" in table["columns"]
    assert [row[table["columns"].index("reward")] for row in table["data"]] == [1.0, 0.25]


def test_records_are_serialisable(finished: Path) -> None:
    for name in ("metrics.jsonl", "episodes.jsonl"):
        for line in (finished / name).read_text().splitlines():
            assert "NaN" not in line
            json.loads(line)
