"""GSM8K and one's own files: where the data come from, and every fault named by its line."""

from __future__ import annotations

import importlib.machinery
import json
import subprocess
import sys
import time
import types
from pathlib import Path
from typing import Any

import pytest

from zoo.core.protocols import Completion, TextEnv
from zoo.envs import GSM8K, JSONL, hub
from zoo.errors import UserError

GOOD = {"question": "What is 6 + 12?", "answer": "6 + 12 = 18\n#### 18"}
TEST = {"question": "What is 1,000 + 1?", "answer": "#### 1,001"}


def write(folder: Path, name: str, *rows: Any) -> Path:
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def questions(count: int) -> list[dict[str, str]]:
    return [{"question": f"What is {i}?", "answer": f"#### {i}"} for i in range(count)]


def test_a_folder_with_both_files(tmp_path: Path) -> None:
    write(tmp_path, "train.jsonl", GOOD, "", *questions(3))
    write(tmp_path, "test.jsonl", TEST)
    env = GSM8K(tmp_path, instruction="Answer.", system="Be brief.", train_size=3)
    assert isinstance(env, TextEnv)
    assert env.dataset == f"gsm8k (folder {tmp_path})"
    assert env.notice is None
    assert [p.answer for p in env.prompts("train")] == ["18", "0", "1"]
    prompt = env.prompts("heldout")[0]
    assert (prompt.question, prompt.answer) == ("What is 1,000 + 1?", "1,001")
    assert prompt.id == "gsm8k/heldout/0"
    assert prompt.messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is 1,000 + 1?\n\nAnswer."},
    ]
    scores = env.score([prompt] * 2, [Completion(t, [1], True) for t in ("#### 1001", "1001")])
    assert scores.total == [1.0, 0.0]
    assert scores.grades["accuracy_lenient"] == [1.0, 1.0]


def test_the_bare_question_is_the_default_and_true_adds_the_standard_instruction(
    tmp_path: Path,
) -> None:
    write(write(tmp_path, "train.jsonl", GOOD), "test.jsonl", TEST)
    assert GSM8K(tmp_path).prompts("train")[0].messages[0]["content"] == GOOD["question"]
    content = GSM8K(tmp_path, instruction=True).prompts("train")[0].messages[0]["content"]
    assert content.startswith(GOOD["question"] + "\n\n")
    assert "#### " in content


def test_bom_crlf_and_blank_lines_are_read_over(tmp_path: Path) -> None:
    body = "\r\n".join([json.dumps(GOOD), "", "  ", json.dumps(questions(1)[0])])
    (tmp_path / "train.jsonl").write_bytes(b"\xef\xbb\xbf" + body.encode() + b"\r\n")
    write(tmp_path, "test.jsonl", TEST)
    assert len(GSM8K(tmp_path).prompts("train")) == 2


def test_line_separators_inside_a_question_do_not_split_it(tmp_path: Path) -> None:
    row = json.dumps({"question": "a\u2028b\x85c", "answer": "#### 1"}, ensure_ascii=False)
    write(write(tmp_path, "train.jsonl", row), "test.jsonl", TEST)
    assert GSM8K(tmp_path).prompts("train")[0].question == "a\u2028b\x85c"


def test_without_a_test_file_a_tenth_is_held_out_by_hash_and_said(tmp_path: Path) -> None:
    rows = questions(300)
    first = GSM8K(write(tmp_path, "train.jsonl", *rows))
    second = GSM8K(write(tmp_path, "train.jsonl", *reversed(rows)))
    held = {p.question for p in first.prompts("heldout")}
    assert held == {p.question for p in second.prompts("heldout")}
    assert not held & {p.question for p in first.prompts("train")}
    assert 15 <= len(held) <= 50
    assert "a tenth of the questions is held out" in str(first.notice)
    assert "held out" in first.dataset


