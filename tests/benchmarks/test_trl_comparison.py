"""The comparison with TRL: our side runs, and both sides' results become ratios."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

from zoo.benchmarks.peers import text_side, trl_side, trl_speed
from zoo.benchmarks.peers.trl_speed import PROMPTS, agreement, compare, task_of

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.fixture
def task(tmp_path: Path) -> dict[str, Any]:
    asked = {
        "model": "tiny",
        "tokens": 5,
        "micro_batch_size": 8,
        "precision": "float32",
        "threads": torch.get_num_threads(),
        "updates": 2,
        "agree": False,
    }
    made = task_of(argparse.Namespace(**asked), tmp_path)
    return {**made, "prompts": list(PROMPTS[:2]), "group_size": 4, "seed": 0}


@linux
def test_our_side_reports_every_phase_of_every_timed_update(task: dict[str, Any]) -> None:
    result = text_side.train({**task, "kind": "speed"})
    assert result["tokens"] == 2 * 4 * 5
    assert {name: len(of) for name, of in result["seconds"].items()} == dict.fromkeys(
        ("update", "sample", "optimizer", "cpu"), 2
    )
    for update, sample, optimizer in zip(
        *(result["seconds"][n] for n in ("update", "sample", "optimizer")), strict=True
    ):
        assert update > sample + optimizer > 0
    assert 0 <= result["peak_gib"] < 4


def test_our_side_saves_a_batch_whose_loss_is_not_trivial(
    task: dict[str, Any], tmp_path: Path
) -> None:
    paths = {"batch": str(tmp_path / "batch.pt"), "out": str(tmp_path / "out.pt")}
    result = text_side.gradients({**task, **paths})
    batch = torch.load(paths["batch"], weights_only=True)
    found = torch.load(paths["out"], weights_only=True)
    assert batch["action"].shape[0] == 8 and len(result["lengths"]) == 8
    assert len(found) > 40 and all(gradient.isfinite().all() for gradient in found.values())
    if float(batch["advantage"].abs().max()) > 0:
        assert abs(result["loss"]) > 1e-4


@linux
def test_memory_counts_from_the_loaded_model() -> None:
    memory = trl_side.Memory(torch.nn.Linear(2, 2))
    block = bytearray(b"x") * 2**27
    report = memory.report()
    assert report["peak_gib"] == pytest.approx(len(block) / 2**30, abs=0.03)
    assert report["loaded_gib"] > 0.05


def _side(folder: Path, name: str, **result: Any) -> list[str]:
    script = folder / f"{name}.py"
    script.write_text(
        "import json, sys, torch\n"
        "task = json.loads(sys.argv[1])\n"
        f"found = {{'w': torch.tensor([{result.get('w', 0.0)}])}}\n"
        "if 'out' in task: torch.save(found, task['out'])\n"
        f"print('noise'); print({json.dumps(json.dumps(result))})\n"
    )
    return [sys.executable, str(script)]


def test_ratios_are_ours_over_theirs_and_runs_alternate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def seconds(update: float) -> dict[str, list[float]]:
        return {"update": [update], "sample": [0.5], "optimizer": [0.1], "cpu": [update]}

    sides = {
        "zoo": _side(tmp_path, "a", seconds=seconds(1.0), peak_gib=1.5, loaded_gib=1.0),
        "TRL": _side(tmp_path, "b", seconds=seconds(4.0), peak_gib=3.0, loaded_gib=1.0),
    }
    results = compare({"threads": 1}, sides, 2)
    assert [r["side"] for r in results] == ["zoo", "TRL", "TRL", "zoo"]
    said = capsys.readouterr().out
    assert "seconds per update: 1.00 against 4.00, ratio 0.25" in said
    assert "peak above the loaded model: 1.50 against 3.00, ratio 0.50" in said
    assert "learning 0.40" in said


def test_agreement_takes_the_largest_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sides = {
        "zoo": _side(tmp_path, "a", loss=0.5, lengths=[3], w=1.0),
        "TRL": _side(tmp_path, "b", loss=0.5, w=1.25),
    }
    torch.save({}, tmp_path / "batch.pt")
    monkeypatch.setattr(trl_speed, "formula", lambda *_: (0.51, {"w": torch.tensor([1.0])}))
    found = agreement({"threads": 1, "model": "tiny"}, sides, tmp_path)
    assert found["relative_gap"] == pytest.approx(0.2)  # 0.25 / 1.25
    assert found["gradient_gap"] == 0.25
    assert found["loss"] == {"zoo": 0.5, "TRL": 0.5, "formula": 0.51, "exact": 0.51}
    assert found["from_exact"]["zoo"]["gradient_gap"] == 0.0
    assert found["from_exact"]["TRL"]["relative_gap"] == 0.25
    assert found["from_exact"]["formula"]["relative_gap"] == 0.0
    assert found["from_formula"]["TRL"]["largest_gradient"] == 1.0


def test_our_gradients_are_the_formulas(task: dict[str, Any], tmp_path: Path) -> None:
    paths = {"batch": str(tmp_path / "batch.pt"), "out": str(tmp_path / "out.pt")}
    ours = text_side.gradients({**task, **paths})
    batch = torch.load(paths["batch"], weights_only=True)
    if not batch["advantage"].any():
        pytest.skip("all rewards were equal")
    loss, expected = trl_speed.formula(task["model"], batch, torch.float64)
    assert ours["loss"] == pytest.approx(loss, abs=1e-5)
    found = torch.load(paths["out"], weights_only=True)
    assert set(found) == set(expected)
    for name, gradient in found.items():
        torch.testing.assert_close(gradient.double(), expected[name], atol=1e-5, rtol=0)
