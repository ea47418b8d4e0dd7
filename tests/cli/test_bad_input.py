"""Every mistake of the user's is one sentence on standard error and exit status 2, without a trace.

Each message has to say what, where and what to do; nothing may be left behind that stands in the
way of the next try.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from short_run import SHORT, Command

CONTROL = ["algo=ppo", "env=CartPole-v1"]
TEXT = ["algo=grpo", "env=gsm8k", "model=tiny", "updates=1", "logger=none"]


def mistake(zoo: Command, *arguments: str) -> str:
    status, _, err = zoo(*arguments)
    assert status == 2, err
    assert err.startswith("error: ")
    assert err.count("\n") == 1, err
    assert "Traceback" not in err
    return err


def questions(folder: Path, lines: list[str]) -> Path:
    folder.mkdir()
    (folder / "train.jsonl").write_text("".join(line + "\n" for line in lines))
    (folder / "test.jsonl").write_text(row("5 + 6?", "#### 11") + "\n")
    return folder


def row(question: str, answer: str = "#### 4") -> str:
    return json.dumps({"question": question, "answer": answer})


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["tran"],
            "enjoy, export, merge, bench, report, list. Did you mean 'train'?",
        ),
        (["train"], "no algorithm given: add algo=NAME, one of"),
        (["train", "algo=grppo", "env=gsm8k"], "unknown algorithm 'grppo'"),
        (["train", "algo=ppo", "env=CartPole-v2"], "unknown environment 'CartPole-v2'"),
        (["train", "algo=ppo", "env=gsm9k"], "Did you mean 'gsm8k'?"),
        (["train", "algo=grpo", "env=gsm8k", "model=tinny"], "Did you mean 'tiny'?"),
        (["train", *CONTROL, "algo.clip_lo=1"], "Did you mean 'algo.clip_low'?"),
        (["train", *CONTROL, "algo.lr=abc"], "algo.lr takes a number, not 'abc'"),
        (["train", *CONTROL, "model=tiny"], "doesn't go with env=CartPole-v1"),
        (["train", "algo=grpo", "env=CartPole-v1", "algo.group_size=1"], "group_size"),
        (["train", *TEXT, "algo.group_size=1"], "GRPO needs group_size ≥ 2 (got 1)"),
        (["train", *CONTROL, "device=gpu9"], "device=gpu9"),
        (["train", *CONTROL, "algo.lr=-1"], "PPO needs lr ≥ 0 (got -1.0)"),
        (
            ["train", *CONTROL, "model=null"],
            "a run needs a model: use model=cnn or model=mlp, or leave model=",
        ),
        (["train", *CONTROL, "rollout=null"], "a run needs a rollout: use rollout=gymnasium"),
        (["train", *CONTROL, "rollout.steps=null"], "rollout.steps takes a whole number, not null"),
        (["train", *CONTROL, "rollout.num_envs=null"], "rollout.num_envs takes a whole number"),
        (["train", *CONTROL, "rollout.num_envs=0"], "needs 1 ≤ num_envs ≤ 65536 (got 0)"),
        (["train", *CONTROL, "rollout.vector=thread"], "is not one of sync, async"),
        (["train", *CONTROL, "eval.options.episodes=null"], "eval.options.episodes takes a whole"),
        (["train", *CONTROL, "eval.options.seed=-1"], "eval.options.seed must be from 0 to 2**63"),
        (["train", *CONTROL, "eval.options.seed=null"], "eval.options.seed takes a whole number"),
        (
            ["train", *CONTROL, "world=text"],
            "world=text can't be set: env=CartPole-v1 is a control",
        ),
        (["train", *CONTROL, "env.options.foo=3"], "refuses env.options={'foo': 3}"),
        (["train", *CONTROL, "env.options=null"], "env.options takes a mapping, not null"),
        (["train", *CONTROL, "env.max_episode_steps=abc"], "env.max_episode_steps takes a whole"),
        (["train", *CONTROL, "env.max_episode_steps=-3"], "needs max_episode_steps ≥ 1 (got -3)"),
        (["train", *CONTROL, "env.id=null"], "env.id is empty: give a Gymnasium id"),
        (["train", *CONTROL, "seed=-1"], "seed must be from 0 to 2**63 - 1 (got -1)"),
        (["train", *CONTROL, f"seed={2**63}"], "seed must be from 0 to 2**63 - 1"),
        (["train", *CONTROL, "total_steps=null"], "total_steps takes a whole number, not null"),
        (["train", *TEXT, "updates=null"], "updates takes a whole number, not null"),
        (["train", *TEXT, "eval.options.samples=null"], "eval.options.samples takes a whole"),
        (["eval", "runs/x", "--seed", "-1"], "--seed: must be from 0 to 2**63 - 1"),
        (["enjoy", "runs/x", "--seed", "-1"], "--seed: must be from 0 to 2**63 - 1"),
        (["train", *TEXT, "rollout.top_p=0.9"], "top_p"),
        (["train", "--resume", "runs/nowhere"], "is no run folder: it has no config.yaml"),
        (["train", "--resume", "runs/nowhere", "seed=2"], "--resume goes on exactly as the run"),
        (["train", *CONTROL, "--quiet"], "unrecognized arguments: --quiet"),
        (["eval", "runs/nowhere"], "runs/nowhere"),
        (["eval", "runs/x", "--episodes", "0"], "--episodes: must be 1 or more"),
        (["eval", "runs/x", "--episodes", "many"], "must be a whole number (got 'many')"),
        (["train", *CONTROL, "device=gpu"], "not available here: torch knows no such device;"),
        (["train", *TEXT, "rollout.prompts=10_000_000"], "rollout.prompts must be ≤ 1,000,000"),
        (["train", "algo=sac", "env=gsm8k"], "steps; use algo=grpo or algo=ppo."),
        (["enjoy", "runs/nowhere"], "runs/nowhere"),
        (["list", "agents"], "invalid choice: 'agents'"),
    ],
)
def test_a_mistyped_command_line(
    zoo: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert words in mistake(zoo, *arguments)
    assert not [p for p in tmp_path.rglob("*") if p.is_file()]


def test_an_existing_run_folder(zoo: Command, finished: Path) -> None:
    message = mistake(zoo, "train", *SHORT, f"run_dir={finished}")
    assert f"the run folder {finished} is not empty" in message
    assert f"zoo train --resume {finished}" in message


def test_eval_options_of_the_other_world(zoo: Command, finished: Path) -> None:
    message = mistake(zoo, "eval", str(finished), "--samples", "4")
    assert "--samples does not apply to this run: it is a control one" in message


def test_a_checkpoint_that_is_none(zoo: Command, run_copy: Path) -> None:
    (run_copy / "checkpoints" / "last.pt").write_bytes(b"not a checkpoint")
    assert "last.pt" in mistake(zoo, "eval", str(run_copy))
    assert "last.pt" in mistake(zoo, "train", "--resume", str(run_copy))


def test_a_run_folder_without_a_checkpoint(zoo: Command, run_copy: Path) -> None:
    shutil.rmtree(run_copy / "checkpoints")
    assert "has no checkpoint to load" in mistake(zoo, "train", "--resume", str(run_copy))


def test_a_missing_data_folder(zoo: Command, tmp_path: Path) -> None:
    run = tmp_path / "run"
    message = mistake(zoo, "train", *TEXT, f"env.path={tmp_path}/none", f"run_dir={run}")
    assert f"{tmp_path}/none" in message
    assert not run.exists()  # the next try may use the same name


def test_an_empty_data_folder(zoo: Command, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    run = tmp_path / "run"
    message = mistake(zoo, "train", *TEXT, f"env.path={tmp_path}/data", f"run_dir={run}")
    assert f"{tmp_path}/data" in message
    assert not run.exists()


@pytest.mark.parametrize("line", ['{"question": "2 + 2?"', '{"question": "2 + 2?"}', "[1, 2]"])
def test_a_malformed_line_is_named_by_file_and_number(
    zoo: Command, tmp_path: Path, line: str
) -> None:
    data = questions(tmp_path / "data", [row("1 + 3?"), line])
    message = mistake(zoo, "train", *TEXT, f"env.path={data}", f"run_dir={tmp_path}/run")
    assert f"{data}/train.jsonl" in message
    assert "2" in message.split("train.jsonl")[1]


def test_prompts_longer_than_the_limit(zoo: Command, tmp_path: Path) -> None:
    # Another test may have imported transformers, which reads the environment once.
    pytest.importorskip("transformers").utils.logging.disable_progress_bar()
    data = questions(tmp_path / "data", [row("how much is " + "1 + " * 200 + "1?"), row("2 + 2?")])
    message = mistake(
        zoo,
        "train",
        *TEXT,
        f"env.path={data}",
        f"run_dir={tmp_path}/run",
        "rollout.max_prompt_tokens=64",
    )
    assert "64" in message
    assert "truncation=filter" in message


@pytest.mark.parametrize("missing", ["config", "tokenizer"])
def test_a_model_folder_that_lacks_a_part(zoo: Command, tmp_path: Path, missing: str) -> None:
    from zoo.core.choices import CONF

    model = tmp_path / "model"
    shutil.copytree(CONF.parent / "assets" / "tiny", model)
    for file in model.glob(f"{missing}*"):
        file.unlink()
    data = questions(tmp_path / "data", [row(f"{n} + 2?") for n in range(4)])
    message = mistake(
        zoo,
        "train",
        *TEXT,
        f"model={model}",
        f"env.path={data}",
        f"run_dir={tmp_path}/run",
    )
    assert str(model) in message
    assert missing in message.replace(str(model), "")


def test_an_environment_is_found_in_the_module_that_registers_it(
    zoo: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = 'import gymnasium\nentry = "gymnasium.envs.classic_control:CartPoleEnv"\n'
    code += 'gymnasium.register("Balanced-v0", entry_point=entry, max_episode_steps=50)\n'
    (tmp_path / "registers_balanced.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    settings = [s for s in SHORT if not s.startswith("env=")]
    named = ["env=registers_balanced:Balanced-v0", f"run_dir={tmp_path / 'run'}"]
    status, _, err = zoo("train", *settings, *named)
    assert (status, err) == (0, "")
