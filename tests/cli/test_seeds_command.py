"""`zoo train … seeds=`: a folder of its own for every seed, resumed together or alone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from short_run import SHORT, Command

from zoo.cli import seeds
from zoo.core.config import compose
from zoo.core.run_folder import RunFolder
from zoo.errors import UserError

WITHOUT_SEED = [text for text in SHORT if not text.startswith("seed=")]
_CLOCKS = ("time/", "speed/", "wall_s")


def _rows(folder: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if not k.startswith(_CLOCKS)} for row in rows]


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from zoo.cli import main

    folder = tmp_path_factory.mktemp("runs") / "two"
    assert main(["train", *WITHOUT_SEED, "seeds=[1,4]", f"run_dir={folder}", "logger=none"]) == 0
    return folder


def test_every_seed_leaves_the_folder_of_a_run(together: Path, finished: Path) -> None:
    assert sorted(path.name for path in together.iterdir()) == ["seed-1", "seed-4"]
    own = together / "seed-1"
    assert {path.name for path in own.iterdir()} == {path.name for path in finished.iterdir()}
    summary, alone = (json.loads((f / "summary.json").read_text()) for f in (own, finished))
    assert summary.pop("seeds_together") == 2
    assert summary.keys() == alone.keys() and summary["status"] == "finished"
    config, same = (yaml.safe_load((f / "config.yaml").read_text()) for f in (own, finished))
    for tree in (config, same):
        for free in ("made_with", "run_dir"):
            tree.pop(free)
    assert config == same
    first, its = _rows(own)[0], _rows(finished)[0]
    assert first.pop("seeds_together") == 2
    assert first == pytest.approx(its, rel=1e-3, abs=1e-5)
    episodes = [(f / "episodes.jsonl").read_text().splitlines()[0] for f in (own, finished)]
    assert episodes[0] == episodes[1]


def test_a_folder_is_measured_as_any_other(zoo: Command, together: Path) -> None:
    status, out, _ = zoo("eval", str(together / "seed-4"), "--episodes", "2", "--json")
    assert status == 0 and json.loads(out)["episodes"] == 2


def test_a_folder_of_seeds_is_measured_seed_by_seed(zoo: Command, together: Path) -> None:
    status, out, _ = zoo("eval", str(together), "--episodes", "2", "--json")
    both = json.loads(out)
    assert status == 0 and list(both) == ["seed-1", "seed-4"]
    _, alone, _ = zoo("eval", str(together / "seed-4"), "--episodes", "2", "--json")
    assert both["seed-4"] == json.loads(alone)
    _, out, _ = zoo("eval", str(together), "--episodes", "2")
    assert [line.split(":")[0] for line in out.splitlines()] == ["seed-1", "seed-4"]


def test_seeds_are_read_as_a_range_a_list_or_a_number() -> None:
    assert seeds.asked(["algo=ppo", "seeds=2..4"]) == ((2, 3, 4), ["algo=ppo"])
    assert seeds.asked(["seeds=[0,3,7]", "algo=ppo"]) == ((0, 3, 7), ["algo=ppo"])
    assert seeds.asked(["seeds=3"])[0] == (0, 1, 2)
    assert seeds.asked(["seed=3"]) == (None, ["seed=3"])


@pytest.mark.parametrize("wrong", [["seeds=0..1", "seed=1"], ["seeds=[1,1]"], ["seeds=a"]])
def test_wrong_seeds_are_one_line(zoo: Command, tmp_path: Path, wrong: list[str]) -> None:
    status, _, err = zoo("train", *WITHOUT_SEED, *wrong, f"run_dir={tmp_path / 'x'}")
    assert status == 2 and err.startswith("error: ") and err.count("\n") == 1
    assert not (tmp_path / "x").exists()


def test_what_is_not_trained_at_once_leaves_no_folder(zoo: Command, tmp_path: Path) -> None:
    folder = tmp_path / "x"
    status, _, err = zoo(
        "train", "algo=dqn", "env=CartPole-v1", "seeds=0..1", f"run_dir={folder}", "logger=none"
    )
    assert status == 2 and "zoo bench" in err
    assert not folder.exists()


def test_text_is_refused_before_a_model_is_loaded(zoo: Command, tmp_path: Path) -> None:
    folder = tmp_path / "x"
    status, _, err = zoo(
        "train", "algo=grpo", "env=gsm8k", "model=no/such", "seeds=0..1", f"run_dir={folder}"
    )
    assert status == 2 and "not for text" in err
    assert not folder.exists()


class _Ends:
    """Interrupts, or breaks, the runs after a round of the first of them."""

    done = total = 0

    def __init__(self, many: Any, after: int, error: bool = False) -> None:
        self.many, self.after, self.error = many, after, error

    def log(self, updates: int, row: Any, records: Any) -> None:
        if updates == self.after and self.error:
            raise KeyboardInterrupt
        if updates == self.after:
            self.many.interrupt()

    def notice(self, text: str) -> None: ...

    def close(self) -> None: ...


def _begun(folder: Path, after: int, error: bool = False, **settings: str) -> None:
    overrides = [*WITHOUT_SEED, "logger=none", *(f"{k}={v}" for k, v in settings.items())]
    many, _ = seeds.started(compose([*overrides, f"run_dir={folder}"]), (1, 4))
    many.trainers[0].recorder.loggers = [_Ends(many, after, error)]
    if error:
        every: Any = {"every_s": 0.0}
        for trainer in many.trainers:
            trainer.config["checkpoint"] = every
        with pytest.raises(KeyboardInterrupt):
            many.run()
        many.close()
    else:
        assert seeds.train(many, folder) == 130


def test_interrupted_runs_go_on_together_to_the_same_bits(
    zoo: Command, tmp_path: Path, together: Path
) -> None:
    folder = tmp_path / "two"
    _begun(folder, after=1)
    assert zoo("train", "--resume", str(folder))[0] == 0
    for name in ("seed-1", "seed-4"):
        assert _rows(folder / name) == _rows(together / name)
    status, out, _ = zoo("train", "--resume", str(folder))
    assert status == 0 and "finished" in out


def test_some_seeds_of_a_folder_go_on(zoo: Command, tmp_path: Path) -> None:
    folder = tmp_path / "two"
    _begun(folder, after=1)
    assert zoo("train", "--resume", str(folder), "seeds=[4]")[0] == 0
    found = [RunFolder.open(folder / f"seed-{n}").read_summary()["status"] for n in (1, 4)]
    assert found == ["interrupted", "finished"]
    status, _, err = zoo("train", "--resume", str(folder), "algo.lr=1")
    assert status == 2 and "leave out 'algo.lr=1'" in err


def test_runs_that_broke_off_apart_catch_up(zoo: Command, tmp_path: Path, together: Path) -> None:
    folder = tmp_path / "two"
    _begun(folder, after=2, error=True)  # seed 1 has logged a round more than is saved
    ahead = tmp_path / "ahead"
    shutil.copytree(folder / "seed-4", ahead)
    assert zoo("train", "--resume", str(folder / "seed-1"))[0] == 0  # alone, to its end
    shutil.rmtree(folder / "seed-4")
    shutil.move(ahead, folder / "seed-4")
    assert zoo("train", "--resume", str(folder))[0] == 0  # what is left
    for name in ("seed-1", "seed-4"):
        assert [r["env_steps"] for r in _rows(folder / name)] == [128, 256]
        assert RunFolder.open(folder / name).read_summary()["status"] == "finished"
        end, whole = _rows(folder / name)[-1], _rows(together / name)[-1]
        assert end["grad_norm"] == pytest.approx(whole["grad_norm"], rel=1e-2)


def test_a_run_folder_is_no_place_for_those_of_seeds(finished: Path) -> None:
    config = compose([*WITHOUT_SEED, f"run_dir={finished}"])
    with pytest.raises(UserError, match="run folder"):
        seeds.started(config, (0, 1))
