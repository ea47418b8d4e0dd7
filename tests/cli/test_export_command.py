"""`zoo export` and `zoo merge`: what a run of a language model leaves behind for others."""

from __future__ import annotations

from pathlib import Path

import pytest
from short_run import Command

pytest.importorskip("transformers")

RUN = (
    *("train", "algo=grpo", "env=gsm8k", "model=tiny", "updates=1", "rollout.prompts=2"),
    *("algo.group_size=2", "rollout.max_new_tokens=8", "eval.every=null", "eval.at_end=false"),
    "logger=none",
)


def test_a_run_is_exported_and_trained_on(zoo: Command, tmp_path: Path) -> None:
    run, out = tmp_path / "run", tmp_path / "model"
    assert zoo(*RUN, f"run_dir={run}")[0] == 0
    status, said, _ = zoo("export", str(run), "--out", str(out))
    assert status == 0 and said.splitlines()[0] == f"model: {out}"
    assert "model.instruct=false" in said
    status, _, err = zoo("merge", str(out), "--out", str(tmp_path / "x"))
    assert status == 2 and "whole model already" in err
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {p.name for p in out.iterdir()}
    command = (*RUN[:-1], f"run_dir={tmp_path / 'next'}", f"model={out}", "model.instruct=false")
    status, said, _ = zoo(*command)
    assert status == 0
    (note,) = [line for line in said.splitlines() if line.startswith(f"note: {out} was trained")]
    assert note.endswith(" here, too: algo.lr=0.0001 algo.betas=[0.9,0.95]")
    status, _, err = zoo("export", str(run), "--out", str(out))
    assert status == 2 and "not empty" in err
    status, _, err = zoo("merge", str(run), "--out", str(tmp_path / "x"))
    assert status == 2 and "zoo export" in err


def test_an_adapter_is_exported_and_merged(zoo: Command, tmp_path: Path) -> None:
    pytest.importorskip("peft")
    run, out = tmp_path / "run", tmp_path / "adapter"
    assert zoo(*RUN, f"run_dir={run}", "model.lora.rank=2")[0] == 0
    assert zoo("export", str(run), "--out", str(out))[1].startswith(f"adapter: {out}\n")
    for source, name in ((run, "one"), (out, "other")):
        assert zoo("merge", str(source), "--out", str(tmp_path / name))[0] == 0
    assert (tmp_path / "one/zoo.yaml").read_text() == (tmp_path / "other/zoo.yaml").read_text()
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("one", "other")]
    assert weights[0] == weights[1]


def test_what_is_no_language_model_is_refused(zoo: Command, finished: Path, tmp_path: Path) -> None:
    status, _, err = zoo("export", str(finished), "--out", str(tmp_path / "x"))
    assert status == 2 and "control task" in err
    status, _, err = zoo("merge", str(tmp_path), "--out", str(tmp_path / "x"))
    assert status == 2 and "no checkpoint" in err
