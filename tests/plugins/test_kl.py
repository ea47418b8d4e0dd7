"""KL plugin: where the penalty goes, what the reference is, what it costs, resume, refusals."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from tensordict import TensorDict
from torch import nn

from zoo.core.protocols import Evaluation, Update
from zoo.errors import UserError
from zoo.functional import divergence, returns, surrogate
from zoo.functional.reduce import aggregate, denominators
from zoo.plugins import KL, Facts, KLKnobs


class TablePolicy(nn.Module):
    """π(a | t) by a table [T, n]; a critic that the reference does not copy."""

    stepwise, has_critic, version = False, True, 0

    def __init__(self, steps: int = 3, actions: int = 4, exact: bool = True, seed: int = 0):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.table = nn.Parameter(torch.randn(steps, actions, generator=generator))
        self.critic = nn.Parameter(torch.zeros(1))
        self.sampler_is_exact = exact
        self.forwards = 0

    def evaluate(self, batch, reference=None) -> Evaluation:
        self.forwards += 1
        rows = batch["action"].shape[0]
        log_p = self.table.log_softmax(-1).expand(rows, -1, -1)
        log_prob = log_p.gather(-1, batch["action"][..., None]).squeeze(-1)
        entropy = divergence.categorical_entropy(self.table).expand(rows, -1)
        kl = None
        if reference is not None:
            kl = divergence.categorical(self.table, reference.table).expand(rows, -1)
        return Evaluation(log_prob, entropy, kl=kl)

    @torch.no_grad()
    def log_prob(self, batch):
        return self.evaluate(batch).log_prob

    def reference_copy(self):
        frozen = copy.deepcopy(self).requires_grad_(False)
        del frozen.critic
        frozen.forwards = 0
        return frozen

    def rollout(self, rows: int = 2, seed: int = 0) -> TensorDict:
        """Sample [rows, T] with reward 1 on the last step; nothing masked."""
        steps, actions = self.table.shape
        generator = torch.Generator().manual_seed(seed)
        action = torch.randint(0, actions, (rows, steps), generator=generator)
        reward = torch.zeros(rows, steps)
        reward[:, -1] = 1.0
        batch = TensorDict(
            {
                "action": action,
                "reward": reward,
                "mask": torch.ones(rows, steps, dtype=torch.bool),
                "group": torch.zeros(rows, dtype=torch.long),
            },
            batch_size=[rows],
        )
        batch["log_prob"] = self.log_prob(batch)
        self.forwards = 0
        return batch


def moved(policy: TablePolicy, amount: float = 1.0) -> TablePolicy:
    with torch.no_grad():
        policy.table[:, 0] += amount
    return policy


def terms_of(plugin: KL, policy: TablePolicy, batch) -> dict[str, torch.Tensor]:
    return plugin.terms(policy.evaluate(batch, plugin.exact_reference), batch, Update())


def test_golden_40_the_reference_is_the_policy_exactly_at_step_zero():
    policy, plugin = TablePolicy(), KL(KLKnobs(coefficient=0.1))
    batch = policy.rollout()
    plugin.on_rollout(batch, policy)
    assert torch.equal(batch["ref_log_prob"], policy.evaluate(batch).log_prob)
    figures = plugin.figures(policy.evaluate(batch), batch)
    assert figures["kl/reference_k1"].eq(0).all() and figures["kl/reference_k3"].eq(0).all()


@pytest.mark.parametrize("estimator", ["k2", "k3", "exact"])
def test_the_penalty_in_the_loss_pulls_back_to_a_frozen_reference(estimator):
    policy, plugin = TablePolicy(), KL(KLKnobs(coefficient=0.5, estimator=estimator))
    plugin.on_rollout(policy.rollout(), policy)
    start = plugin.reference.table.clone()
    moved(policy)
    batch = policy.rollout()
    plugin.on_rollout(batch, policy)
    assert torch.equal(plugin.reference.table, start)
    term = terms_of(plugin, policy, batch)["kl"]
    d = (start.log_softmax(-1) - policy.table.log_softmax(-1)).detach()
    picked = d.expand(2, -1, -1).gather(-1, batch["action"][..., None]).squeeze(-1)
    p = policy.table.softmax(-1).detach()
    expected = {
        "k2": 0.25 * picked.square(),
        "k3": 0.5 * (picked.exp() - 1 - picked),
        "exact": -0.5 * (p * d).sum(-1).expand(2, -1),
    }[estimator]
    torch.testing.assert_close(term.detach(), expected)
    optimizer = torch.optim.SGD([policy.table], lr=0.5)
    term.mean().backward()
    optimizer.step()
    assert terms_of(plugin, policy, batch)["kl"].mean() < term.mean()
    assert plugin.reference.table.grad is None


def test_the_penalty_in_the_reward_is_taken_off_live_steps_only():
    policy, plugin = TablePolicy(), KL(KLKnobs(0.5, "k1", "reward"))
    plugin.on_rollout(policy.rollout(), policy)
    batch = moved(policy).rollout()
    batch["mask"][1, 2] = False
    raw = batch["reward"].clone()
    plugin.on_rollout(batch, policy)
    gap = batch["log_prob"] - plugin.reference.log_prob(batch)
    gap[1, 2] = 0
    assert gap.abs().min(1).values[0] > 0.05
    torch.testing.assert_close(batch["reward"], raw - 0.5 * gap)
    assert terms_of(plugin, policy, batch) == {}


def test_a_sampler_that_is_not_exact_never_enters_the_penalty():
    policy, plugin = TablePolicy(exact=False), KL(KLKnobs(0.5, "k1", "reward"))
    batch = policy.rollout()
    batch["log_prob"] += 0.3
    plugin.on_rollout(batch, policy)
    assert torch.equal(batch["old_log_prob"], policy.log_prob(batch))
    assert batch["reward"].tolist() == [[0, 0, 1], [0, 0, 1]]


def test_golden_33_dead_groups_still_count_under_a_kl_penalty():
    policy, plugin = TablePolicy(), KL(KLKnobs(coefficient=0.5, estimator="k2"))
    plugin.on_rollout(policy.rollout(), policy)
    batch = moved(policy).rollout(rows=4)
    plugin.on_rollout(batch, policy)
    # rows 0 and 1 are a dead group, rows 2 and 3 a live one
    group, reward = torch.tensor([0, 0, 1, 1]), torch.tensor([1.0, 1.0, 1.0, 0.0])
    advantage = returns.group_advantage(reward, group)[:, None].expand(4, 3)
    out = policy.evaluate(batch)
    policy_term = surrogate.clipped(out.log_prob - out.log_prob.detach(), advantage, 0.2, 0.2)
    kl_term = plugin.terms(out, batch, Update())["kl"]
    whole = denominators(batch["mask"])
    assert whole.tokens == 12  # the dead group stays in the denominator
    by_row = torch.autograd.grad(
        aggregate(policy_term + kl_term, batch["mask"], "token-mean", whole), out.log_prob
    )[0]
    gap = (out.log_prob - batch["ref_log_prob"]).detach()
    torch.testing.assert_close(by_row[:2], 0.5 * gap[:2] / 12)
    assert by_row[:2].abs().min() > 0
    torch.testing.assert_close(by_row[2:], (0.5 * gap[2:] - advantage[2:]) / 12)


def test_a_kl_penalty_in_the_reward_brings_dead_groups_to_life():
    policy, plugin = TablePolicy(), KL(KLKnobs(0.5, "k1", "reward"))
    plugin.on_rollout(policy.rollout(), policy)
    batch = moved(policy).rollout()
    assert not returns.live_groups(batch["reward"].sum(1), batch["group"]).any()
    plugin.on_rollout(batch, policy)
    assert returns.live_groups(batch["reward"].sum(1), batch["group"]).all()


def test_coefficient_zero_watches_every_so_often_and_costs_nothing_between():
    policy, plugin = TablePolicy(), KL(KLKnobs(monitor_every=3))
    seen = []
    for _ in range(7):
        batch = policy.rollout()
        plugin.on_rollout(batch, policy)
        seen.append("ref_log_prob" in batch.keys())  # noqa: SIM118  (a TensorDict)
        out = policy.evaluate(batch)
        assert plugin.terms(out, batch, Update()) == {}
        assert bool(plugin.figures(out, batch)) is seen[-1]
    assert seen == [True, False, False, True, False, False, True]
    assert plugin.reference.forwards == 3
    only_watched = KL(KLKnobs(estimator="exact"))
    only_watched.on_rollout(batch, policy)
    assert only_watched.reference is not None
    assert only_watched.exact_reference is None


def test_a_resumed_run_watches_the_same_rollouts():
    policy, plugin = TablePolicy(), KL(KLKnobs(monitor_every=3))
    for _ in range(2):
        plugin.on_rollout(policy.rollout(), policy)
    resumed = KL(plugin.knobs)
    resumed.load_state_dict(plugin.state_dict())
    watched = [bool(resumed.on_rollout(policy.rollout(), policy)) for _ in range(4)]
    assert watched == [False, True, False, False]


def test_never_watched_means_no_reference_at_all():
    policy, plugin = TablePolicy(), KL(KLKnobs(monitor_every=0))
    assert plugin.on_rollout(policy.rollout(), policy) == {}
    assert plugin.reference is None and plugin.state_dict()["reference"] is None


def test_the_exact_divergence_needs_no_further_reference_forward_between_monitorings():
    policy, plugin = TablePolicy(), KL(KLKnobs(0.1, "exact", monitor_every=2))
    for expected in (True, False, True):
        batch = policy.rollout()
        plugin.on_rollout(batch, policy)
        assert ("ref_log_prob" in batch.keys()) is expected  # noqa: SIM118
        out = policy.evaluate(batch, plugin.exact_reference)
        assert "kl/reference_exact" in plugin.figures(out, batch)
    with pytest.raises(ValueError, match="exact_reference"):
        plugin.terms(policy.evaluate(batch), batch, Update())
    assert KL(KLKnobs(0.1, "k3")).exact_reference is None


@pytest.mark.parametrize(
    ("measured", "factor"), [(0.3, 1.02), (0.11, 1.01), (0.1, 1.0), (0.05, 0.98), (-1.0, 0.98)]
)
def test_an_adaptive_coefficient_moves_towards_its_target(measured, factor):
    plugin = KL(KLKnobs(coefficient=2.0, target=0.1, horizon=10.0))
    plugin.after_update({"kl/reference_k1": measured})
    assert plugin.coefficient == pytest.approx(2.0 * factor)
    plugin.after_update({})  # a round without a live step measures nothing
    assert plugin.coefficient == pytest.approx(2.0 * factor)
    fixed = KL(KLKnobs(coefficient=2.0))
    fixed.after_update({"kl/reference_k1": measured})
    assert fixed.coefficient == 2.0


def test_an_averaged_reference_follows_by_one_minus_decay_per_round():
    policy = TablePolicy()
    plugin = KL(KLKnobs(coefficient=0.1, reference="ema", decay=0.75))
    plugin.on_rollout(policy.rollout(), policy)
    start = policy.table.detach().clone()
    moved(policy, 8.0)
    plugin.after_update({})
    torch.testing.assert_close(plugin.reference.table - start, 0.25 * (policy.table - start))
    frozen = KL(KLKnobs(coefficient=0.1))
    frozen.on_rollout(policy.rollout(), policy)
    start = policy.table.detach().clone()
    moved(policy, 8.0)
    frozen.after_update({})
    assert torch.equal(frozen.reference.table, start)


@pytest.mark.parametrize("reference", ["frozen", "ema"])
def test_an_interrupted_run_continues_with_the_same_reference(reference):
    knobs = KLKnobs(0.1, target=0.05, reference=reference, decay=0.9)

    def rounds(plugin: KL, policy: TablePolicy, first: int, last: int) -> torch.Tensor:
        for i in range(first, last):
            batch = policy.rollout(seed=i)
            plugin.on_rollout(batch, policy)
            term = terms_of(plugin, policy, batch)["kl"].detach()
            moved(policy, 0.1 * i)
            plugin.after_update({"kl/reference_k1": term.mean().item()})
        return term

    policy, plugin = TablePolicy(), KL(knobs)
    rounds(plugin, policy, 0, 3)
    file = io.BytesIO()
    torch.save({"policy": policy.state_dict(), "kl": plugin.state_dict()}, file)
    expected = rounds(plugin, policy, 3, 6)

    file.seek(0)
    state = torch.load(file, weights_only=True)
    policy, plugin = TablePolicy(seed=1), KL(knobs)
    policy.load_state_dict(state["policy"])
    plugin.load_state_dict(state["kl"])
    # saved again before the first rollout, nothing is lost
    assert torch.equal(plugin.state_dict()["reference"]["table"], state["kl"]["reference"]["table"])
    assert torch.equal(rounds(plugin, policy, 3, 6), expected)


def test_a_plugin_in_use_may_be_set_back():
    policy, plugin = TablePolicy(), KL(KLKnobs(0.1))
    fresh = plugin.state_dict()
    plugin.on_rollout(policy.rollout(), policy)
    start = {k: v.clone() for k, v in plugin.state_dict()["reference"].items()}
    with torch.no_grad():
        plugin.reference.table.add_(1)
    plugin.load_state_dict({"coefficient": 0.3, "rollouts": 1, "reference": start})
    assert torch.equal(plugin.reference.table, start["table"]) and plugin.coefficient == 0.3
    plugin.load_state_dict(fresh)
    plugin.on_rollout(moved(policy).rollout(), policy)
    assert torch.equal(plugin.reference.table, policy.table)


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"estimator": "k1"}, "expected gradient is zero"),
        ({"where": "reward"}, "needs kl.estimator=k1 .got k3"),
        ({"where": "reward", "estimator": "exact"}, "got exact"),
        ({"coefficient": -1.0}, "negative"),
        ({"target": 0.1}, "coefficient > 0"),
        ({"coefficient": 1.0, "target": -0.1}, "positive"),
        ({"horizon": 0.0}, "horizon"),
        ({"decay": 1.0}, "decay"),
    ],
)
def test_settings_that_cannot_work_are_refused(knobs, message):
    with pytest.raises(UserError, match=message):
        KLKnobs(**knobs)


def test_algorithms_without_samples_of_their_own_policy_are_refused():
    replay = Facts("sac", "control", on_policy=False)
    with pytest.raises(UserError, match="sac learns from replayed steps"):
        KL.build(KLKnobs(0.1), replay)
    with pytest.raises(UserError, match="td3 acts without"):
        KL.build(KLKnobs(0.1), Facts("td3", "control", on_policy=False, stochastic=False))
    policy, idle = TablePolicy(), KL.build(KLKnobs(), replay)
    assert idle.on_rollout(policy.rollout(), policy) == {} and idle.reference is None
    assert KL.build(KLKnobs(0.1), Facts("ppo", "control")).coefficient == 0.1


def test_off_policy_only_the_exact_divergence_with_a_fixed_weight_is_served():
    facts = Facts("sac", "control", on_policy=False)
    plugin = KL.build(KLKnobs(coefficient=0.1, estimator="exact"), facts)
    assert plugin.coefficient == 0.1 and plugin.knobs.monitor_every == 0
    with pytest.raises(UserError, match="use kl.estimator=exact"):
        KL.build(KLKnobs(coefficient=0.1, estimator="k3"), facts)
    with pytest.raises(UserError, match="once per rollout"):
        KL.build(KLKnobs(coefficient=0.1, estimator="exact", target=0.1), facts)
    with pytest.raises(UserError, match="without an action distribution"):
        KL.build(
            KLKnobs(coefficient=0.1, estimator="exact"),
            Facts("td3", "control", on_policy=False, stochastic=False),
        )
