"""What a run leaves behind, and what happens to it when the run goes on or the disk is full."""

from __future__ import annotations

import errno
import json
import math
import os
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from zoo.core.config import Config, compose
from zoo.core.run_folder import RunFolder
from zoo.errors import UserError


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder.create(
        compose(["algo=ppo", "env=CartPole-v1", "seed=3", f"run_dir={tmp_path / 'run'}"])
    )


def rows(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_config_yaml_holds_settings_versions_and_hardware(folder: RunFolder) -> None:
    content = yaml.safe_load((folder.path / "config.yaml").read_text())
    assert content["algo"]["name"] == "ppo"
    assert content["made_with"]["versions"]["torch"] == torch.__version__
    assert content["made_with"]["hardware"]["cpus"] >= 1
    assert "git" in content["made_with"]
    again = RunFolder.open(folder.path)
    assert again.config.tree == folder.config.tree


def test_the_default_name_tells_algorithm_and_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = compose(["algo=ppo", "env=CartPole-v1"])
    first, second = RunFolder.create(config), RunFolder.create(config)
    assert first.path.parent == Path("runs")
    assert first.path.name.startswith("ppo-CartPole-v1-2")
    assert first.path != second.path


def test_a_folder_that_holds_something_is_refused(folder: RunFolder) -> None:
    with pytest.raises(
        UserError, match="is not empty: delete .*has no checkpoint.*another run_dir"
    ):
        RunFolder.create(folder.config)
    (folder.checkpoints / "last.pt").write_bytes(b"")
    with pytest.raises(UserError, match="is not empty: go on with `zoo train --resume"):
        RunFolder.create(folder.config)


def test_a_folder_of_something_else_is_not_offered_for_deletion(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(UserError, match="is not empty: choose another run_dir="):
        RunFolder.create(compose(["algo=ppo", "env=CartPole-v1", f"run_dir={tmp_path}"]))


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    config = compose(["algo=ppo", "env=CartPole-v1", f"run_dir={tmp_path}/file/run"])
    with pytest.raises(UserError, match="can't make the run folder"):
        RunFolder.create(config)


def test_rows_are_json_even_where_a_figure_is_not_finite(folder: RunFolder) -> None:
    folder.append_metrics(
        {
            "updates": 1,
            "a": math.nan,
            "b": -math.inf,
            "c": np.float32(0.5),
            "d": torch.tensor(2),
            "e": np.array([1.0, math.nan]),
        }
    )
    assert rows(folder.path / "metrics.jsonl") == [
        {"updates": 1, "a": None, "b": None, "c": 0.5, "d": 2, "e": [1.0, None]}
    ]


def test_records_carry_the_round_they_were_made_in(folder: RunFolder) -> None:
    folder.append_metrics({"updates": 1})
    folder.append_records("episodes.jsonl", [{"return": 1.0}, {"return": 2.0}])
    folder.append_metrics({"updates": 2})
    folder.append_records("episodes.jsonl", [{"return": 3.0}])
    assert [r["updates"] for r in rows(folder.path / "episodes.jsonl")] == [1, 1, 2]


def test_resume_drops_rows_past_the_checkpoint_and_a_torn_last_line(folder: RunFolder) -> None:
    for update in (1, 2, 3):
        folder.append_metrics({"updates": update})
        folder.append_records("episodes.jsonl", [{"return": float(update)}])
    with (folder.path / "metrics.jsonl").open("a") as file:
        file.write('{"updates": 2, "loss/po')
    folder.truncate_after(2)
    assert [r["updates"] for r in rows(folder.path / "metrics.jsonl")] == [1, 2]
    assert [r["return"] for r in rows(folder.path / "episodes.jsonl")] == [1.0, 2.0]
    folder.append_metrics({"updates": 3})
    assert [r["updates"] for r in rows(folder.path / "metrics.jsonl")] == [1, 2, 3]


def test_resume_keeps_records_with_separators_that_are_no_newlines(folder: RunFolder) -> None:
    texts = ["a\u2028b", "a\u2029b", "a\x85b", "a\nb\rc\x0bd\x1ee"]
    folder.append_metrics({"updates": 1})
    folder.append_records("completions.jsonl", [{"completion": text} for text in texts])
    folder.truncate_after(1)
    lines = (folder.path / "completions.jsonl").read_text("utf-8").split("\n")[:-1]
    assert [json.loads(line)["completion"] for line in lines] == texts


def test_a_whole_last_line_without_its_newline_is_torn_too(folder: RunFolder) -> None:
    (folder.path / "metrics.jsonl").write_text('{"updates": 1}\n{"updates": 2}')
    folder.truncate_after(2)
    assert rows(folder.path / "metrics.jsonl") == [{"updates": 1}]


def test_the_summary_names_what_ran(folder: RunFolder) -> None:
    folder.facts["dataset"] = "gsm8k (folder x)"
    written = folder.write_summary({"status": "finished", "eval": {"return_ci95": math.nan}})
    assert written == folder.read_summary()
    assert written["eval"] == {"return_ci95": None}
    expected = {
        "status": "finished",
        "algo": "ppo",
        "env": "CartPole-v1",
        "dataset": "gsm8k (folder x)",
        "model": "mlp",
        "seed": 3,
    }
    assert expected.items() <= written.items()
    assert not list(folder.path.glob("*.part"))


def test_a_crash_while_writing_the_summary_leaves_the_old_one(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.write_summary({"status": "interrupted"})

    def crash(source: Path, target: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", crash)
    with pytest.raises(KeyboardInterrupt):
        folder.write_summary({"status": "finished"})
    assert not list(folder.path.glob("*.part"))
    assert folder.read_summary()["status"] == "interrupted"


def test_a_full_disk_is_a_sentence_that_names_the_valid_checkpoint(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder.checkpoints / "last.pt").write_bytes(b"")

    def full(self: Path, *arguments: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(UserError) as caught:
        folder.append_metrics({"updates": 1})
    text = str(caught.value)
    assert "no space left" in text
    assert f"the last checkpoint, {folder.checkpoints / 'last.pt'}, is valid" in text
    assert f"zoo train --resume {folder.path}" in text
    (folder.checkpoints / "last.pt").unlink()
    with pytest.raises(UserError, match=f"nothing is saved.*delete {folder.path}"):
        folder.append_metrics({"updates": 1})


def test_other_disk_errors_are_not_dressed_up(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: Path, *arguments: object, **options: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(Path, "open", broken)
    with pytest.raises(OSError, match="Input/output"):
        folder.append_metrics({"updates": 1})


def test_no_run_folder_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is no run folder: it has no config.yaml"):
        RunFolder.open(tmp_path)
    (tmp_path / "config.yaml").write_text("just text")
    with pytest.raises(UserError, match="is not the configuration of a run"):
        RunFolder.open(tmp_path)


def test_only_a_folder_without_rounds_is_discarded(folder: RunFolder) -> None:
    folder.append_metrics({"updates": 1})
    folder.discard()
    assert folder.path.exists()
    (folder.path / "metrics.jsonl").unlink()
    folder.discard()
    assert not folder.path.exists()


def test_errors_log_keeps_every_traceback(folder: RunFolder) -> None:
    folder.append_metrics({"updates": 4})
    folder.append_error("Traceback one")
    folder.append_error("Traceback two")
    text = (folder.path / "errors.log").read_text()
    assert "update 4\nTraceback one" in text
    assert "Traceback two" in text


def test_a_config_from_a_run_is_not_composed_anew() -> None:
    tree = compose(["algo=ppo", "env=CartPole-v1"]).to_dict()
    tree["algo"]["lr"] = 0.125
    assert Config.from_dict(tree).knobs.lr == 0.125
