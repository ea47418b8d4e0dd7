"""Rows in which an environment speaks too: what is sampled, masked, learned from and reported."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from dialogues import CHAT, Echo, Scripted
from small_models import make_batch, make_model, make_tokenizer
from tensordict import TensorDict

from zoo.algorithms.grpo import GRPO, GRPOKnobs
from zoo.algorithms.ppo import PPO, PPOKnobs
from zoo.core.batch import check
from zoo.core.learner import Learner
from zoo.errors import UserError
from zoo.functional.reduce import aggregate, denominators
from zoo.plugins import KL, Entropy, EntropyKnobs, KLKnobs
from zoo.policies.language import LanguageKnobs, LanguagePolicy
from zoo.rollouts.asynchronous import AsynchronousRollout
from zoo.rollouts.dialogue import transcript
from zoo.rollouts.hf import HFSampler
from zoo.rollouts.refill import RefillKnobs
from zoo.rollouts.text import TextRollout

KEYS = ("prompt_ids", "action", "log_prob", "reward", "mask", "own", "truncated", "group")


def talker(name: str = "qwen3", critic: bool = False) -> LanguagePolicy:
    """A random model with the game's template, which ends its turns often."""
    model = make_model(name)
    return LanguagePolicy(
        model,
        make_tokenizer(template=CHAT),
        LanguageKnobs(sampling_dtype="float32", temperature=3.0),
        critic=critic,
    )


def make_rollout(env: Any = None, sampler: Any = None, **settings: Any) -> TextRollout:
    options = {"group_size": 4, "prompts": 3, "max_new_tokens": 40, "seed": 5, **settings}
    return TextRollout(env or Echo(), sampler or HFSampler(), **options)


def scripted(texts: Sequence[Sequence[str]], max_turns: int = 3, **settings: Any) -> Any:
    policy = talker()
    sampler = Scripted(policy.codec, texts)
    options = {"group_size": len(texts), "prompts": 1, "seed": 0, **settings}
    rollout = make_rollout(Echo(max_turns), sampler, **options)
    return rollout, sampler, policy


def test_a_row_holds_both_sides_token_by_token() -> None:
    rollout, sampler, policy = scripted([["ab|", "c.|"], ["d.|"]], max_new_tokens=40)
    answered = rollout._answer(policy, 1)
    batch = check(rollout._batch(policy, answered, 1))
    # "ab<end>" is the policy's, "Q:1?\nA:" the environment's: the end stands there already
    reply = policy.codec.tokenizer("Q:1?\nA:")["input_ids"]
    expected = [*sampler.ids("ab|"), *reply, *sampler.ids("c.|")]
    assert batch["action"][0].tolist() == expected
    own = [True] * 3 + [False] * 7 + [True] * 3
    assert batch["own"].tolist() == [own, [True] * 3 + [False] * 10]
    assert torch.equal(batch["mask"], batch["own"])
    assert batch["completion_length"].tolist() == [13, 3]
    assert (batch["log_prob"] == torch.where(batch["own"], -0.5, 0.0)).all()
    assert batch["terminated"].nonzero().tolist() == [[0, 12], [1, 2]]
    assert not batch["truncated"].any()
    # the second turn was asked for with everything that stood before it, once
    (first, repeats, _), (second, one, left) = sampler.asked
    assert (repeats, one, left) == (2, 1, 40 - 10)
    assert second == [first[0] + expected[:10]]
    completion = answered.completions[0]
    assert completion.text == "ab\n\nc."
    assert completion.token_ids == [*sampler.ids("ab|"), *sampler.ids("c.|")]
    assert [(t.role, t.text) for t in completion.turns] == [
        ("assistant", "ab"),
        ("user", "1?"),
        ("assistant", "c."),
    ]
    assert sum((t.token_ids for t in completion.turns), []) == expected
    assert transcript(completion) == "[assistant] ab\n[user] 1?\n[assistant] c."


def test_the_reward_stands_on_the_last_own_token() -> None:
    rollout, _, policy = scripted([["12|", "3.|"]])
    batch = rollout._batch(policy, rollout._answer(policy, 1), 1)
    assert batch["reward"].nonzero().tolist() == [[0, 12]]
    assert float(batch["reward"].sum()) == 3.0  # digits of the policy's own: the 1? isn't counted


