"""One update's gradient on text against the papers' formulas, written out row by row.

The other side knows nothing of the library's batch mathematics: each row goes alone and unpadded
through transformers' own forward in float64, advantages are sums over Python lists, and every term
stands as its paper has it. Rows are dialogues and answers, cut and failed ones, fresh ones and ones
that another policy sampled; temperature and every denominator count.
"""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from statistics import mean, stdev
from typing import Any

import pytest
import torch
from small_models import make_batch, make_policy
from tensordict import TensorDict
from torch import Tensor

from zoo.algorithms import CISPO, DAPO, GRPO, GSPO, PPO, RLOO, DrGRPO, ReinforcePP
from zoo.core.learner import Learner
from zoo.functional.reduce import Denominators, denominators
from zoo.plugins import KL, Entropy, EntropyKnobs, Importance, ImportanceKnobs, KLKnobs
from zoo.policies.language import LanguagePolicy

TEMPERATURE, LIMIT, BOUND = 0.7, 24, 1.3
IN_REWARD = KLKnobs(coefficient=0.2, estimator="k1", where="reward")
#: algorithm and settings; wide enough that some tokens are clipped and others are not
CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "grpo": (GRPO, {"kl": KLKnobs(coefficient=0.3)}),
    "grpo, no std, dual clip": (GRPO, {"scale": "batch", "dual_clip": 1.1}),
    "grpo, kl in reward": (GRPO, {"kl": IN_REWARD}),
    "dapo": (DAPO, {"kl": KLKnobs(coefficient=0.3, estimator="k2")}),
    "dr_grpo": (DrGRPO, {"kl": KLKnobs(coefficient=0.3, estimator="exact")}),
    "gspo": (GSPO, {"clip_low": 0.02, "clip_high": 0.03, "kl": KLKnobs(coefficient=0.3)}),
    "cispo": (CISPO, {"clip_high": 0.2, "kl": KLKnobs(coefficient=0.3)}),
    "rloo": (RLOO, {"kl": IN_REWARD}),
    "reinforce_pp": (ReinforcePP, {"kl": IN_REWARD}),
    "reinforce_pp, group baseline": (
        ReinforcePP,
        {"baseline": "group", "kl": KLKnobs(coefficient=0.3, estimator="k2")},
    ),
    "ppo": (PPO, {"value_clip": 0.1, "kl": KLKnobs(coefficient=0.3)}),
    "ppo, kl in reward": (PPO, {"value_loss": "huber", "kl": IN_REWARD}),
}


def make_rollout() -> TensorDict:
    """Three groups of four rows, of which all sorts of things have happened to some."""
    g = torch.Generator().manual_seed(1)
    prompts = [torch.randint(4, 60, (n,), generator=g).tolist() for n in (3, 9, 5)]
    lengths = [(0, 20), (1, 4), (2, 9), (0, 1), (1, 11), (2, 5), (0, 7), (1, 2), (2, 16), (0, 3)]
    lengths += [(1, 24), (2, 24)]
    rows = [(i, torch.randint(4, 60, (n,), generator=g).tolist()) for i, n in lengths]
    batch = make_batch(prompts, rows).exclude("advantage")
    own = batch["mask"].clone()
    own[2, 3:6] = own[8, 1:4] = own[8, 9:12] = False  # the environment spoke
    last = torch.zeros_like(own)
    last[torch.arange(12), batch["completion_length"] - 1] = True
    cut = batch["completion_length"] == LIMIT
    reward = torch.tensor([2.0, 1.0, 0.0, 0.5, 1.0, 3.0, -1.0, 1.0, 0.3, 0.0, 1.0, 0.7])
    failed = torch.arange(12) == 9
    batch["own"], batch["mask"] = own, own & ~failed[:, None]
    batch["reward"] = last * reward[:, None] * ~failed[:, None]
    batch["terminated"], batch["truncated"] = last & ~cut[:, None], last & cut[:, None]
    batch["version"] = torch.tensor([1, 0, 1, 1, 0, 1, 1, 0, 1, 1, 0, 1])  # of a group or none
    batch["log_prob"] = torch.zeros(own.shape)
    return batch


