"""What each variant of GRPO changes, by hand: advantages, losses, masks, refusals, settings."""

from __future__ import annotations

import importlib
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict
from test_losses import TablePolicy, make_batch

from zoo import algorithms
from zoo.algorithms import CISPO, DAPO, GRPO, GSPO, RLOO, DrGRPO, ReinforcePP
from zoo.algorithms.grpo import GRPOKnobs
from zoo.core import choices
from zoo.core.config import compose
from zoo.core.learner import Learner
from zoo.core.protocols import Update
from zoo.errors import UserError
from zoo.functional import returns
from zoo.plugins import KL, KLKnobs
from zoo.rollouts.refill import RefillKnobs

VARIANTS = {
    "dapo": DAPO,
    "dr_grpo": DrGRPO,
    "gspo": GSPO,
    "cispo": CISPO,
    "rloo": RLOO,
    "reinforce_pp": ReinforcePP,
}
ONE_RIGHT = [[0.0, 1.0], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]]
ACTIONS = [[1, 1], [0, 0], [0, 0], [0, 0]]


def bind(cls: type[GRPO], **knobs: Any) -> GRPO:
    return cls.bind(cls.Knobs(**knobs), TablePolicy(2, stepwise=False))


def prepared(cls: type[GRPO], reward: Any = ONE_RIGHT, **knobs: Any) -> tuple[GRPO, TensorDict]:
    algorithm = bind(cls, **knobs)
    return algorithm, algorithm.prepare(make_batch(ACTIONS, reward))


def row_advantage(batch: TensorDict) -> list[float]:
    assert torch.equal(batch["advantage"][:, 0], batch["advantage"][:, 1])
    return batch["advantage"][:, 0].tolist()


# Advantages.


def test_dr_grpo_subtracts_the_mean_and_divides_by_nothing() -> None:
    _, batch = prepared(DrGRPO)
    assert row_advantage(batch) == [0.75, -0.25, -0.25, -0.25]


def test_rloo_compares_with_the_mean_of_the_others() -> None:
    _, batch = prepared(RLOO)
    assert row_advantage(batch) == pytest.approx([1.0, -1 / 3, -1 / 3, -1 / 3])
    _, batch = prepared(RLOO, [[0.0, 4.0], [0.0, 2.0], [0.0, 3.0], [0.0, 3.0]])
    # 4 − 8/3, 2 − 10/3, 3 − 9/3
    assert row_advantage(batch) == pytest.approx([4 / 3, -4 / 3, 0.0, 0.0], abs=1e-6)