def test_what_ends_a_dialogue_and_what_cuts_it() -> None:
    texts = [["a|", "b|"], ["a|", "bcdefghijk"], ["abcdefghijk"], ["abcdef|"], ["a|", "bcde|"]]
    # 14 tokens: 2 + 7 + own. The fourth's reply would fill the row up; the fifth's end just fits.
    rollout, _, policy = scripted(texts, max_turns=2, max_new_tokens=14)
    answered = rollout._answer(policy, 1)
    batch = rollout._batch(policy, answered, 1)
    assert batch["completion_length"].tolist() == [11, 14, 11, 7, 14]
    assert batch["terminated"].any(1).tolist() == [True, False, False, False, True]
    assert batch["truncated"].any(1).tolist() == [False, True, True, True, False]
    assert [c.finished for c in answered.completions] == [True, False, False, False, True]
    assert (batch["terminated"] | batch["truncated"]).sum(1).tolist() == [1] * 5
    assert batch["own"].sum(1).tolist() == [4, 7, 11, 7, 7]


def test_a_turn_that_ended_beyond_its_rows_limit_is_cut() -> None:
    # 20 tokens: the first row has 7 left, the second 11, and both are asked for 11
    rollout, sampler, policy = scripted([["abcde|", "abcdefg|"], ["a|", "abcdefg|"]], 2)
    rollout.knobs = dataclasses.replace(rollout.knobs, max_new_tokens=20)
    answered = rollout._answer(policy, 1)
    assert sampler.asked[1][2] == 11
    assert [c.finished for c in answered.completions] == [False, True]
    assert answered.samples.length.tolist() == [20, 17]
    assert answered.completions[0].turns[-1].text == "abcdefg"


def test_a_dialogue_of_one_turn_is_not_answered() -> None:
    rollout, sampler, policy = scripted([["a|"]], max_turns=1)
    rollout._answer(policy, 1)
    assert len(sampler.asked) == 1 and not rollout.env.seen


def test_each_turn_is_the_same_under_a_limit_of_its_own() -> None:
    """Rows with less left than others are cut, which must not change what they say before."""
    policy = talker()
    wide = make_rollout(max_new_tokens=60).collect(policy)
    for key in ("action", "log_prob"):
        narrow = make_rollout(max_new_tokens=25).collect(policy)
        first = narrow["own"].long().cumprod(1).bool()  # first turns: one generator state for both
        width = first.shape[1]
        shared = first & wide["own"].long().cumprod(1).bool()[:, :width]
        assert torch.equal(narrow[key][shared], wide[key][:, :width][shared])


def test_a_real_sampler_talks_and_its_log_probs_are_the_trainers() -> None:
    policy = talker()
    rollout = make_rollout(records=12)
    batch = check(rollout.collect(policy))
    metrics = rollout.report().metrics
    assert metrics["dialogue/turns_mean"] > 1.2
    assert metrics["sampler/log_prob_gap_max"] < 1e-4
    trained = policy.log_prob(batch)
    own = batch["own"]
    torch.testing.assert_close(trained[own], batch["log_prob"][own], atol=1e-4, rtol=0)
    assert (trained[~own] == 0).all()
    length = own.sum(1).double()
    assert metrics["completion/length_mean"] == pytest.approx(float(length.mean()))
    assert metrics["completion/length_max"] == float(length.max())
    theirs = (batch["completion_length"] - length).mean()
    assert metrics["dialogue/environment_tokens_mean"] == pytest.approx(float(theirs))
    assert metrics["dialogue/row_tokens_max"] == float(batch["completion_length"].max()) <= 40
    record = next(r for r in rollout.report().records if "[user]" in r["completion"])
    assert record["completion"].startswith("[assistant] ")


def test_the_same_seed_says_the_same_and_a_resumed_rollout_goes_on() -> None:
    policy = talker()
    whole = make_rollout(refill=RefillKnobs(rounds=2))
    batches = [whole.collect(policy) for _ in range(3)]
    first = make_rollout(refill=RefillKnobs(rounds=2))
    first.collect(policy)
    second = make_rollout(refill=RefillKnobs(rounds=2))
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    for expected in batches[1:]:
        resumed = second.collect(policy)
        for key in KEYS:
            assert torch.equal(resumed[key], expected[key]), key