def moved(policy: LanguagePolicy, seed: int, size: float) -> None:
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(size * torch.randn(parameter.shape, generator=g))


class Update:
    """A rollout prepared by π_old, learned from by π, with a reference and a behaviour policy."""

    def __init__(self, name: str, architecture: str = "qwen3", **cutting: Any) -> None:
        cls, knobs = CASES[name]
        knobs = {"epochs": 2, "entropy": EntropyKnobs(coefficient=0.05), **knobs, **cutting}
        if cls is PPO:
            knobs |= {"gamma": 0.9, "gae_lambda": 0.8}
        self.knobs = replace(cls.Knobs(**knobs), max_grad_norm=0.0)
        self.policy = make_policy(architecture, critic=cls is PPO, temperature=TEMPERATURE)
        once = cls.weighs_losses_only and self.knobs.epochs == 1
        self.plugins: list[Any] = [
            Entropy(self.knobs.entropy),
            Importance(ImportanceKnobs(truncation=BOUND), one_update=once),
            KL(self.knobs.kl),
        ]
        self.algorithm = cls.bind(self.knobs, self.policy, self.plugins)
        self.reference = self._frozen()
        self.plugins[2].on_rollout(make_rollout(), self.policy)  # takes its reference
        moved(self.policy, 1, 0.01)
        self.behaviour = self._frozen()
        moved(self.policy, 2, 0.01)
        self.policy.version = 1

    def _frozen(self) -> Any:
        return copy.deepcopy(self.policy).double()

    def sampled(self, batch: TensorDict) -> TensorDict:
        """The rollout with the behaviour policy's log-probabilities."""
        log_prob = torch.zeros(batch["action"].shape)
        for row, figures in enumerate(rows(self.behaviour, batch)):
            log_prob[row, : len(figures["log_prob"])] = figures["log_prob"].detach()
        return batch.clone().set("log_prob", log_prob * batch["own"])

    def prepared(self, rollout: TensorDict) -> TensorDict:
        """What the trainer does with it before the update."""
        self.old, batch = self._frozen(), self.sampled(rollout)
        for plugin in self.plugins:
            plugin.on_rollout(batch, self.policy)
        batch = self.algorithm.prepare(batch)
        if self.knobs.epochs > 1:
            moved(self.policy, 3, 0.01)
        return batch

    def gradient(self, *parts: TensorDict, monkeypatch: Any = None) -> dict[str, Tensor]:
        """The library's, of one batch or of each rank's summed."""
        learner = Learner(self.algorithm, self.plugins, self.knobs, max_length=LIMIT)
        learner.optimizer.clear = lambda: None  # type: ignore[method-assign]  leave it to see
        learner.optimizer.advance = lambda shrink=1.0: None  # type: ignore[method-assign]
        if monkeypatch is not None:
            whole = denominators(torch.cat([part["mask"] for part in parts]), LIMIT)
            monkeypatch.setattr(Denominators, "across_ranks", lambda own: whole)
        for part in parts:
            learner.update(part)
        found = {n: p.grad for n, p in self.policy.named_parameters() if p.grad is not None}
        assert found
        return found


def rows(policy: Any, batch: TensorDict) -> list[dict[str, Tensor]]:
    """Each row alone, by transformers: [T] figures and [T, V] log-probabilities."""
    found, width = [], batch["prompt_ids"].shape[1]
    for row in batch:
        start, length = int(row["prompt_length"]), int(row["completion_length"])
        action = row["action"][:length]
        ids = torch.cat([row["prompt_ids"][width - start :], action])[None]
        logits = policy.model(ids, use_cache=False).logits[0, start - 1 : -1].double()
        every = (logits / TEMPERATURE).log_softmax(-1)
        figures = {"log_prob": every.gather(1, action[:, None])[:, 0], "every": every}
        if policy.value_head is not None:
            hidden = policy.model.base_model(ids, use_cache=False).last_hidden_state[0]
            figures["value"] = policy.value_head(hidden[start - 1 : -1]).squeeze(-1)
        found.append(figures)
    return found