def test_a_training_question_that_is_also_a_test_question_is_left_out(tmp_path: Path) -> None:
    write(write(tmp_path, "train.jsonl", GOOD, TEST), "test.jsonl", TEST)
    env = GSM8K(tmp_path)
    assert [p.question for p in env.prompts("train")] == [GOOD["question"]]
    assert "1 training question that the test file holds too was left out" in str(env.notice)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("{", "train.jsonl:2: not a JSON object"),
        ("[1]", "train.jsonl:2: not a JSON object but list"),
        ("[" * 100_000, "train.jsonl:2: not a JSON object"),
        ({"question": "q"}, "train.jsonl:2: 'answer' is missing (there is 'question')"),
        ({"question": 1.5, "answer": None}, "train.jsonl:2: 'answer' must be text (got NoneType)"),
        ({"question": [], "answer": "#### 1"}, "train.jsonl:2: 'question' must be text (got list)"),
        ({"question": " ", "answer": "#### 1"}, "train.jsonl:2: 'question' is empty"),
        ({"question": "q", "answer": "1"}, "train.jsonl:2: the answer has no '#### number'"),
        ({"question": "q", "answer": "#### one"}, "train.jsonl:2: '#### one' is no number"),
        ({"question": "q", "answer": "####"}, "train.jsonl:2: '#### ' is no number"),
    ],
)
def test_a_faulty_line_is_named(tmp_path: Path, line: Any, sentence: str) -> None:
    write(write(tmp_path, "train.jsonl", GOOD, line), "test.jsonl", TEST)
    with pytest.raises(UserError) as caught:
        GSM8K(tmp_path)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_bytes_that_are_no_utf8_are_named(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_bytes(json.dumps(GOOD).encode() + b"\n\xff\xfe\n")
    with pytest.raises(UserError, match=r"train.jsonl:2: not UTF-8"):
        GSM8K(tmp_path)


def test_a_missing_empty_or_wrong_path_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no folder or file"):
        GSM8K(tmp_path / "nowhere")
    with pytest.raises(UserError, match="holds no train.jsonl or train.parquet .it holds nothing"):
        GSM8K(tmp_path)
    (tmp_path / "train.jsonl").touch()
    with pytest.raises(UserError, match="holds no question"):
        GSM8K(tmp_path)
    with pytest.raises(UserError, match="too few to hold out"):
        GSM8K(write(tmp_path, "train.jsonl", GOOD))
    with pytest.raises(UserError, match="path must name a folder"):
        GSM8K(7)  # type: ignore[arg-type]
    write(tmp_path, "test.jsonl", GOOD)
    with pytest.raises(UserError, match="every training question"):
        GSM8K(tmp_path)


@pytest.mark.parametrize(
    "settings",
    [{"train_size": 0}, {"heldout_size": -1}, {"train_size": 1.5}, {"instruction": 3},
     {"seed": -1}, {"seed": "x"}, {"level": "eazy"}],
)  # fmt: skip
def test_settings_that_make_no_sense_are_refused(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "gsm8k", lambda: "not here")
    with pytest.raises(UserError):
        GSM8K(**settings)


def test_an_unknown_level_is_refused_where_the_real_data_make_it_idle(tmp_path: Path) -> None:
    write(write(tmp_path, "train.jsonl", GOOD), "test.jsonl", TEST)
    with pytest.raises(UserError, match=r"gsm8k: level must be .*Did you mean 'easy'"):
        GSM8K(tmp_path, level="eazy")


def test_parquet_is_read_where_pyarrow_is_there_and_explained_where_not(tmp_path: Path) -> None:
    (tmp_path / "train-00000-of-00001.parquet").write_bytes(b"PAR1")
    try:
        import pyarrow
    except ImportError:
        with pytest.raises(UserError, match="needs the package pyarrow"):
            GSM8K(tmp_path)
        return
    with pytest.raises(UserError, match="cannot be read as parquet"):
        GSM8K(tmp_path)
    import pyarrow.parquet

    table = pyarrow.Table.from_pylist(questions(100))
    pyarrow.parquet.write_table(table, tmp_path / "train-00000-of-00001.parquet")
    assert len(GSM8K(tmp_path).prompts("train")) > 50


def test_without_data_problems_are_made_and_this_is_said_loudly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hub, "gsm8k", lambda: "the hub cannot be reached")
    env = GSM8K(train_size=40, heldout_size=20, seed=3)
    assert env.dataset.startswith("gsm-symbolic (reasoning-gym ")
    assert env.dataset.endswith(", level easy)")
    assert "THIS IS NOT GSM8K: the hub cannot be reached" in str(env.notice)
    train, heldout = env.prompts("train"), env.prompts("heldout")
    assert (len(train), len(heldout)) == (40, 20)
    assert not {p.question for p in train} & {p.question for p in heldout}
    # Our parser, not the task's own scorer, which reads the first number and pays for wrong ones.
    completions = [Completion(str(p.metadata["solution"]), [1], True) for p in train]
    assert env.score(train, completions).total == [1.0] * 40
    wrong = [Completion(f"{p.answer} #### {p.answer}1", [1], True) for p in train]
    assert env.score(train, wrong).total == [0.0] * 40


