"""Checkpoints are complete or absent, readable without running code, and hold the generators."""

import errno
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from zoo.core import checkpoint
from zoo.errors import UserError


def test_round_trip_in_plain_types(tmp_path: Path) -> None:
    state = {"w": torch.ones(3), "n": 3, "big": 2**100, "nested": {"list": [1, 2.5, None, "a"]}}
    checkpoint.save(state, tmp_path / "sub" / "last.pt")
    loaded = checkpoint.load(tmp_path / "sub" / "last.pt")
    assert loaded["nested"] == state["nested"] and loaded["big"] == 2**100
    assert torch.equal(loaded["w"], state["w"])
    assert list((tmp_path / "sub").iterdir()) == [tmp_path / "sub" / "last.pt"]


def test_a_full_disk_leaves_the_last_checkpoint_valid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "last.pt"
    checkpoint.save({"step": 1}, path)

    def full(state: Any, file: Any) -> None:
        file.write(b"half a checkpoint")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(UserError, match="No space left on device.*still valid.*--resume"):
        checkpoint.save({"step": 2}, path)
    with pytest.raises(UserError, match="there is none before it.*start again"):
        checkpoint.save({"step": 2}, tmp_path / "first.pt")
    monkeypatch.undo()
    assert checkpoint.load(path) == {"step": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_ctrl_c_while_saving_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(state: Any, file: Any) -> None:
        file.write(b"half a checkpoint")
        raise KeyboardInterrupt

    monkeypatch.setattr(torch, "save", interrupted)
    with pytest.raises(KeyboardInterrupt):
        checkpoint.save({"step": 2}, tmp_path / "last.pt")
    assert not list(tmp_path.iterdir())


def test_a_file_of_other_origin_is_no_run(tmp_path: Path) -> None:
    for foreign in ({"layer.weight": torch.ones(2)}, [1, 2], {"config": "x"}):
        torch.save(foreign, tmp_path / "weights.pt")
        with pytest.raises(UserError, match="weights.pt is no checkpoint of a run"):
            checkpoint.load_run(tmp_path / "weights.pt")
    run = {"config": {}, "counters": {}, "policy": {}}
    checkpoint.save(run, tmp_path / "run.pt")
    assert checkpoint.load_run(tmp_path / "run.pt") == run


def test_missing_and_broken_files_are_the_users_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no checkpoint at"):
        checkpoint.load(tmp_path / "none.pt")
    (tmp_path / "bad.pt").write_bytes(b"not a checkpoint")
    with pytest.raises(UserError, match="not a readable checkpoint"):
        checkpoint.load(tmp_path / "bad.pt")


def test_random_generators_continue(tmp_path: Path) -> None:
    def draw() -> list[float]:
        return [float(torch.rand(())), float(np.random.rand()), random.random()]

    np.random.randn()  # leaves a cached Gaussian behind
    checkpoint.save(checkpoint.rng_state(), tmp_path / "rng.pt")
    expected = draw()
    draw()
    checkpoint.set_rng_state(checkpoint.load(tmp_path / "rng.pt"))
    assert draw() == expected
