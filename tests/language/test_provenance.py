"""What a model folder says of its training, and what a run from it is told that it lacks."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

import zoo
from zoo.core.config import compose
from zoo.errors import UserError
from zoo.policies import provenance

ASSETS = Path(zoo.__file__).parent / "assets" / "tiny"
BEGIN = ("algo=grpo", "env=gsm8k")


def settings(*overrides: str) -> dict[str, Any]:
    return compose([*BEGIN, *overrides]).to_dict()


def told(*overrides: str) -> str:
    return provenance.lacking(settings(*overrides)).rpartition("here, too: ")[2]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "tiny"  # the name alone gives it nothing
    made.mkdir()
    return made


def test_a_folder_of_a_shipped_models_name_gets_none_of_its_settings(folder: Path) -> None:
    shipped, other = settings("model=tiny"), settings(f"model={folder}")
    assert (shipped["algo"]["lr"], other["algo"]["lr"]) == (1e-4, 1e-6)
    assert (shipped["model"]["instruct"], other["model"]["instruct"]) == (False, True)
    assert provenance.lacking(shipped) == provenance.lacking(other) == ""


def test_a_copy_of_the_shipped_model_is_told_what_it_is_tuned_with(folder: Path) -> None:
    shutil.copy(ASSETS / provenance.FILE, folder)
    expected = "algo.lr=0.0001 algo.betas=[0.9,0.95] model.instruct=false rollout.max_new_tokens=96"
    assert told(f"model={folder}") == expected
    assert told("algo=ppo", f"model={folder}") == expected
    assert told(f"model={folder}", *expected.split()) == ""


def test_the_shipped_folder_says_what_is_tuned_by_its_name() -> None:
    said, tuned = provenance.read(ASSETS), settings("model=tiny")
    for group, values in said.items():
        assert {key: tuned[group][key] for key in values} == values


def test_a_run_of_the_same_algorithm_is_told_of_every_knob(folder: Path) -> None:
    then = settings("model=tiny", "algo.kl.coefficient=0.1", "algo.micro_batch_size=2")
    provenance.write(then, folder)
    text = told(f"model={folder}")
    assert text.startswith("algo.lr=0.0001 algo.betas=[0.9,0.95] algo.kl.coefficient=0.1 model.")
    assert "micro_batch_size" not in text  # another machine computes the same in other parts
    assert "kl" not in told("algo=dr_grpo", f"model={folder}")
    now = settings(f"model={folder}", "rollout=hf")
    again = copy.deepcopy(now)
    provenance.lacking(now)
    assert now == again


def test_what_is_written_is_what_is_read(folder: Path) -> None:
    then = settings("model=tiny")
    provenance.write(then, folder)
    first = provenance.read(folder)
    assert set(first) == {"algo", "env", "model", "rollout"}
    assert (first["algo"]["name"], first["env"]["name"]) == ("grpo", "gsm8k")
    assert "_target_" not in yaml.safe_dump(first)
    provenance.write(first, folder)  # of an adapter that is merged
    assert provenance.read(folder) == first


@pytest.mark.parametrize("text", ["[1, 2]", "algo: 3", "{", "\x00"], ids=repr)
def test_a_broken_file_is_named(folder: Path, text: str) -> None:
    (folder / provenance.FILE).write_text(text)
    with pytest.raises(UserError, match="zoo.yaml should hold .* delete it"):
        provenance.lacking(settings(f"model={folder}"))