def fake_datasets(monkeypatch: pytest.MonkeyPatch, load: Any) -> None:
    module = types.ModuleType("datasets")
    module.__spec__ = importlib.machinery.ModuleSpec("datasets", None)
    module.load_dataset = load  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", module)
    for name in hub.OFFLINE:
        monkeypatch.delenv(name, raising=False)


def test_the_hub_is_used_where_it_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(name: str, config: str) -> dict[str, Any]:
        assert (name, config) == ("openai/gsm8k", "main")
        return {"train": [GOOD], "test": [TEST]}

    fake_datasets(monkeypatch, load)
    monkeypatch.setattr(hub, "_reach", lambda: True)
    env = GSM8K()
    assert env.dataset == "gsm8k (hub openai/gsm8k)"
    assert env.notice is None
    assert [p.answer for p in env.prompts("heldout")] == ["1,001"]


def test_a_network_that_never_answers_costs_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_datasets(monkeypatch, lambda *_: time.sleep(60))
    monkeypatch.setattr(hub, "_reach", lambda: time.sleep(60))
    monkeypatch.setattr(hub, "REACH_S", 0.2)
    monkeypatch.setattr(hub, "LOAD_S", 0.2)
    start = time.monotonic()
    assert "cannot be reached" in hub.gsm8k()
    monkeypatch.setattr(hub, "_reach", lambda: True)
    assert "could not be loaded from the hub" in hub.gsm8k()
    assert time.monotonic() - start < 10


def test_offline_variables_are_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*_: str) -> Any:
        raise ConnectionError("not cached")

    fake_datasets(monkeypatch, load)
    monkeypatch.setattr(hub, "_reach", lambda: pytest.fail("asked the network"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "HF_HUB_OFFLINE is set" in hub.gsm8k()


def test_own_questions_with_answers_of_any_kind(tmp_path: Path) -> None:
    rows = [
        {"q": "Capital of France?", "a": "Paris"},
        {"q": "Half of one?", "a": "half: #### 1/2"},
        {"q": "Six?", "a": 6},
    ]
    write(write(tmp_path, "train.jsonl", *rows), "test.jsonl", {"q": "Seven?", "a": "7"})
    env = JSONL(tmp_path, question_key="q", answer_key="a", rewards=["accuracy", "format"])
    train = env.prompts("train")
    assert [p.answer for p in train] == ["Paris", "1/2", "6"]
    texts = ["It lies on the Seine.\n#### paris.", "#### 0.5", "#### 7"]
    scores = env.score(train, [Completion(text, [1], True) for text in texts])
    assert scores.items["accuracy"] == [1.0, 1.0, 0.0]
    assert scores.items["format"] == [1.0, 1.0, 1.0]


def test_a_single_file_is_split_by_hash(tmp_path: Path) -> None:
    write(tmp_path, "mine.jsonl", *questions(200))
    env = JSONL(tmp_path / "mine.jsonl", heldout_size=5)
    assert len(env.prompts("heldout")) == 5
    assert env.prompts("train")[0].id == "mine/train/0"
    with pytest.raises(UserError, match="jsonl needs your data"):
        JSONL()


def test_an_unknown_split_is_a_bug_of_the_caller(tmp_path: Path) -> None:
    write(write(tmp_path, "train.jsonl", GOOD), "test.jsonl", TEST)
    with pytest.raises(ValueError, match="split must be"):
        GSM8K(tmp_path).prompts("test")  # type: ignore[arg-type]


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = (
        "import sys, zoo.envs, zoo.envs.rewards, zoo.envs.gsm8k\n"
        "heavy = {'torch', 'numpy', 'reasoning_gym', 'datasets', 'transformers', 'tensordict'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
        "assert 'GSM8K' in dir(zoo.envs)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