def literal(
    update: Update, policy: Any, batch: TensorDict, chosen: list[int] | None = None
) -> Tensor:
    """The objective of all rows, or of an optimizer step on the ``chosen`` ones, to minimise."""
    k, count = update.knobs, len(batch)
    group, version = batch["group"].tolist(), batch["version"].tolist()
    own = [batch["own"][i].nonzero().flatten().tolist() for i in range(count)]
    paid = [i for i in range(count) if batch["mask"][i].any()]
    now = rows(policy, batch)
    with torch.no_grad():
        old, reference = rows(update.old, batch), rows(update.reference, batch)
    mu = batch["log_prob"].double()
    importance = {
        (i, t): min(BOUND, math.exp(old[i]["log_prob"][t] - mu[i, t])) if not version[i] else 1.0
        for i in paid
        for t in own[i]
    }
    reward = {(i, t): float(batch["reward"][i, t]) for i in paid for t in own[i]}
    if k.kl.where == "reward":
        for i, t in reward:
            gap = old[i]["log_prob"][t] - reference[i]["log_prob"][t]
            reward[i, t] -= k.kl.coefficient * float(gap)
    target: dict[tuple[int, int], float] = {}
    if isinstance(update.algorithm, PPO):
        advantage = {}
        for i in paid:
            trace = following = 0.0
            for t in reversed(own[i]):
                v, w = float(old[i]["value"][t]), importance[i, t]
                delta = reward[i, t] + k.gamma * following - v
                advantage[i, t] = delta + k.gamma * k.gae_lambda * trace
                trace = w * delta + k.gamma * k.gae_lambda * min(1.0, w) * trace
                target[i, t], following = v + trace, v
    elif k.baseline == "none":
        advantage = {(i, t): sum(reward[i, u] for u in own[i] if u >= t) for i, t in reward}
    else:
        total = {i: sum(reward[i, t] for t in own[i]) for i in paid}
        advantage = {}
        for i, t in reward:
            mates = [total[j] for j in paid if group[j] == group[i]]
            others = [total[j] for j in paid if group[j] == group[i] and j != i]
            centred = total[i] - mean(others if k.baseline == "leave-one-out" else mates)
            spread = stdev(mates if k.scale == "group" else total.values()) + 1e-4
            advantage[i, t] = centred if k.scale == "none" else centred / spread
    filtered = getattr(k, "overlong_filter", False)
    kept = [i for i in paid if not (filtered and batch["completion_length"][i] == LIMIT)]
    places = [(i, t) for i in kept for t in own[i]]
    if k.normalize_advantage:
        live = [advantage[p] for p in places]
        advantage = {p: (advantage[p] - mean(live)) / (stdev(live) + 1e-8) for p in places}
    counted = [i for i in kept if chosen is None or i in chosen]
    tokens = sum(len(own[i]) for i in counted)
    loss = torch.zeros((), dtype=torch.float64)
    for i in counted:
        n = len(own[i])
        share = {
            "token-mean": 1 / tokens,
            "sequence-mean": 1 / (n * len(counted)),
            "constant": 1 / (LIMIT * len(counted)),
        }[k.reduction]
        log_ratio = {t: now[i]["log_prob"][t] - old[i]["log_prob"][t] for t in own[i]}
        for t in own[i]:
            a, log_pi, log_ref = advantage[i, t], now[i]["log_prob"][t], reference[i]["log_prob"][t]
            rho = log_ratio[t].exp()
            if getattr(k, "ratio", "token") == "sequence":
                rho = (sum(log_ratio.values()) / n).exp()
            bounded = rho.clamp(1 - k.clip_low, 1 + k.clip_high)
            term = -torch.minimum(rho * a, bounded * a)
            if getattr(k, "dual_clip", None) and a < 0:
                term = torch.minimum(term, torch.tensor(-k.dual_clip * a))
            if getattr(k, "objective", "clipped") == "cispo":
                term = -bounded.detach() * a * log_pi
            term = importance[i, t] * term
            every, other = now[i]["every"][t], reference[i]["every"][t]
            term = term + k.entropy.coefficient * (every.exp() * every).sum()
            if k.kl.coefficient and k.kl.where == "loss":
                d = log_ref - log_pi
                divergence = {
                    "k2": d**2 / 2,
                    "k3": d.exp() - 1 - d,
                    "exact": (every.exp() * (every - other)).sum(),
                }[k.kl.estimator]
                term = term + k.kl.coefficient * divergence
            if target:
                term = term + k.value_coefficient * value_loss(k, now, old, target, i, t)
            loss = loss + share * term
    return loss