def test_rloo_leaves_failed_rewards_out_of_the_others() -> None:
    reward, group = torch.tensor([1.0, torch.nan, 0.0, 0.5]), torch.zeros(4, dtype=torch.long)
    valid = torch.tensor([True, False, True, True])
    advantage = returns.group_advantage(reward, group, "none", valid, "leave-one-out")
    assert advantage.tolist() == pytest.approx([0.75, 0.0, -0.75, 0.0])
    alone = returns.group_advantage(reward, torch.arange(4), "none", valid, "leave-one-out")
    assert alone.tolist() == [0.0] * 4
    with pytest.raises(ValueError, match="median"):
        returns.group_advantage(reward, group, "none", valid, "median")  # type: ignore[arg-type]


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), size=st.integers(2, 6))
def test_leave_one_out_is_the_plain_loop_and_dr_grpo_times_a_factor(seed: int, size: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    reward = torch.randint(0, 3, (2 * size,), generator=generator).float()
    group = torch.arange(2 * size) % 2
    loop = []
    for i in range(2 * size):
        others = [reward[j].item() for j in range(2 * size) if j != i and group[j] == group[i]]
        loop.append(reward[i].item() - sum(others) / len(others))
    loo = returns.group_advantage(reward, group, "none", baseline="leave-one-out")
    torch.testing.assert_close(loo, torch.tensor(loop), atol=1e-5, rtol=0)
    plain = returns.group_advantage(reward, group, "none")
    torch.testing.assert_close(plain * size / (size - 1), loo)


def test_reinforce_pp_normalises_the_reward_to_go_over_the_batchs_tokens() -> None:
    algorithm = bind(ReinforcePP)
    batch = make_batch([[1, 1], [0, 0]], [[-0.5, 1.0], [0.0, 9.0]])  # −.5: a KL penalty
    batch["mask"][1, 1] = False
    batch = algorithm.prepare(batch)
    # to go: [.5, 1] and [0]; mean .5, std √(.5/2) = .5
    torch.testing.assert_close(batch["advantage"], torch.tensor([[0.0, 1.0], [-1.0, 0.0]]))


def test_reinforce_pp_needs_no_group() -> None:
    assert bind(ReinforcePP, group_size=1).knobs.group_size == 1
    with pytest.raises(UserError, match="GRPO needs group_size ≥ 2 .got 1"):
        GRPOKnobs(group_size=1)
    with pytest.raises(UserError, match="RLOO needs group_size ≥ 2"):
        RLOO.Knobs(group_size=1)


def test_reinforce_pp_baseline_takes_the_groups_mean_first() -> None:
    algorithm = bind(ReinforcePP, baseline="group", group_size=2)
    batch = make_batch([[1, 1], [0, 0]] * 2, [[0.0, 1.0], [0.0, 0.0], [0.0, 5.0], [0.0, 2.0]])
    batch["group"] = torch.tensor([0, 0, 1, 1])
    batch["mask"][0, 1] = batch["mask"][1, 1] = False
    batch["reward"][0] = torch.tensor([1.0, 0.0])
    batch = algorithm.prepare(batch)
    # ½, −½, 1½, −1½ over 1, 1, 2 and 2 tokens: mean 0, squares ½ + 9 = 9.5, std √(9.5/5)
    std = math.sqrt(9.5 / 5)
    expected = torch.tensor([[0.5, 0.0], [-0.5, 0.0], [1.5, 1.5], [-1.5, -1.5]]) / std
    torch.testing.assert_close(batch["advantage"], expected)


# Losses.


def test_gspo_clips_whole_completions() -> None:
    algorithm, batch = prepared(GSPO, clip_low=0.2, clip_high=0.2, minibatch_size=2)
    assert torch.equal(batch["old_log_prob"], batch["log_prob"])
    ratios = torch.tensor([[2.0, 0.6], [2.0, 1.0], [1.0, 1.0], [1.0, 0.25]])
    batch["old_log_prob"] = batch["log_prob"] - ratios.log()
    (loss,) = algorithm.losses(batch, Update())
    # geometric means √1.2 within the range, √2 above (bad: counts), 1, ½ below (bad: clipped)
    s = torch.tensor([[1.2**0.5], [2**0.5], [1.0], [0.8]])
    torch.testing.assert_close(loss.terms["policy"], -s * batch["advantage"])
    assert loss.name == "gspo"
    gradient = torch.autograd.grad(loss.terms["policy"][3].sum(), algorithm.policy.logit)[0]
    assert gradient.eq(0).all()


def test_cispo_weighs_tokens_and_keeps_every_gradient() -> None:
    algorithm, batch = prepared(CISPO, clip_high=0.5, minibatch_size=2)
    ratios = torch.tensor([[2.0, 0.6], [3.0, 1.0], [1.0, 1.0], [1.0, 0.25]])
    batch["old_log_prob"] = batch["log_prob"] - ratios.log()
    (loss,) = algorithm.losses(batch, Update())
    weight = torch.tensor([[1.5, 0.6], [1.5, 1.0], [1.0, 1.0], [1.0, 0.25]])
    expected = -weight * batch["advantage"] * math.log(0.5)
    torch.testing.assert_close(loss.terms["policy"], expected)
    loss.terms["policy"].sum().backward()
    # every log π has the slope ±½ in its logit; action 1 was taken in row 0 only
    sign = torch.tensor([[1.0], [-1.0], [-1.0], [-1.0]])
    slope = (-weight * batch["advantage"] * sign * 0.5).sum(0)
    torch.testing.assert_close(algorithm.policy.logit.grad, slope)


@pytest.mark.parametrize("cls", [GSPO, CISPO])
def test_before_the_first_update_the_gradient_is_grpos(cls: type[GRPO]) -> None:
    reduction = cls.Knobs().reduction
    gradients = []
    for algorithm in (bind(cls), bind(GRPO, reduction=reduction)):
        batch = algorithm.prepare(make_batch(ACTIONS, ONE_RIGHT))
        learner = Learner(algorithm, [], algorithm.knobs)
        gradients.append([])
        learner._step = lambda p=algorithm.policy, g=gradients[-1]: (  # type: ignore[method-assign]
            g.append(p.logit.grad.clone()) or torch.zeros(())
        )
        learner.update(batch)
    torch.testing.assert_close(gradients[0][0], gradients[1][0])
    assert gradients[0][0].abs().max() > 0


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_raises_what_was_rewarded(name: str) -> None:
    cls = VARIANTS[name]
    algorithm = bind(cls, lr=0.1)
    batch = algorithm.prepare(make_batch(ACTIONS, ONE_RIGHT))
    learner = Learner(algorithm, [], algorithm.knobs, max_length=2)
    learner.update(batch)
    assert learner.steps == 1
    assert (algorithm.policy.logit > 0).all()  # action 1 was the rewarded one


# The overlong filter.


def cut(batch: TensorDict, row: int) -> TensorDict:
    batch["terminated"][row], batch["truncated"][row, -1] = False, True
    return batch


def test_overlong_completions_leave_the_loss_and_stay_in_their_groups_mean() -> None:
    algorithm = bind(DrGRPO, overlong_filter=True)
    batch = algorithm.prepare(cut(make_batch(ACTIONS, ONE_RIGHT), 3))
    assert batch["mask"].tolist() == [[True, True]] * 3 + [[False, False]]
    assert batch["advantage"][:3, 0].tolist() == [0.75, -0.25, -0.25]
    kept = bind(DrGRPO).prepare(cut(make_batch(ACTIONS, ONE_RIGHT), 3))
    assert kept["mask"].all()


def test_overlong_completions_enter_no_denominator() -> None:
    gradients = []
    for filtered in (True, False):
        algorithm = bind(GRPO, overlong_filter=filtered, reduction="token-mean", max_grad_norm=0.0)
        batch = algorithm.prepare(cut(make_batch(ACTIONS, ONE_RIGHT), 3))
        if not filtered:
            batch = batch[:3]
        learner = Learner(algorithm, [], algorithm.knobs)
        gradients.append(float(learner.update(batch)["grad_norm/grpo"]))
    assert gradients[0] == pytest.approx(gradients[1])
    assert gradients[0] > 0


def test_where_every_completion_is_overlong_nothing_is_learned() -> None:
    algorithm = bind(GRPO, overlong_filter=True)
    batch = make_batch(ACTIONS, ONE_RIGHT)
    for row in range(4):
        cut(batch, row)
    batch = algorithm.prepare(batch)
    assert Learner(algorithm, [], algorithm.knobs).update(batch) == {}


def test_a_time_limit_is_no_length_limit() -> None:
    with pytest.raises(UserError, match="algo.overlong_filter is for text"):
        GRPO.bind(GRPOKnobs(overlong_filter=True), TablePolicy(2, stepwise=True))


# Dead groups (golden 33).


@pytest.mark.parametrize("dead", [True, False])
def test_golden_33_a_dead_group_counts_by_its_kl_and_in_the_denominators_unless_it_is_left_out(
    dead: bool,
) -> None:
    """In GRPO it does both; dynamic sampling takes it out of the batch, and so out of both."""
    reward = [*ONE_RIGHT, *[[0.0, 0.0]] * 4]
    batch = make_batch(ACTIONS * 2, reward)
    batch["group"] = torch.tensor([0] * 4 + [1] * 4)
    batch["ref_log_prob"] = batch["log_prob"] - 0.5
    algorithm = bind(GRPO, kl=KLKnobs(coefficient=0.1, estimator="k2"))
    batch = algorithm.prepare(batch if dead else batch[:4])
    kl = KL(algorithm.knobs.kl)
    metrics = Learner(algorithm, [kl], algorithm.knobs).update(batch)
    assert float(metrics["loss/kl"]) == pytest.approx(0.1 * 0.5 * 0.25)  # the same of every row
    # the live group's share: its rows are half of all that count, or all
    policy = -(batch["advantage"][:4].mean(1)).sum() / (8 if dead else 4)
    assert float(metrics["loss/policy"]) == pytest.approx(float(policy), abs=1e-6)
    algorithm = bind(GRPO, max_grad_norm=0.0)
    norms = []
    for part in (make_batch(ACTIONS * 2, reward), make_batch(ACTIONS, ONE_RIGHT)):
        part["group"] = torch.arange(len(part)) // 4
        part = algorithm.prepare(part)
        norms.append(float(Learner(algorithm, [], algorithm.knobs).update(part)["grad_norm/grpo"]))
        algorithm = bind(GRPO, max_grad_norm=0.0)
    assert norms[0] == pytest.approx(norms[1] / 2)  # the dead group halves the others' gradient


# Refusals and settings.


@pytest.mark.parametrize(
    ("cls", "knobs", "sentence"),
    [
        (
            GSPO,
            {"reduction": "token-mean"},
            "GSPO with ratio=sequence needs reduction=sequence-mean",
        ),
        (GRPO, {"ratio": "sequence", "reduction": "constant"}, "got constant"),
        (
            CISPO,
            {"ratio": "sequence", "reduction": "sequence-mean"},
            "CISPO with objective=cispo takes neither ratio",
        ),
        (CISPO, {"dual_clip": 3.0}, "nor dual_clip"),
        (ReinforcePP, {"group_size": 1, "refill": RefillKnobs(1)}, "needs group_size ≥ 2"),
        (ReinforcePP, {"scale": "group"}, "ReinforcePP can.t divide by scale=group"),
    ],
)
def test_combinations_that_make_no_sense_are_refused(
    cls: type[GRPO], knobs: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UserError, match=sentence):
        cls.Knobs(**knobs)


def test_dr_grpo_is_refused_on_control_with_what_to_use_instead() -> None:
    with pytest.raises(UserError, match="divides by the length limit.*use algo=rloo"):
        compose(["algo=dr_grpo", "env=CartPole-v1"])


@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant_is_a_name_on_the_command_line_and_in_python(name: str) -> None:
    config = compose([f"algo={name}", "env=gsm8k", "model=tiny"])
    cls = config.target("algo")
    assert cls is VARIANTS[name] is getattr(algorithms, cls.__name__)
    assert issubclass(cls, GRPO) and cls.name == name
    assert cls.losses is GRPO.losses and cls.prepare is GRPO.prepare  # no copy of a loss
    page = choices.CONF.parents[1] / "docs/algorithms/variants.md"
    assert f"`{name}`" in page.read_text("utf-8")


@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant_shares_grpos_tuned_settings_and_stays_what_it_is(name: str) -> None:
    knobs = compose([f"algo={name}", "env=gsm8k", "model=tiny"]).knobs
    assert (knobs.lr, knobs.betas) == (1e-4, (0.9, 0.95))  # text@tiny
    plain, shared = VARIANTS[name].Knobs(), {"lr", "betas", "precision"}
    changed = {f for f in vars(plain) if getattr(knobs, f) != getattr(plain, f)}
    assert changed <= shared
    if name != "dr_grpo":
        assert compose([f"algo={name}", "env=CartPole-v1"]).knobs.epochs == 8


def test_a_variants_own_tuned_file_comes_after_the_shared_one_of_its_kind(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = importlib.import_module("zoo.core.config")
    for file in ("grpo/text", "grpo/text@tiny", "gspo/text", "gspo/gsm8k", "ppo/text"):
        path = tmp_path / f"tuned/{file}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    monkeypatch.setattr(choices, "CONF", tmp_path)
    monkeypatch.setattr(choices, "about", lambda group, name: {"tuned_as": "grpo"})
    found = config._tuned("gspo", "text", "gsm8k", "tiny")
    assert found == ["grpo/text", "gspo/text", "grpo/text@tiny", "gspo/gsm8k"]


def test_dapo_is_clip_higher_token_mean_refill_and_filter() -> None:
    knobs, grpo = DAPO.Knobs(), GRPOKnobs()
    changed = {name: value for name, value in vars(knobs).items() if value != getattr(grpo, name)}
    assert changed == {
        "clip_high": 0.28,
        "reduction": "token-mean",
        "refill": RefillKnobs(rounds=8),
        "overlong_filter": True,
    }
    assert (knobs.clip_low, knobs.kl.coefficient) == (0.2, 0.0)


@pytest.mark.parametrize(("name", "reduction"), [("grpo", "sequence-mean"), ("dapo", "token-mean")])
def test_a_preset_leaves_the_reduction_to_the_algorithm(name: str, reduction: str) -> None:
    knobs = compose([f"algo={name}", "env=gsm8k", "preset=qwen3-0.6b-full"]).knobs
    assert (knobs.reduction, knobs.clip_high, knobs.micro_batch_size) == (reduction, 0.28, 2)
    with pytest.raises(UserError, match="made for algo=grpo or dapo .* not for gspo"):
        compose(["algo=gspo", "env=gsm8k", "preset=qwen3-0.6b-full"])


def test_dapo_on_control_is_without_what_only_completions_have() -> None:
    knobs = compose(["algo=dapo", "env=CartPole-v1"]).knobs
    assert (knobs.overlong_filter, knobs.refill.rounds, knobs.clip_high) == (False, 0, 0.28)
    with pytest.raises(UserError, match="algo.refill is for text; on control, the returns"):
        DAPO.bind(DAPO.Knobs(overlong_filter=False), TablePolicy(2, stepwise=True))


def test_the_kl_of_reinforce_pp_is_in_the_reward() -> None:
    assert ReinforcePP.Knobs().kl == KLKnobs(coefficient=0.01, estimator="k1", where="reward")
