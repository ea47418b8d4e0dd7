"""What groups of differently trained runs are called, and what a note says of the rest."""

from __future__ import annotations

from typing import Any

import pytest
from hand_made import run

from zoo.benchmarks.records import Note
from zoo.benchmarks.run_labels import split_labels

BASE = {
    "algo.name": "grpo",
    "algo.lr": 0.1,
    "algo.clip_low": 0.2,
    "algo.kl.coefficient": 0.0,
    "algo.entropy.coefficient": 0.0,
    "model.name": "tiny",
    "model.path": "tiny",
    "model.quantize": None,
    "rollout.staleness": 0,
}


def labelled(*changes: dict[str, Any], **fields: Any) -> tuple[list[str], list[str]]:
    """Labels of runs with these settings, and the notes."""
    notes: list[Note] = []
    runs = [run("GRPO", i, [0, 1], settings=BASE | c, **fields) for i, c in enumerate(changes)]
    return [r.label for r in split_labels(runs, notes)], [note.text for note in notes]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model.quantize": "nf4"}, ("quantize=–", "quantize=nf4")),
        ({"rollout.staleness": 2}, ("staleness=0", "staleness=2")),
        ({"algo.kl.coefficient": 0.1}, ("kl.coefficient=0", "kl.coefficient=0.1")),
        ({"model.name": "m", "model.path": "/a/m"}, ("model=tiny", "model=m")),
        ({"model.path": "/a/m"}, ("model.path=tiny", "model.path=/a/m")),
        (
            {"algo.lr": 0.2, "rollout.lr": 1},
            ("algo.lr=0.1, rollout.lr=–", "algo.lr=0.2, rollout.lr=1"),
        ),
    ],
    ids=["quantize", "staleness", "nested", "choice", "path", "ambiguous"],
)
def test_a_difference_is_named_by_what_is_enough_to_know_it(
    changes: dict[str, Any], words: tuple[str, str]
) -> None:
    labels, notes = labelled({}, changes)
    assert labels == [f"GRPO ({words[0]})", f"GRPO ({words[1]})"]
    assert notes == []


def test_choices_come_first_and_what_a_label_leaves_out_is_named_in_a_note() -> None:
    changed = {"algo.lr": 0.2, "algo.clip_low": 0.3, "model.quantize": "nf4", "model.name": "m"}
    labels, notes = labelled({}, {**changed, "model.path": "/a/m"})
    assert labels == [
        "GRPO (model=tiny, lr=0.1, clip_low=0.2 and 1 more)",
        "GRPO (model=m, lr=0.2, clip_low=0.3 and 1 more)",
    ]
    assert notes == [
        "CartPole-v1: what else the groups of GRPO differ in is model.quantize; the table"
        " 'Settings that differ' has the values."
    ]


def test_labels_hold_the_settings_that_tell_every_group_apart() -> None:
    # the first three in order are the same in the last two groups
    common = {"algo.lr": 0.2, "algo.clip_low": 0.3, "algo.kl.coefficient": 1.0}
    labels, _ = labelled({}, common, {**common, "rollout.staleness": 2})
    assert labels == [
        "GRPO (lr=0.1, clip_low=0.2, staleness=0 and 1 more)",
        "GRPO (lr=0.2, clip_low=0.3, staleness=0 and 1 more)",
        "GRPO (lr=0.2, clip_low=0.3, staleness=2 and 1 more)",
    ]


def test_more_than_three_settings_stand_in_labels_where_it_takes_them() -> None:
    keys = ("algo.lr", "algo.clip_low", "algo.kl.coefficient", "rollout.staleness")
    labels, notes = labelled({}, *({key: 9} for key in keys))
    assert len(set(labels)) == 5
    assert "#" not in "".join(labels)
    assert labels[4] == "GRPO (lr=0.1, clip_low=0.2, kl.coefficient=0, staleness=9)"
    assert notes == []


def test_seeds_of_one_thing_keep_one_label() -> None:
    same = {"seed": 3, "save.rollouts": True, "algo._target_": "moved.GRPO", "objects.env": []}
    assert labelled({}, same)[0] == ["GRPO", "GRPO"]
    assert labelled({}, {"objects.rewards": ["mine"]})[0][1] == "GRPO (rewards=['mine'])"


def test_runs_named_alike_stay_together_and_every_difference_is_named() -> None:
    changed = {"algo.lr": 0.2, "algo.clip_low": 0.3, "algo.kl.coefficient": 1.0}
    labels, notes = labelled({}, {**changed, "rollout.staleness": 2}, named=True)
    assert labels == ["GRPO", "GRPO"]
    assert notes == [
        "The runs named GRPO on CartPole-v1 differ in algo.lr, algo.clip_low, algo.kl.coefficient,"
        " rollout.staleness: they are one group because you named them so."
    ]


def test_values_that_look_alike_are_numbered_and_long_ones_cut() -> None:
    assert labelled({"algo.lr": 0.10000001}, {"algo.lr": 0.1})[0] == [
        "GRPO (lr=0.1)",
        "GRPO (lr=0.1) #2",
    ]
    long = f"/home/{'x' * 40}/data.jsonl"
    labels, _ = labelled({"env.path": long}, {"env.path": "y" * 50})
    assert labels == ["GRPO (env.path=…/data.jsonl)", f"GRPO (env.path={'y' * 39}…)"]
