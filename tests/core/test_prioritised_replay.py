"""The sum tree, and prioritised replay's draws, weights and priorities."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from replayed import Streams

from zoo.core.replay import PriorityKnobs, ReplayBuffer
from zoo.core.sum_tree import SumTree
from zoo.errors import UserError

SIZES = (1, 7, 1024, 1025, 5000, 40_000)  # one to three levels


def replay(capacity: int = 100, batch_size: int = 8, **options: Any) -> ReplayBuffer:
    priority = PriorityKnobs(**{"alpha": 0.6, **options.pop("priority", {})})
    return ReplayBuffer(capacity, batch_size, **{"gamma": 0.9, "priority": priority, **options})


def frequencies(buffer: ReplayBuffer, slots: int) -> np.ndarray:
    drawn = np.concatenate([part["index"].numpy() for part in buffer.minibatches()])
    return np.bincount(drawn, minlength=slots)


# The tree.


@pytest.mark.parametrize("size", SIZES)
def test_a_leaf_is_found_by_every_part_of_its_mass(size):
    tree, rng = SumTree(size), np.random.default_rng(size)
    mass = rng.integers(0, 4, size).astype(float)  # whole numbers: their sums are exact
    mass[0] = 1.0
    tree.set(np.arange(size), mass)
    assert tree.total == mass.sum()
    inside = np.arange(int(tree.total)) + 0.5
    np.testing.assert_array_equal(tree.find(inside), np.repeat(np.arange(size), mass.astype(int)))
    # a leaf's interval holds its lower end, not its upper
    np.testing.assert_array_equal(tree.find(inside - 0.5), tree.find(inside))


@pytest.mark.parametrize("size", [100, 5000])
def test_a_hundred_thousand_updates_do_not_drift(size):
    tree, plain, rng = SumTree(size), np.zeros(size), np.random.default_rng(0)
    for _ in range(1000):
        index = rng.integers(size, size=100)
        mass = 10.0 ** rng.uniform(-9, 6, 100)
        tree.set(index, mass)
        plain[index] = mass
    assert tree.total == pytest.approx(math.fsum(plain), rel=1e-14)
    tree.set(np.arange(size), 1e-12)  # differences would leave the error of 10⁶ here
    assert tree.total == pytest.approx(size * 1e-12, rel=1e-14)


@settings(max_examples=300, deadline=None)
@given(
    size=st.integers(1, 3000),
    seed=st.integers(0, 2**16),
    live=st.integers(1, 40),
    spread=st.sampled_from([0, 3, 12, 200]),
)
def test_a_leaf_without_mass_is_never_found(size, seed, live, spread):
    tree, rng = SumTree(size), np.random.default_rng(seed)
    tree.set(rng.integers(size, size=live), 10.0 ** rng.uniform(-spread, spread, live))
    ends = np.cumsum(tree.leaves)
    near = np.concatenate([ends, np.nextafter(ends, 0), np.nextafter(ends, np.inf)])
    near = np.concatenate([near, [0.0, tree.total, 2 * tree.total], rng.random(50) * tree.total])
    assert (tree.leaves[tree.find(near)] > 0).all()


def test_a_search_survives_sums_that_round_differently():
    # a block's sum, added in pairs, can exceed the running sum of the same masses
    tree, exceeded = SumTree(1100), 0
    for seed in range(200):
        mass = np.random.default_rng(seed).random(16)
        mass[0] = 0.0
        tree.fill(mass)
        last = np.nextafter(tree.total, 0.0)
        exceeded += bool(last >= mass.cumsum()[-1])
        assert tree.find(np.array([last])) == 15
    assert exceeded > 10


@pytest.mark.parametrize("size", SIZES)
def test_a_tree_filled_at_once_equals_one_that_was_updated(size):
    tree, other, rng = SumTree(size), SumTree(size), np.random.default_rng(0)
    for count in (1, 5, 300):
        tree.set(rng.integers(size, size=count), rng.random(count))
    other.fill(np.ones(size))
    other.fill(tree.leaves[: size // 2 + 1])
    tree.set(np.arange(size // 2 + 1, size), 0.0)
    assert all(np.array_equal(a, b) for a, b in zip(tree._levels, other._levels))


def test_of_a_repeated_index_the_last_mass_counts():
    tree = SumTree(2000)
    tree.set(np.array([3, 1999, 3]), np.array([1.0, 2.0, 5.0]))
    assert (tree.leaves[3], tree.total) == (5.0, 7.0)


# Draws.


def test_golden_12_draws_are_of_written_slots_in_proportion_to_p_to_the_alpha():
    buffer = replay(500, 500, updates_per_step=20, priority={"alpha": 0.6})
    buffer.extend(Streams(1).fragment(100))
    error = np.random.default_rng(1).exponential(size=100) + 0.01
    buffer.feedback(torch.arange(100), torch.from_numpy(error) * -1.0)
    count, largest, batches = np.zeros(501), 0.0, 0
    for part in buffer.minibatches():
        count += np.bincount(part["index"].numpy(), minlength=501)
        largest, batches = max(largest, float(part["weight"].max())), batches + 1
    assert batches * 500 == 1_000_000
    assert count[100:].sum() == 0
    assert largest == 1.0
    wanted = (error + 1e-6) ** 0.6
    wanted *= 1_000_000 / wanted.sum()
    # 99 degrees of freedom: independent draws exceed it once in 10⁴, strata vary less
    assert ((count[:100] - wanted) ** 2 / wanted).sum() < 161
    twice = wanted**0.6 * (1_000_000 / (wanted**0.6).sum())
    assert ((count[:100] - twice) ** 2 / twice).sum() > 1e4


def test_every_stratum_gives_one_draw():
    # one slot has half of the mass, so half of the strata lie inside it
    buffer = replay(20, 10, updates_per_step=5, priority={"alpha": 1.0, "epsilon": 1e-12})
    buffer.extend(Streams(1).fragment(11))
    buffer.feedback(torch.arange(11), torch.tensor([1.0] * 10 + [10.0]))
    for part in buffer.minibatches():
        index = part["index"].tolist()
        assert index.count(10) == 5
        assert all(i // 2 == k for k, i in enumerate(index[:5]))


def test_alpha_0_draws_uniformly():
    buffer = replay(50, 50, updates_per_step=100, priority={"alpha": 0.0})
    buffer.extend(Streams(1).fragment(50))
    buffer.feedback(torch.arange(25), torch.full((25,), 1e6))
    assert frequencies(buffer, 50)[:25].sum() == pytest.approx(125_000, abs=500)


def test_new_transitions_get_the_largest_priority_so_far():
    buffer = replay(3, 1, priority={"alpha": 0.5, "epsilon": 1e-12})
    streams = Streams(1)
    mass = buffer.state_dict
    buffer.extend(streams.fragment(1))
    assert mass()["priority"]["mass"].tolist() == [1.0, 0.0]
    buffer.feedback(torch.tensor([0]), torch.tensor([16.0]))
    buffer.extend(streams.fragment(1))
    buffer.feedback(torch.tensor([0]), torch.tensor([0.25]))
    buffer.extend(streams.fragment(1))
    # the largest so far, 16^½, though nothing stored has it once slot 0 was measured again
    assert mass()["priority"]["mass"].tolist() == pytest.approx([0.5, 4.0, 4.0, 0.0])
    buffer.extend(streams.fragment(1))  # the row in front of the newest holds no transition
    assert mass()["priority"]["mass"].tolist() == pytest.approx([0.0, 4.0, 4.0, 4.0])


@pytest.mark.parametrize("envs", [1, 3])
def test_overwritten_slots_are_drawn_again_and_the_empty_row_never(envs):
    buffer, streams = replay(6, 6, updates_per_step=10), Streams(envs, terminates=0.1)
    for _ in range(25):
        buffer.extend(streams.fragment(1))
        kept = {step.observation for past in streams.past for step in past[-(6 // envs) :]}
        parts = list(buffer.minibatches())
        assert {x for part in parts for x in part["observation"][:, 0, 0].tolist()} == kept
        for part in parts:
            buffer.feedback(part["index"], 1 + part["reward"].abs())


# Weights.


@pytest.mark.parametrize(
    ("progress", "weight"), [(0.0, 2**-0.4), (0.5, 2**-0.7), (1.0, 0.5), (7.0, 0.5)]
)
def test_weights_by_hand_and_their_annealing(progress, weight):
    # p^α of 1 and 2: the likelier one weighs (1/2)^β
    buffer = replay(2, 2, updates_per_step=50, priority={"alpha": 0.5, "epsilon": 1e-12})
    buffer.extend(Streams(1).fragment(2))
    buffer.feedback(torch.tensor([0, 1]), torch.tensor([1.0, 4.0]))
    seen = set()
    for part in buffer.minibatches(progress):
        index = part["index"].tolist()
        wanted = [1.0 if i == 0 or 0 not in index else weight for i in index]
        assert part["weight"].flatten().tolist() == pytest.approx(wanted)
        seen.add(tuple(index))
    assert seen == {(0, 1), (1, 1)}  # a batch of one kind weighs 1: the maximum is the batch's


def test_weights_undo_the_preference():
    # with β = 1 every transition weighs the same in the long run: frequency × weight is constant
    buffer = replay(60, 60, updates_per_step=100, priority={"alpha": 0.7})
    buffer.extend(Streams(1).fragment(60))
    buffer.feedback(torch.arange(60), torch.linspace(0.5, 3.0, 60))
    total = np.zeros(60)
    for part in buffer.minibatches(1.0):  # the least likely ten are in all but every batch
        np.add.at(total, part["index"].numpy(), part["weight"][:, 0].numpy())
    assert total.std() / total.mean() < 0.02


# Feedback.


def test_errors_that_are_no_numbers_leave_priorities_as_they_were():
    buffer = replay(4, 4, priority={"alpha": 1.0, "epsilon": 0.5})
    buffer.extend(Streams(1).fragment(4))
    error = torch.tensor([[2.0], [math.nan], [-math.inf], [1.0]])
    buffer.feedback(torch.tensor([0, 1, 2, 3]), error)
    state = buffer.state_dict()["priority"]
    assert state["mass"].tolist() == [2.5, 1.0, 1.0, 1.5, 0.0]
    assert state["largest"] == 2.5


def test_feedback_does_not_fill_an_empty_slot():
    buffer = replay(3, 3)
    buffer.extend(Streams(1).fragment(2))
    buffer.feedback(torch.tensor([0, 2, 3]), torch.tensor([1.0, 9.0, 9.0]))
    assert buffer.state_dict()["priority"]["mass"][2] == 0
    assert set(frequencies(buffer, 4).nonzero()[0]) == {0, 1}


def test_the_last_of_repeated_errors_counts():
    buffer = replay(2, 2, priority={"alpha": 1.0, "epsilon": 1e-12})
    buffer.extend(Streams(1).fragment(2))
    buffer.feedback(torch.tensor([1, 1]), torch.tensor([5.0, 3.0]))
    assert buffer.state_dict()["priority"]["mass"].tolist() == pytest.approx([1.0, 3.0, 0.0])


def test_an_error_of_0_can_come_again():
    buffer = replay(2, 2, updates_per_step=2000, priority={"alpha": 0.6, "epsilon": 1e-2})
    buffer.extend(Streams(1).fragment(2))
    buffer.feedback(torch.tensor([0]), torch.tensor([0.0]))
    assert frequencies(buffer, 2)[0] > 0


@pytest.mark.parametrize(
    "wrong", [{"alpha": -0.1}, {"alpha": 1.5}, {"beta": 2.0}, {"beta_final": -1}, {"epsilon": 0.0}]
)
def test_exponents_out_of_range_are_refused(wrong):
    with pytest.raises(UserError, match=next(iter(wrong))):
        PriorityKnobs(**wrong)


def test_the_same_weights_and_frequencies_as_tianshou():
    data = pytest.importorskip("tianshou.data")
    np.random.seed(0)  # theirs draw from it
    error = torch.rand(100, generator=torch.Generator().manual_seed(0)) + 0.01
    theirs = data.PrioritizedReplayBuffer(100, alpha=0.6, beta=0.4)
    step = {"obs": 0.0, "act": 0, "rew": 0.0, "terminated": False, "truncated": False}
    for _ in range(100):
        theirs.add(data.Batch(**step, obs_next=0.0, info={}))
    theirs.update_weight(np.arange(100), error)
    buffer = replay(100, 100, updates_per_step=100)
    buffer.extend(Streams(1).fragment(100))
    buffer.feedback(torch.arange(100), error)
    own = next(buffer.minibatches(0.0))
    weight = theirs[own["index"].numpy()].weight
    np.testing.assert_allclose(own["weight"].flatten(), weight, rtol=1e-5)
    ours = frequencies(buffer, 100)
    count = np.bincount(theirs.sample_indices(ours.sum()), minlength=100)
    assert (np.abs(ours - count) < 5 * np.sqrt(ours + count)).all()
