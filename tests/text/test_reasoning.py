"""reasoning-gym tasks: splits that share nothing, extraction, and the task's own scorer."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
import pytest

from zoo.core.protocols import Completion, TextEnv
from zoo.envs import ReasoningGym, reasoning
from zoo.envs.reasoning import extract, tasks
from zoo.errors import UserError


@pytest.mark.parametrize(
    ("text", "gold", "strict", "lenient"),
    [
        ("so <answer> 12 </answer>", "12", "12", "12"),
        ("<answer>1</answer> no <answer>2</answer>", "2", "2", "2"),
        ("<answer>a\nb</answer>", "a\nb", "a\nb", "a\nb"),
        ("<answer>3</answer> #### 4", "4", "3", "3"),
        ("#### 12\nbecause", "12", "12", "12"),
        ("####\n1 2\n3 4\n", "1 2\n3 4", "1 2\n3 4", "1 2\n3 4"),
        ("#### 1\n#### 2\n#### 12", "12", None, None),
        ("<answer>1</answer><answer>2</answer><answer>3</answer>", "3", None, None),
        (r"\boxed{x+1}", "x+1", None, "x+1"),
        ("It is 12 legs.", "12", None, "12"),
        ("It is 12.0 legs.", "12", None, "12"),
        ("It is 007", "007", None, "It is 007"),
        ("Well:\nabc", "cab", None, "abc"),
        ("1 2\n3 4", "1 2\n3 4", None, "1 2\n3 4"),
        ("<answer>12", "12", None, "12"),
        ("", "12", None, None),
        (" \n", "", None, None),
        ("####", "12", None, None),
    ],
)
def test_extraction(text: str, gold: str, strict: str | None, lenient: str | None) -> None:
    assert extract(text, gold) == (strict, lenient)


def test_two_hundred_thousand_characters_of_tags_take_bounded_time() -> None:
    start = time.process_time()
    text = "</answer>" + "<answer>" * 24_998 + "7"
    assert extract(text, "7") == (None, "7")
    assert extract(text + "</answer>", "7")[0] == ("<answer>" * 24_997 + "7")
    assert time.process_time() - start < 1.0


def test_extraction_takes_bounded_time() -> None:
    start = time.process_time()
    for unit in ("<answer>", "</answer>", "####a\n", "\\boxed{", "9 "):
        extract(unit * (100_000 // len(unit)), "12")
        extract(unit * (100_000 // len(unit)), "1\n2")
    assert time.process_time() - start < 5.0


def test_right_and_wrong_answers() -> None:
    with ReasoningGym(
        "leg_counting", train_size=20, heldout_size=5, rewards=["accuracy", "score"]
    ) as env:
        assert isinstance(env, TextEnv)
        assert env.dataset.startswith("leg_counting (reasoning-gym ")
        prompts = env.prompts("heldout")[:4]
        gold = prompts[0].answer
        texts = [f"<answer>{prompts[0].answer}</answer>", "<answer>-3</answer>"]
        texts += [f"It has {prompts[2].answer} legs", ""]
        scores = env.score(prompts, [Completion(text, [1], True) for text in texts])
        assert gold
        assert scores.items["accuracy"] == [1.0, 0.0, 0.0, 0.0]
        assert scores.items["score"] == [1.0, 0.0, 0.0, 0.0]
        assert scores.total == [2.0, 0.0, 0.0, 0.0]
        assert scores.grades["accuracy_strict"] == [1.0, 0.0, 0.0, 0.0]
        assert scores.grades["accuracy_lenient"] == [1.0, 0.0, 1.0, 0.0]
        assert scores.failures == {}


class Moody:
    """Stands for a task's scorer that gives partial credit, raises, or hangs."""

    def __call__(self, answer: str, entry: dict[str, Any]) -> float:
        if answer == "raise":
            raise ValueError("third-party fault")
        while answer == "hang":
            entry = dict(entry)
        return {"nearly": 0.989, "right": 0.99}.get(answer, 0.01)


def test_accuracy_needs_99_percent_and_faults_of_the_scorer_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reasoning, "_Scorer", lambda task, settings: Moody())
    with ReasoningGym("chain_sum", train_size=5, heldout_size=5, timeout_s=0.5) as env:
        prompts = list(env.prompts("heldout"))
        texts = ["right", "nearly", "raise", "hang", "wrong"]
        completions = [Completion(f"<answer>{t}</answer>", [1], True) for t in texts]
        scores = env.score(prompts, completions)
    raw = [None if math.isnan(v) else v for v in scores.items["score"]]
    assert raw == [0.99, 0.989, None, None, 0.01]
    strict = [None if math.isnan(v) else v for v in scores.grades["accuracy_strict"]]
    assert strict == [1.0, 0.0, None, None, 0.0]
    assert [math.isnan(total) for total in scores.total] == [False, False, True, True, False]
    assert scores.failures == {"accuracy": 2}
    assert len(scores.errors) == 2
    assert f"on completion 2, prompt {prompts[2].id} (ValueError)" in scores.errors[0]


