"""Dynamic sampling: which groups make up a batch, what is left over, and what is said."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import Sums, make_policy
from tensordict import TensorDict

from zoo.core.protocols import Scores
from zoo.policies.language import LanguagePolicy
from zoo.rollouts.hf import HFSampler
from zoo.rollouts.refill import Refill, RefillKnobs, informative, join
from zoo.rollouts.text import TextRollout

DEAD, LIVE, RIGHT = [0.0, 0.0], [1.0, 0.0], [1.0, 1.0]


def rows(
    first: int,
    values: Sequence[Sequence[float]],
    *,
    total: Sequence[Sequence[float]] | None = None,
    item: str | None = "accuracy",
    length: int = 3,
    version: int = 0,
) -> TensorDict:
    """Groups numbered from ``first`` on, with that accuracy and (by default the same) reward."""
    flat = torch.tensor([x for group in values for x in group])
    paid = flat if total is None else torch.tensor([x for group in total for x in group])
    count, size = len(flat), len(values[0])
    live = torch.ones(count, length, dtype=torch.bool) & paid.isfinite()[:, None]
    reward = torch.zeros(count, length)
    reward[:, -1] = paid.nan_to_num(0.0)
    group = torch.arange(first, first + len(values)).repeat_interleave(size)
    return TensorDict(
        {
            "prompt_ids": group[:, None].expand(count, 2 + length % 2).clone(),
            "action": group[:, None].expand(count, length).clone(),
            "reward": reward,
            "mask": live,
            "group": group,
            "version": torch.full((count,), version),
            "completion_length": torch.full((count,), length),
            "reward_items": TensorDict({item: flat} if item else {}, batch_size=[count]),
        },
        batch_size=[count],
    )


class Prompts:
    """An endless stream of groups, given by their accuracies in the order of dispatch."""

    def __init__(self, pattern: Callable[[int], Sequence[float]], **settings: Any) -> None:
        self.pattern, self.settings, self.next = pattern, settings, 0
        self.asked: list[int] = []

    def __call__(self, count: int) -> TensorDict:
        self.asked.append(count)
        first, self.next = self.next, self.next + count
        values = [self.pattern(i) for i in range(first, self.next)]
        return rows(first, values, length=2 + first % 3, **self.settings)


def groups(batch: TensorDict) -> list[int]:
    return batch["group"].unique_consecutive().tolist()


def test_without_rounds_every_group_is_kept() -> None:
    refill, prompts = Refill(RefillKnobs(), 3), Prompts(lambda i: DEAD)
    assert groups(refill.collect(prompts)) == [0, 1, 2]
    assert refill.metrics == {} and refill.notices == []


def test_dead_groups_are_replaced_until_the_batch_is_full() -> None:
    refill, prompts = Refill(RefillKnobs(rounds=5), 4), Prompts(lambda i: [LIVE, DEAD][i % 2])
    batch = refill.collect(prompts)
    # 4 prompts: 0 and 2 teach; 2 missing at a rate of ½ asks for 4 more: 4 and 6
    assert prompts.asked == [4, 4]
    assert groups(batch) == [0, 2, 4, 6]
    assert len(batch) == 8
    assert refill.metrics == {
        "refill/rounds": 2,
        "refill/sampled": 8,
        "refill/dropped": 4,
        "refill/kept": 4,
        "refill/from_before": 0,
        "refill/left_over": 0,
    }
    assert refill.notices == []


def test_left_over_groups_open_the_next_batch_with_the_version_that_made_them() -> None:
    prompts = Prompts(lambda i: DEAD if i < 3 else LIVE)
    refill = Refill(RefillKnobs(rounds=5), 4)
    assert groups(refill.collect(prompts)) == [3, 4, 5, 6]
    assert prompts.asked == [4, 4]  # 3 missing at a rate of ¼ would be 12: a batch at most
    assert refill.metrics["refill/left_over"] == 1
    prompts.settings["version"] = 9
    batch = refill.collect(prompts)
    assert prompts.asked == [4, 4, 3]
    assert groups(batch) == [7, 8, 9, 10]
    assert batch["version"].tolist() == [0, 0] + [9] * 6
    assert refill.metrics["refill/from_before"] == 1
    assert refill.metrics["refill/left_over"] == 0


@settings(max_examples=60, deadline=None)
@given(
    live=st.lists(st.booleans(), min_size=8, max_size=60),
    size=st.integers(1, 6),
    rounds=st.integers(1, 6),
)
def test_golden_35_no_informative_group_is_lost_repeated_or_reordered(
    live: list[bool], size: int, rounds: int
) -> None:
    """So that how long an answer takes has no part in whether it is accepted."""
    refill = Refill(RefillKnobs(rounds=rounds), size)
    prompts = Prompts(lambda i: LIVE if live[i % len(live)] else DEAD)
    seen: list[int] = []
    for _ in range(6):
        asked = len(prompts.asked)
        batch = refill.collect(prompts)
        assert 1 <= len(prompts.asked) - asked <= rounds
        assert max(prompts.asked) <= size
        assert len(groups(batch)) <= size
        if refill.metrics["refill/kept"]:
            assert len(groups(batch)) == refill.metrics["refill/kept"]
            seen += groups(batch)
        assert refill.metrics["refill/left_over"] < size
    every = [i for i in range(prompts.next) if live[i % len(live)]]
    assert seen == every[: len(seen)]
    assert len(every) - len(seen) == refill.metrics["refill/left_over"]


@pytest.mark.parametrize(
    ("values", "item", "side"),
    [
        (DEAD, "accuracy", "too hard for this model"),
        (RIGHT, "accuracy", "too easy for this model"),
        (DEAD, None, "too hard or too easy for this model, or the reward never pays"),
    ],
)
def test_golden_34_data_without_an_informative_group_are_trained_on_and_said_once(
    values: list[float], item: str | None, side: str
) -> None:
    refill, prompts = Refill(RefillKnobs(rounds=3), 4), Prompts(lambda i: values, item=item)
    batch = refill.collect(prompts)
    assert prompts.asked == [4, 4, 4]  # bounded
    assert groups(batch) == [0, 1, 2, 3]
    (notice,) = refill.notices
    assert "found 0 informative groups of the 4 wanted in 3 rounds (12 prompts)" in notice
    assert side in notice
    assert refill.metrics["refill/kept"] == refill.metrics["refill/left_over"] == 0
    assert groups(refill.collect(prompts)) == [12, 13, 14, 15]
    assert refill.notices == []


def test_golden_34_a_batch_that_is_not_filled_holds_what_there_is() -> None:
    refill, prompts = (
        Refill(RefillKnobs(rounds=2), 4),
        Prompts(lambda i: [LIVE, *[DEAD] * 5][i % 6]),
    )
    assert groups(refill.collect(prompts)) == [0, 6]
    assert "found 2 informative groups of the 4 wanted in 2 rounds (8 prompts)" in refill.notices[0]


def test_accuracy_decides_and_not_the_total() -> None:
    # the format item differs in the first group and is all that differs
    batch = rows(0, [DEAD, LIVE], total=[[0.1, 0.0], [0.5, 0.5]])
    assert informative(batch).tolist() == [False, False, True, True]


def test_golden_31_without_an_accuracy_item_the_total_decides_whatever_its_rounding() -> None:
    a = torch.tensor(0.6)
    b = torch.nextafter(a, torch.tensor(1.0))  # the same items in another order
    batch = rows(0, [[float(a), float(b)], [0.35, 0.35], [0.35, 0.36], [0.0, 1e-9]], item=None)
    assert informative(batch).tolist() == [False] * 4 + [True] * 4


def test_a_failed_reward_makes_no_group_informative_and_stays_with_its_own() -> None:
    nan = float("nan")
    batch = rows(
        0,
        [[1.0, 0.0, 0.0], [1.0, 1.0, 0.0], [1.0, nan, nan]],
        total=[[nan, 0.0, 0.0], [1.0, nan, 0.0], [1.0, nan, nan]],
    )
    assert informative(batch).view(3, 3)[:, 0].tolist() == [False, True, False]
    assert informative(batch)[3:6].all()
    assert not batch["mask"][4].any()


def test_an_accuracy_that_failed_is_not_compared_though_its_row_was_paid() -> None:
    batch = rows(0, [[1.0, float("nan"), 0.0]], total=[[0.5, 0.5, 0.5]])
    assert informative(batch).all()


def test_joined_rows_keep_their_tokens() -> None:
    short, long = rows(0, [LIVE], length=2), rows(1, [LIVE], length=5)
    both = join([short, long])
    assert both["action"].tolist() == [[0, 0, 0, 0, 0]] * 2 + [[1] * 5] * 2
    assert both["mask"].tolist() == [[True, True, False, False, False]] * 2 + [[True] * 5] * 2
    assert both["prompt_ids"].tolist() == [[0, 0, 0]] * 2 + [[1, 1, 1]] * 2
    short["prompt_ids"] += 7
    assert join([short, long])["prompt_ids"][0].tolist() == [0, 7, 7]  # padded in front
    assert both["reward_items", "accuracy"].tolist() == [1.0, 0.0] * 2


def test_a_resumed_refill_goes_on_with_what_was_left_over() -> None:
    def pattern(i: int) -> list[float]:
        return DEAD if i in (0, 1, 2, 8) else LIVE

    whole, prompts = Refill(RefillKnobs(rounds=4), 5), Prompts(pattern)
    whole.collect(prompts)
    assert whole.metrics["refill/left_over"] > 0
    state, place = copy.deepcopy(whole.state_dict()), prompts.next
    expected = whole.collect(prompts)
    resumed, rest = Refill(RefillKnobs(rounds=4), 5), Prompts(pattern)
    rest.next = place
    resumed.load_state_dict(state)
    found = resumed.collect(rest)
    for key in ("group", "action", "reward", "version", "mask"):
        assert torch.equal(found[key], expected[key])
    assert resumed.metrics == whole.metrics


# With a language model.


class Parity(Sums):
    """Accurate where the completion is of even length: groups of every kind come up."""

    def score(self, prompts: Any, completions: Any) -> Scores:
        scores = super().score(prompts, completions)
        right = [float(len(c.token_ids) % 3 == 0) for c in completions]
        scores.items = {"accuracy": right}
        scores.total = right
        scores.grades = {"accuracy_strict": right, "accuracy_lenient": right}
        return scores


@pytest.fixture(scope="module")
def policy() -> LanguagePolicy:
    return make_policy()


def make_rollout(**settings: Any) -> TextRollout:
    options = {"group_size": 2, "prompts": 4, "max_new_tokens": 12, "seed": 5, **settings}
    knobs = RefillKnobs(rounds=4)
    return TextRollout(Parity(count=7), HFSampler(), refill=knobs, **options)


def test_a_batch_of_informative_groups_and_figures_of_all_that_was_sampled(
    policy: LanguagePolicy,
) -> None:
    rollout = make_rollout()
    batch, metrics = rollout.collect(policy), rollout.report().metrics
    right = batch["reward_items", "accuracy"].view(-1, 2)
    assert (right[:, 0] != right[:, 1]).all() and len(right) == 4
    assert metrics["refill/sampled"] > 4
    dead = metrics["group/all_right"] + metrics["group/all_wrong"]
    assert metrics["group/live_fraction"] + dead == pytest.approx(1.0)
    assert dead == pytest.approx(metrics["refill/dropped"] / metrics["refill/sampled"])
    assert metrics["reward/mean"] != 0.5  # of a batch that was selected it would be
    assert {"completion/length_right", "completion/length_wrong"} <= set(metrics)
    assert rollout.env.scored == 2 * metrics["refill/sampled"]  # type: ignore[attr-defined]


def test_golden_36_resuming_with_groups_left_over_is_exact(policy: LanguagePolicy) -> None:
    """Across the epoch's end of 7 prompts too."""
    whole = make_rollout()
    states, batches, left = [], [], []
    for _ in range(6):
        states.append(copy.deepcopy(whole.state_dict()))
        batches.append(whole.collect(policy))
        left.append(whole.report().metrics["refill/left_over"])
    cut = next(i for i in range(1, 5) if left[i - 1] > 0)
    resumed = make_rollout()
    resumed.load_state_dict(states[cut])
    for expected in batches[cut:]:
        found = resumed.collect(policy)
        assert set(found.keys()) == set(expected.keys())
        for key in ("prompt_ids", "action", "log_prob", "reward", "group", "version", "mask"):
            assert torch.equal(found[key], expected[key]), key