def test_sampling_ahead_holds_the_same_dialogues() -> None:
    policy = talker()
    plain = make_rollout()
    ahead = AsynchronousRollout(make_rollout(staleness=1), 1)
    for _ in range(3):
        one, other = plain.collect(policy), ahead.collect(policy)
        for key in KEYS:
            assert torch.equal(one[key], other[key]), key
    ahead.close()


def test_evaluation_and_enjoy_hold_dialogues() -> None:
    policy = talker()
    rollout = make_rollout()
    result = rollout.evaluate(policy, prompts=8, samples=4)
    assert result == rollout.evaluate(policy, prompts=8, samples=4)
    assert rollout.env.seen and 0 <= result["truncated"] <= 1
    shown = list(rollout.enjoy(policy, prompts=10, greedy=False))
    assert any("[user] 1?" in row["completion"] for row in shown)


# Learning.


def dialogue_batch(critic: bool = False) -> tuple[TensorDict, TensorDict]:
    """Two dialogues as rows, and their turns as rows of their own with all before as the prompt."""
    p, q, a, e, b, c = [5, 6, 7], [8, 9], [10, 11, 1], [20, 21, 22], [12, 13, 14, 1], [15, 16, 1]
    row = make_batch([p, q], [(0, a + e + b), (1, c)])
    own = row["mask"].clone()
    own[0, 3:6] = False
    row["own"] = row["mask"] = own
    row["advantage"] = torch.tensor([[0.7] * 10, [-0.4] * 10]) * own
    turns = make_batch([p, q, p + a + e], [(0, a), (1, c), (2, b)])
    turns["advantage"] = torch.tensor([[0.7] * 4, [-0.4] * 4, [0.7] * 4]) * turns["mask"]
    return row, turns


def spoil(batch: TensorDict) -> TensorDict:
    """Put NaN wherever an environment's token must not be looked at."""
    for key in ("advantage", "return", "value", "old_log_prob", "ref_log_prob", "importance"):
        if batch.get(key, None) is not None:
            batch[key] = batch[key].masked_fill(~batch["own"], torch.nan)
    return batch


def gradient(algorithm: Any, plugins: Any, batch: TensorDict) -> tuple[dict[str, Any], Any]:
    learner = Learner(algorithm, plugins, algorithm.knobs, max_length=40)
    learner.optimizer.clear = lambda: None
    metrics = learner.update(batch)
    found = {n: p.grad for n, p in algorithm.policy.named_parameters() if p.grad is not None}
    return found, metrics


@pytest.mark.parametrize("name", ["qwen3", "gpt2", "gemma2"])
def test_the_gradient_is_that_of_turns_with_what_came_before_as_context(name: str) -> None:
    rows, turns = dialogue_batch()
    found = []
    for batch in (rows, turns):
        policy = talker(name)
        reference = talker(name)
        with torch.no_grad():
            for parameter in reference.parameters():
                parameter.mul_(1.05)
        knobs = GRPOKnobs(
            max_grad_norm=0.0,
            reduction="token-mean",
            epochs=2,
            kl=KLKnobs(coefficient=0.1, estimator="k3"),
            entropy=EntropyKnobs(coefficient=0.01),
        )
        batch["old_log_prob"] = policy.log_prob(batch) + 0.05
        batch["ref_log_prob"] = reference.log_prob(batch)
        plugins = [Entropy(knobs.entropy), KL(knobs.kl)]
        if "own" in batch.keys():  # noqa: SIM118 - a TensorDict iterates over its rows
            batch = spoil(batch)
        found.append(gradient(GRPO.bind(knobs, policy, plugins), plugins, batch))
    (one, one_metrics), (other, other_metrics) = found
    assert one.keys() == other.keys() and len(one) > 3
    for parameter in one:
        torch.testing.assert_close(one[parameter], other[parameter], atol=1e-6, rtol=1e-4)
    assert one_metrics.keys() == other_metrics.keys()
    for figure in one_metrics:
        assert float(one_metrics[figure]) == pytest.approx(float(other_metrics[figure]), abs=1e-5)