def test_no_question_is_in_both_splits_whatever_the_seeds() -> None:
    # Sums of two digits: repeats within a split are unavoidable, across it forbidden.
    config = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}
    env = ReasoningGym("chain_sum", config=config, train_size=150, heldout_size=60)
    heldout = {p.question for p in env.prompts("heldout")}
    train = {p.question for p in env.prompts("train")}
    assert heldout
    assert train
    assert not heldout & train


def test_item_seeds_of_the_splits_never_meet() -> None:
    source = reasoning._Source("chain_sum", {}, 0, None, None)
    for seed in range(200):
        source.seed = seed
        train, heldout = source._start("train", 2000), source._start("heldout", 200)
        assert 0 <= train < train + 2000 * 50 <= 2**30 <= heldout
        assert heldout + 200 * 50 <= 2**31


def test_neighbouring_seeds_share_few_questions() -> None:
    first, second = (
        {p.question for p in ReasoningGym("base_conversion", seed=seed, train_size=100,
                                          heldout_size=5).prompts("train")}
        for seed in (0, 1)
    )  # fmt: skip
    assert len(first & second) < 20


def test_prompts_are_the_same_in_any_order_of_asking() -> None:
    def make() -> ReasoningGym:
        return ReasoningGym("leg_counting", seed=4, train_size=6, heldout_size=3, instruction=True)

    forwards = [p.question for p in make().prompts("train")]
    train = make().prompts("train")
    backwards = [train[i].question for i in range(5, -1, -1)][::-1]
    assert forwards == backwards
    assert train[-1] is train[5]
    assert [p.question for p in train[1:3]] == forwards[1:3]
    assert train[0].messages[0]["content"].endswith("that the question asks for.")
    with pytest.raises(IndexError):
        train[6]


def test_a_task_that_seeds_numpy_leaves_the_global_generator_alone() -> None:
    np.random.seed(7)
    expected = np.random.RandomState(7).random(3)
    env = ReasoningGym("pool_matrix", train_size=3, heldout_size=3)
    assert len(env.prompts("train")[:3]) == 3
    assert np.random.random(3).tolist() == expected.tolist()


def test_gsm_symbolic_by_name_is_scored_by_our_parser() -> None:
    env = ReasoningGym("gsm_symbolic", train_size=10, heldout_size=5, level="all")
    train = env.prompts("train")
    completions = [Completion(f"{p.answer} #### {p.answer}1", [1], True) for p in train]
    assert env.score(train, completions).grades["accuracy_strict"] == [0.0] * 10
    completions = [Completion(f"3 + 4 #### {p.answer}", [1], True) for p in train]
    assert env.score(train, completions).grades["accuracy_strict"] == [1.0] * 10
    with pytest.raises(UserError, match="level=all"):
        ReasoningGym("gsm_symbolic", config={"x": 1})


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"task": "leg_countin"}, "Did you mean 'leg_counting'?"),
        ({"task": 3}, "has no task 3"),
        ({}, "needs the name of a task"),
        ({"task": "leg_counting", "config": {"max_animal": 3}}, "refuses its config"),
        ({"task": "leg_counting", "config": {"max_animals": -3}}, "refuses its config"),
        ({"task": "composite"}, "refuses its config"),
        ({"task": "leg_counting", "train_size": 0}, "train_size"),
        ({"task": "leg_counting", "seed": 1.5}, "seed"),
        ({"task": "leg_counting", "timeout_s": 0}, "timeout_s must be a number of seconds above 0"),
        ({"task": "leg_counting", "timeout_s": "soon"}, "got 'soon'"),
        ({"task": "gsm_symbolic", "timeout_s": float("nan")}, "got nan"),
    ],
)
def test_what_makes_no_sense_is_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        ReasoningGym(**settings)
    assert sentence in str(caught.value)


COSTLY = {"sokoban", "knight_swap", "futoshiki", "zebra_puzzles", "puzzle24"}


@pytest.mark.parametrize(
    "task",
    [
        pytest.param(task, marks=pytest.mark.slow if task in COSTLY else ())
        for task in tasks()
        if task != "composite"  # it needs a config
    ],
)
def test_every_task_accepts_its_own_gold_answers(task: str) -> None:
    source = reasoning._Source(task, {}, 0, None, None)
    scorer = reasoning._Scorer(task, {})
    scorer.__setstate__(scorer.__getstate__())
    heldout = source.heldout(4)
    questions = {prompt.question for prompt in heldout}
    train = reasoning._Train(source, 4, questions)
    assert not {prompt.question for prompt in train[:4]} & questions
    for prompt in heldout:
        if prompt.answer:
            for text in (f"So:\n#### {prompt.answer}", f"<answer>\n{prompt.answer}\n</answer>"):
                strict, lenient = extract(text, prompt.answer)
                assert strict == lenient
                assert scorer(str(strict), prompt.metadata["entry"]) >= reasoning.RIGHT
