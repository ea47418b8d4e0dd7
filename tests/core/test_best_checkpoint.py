"""best.pt holds what an evaluation reads; a large replay buffer stays in last.pt."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from zoo.algorithms import DQN
from zoo.cli import main
from zoo.core import checkpoint

SETTINGS = [
    "model.hidden_sizes=[8]",
    "algo.replay={learning_starts: 20, batch_size: 8}",
    "eval={every: 100, options: {episodes: 2}}",
]


def train(folder: Path) -> dict[str, Any]:
    DQN("CartPole-v1", seed=1, run_dir=folder, overrides=SETTINGS).train(400).close()
    summary: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return summary


def state(folder: Path, name: str) -> Any:
    return checkpoint.load(folder / f"checkpoints/{name}.pt")


def test_a_small_buffer_is_kept_and_training_goes_on_from_it_bit_for_bit(tmp_path: Path) -> None:
    train(tmp_path / "run")
    assert state(tmp_path / "run", "best")["buffer"]["seen"] > 0
    again = DQN.load(tmp_path / "run/checkpoints/best.pt")
    again.train(400 - again.trainer.done)
    last = state(tmp_path / "run", "last")
    for name, weight in again.policy.named_parameters():
        assert torch.equal(weight, last["policy"][name])


def test_a_large_buffer_is_left_out_of_the_best_checkpoint_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(checkpoint, "_LARGE", 1000)
    summary = train(tmp_path / "run")
    best = tmp_path / "run/checkpoints/best.pt"
    assert state(tmp_path / "run", "best")["buffer"] is None
    assert state(tmp_path / "run", "last")["buffer"]["seen"] == 400
    capsys.readouterr()

    assert main(["eval", str(best), "--json"]) == 0
    measured = json.loads(capsys.readouterr().out)
    assert measured == {name: summary["eval_best"][name] for name in measured}
    assert main(["enjoy", str(best), "--episodes", "1", "--render", "none"]) == 0
    assert "replay buffer" not in capsys.readouterr().err

    again = DQN.load(best)
    assert again.evaluate() == measured
    before = again.trainer.done
    again.train(100)
    assert again.trainer.done == before + 100
    assert again.trainer.buffer.state_dict()["seen"] == 100
    again.train(10)
    assert capsys.readouterr().err.count("this checkpoint holds no replay buffer") == 1
    again.save(tmp_path / "whole.pt")
    assert checkpoint.load(tmp_path / "whole.pt")["buffer"]["seen"] == 110


def test_the_memory_of_a_state_is_that_of_its_tensors() -> None:
    tensors = {"a": torch.zeros(3), "b": {"c": torch.zeros(2, dtype=torch.uint8), "n": 7}}
    assert checkpoint._nbytes(tensors) == 14
    state: dict[str, Any] = {"buffer": {"x": torch.zeros(16 * 2**20, dtype=torch.uint8)}}
    assert checkpoint.lightened(state) is state
    state["buffer"]["y"] = torch.zeros(1, dtype=torch.uint8)
    assert checkpoint.lightened(state)["buffer"] is None
