"""Text rollouts: the batch's schema, rewards, the prompt stream, resuming and evaluation."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from small_models import Sums, make_batch, make_policy, make_tokenizer

from zoo.core.batch import check
from zoo.core.protocols import Scores
from zoo.errors import UserError
from zoo.policies.language import LanguagePolicy
from zoo.policies.text_codec import TextCodec
from zoo.rollouts.hf import HFSampler
from zoo.rollouts.invariants import first_step, said
from zoo.rollouts.prompt_stream import PromptStream
from zoo.rollouts.text import TextRollout
from zoo.rollouts.text_evaluation import clustered_ci95, pass_at_k


def make_rollout(env: Sums | None = None, **settings: Any) -> TextRollout:
    options = {"group_size": 4, "prompts": 3, "max_new_tokens": 12, "seed": 5, **settings}
    return TextRollout(env or Sums(), HFSampler(), **options)


@pytest.fixture(scope="module")
def policy() -> LanguagePolicy:
    return make_policy()


def test_batch_keeps_the_schema(policy: LanguagePolicy) -> None:
    batch = check(make_rollout().collect(policy))
    assert batch.batch_size == torch.Size([12])
    assert batch["group"].tolist() == [0] * 4 + [1] * 4 + [2] * 4
    steps = torch.arange(batch["action"].shape[1])
    n = batch["completion_length"]
    assert torch.equal(batch["mask"], steps < n[:, None])
    ended = torch.isin(batch["action"][torch.arange(12), n - 1], torch.tensor([1]))
    last = steps == (n - 1)[:, None]
    assert torch.equal(batch["terminated"], last & ended[:, None])
    assert torch.equal(batch["truncated"], last & ~ended[:, None])
    assert (batch["reward"][~last] == 0).all()
    items = batch["reward_items"]
    torch.testing.assert_close(batch["reward"].sum(1), items["digits"] + items["accuracy"])
    assert (batch["log_prob"][batch["mask"]] < 0).all()
    for row in batch:
        ids = row["prompt_ids"][-int(row["prompt_length"]) :].tolist()
        assert policy.codec.decode(ids).endswith("=\n")


def test_groups_are_numbered_on(policy: LanguagePolicy) -> None:
    rollout = make_rollout()
    rollout.collect(policy)
    assert rollout.collect(policy)["group"].unique().tolist() == [3, 4, 5]


def test_a_failed_reward_takes_its_row_out(policy: LanguagePolicy) -> None:
    rollout = make_rollout(Sums(failing=(2, 7)))
    batch = rollout.collect(policy)
    assert batch["mask"].any(1).nonzero().squeeze(-1).tolist() == [0, 1, 3, 4, 5, 6, 8, 9, 10, 11]
    assert batch["reward"].isfinite().all()
    assert batch["reward_items", "digits"].isnan().nonzero().squeeze(-1).tolist() == [2, 7]
    metrics = rollout.report().metrics
    assert metrics["reward/failed/digits"] == 2
    valid = batch["reward"].sum(1)[batch["mask"].any(1)]
    assert metrics["reward/mean"] == pytest.approx(float(valid.mean()))


def test_figures_and_records(policy: LanguagePolicy) -> None:
    rollout = make_rollout(records=5)
    batch = rollout.collect(policy)
    report = rollout.report()
    total = batch["reward"].sum(1).view(3, 4)
    expected = (total.max(1).values > total.min(1).values).float().mean()
    assert report.metrics["group/live_fraction"] == pytest.approx(float(expected))
    deviation = total.std(1, correction=0).mean()
    assert report.metrics["reward/group_std"] == pytest.approx(float(deviation))
    length = batch["completion_length"].float()
    assert report.metrics["completion/length_mean"] == pytest.approx(float(length.mean()))
    assert report.metrics["completion/length_max"] == float(length.max())
    cut = batch["truncated"].any(1).float().mean()
    assert report.metrics["completion/truncated"] == pytest.approx(float(cut))
    assert report.metrics["sampler/log_prob_gap_max"] < 1e-4
    assert report.metrics["check/ratio_deviation"] < 1e-5
    assert len(report.records) == 5
    assert {r["group"] for r in report.records} == {0, 1, 2}
    for row in report.records:
        assert row["reward"] == pytest.approx(sum(row["items"].values()))
    rollout.collect(policy)
    assert "check/ratio_deviation" not in rollout.report().metrics  # the first step only


def test_equal_rewards_are_no_live_group(policy: LanguagePolicy) -> None:
    class Same(Sums):
        def score(self, prompts: Any, completions: Any) -> Any:
            scores = super().score(prompts, completions)
            scores.total = [0.1] * 4 + [0.35] * 4 + [1.0, 1.0, 1.0, 0.0]
            return scores

    rollout = make_rollout(Same())
    rollout.collect(policy)
    assert rollout.report().metrics["group/live_fraction"] == pytest.approx(1 / 3)


def test_golden_27_training_refuses_filters() -> None:
    with pytest.raises(UserError, match="importance ratio"):
        make_rollout(top_p=0.9)


def test_golden_36_the_prompt_stream_resumes_across_an_epoch() -> None:
    whole = PromptStream(7, seed=3)
    expected = [whole.take(3) for _ in range(8)]
    for cut in range(9):
        first = PromptStream(7, seed=3)
        seen = [first.take(3) for _ in range(cut)]
        second = PromptStream(7, seed=3)
        second.load_state_dict(copy.deepcopy(first.state_dict()))
        assert seen + [second.take(3) for _ in range(8 - cut)] == expected
    flat = [i for part in expected for i in part]
    assert sorted(flat[:7]) == sorted(flat[7:14]) == list(range(7))
    assert flat[:7] != flat[7:14]
    assert PromptStream(7, seed=4).take(7) != flat[:7]


def test_golden_36_a_resumed_rollout_samples_the_same(policy: LanguagePolicy) -> None:
    rollout = make_rollout(Sums(count=5))
    batches = [rollout.collect(policy) for _ in range(4)]  # 12 prompts of 5: past two epochs
    first = make_rollout(Sums(count=5))
    for _ in range(2):
        first.collect(policy)
    second = make_rollout(Sums(count=5))
    second.load_state_dict(first.state_dict())
    for expected in batches[2:]:
        resumed = second.collect(policy)
        for key in ("prompt_ids", "action", "log_prob", "reward", "group"):
            assert torch.equal(resumed[key], expected[key])
    third = make_rollout(Sums(count=6))
    third.load_state_dict(first.state_dict())
    with pytest.raises(UserError, match="5 training prompts"):
        third.collect(policy)


def test_evaluation_leaves_training_alone(policy: LanguagePolicy) -> None:
    plain = make_rollout()
    plain.collect(policy)
    expected = plain.collect(policy)
    other = make_rollout()
    other.collect(policy)
    torch.manual_seed(9)
    state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()
    a = other.evaluate(policy, prompts=4, samples=2, seed=1)
    assert torch.equal(torch.get_rng_state(), state)
    assert (np.random.get_state()[1] == numpy_state).all()
    assert torch.equal(other.collect(policy)["action"], expected["action"])
    assert other.evaluate(policy, prompts=4, samples=2, seed=1) == a


def test_evaluation_figures(policy: LanguagePolicy) -> None:
    env = Sums()
    rollout = make_rollout(env)
    result = rollout.evaluate(policy, prompts=None, samples=3, k=2)
    assert env.scored == 10 + 30
    assert result["n"] == 10
    assert result["k"] == 2
    assert set(result) >= {
        "accuracy_strict",
        "accuracy_lenient",
        "accuracy_ci95",
        "pass_at_k",
        "greedy_strict",
        "greedy_lenient",
        "accuracy_lenient_ci95",
        "pass_at_k_ci95",
        "greedy_strict_ci95",
        "greedy_lenient_ci95",
        "length_mean",
        "truncated",
    }
    assert result["pass_at_k"] >= result["accuracy_strict"]
    assert rollout.outcomes is not None
    assert len(set(rollout.outcomes["prompts"])) == 10
    for name, each in rollout.outcomes["values"].items():
        assert result[name] == pytest.approx(np.mean(each))
        width = result["accuracy_ci95" if name == "accuracy_strict" else f"{name}_ci95"]
        assert width == pytest.approx(clustered_ci95(np.array(each)))
    assert rollout.evaluate(policy, prompts=6, samples=0)["n"] == 6
    with pytest.raises(UserError, match="k=5"):
        rollout.evaluate(policy, samples=4, k=5)


def test_pass_at_k_is_the_unbiased_estimator() -> None:
    assert pass_at_k(0, 8, 4) == 0.0
    assert pass_at_k(8, 8, 1) == 1.0
    assert pass_at_k(2, 8, 1) == 0.25
    assert pass_at_k(1, 4, 2) == 0.5  # 3 of the 6 pairs hold the right one
    assert pass_at_k(5, 8, 4) == 1.0  # only 3 are wrong


def test_interval_counts_prompts_not_samples() -> None:
    means = np.array([0.0, 1.0, 0.5, 0.5])
    assert clustered_ci95(means) == pytest.approx(1.959964 * math.sqrt(1 / 6) / 2)
    # All wrong on 10 prompts: Wilson's upper end is z²/(n + z²) = .2775, half of it.
    assert clustered_ci95(np.zeros(10)) == pytest.approx(0.2775 / 2, abs=1e-4)


def test_long_prompts_are_refused_or_left_out(policy: LanguagePolicy) -> None:
    class Mixed(Sums):
        def prompts(self, split: Any) -> Any:
            found = super().prompts(split)
            for i in (1, 4):
                found[i].messages[0]["content"] = "1" * (30 + i)
            return found

    with pytest.raises(UserError, match=r"2 of 10 train prompts.*=20 tokens, the longest 35"):
        make_rollout(Mixed(), max_prompt_tokens=20).collect(policy)
    rollout = make_rollout(Mixed(), max_prompt_tokens=20, truncation="filter", prompts=8)
    assert int(rollout.collect(policy)["prompt_length"].max()) <= 20
    assert any("left out" in n for n in rollout.report().notices)
    rollout.collect(policy)
    assert not rollout.report().notices
    with pytest.raises(UserError, match="10 of 10"):
        make_rollout(max_prompt_tokens=2, truncation="filter").collect(policy)


def test_enjoy_shows_held_out_completions(policy: LanguagePolicy) -> None:
    rows = list(make_rollout().enjoy(policy, prompts=2))
    assert len(rows) == 2
    assert all(row["id"].startswith("heldout/") for row in rows)
    assert set(rows[0]) == {"id", "prompt", "completion", "answer", "rewards"}


def test_first_step_refuses_a_random_forward(policy: LanguagePolicy) -> None:
    batch = make_rollout().collect(policy)
    noisy = make_policy("gpt2")
    noisy.model.transformer.drop.p = 0.5
    with pytest.raises(UserError, match="random or keeps state"):
        first_step(noisy, batch)


def test_first_step_refuses_two_beginning_tokens() -> None:
    policy = make_policy()
    policy.codec.tokenizer = make_tokenizer(bos="<begin>")
    policy.codec.bos_id = 2
    policy.codec._adds_bos = True
    batch = make_rollout().collect(policy)
    assert first_step(policy, batch)["sampler/log_prob_gap_max"] < 1e-4
    width = batch["prompt_ids"].shape[1]
    first = width - batch["prompt_length"]
    batch["prompt_ids"][torch.arange(12), first + 1] = 2
    with pytest.raises(UserError, match="starts with 2 beginning tokens"):
        first_step(policy, batch)
    batch["prompt_ids"][torch.arange(12), first] = 9
    with pytest.raises(UserError, match="starts with 0 beginning tokens"):
        first_step(policy, batch)


def test_the_first_round_says_its_invariants_and_what_looks_wrong() -> None:
    from zoo.rollouts.invariants import said

    class Policy:
        codec = TextCodec(make_tokenizer(bos="<begin>"))

        def computed_dtype(self) -> torch.dtype:
            return torch.float32

        def sampling_dtype(self) -> torch.dtype:
            return torch.float32

    good = {
        "check/ratio_deviation": 0.0,
        "sampler/log_prob_gap_mean": 1e-6,
        "sampler/log_prob_gap_max": 1e-5,
        "group/live_fraction": 0.75,
    }
    with_bos = make_batch([[2, 9], [2, 8]], [(0, [5]), (1, [5])])
    without = make_batch([[9, 9], [8, 8]], [(0, [5]), (1, [5])])
    (only,) = said(Policy(), with_bos, good)  # type: ignore[arg-type]
    assert "max |ratio − 1| 0.0e+00" in only and "one BOS per prompt" in only and "75%" in only
    (only,) = said(Policy(), without, good)  # type: ignore[arg-type]
    assert "no BOS in the prompts" in only
    bad = {**good, "sampler/log_prob_gap_mean": 1e-3, "group/live_fraction": 0.05}
    _, gap, live = said(Policy(), with_bos, bad)  # type: ignore[arg-type]
    assert "more than rounding explains in float32" in gap
    assert "only 5% of the groups" in live
    del good["group/live_fraction"]  # groups of one
    (only,) = said(Policy(), with_bos, good)  # type: ignore[arg-type]
    assert "groups" not in only


def test_groups_of_one_have_no_live_fraction_and_no_warning(policy: LanguagePolicy) -> None:
    rollout = make_rollout(group_size=1)
    rollout.collect(policy)
    assert "group/live_fraction" not in rollout.report().metrics
    assert not any("warning" in notice for notice in rollout.report().notices)


def test_the_notice_counts_what_is_really_left_out(policy: LanguagePolicy) -> None:
    class OnlyLogged(Sums):
        def score(self, prompts: Any, completions: Any) -> Any:
            scores = super().score(prompts, completions)
            scores.total = [float(i) for i in range(len(completions))]
            scores.errors = ["the traceback"]
            return scores

    rollout = make_rollout(Sums(failing=(2, 7)))
    rollout.collect(policy)
    (notice,) = [n for n in rollout.report().notices if "failed" in n]
    assert "of 12 completions, rewards failed: 'digits' on 2; 2 are left out" in notice
    rollout = make_rollout(OnlyLogged(failing=(2, 7)))
    assert rollout.collect(policy)["mask"].any(1).all()
    (notice,) = [n for n in rollout.report().notices if "failed" in n]
    assert "'digits' on 2; all of them are trained on" in notice
    assert rollout.report().errors == ["the traceback"]


def test_a_failed_grading_is_null_in_the_records_and_counted_in_evaluation(
    policy: LanguagePolicy,
) -> None:
    class Ungraded(Sums):
        def score(self, prompts: Any, completions: Any) -> Any:
            scores = super().score(prompts, completions)
            scores.grades["accuracy_strict"] = [math.nan, *[1.0] * (len(completions) - 1)]
            return scores

    rollout = make_rollout(Ungraded(), records=12)
    rollout.collect(policy)
    assert rollout.report().metrics["train/accuracy_strict"] == 1.0
    recorded = [row["accuracy_strict"] for row in rollout.report().records]
    assert recorded.count(None) == 1
    result = rollout.evaluate(policy, prompts=2, samples=2, greedy=False)
    assert result["failed"] == 0.25
    assert result["accuracy_strict"] == 0.75


def test_evaluation_grades_without_rewards_where_the_environment_can(
    policy: LanguagePolicy,
) -> None:
    class Graded(Sums):
        def grade(self, prompts: Any, completions: Any) -> Scores:
            right = [1.0] * len(completions)
            grades = {"accuracy_strict": right, "accuracy_lenient": right}
            return Scores([0.0] * len(completions), {}, grades=grades)

    env = Graded()
    assert make_rollout(env).evaluate(policy, prompts=3, samples=2)["accuracy_strict"] == 1.0
    assert env.scored == 0


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda s: 3.0, "score() returned a float"),
        (
            lambda s: replace(s, grades={"accuracy_strict": s.total}),
            "no grades['accuracy_lenient']",
        ),
        (lambda s: replace(s, total=s.total[:-1]), "11 numbers in total"),
        (lambda s: replace(s, total=[None] * 12), "None in total"),
        (lambda s: replace(s, items={"digits": [1.0]}), "1 numbers in items['digits']"),
        (lambda s: replace(s, grades={**s.grades, "accuracy_strict": 1.0}), "1.0, not a list"),
    ],
)
def test_what_an_own_environment_returns_is_checked(
    policy: LanguagePolicy, change: Any, sentence: str
) -> None:
    class Own(Sums):
        def score(self, prompts: Any, completions: Any) -> Any:
            return change(super().score(prompts, completions))

    with pytest.raises(UserError) as caught:
        make_rollout(Own()).collect(policy)
    assert sentence in str(caught.value)
    assert "env=sums" in str(caught.value) and "must return zoo.core.protocols.Scores" in str(
        caught.value
    )


@pytest.mark.parametrize(
    "options",
    [
        {"prompts": 0}, {"prompts": 1.5}, {"prompts": True}, {"samples": -1}, {"seed": -1},
        {"seed": 2**63}, {"temperature": 0}, {"temperature": math.nan}, {"temperature": "hot"},
        {"top_p": 0.0}, {"top_p": 1.5}, {"top_p": math.nan}, {"top_k": -1}, {"k": 1.5},
    ],
)  # fmt: skip
def test_options_of_evaluation_that_make_no_sense_are_refused(
    policy: LanguagePolicy, options: dict[str, Any]
) -> None:
    (name,) = options
    with pytest.raises(UserError, match=f"evaluation: {name} must be"):
        make_rollout().evaluate(policy, **options)
    if name in ("prompts", "seed"):
        with pytest.raises(UserError, match=f"evaluation: {name} must be"):
            next(make_rollout().enjoy(policy, **options))


def test_how_many_rows_are_sampled_together_is_a_setting(policy: LanguagePolicy) -> None:
    rollout = make_rollout(max_rows=4)
    assert rollout.sampler.max_rows == 4  # type: ignore[attr-defined]
    assert len(rollout.collect(policy)) == 12
    with pytest.raises(UserError, match="max_rows must be ≥ 1"):
        make_rollout(max_rows=0)


def test_a_reward_that_always_fails_ends_the_run_and_one_that_recovers_does_not(
    policy: LanguagePolicy,
) -> None:
    broken = Sums(failing=range(4))
    rollout = make_rollout(broken, prompts=1, max_new_tokens=2)
    for _ in range(9):
        rollout.collect(policy)
    broken.failing = ()
    rollout.collect(policy)  # a reward at last: the count begins again
    broken.failing = range(4)
    for _ in range(9):
        assert not rollout.collect(policy)["mask"].any()
    with pytest.raises(UserError, match="no completion of the last 10 updates got a reward"):
        rollout.collect(policy)


def test_a_short_run_whose_rewards_always_failed_has_failed_and_says_why(
    policy: LanguagePolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Telling(Sums):
        def score(self, prompts: Any, completions: Any) -> Scores:
            error = "reward 'digits' on completion 0, prompt train/3 (ValueError): Traceback …"
            scores = super().score(prompts, completions)
            return replace(scores, errors=[f"{error}\n  line 7\nValueError: no file"])

    monkeypatch.setattr(policy, "total", 2, raising=False)  # the run's budget, as the Trainer says

    def new(failing: Any) -> TextRollout:
        return make_rollout(Telling(failing=failing), prompts=1, max_new_tokens=2)

    rollout = new(range(4))
    rollout.collect(policy)
    resumed = new(range(4))
    resumed.load_state_dict(rollout.state_dict())
    why = (
        r"no completion of this run \(2 updates\) got a reward: .* nothing was learned. The first"
        r" failure: reward 'digits' on completion 0, prompt train/3: ValueError: no file$"
    )
    for each in (rollout, resumed):
        with pytest.raises(UserError, match=why) as raised:
            each.collect(policy)
        assert "line 7" in raised.value.traceback  # type: ignore[attr-defined]
    paid_once = new(range(3))
    paid_once.collect(policy)
    paid_once.env.failing = range(4)  # type: ignore[attr-defined]
    assert not paid_once.collect(policy)["mask"].any()


def test_a_first_batch_that_teaches_nothing_is_told_without_a_figure(
    policy: LanguagePolicy,
) -> None:
    batch = make_rollout().collect(policy)
    names = ("check/ratio_deviation", "sampler/log_prob_gap_mean", "sampler/log_prob_gap_max")
    figures = dict.fromkeys(names, 0.0)
    none = said(policy, batch, {**figures, "group/live_fraction": 0.0})
    assert none[-1].startswith(
        "warning: no group of this batch has unequal rewards, and it teaches"
    )
    few = said(policy, batch, {**figures, "group/live_fraction": 0.05})
    assert few[-1].startswith("warning: only 5% of the groups have unequal rewards, and the others")
    assert len(said(policy, batch, {**figures, "group/live_fraction": 0.1})) == 1