def test_what_the_environment_said_is_context_and_no_action() -> None:
    rows, _ = dialogue_batch()
    policy = talker()
    out = policy.evaluate(rows)
    for values in (out.log_prob, out.entropy):
        assert (values[~rows["own"]] == 0).all() and (values[rows["own"]] != 0).all()
    changed = rows.clone()
    changed["action"][0, 4] = 30
    difference = (policy.evaluate(changed).log_prob - out.log_prob).abs().detach()
    assert float(difference[0, :6].max()) == 0.0  # what came before, and the token itself
    assert bool((difference[0, 6:] > 0).all())
    assert float(difference[1].max()) == 0.0


def test_denominators_count_own_tokens_alone() -> None:
    rows, _ = dialogue_batch()
    counted = denominators(rows["mask"], max_length=10)
    assert (int(counted.tokens), int(counted.sequences)) == (10, 2)
    ones = torch.ones(2, 10)
    assert float(aggregate(ones, rows["mask"], "sequence-mean", counted)) == pytest.approx(1.0)


def test_ppo_bootstraps_from_where_the_policy_speaks_again() -> None:
    rows, _ = dialogue_batch()
    policy = talker(critic=True)
    with torch.no_grad():
        policy.value_head.weight.normal_(std=0.1, generator=torch.Generator().manual_seed(0))
    value, following = policy.values(rows)
    own = rows["own"]
    assert (value[~own] == 0).all()
    assert following[0, 2] == value[0, 6] != 0  # the last token before the environment's three
    assert following[0, 0] == value[0, 1] and following[0, 9] == 0 == following[1, 2]
    reward = torch.zeros(2, 10)
    reward[0, 9], reward[1, 2] = 1.0, -1.0
    last = reward != 0
    rows["reward"], rows["terminated"] = reward, last
    rows["truncated"], rows["log_prob"] = torch.zeros_like(last), torch.zeros(2, 10)
    knobs = PPOKnobs(gamma=0.5, gae_lambda=0.5, epochs=1, normalize_advantage=False)
    prepared = PPO.bind(knobs, policy).prepare(rows)
    v = value[0]
    # A_9 = 1 − V_9; A_2, three tokens before, is δ_2 + γλ·A_6 with δ_2 = γ·V_6 − V_2
    a = 1 - v[9]
    for t in (8, 7, 6):
        a = 0.5 * v[t + 1] - v[t] + 0.25 * a
    a = 0.5 * v[6] - v[2] + 0.25 * a
    torch.testing.assert_close(prepared["advantage"][0, 2], a)
    assert (prepared["advantage"][~own] == 0).all() and (prepared["return"][~own] == 0).all()


def test_the_overlong_filter_takes_a_cut_dialogue_out() -> None:
    rollout, _, policy = scripted([["1|", "2bcdefghijk"], ["1.|"], ["a.|"]], max_new_tokens=14)
    batch = rollout._batch(policy, rollout._answer(policy, 1), 1)
    prepared = GRPO.bind(GRPOKnobs(overlong_filter=True), policy).prepare(batch)
    assert prepared["mask"].any(1).tolist() == [False, True, True]
    assert not (prepared["mask"] & ~prepared["own"]).any()


# What a wrong environment is told.


@pytest.mark.parametrize(
    ("answer", "what"),
    [
        (lambda n: "no", "a str"),
        (lambda n: [None] * (n + 1), "entries"),
        (lambda n: ["go on"] * n, "'go on'"),
        (lambda n: [{"role": "user"}] * n, "'role': 'user'"),
        (lambda n: [{"role": "assistant", "content": "me"}] * n, "'assistant'"),
    ],
)
def test_what_is_no_reply_is_refused(answer: Any, what: str) -> None:
    env = Echo()
    env.reply = lambda prompts, completions: answer(len(prompts))  # type: ignore[method-assign]
    with pytest.raises(UserError, match="must return one entry per dialogue") as raised:
        make_rollout(env).collect(talker())
    assert what in str(raised.value)


@pytest.mark.parametrize("turns", [0, None, 2.5, True])
def test_a_number_of_turns_that_makes_no_sense_is_refused(turns: Any) -> None:
    with pytest.raises(UserError, match="max_turns, a whole number ≥ 1"):
        make_rollout(Echo(turns))
