"""The script for one GPU runs on a CPU in a small shape, and its phases nest."""

from __future__ import annotations

import sys

import pytest
import torch

pytest.importorskip("transformers")

from zoo.benchmarks.gpu.phases import Phases
from zoo.benchmarks.gpu.qwen3_update import SHAPES, main, measure

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.mark.parametrize("options", [{}, {"checkpointing": True, "adam_state": "host"}])
def test_one_update_of_a_small_shape(options: dict) -> None:
    result = measure("small", "cpu", prompts=2, group_size=4, tokens=6, **options)
    assert result["tokens"] == 2 * 4 * 6 and result["completions"] == 8
    seconds, peak = result["seconds"], result["peak_gib"]
    assert set(seconds) == set(peak) == {"update", "sample", "prepare", "learn", "optimizer"}
    assert seconds["update"] > seconds["sample"] + seconds["learn"]
    assert seconds["learn"] > seconds["optimizer"] > 0
    assert peak["update"] == max(peak.values())


def test_the_real_shape_has_the_parameters_of_qwen3_06b() -> None:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    with torch.device("meta"):
        model = Qwen3ForCausalLM(Qwen3Config(**SHAPES["0.6b"], tie_word_embeddings=True))
    assert sum(p.numel() for p in model.parameters()) == 596_049_920


def test_memory_of_an_inner_phase_counts_for_the_outer_one_and_not_for_the_next() -> None:
    phases = Phases(torch.device("cpu"))
    with phases.phase("outer"):
        with phases.phase("large"):
            block = bytearray(b"x") * 2**28
            del block
        with phases.phase("small"):
            pass
    peak = {name: phase.peak_gib for name, phase in phases.seen.items()}
    assert peak["outer"] == peak["large"]
    assert peak["small"] < peak["large"] - 0.2


def test_without_a_gpu_it_says_how_to_try_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["qwen3_update"])
    with pytest.raises(SystemExit):
        main()
    assert "--small --device cpu" in capsys.readouterr().err