def value_loss(k: Any, now: Any, old: Any, target: Any, i: int, t: int) -> Tensor:
    def error(v: Tensor) -> Tensor:
        e = v - target[i, t]
        if k.value_loss == "huber" and abs(float(e.detach())) > 1:
            return e.abs() - 0.5
        return e**2 / 2

    v, before = now[i]["value"][t], float(old[i]["value"][t])
    if k.value_clip is None:
        return error(v)
    near = before + (v - before).clamp(-k.value_clip, k.value_clip)
    return torch.maximum(error(v), error(near))


def literal_gradient(update: Update, batch: TensorDict, **chosen: Any) -> dict[str, Any]:
    policy = copy.deepcopy(update.policy).double()
    loss = literal(update, policy, batch, **chosen)
    names, parameters = zip(*policy.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(loss, parameters, allow_unused=True), strict=True))


def assert_equal(ours: dict[str, Tensor], theirs: dict[str, Any]) -> None:
    largest = max(float(g.abs().max()) for g in theirs.values() if g is not None)
    assert largest > 1e-3
    for name, gradient in theirs.items():
        if gradient is not None:
            gap = float((ours[name].double() - gradient).abs().max())
            assert gap < 2e-5 * largest, (name, gap, largest)


ORDER = torch.randperm(12, generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize("name", CASES)
def test_golden_23_the_gradient_is_the_papers_however_it_is_cut(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rollout = make_rollout()
    update = Update(name)
    ours = update.gradient(update.prepared(rollout[ORDER]))
    theirs = literal_gradient(update, update.sampled(rollout))  # in another order
    assert_equal(ours, theirs)
    for cutting in ({"micro_batch_size": 3}, {"max_tokens_per_micro_batch": 70}):
        update = Update(name, **cutting)
        assert_equal(update.gradient(update.prepared(rollout)), theirs)
    update = Update(name)
    batch = update.prepared(rollout)
    ranks = update.gradient(batch[ORDER[:5]], batch[ORDER[5:]], monkeypatch=monkeypatch)
    assert_equal(ranks, theirs)


@pytest.mark.parametrize("name", CASES)
def test_a_mini_batchs_gradient_is_the_papers_on_its_rows(name: str) -> None:
    """Advantages are the whole rollout's, denominators the mini-batch's."""
    update, chosen = Update(name, micro_batch_size=2), [11, 3, 0, 8, 9, 5]
    batch = update.prepared(make_rollout())
    theirs = literal_gradient(update, update.sampled(make_rollout()), chosen=chosen)
    assert_equal(update.gradient(batch[torch.tensor(chosen)]), theirs)


@pytest.mark.parametrize("name", CASES)
def test_a_single_updates_gradient_is_the_papers_at_a_ratio_of_one(name: str) -> None:
    """Rows that another policy sampled are weighed by what the update's own forward finds."""
    update = Update(name, epochs=1, minibatch_size=None, max_tokens_per_micro_batch=70)
    batch = update.prepared(make_rollout())
    assert ("importance" in batch.keys()) == isinstance(update.algorithm, PPO)  # noqa: SIM118
    ours = update.gradient(batch)
    assert_equal(ours, literal_gradient(update, update.sampled(make_rollout())))


@pytest.mark.parametrize("architecture", ["gpt2", "gemma2"])
def test_the_gradient_is_the_papers_by_transformers_forward_too(architecture: str) -> None:
    update = Update("ppo", architecture, micro_batch_size=5)
    ours = update.gradient(update.prepared(make_rollout()))
    assert_equal(ours, literal_gradient(update, update.sampled(make_rollout())))
