"""Replay: what is stored, what an n-step transition is, how many updates steps earn, state."""

from __future__ import annotations

import io
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from replayed import Step, Streams, expected, fragment
from tensordict import TensorDict

from zoo.core.batch import BatchError
from zoo.core.replay import PriorityKnobs, ReplayBuffer, ReplayKnobs
from zoo.core.transitions import TransitionRing
from zoo.errors import UserError
from zoo.policies.mlp import MLPPolicy
from zoo.rollouts.gymnasium import GymnasiumRollout


def replay(capacity: int = 100, batch_size: int = 8, **options: Any) -> ReplayBuffer:
    return ReplayBuffer(capacity, batch_size, **{"gamma": 0.9, **options})


def everything(made: TransitionRing) -> list[tuple[float, ...]]:
    """All n-step transitions, oldest first."""
    read = made.gather(made.slot(np.arange(made.size)))
    names = ("observation", "action", "reward", "discount", "next_observation")
    return list(zip(*(read[name].reshape(made.size, -1)[:, 0].tolist() for name in names)))


def ring(*steps: Step, n: int = 1, capacity: int = 100, gamma: float = 0.9) -> TransitionRing:
    made = TransitionRing(capacity, n, gamma)
    made.extend(fragment([list(steps)]))
    return made


# n-step transitions.


@pytest.mark.parametrize(("terminated", "discount"), [(True, 0.0), (False, 0.9**2)])
def test_golden_13_a_two_step_episode_under_three_steps(terminated, discount):
    made = ring(
        Step(0, 0, 1.0, 1),
        Step(1, 1, 10.0, 2, terminated=terminated, truncated=not terminated),
        Step(50, 2, 100.0, 51),  # the next episode
        Step(51, 3, 1000.0, 52),
        n=3,
    )
    first, second, third, fourth = everything(made)
    last = 0.0 if terminated else 0.9
    assert first == pytest.approx((0, 0, 1.0 + 0.9 * 10.0, discount, 2))
    assert second == pytest.approx((1, 1, 10.0, last, 2))
    # the newest step ends the third and fourth early: right targets over two steps and one
    assert third == pytest.approx((50, 2, 100.0 + 0.9 * 1000.0, 0.9**2, 52))
    assert fourth == pytest.approx((51, 3, 1000.0, 0.9, 52))


def test_golden_13_the_wrapped_ring_joins_no_two_episodes():
    # room for 4: the episode 0 1 2 3 is overwritten by 50 51 52 of the next, step by step
    made = ring(*(Step(i, i, 1.0, i + 1) for i in range(3)), n=3, capacity=4)
    made.extend(fragment([[Step(3, 3, 1.0, 4, truncated=True)]]))
    for i in range(50, 53):
        made.extend(fragment([[Step(i, i, 100.0, i + 1)]]))
    assert everything(made) == [
        pytest.approx((3, 3, 1.0, 0.9, 4)),
        pytest.approx((50, 50, 100 * 2.71, 0.9**3, 53)),
        pytest.approx((51, 51, 100 * 1.9, 0.9**2, 53)),
        pytest.approx((52, 52, 100.0, 0.9, 53)),
    ]


def test_golden_13_the_first_item_stored_is_valid():
    made = ring(Step(7, 3, 2.0, 8), n=3)
    assert everything(made) == [pytest.approx((7, 3, 2.0, 0.9, 8))]


def test_three_steps_inside_an_episode():
    made = ring(*(Step(i, i, 10.0**i, i + 1) for i in range(4)), n=3, gamma=0.5)
    assert everything(made)[0] == pytest.approx((0, 0, 1 + 0.5 * 10 + 0.25 * 100, 0.125, 3))


@settings(max_examples=150, deadline=None)
@given(
    num_envs=st.integers(1, 4),
    capacity=st.integers(1, 30),
    n=st.integers(1, 5),
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=8),
    terminates=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    truncates=st.sampled_from([0.0, 0.1, 0.5]),
    seed=st.integers(0, 2**16),
    reload=st.booleans(),
)
def test_every_transition_equals_the_slow_reference(
    num_envs, capacity, n, lengths, terminates, truncates, seed, reload
):
    kept = -(-capacity // num_envs)
    n = min(n, kept)
    streams = Streams(num_envs, seed, terminates, truncates)
    made = TransitionRing(capacity, n, 0.9)
    for steps in lengths:
        written, emptied = made.extend(streams.fragment(steps))
        assert len({*written.tolist(), *emptied.tolist()}) == (min(steps, kept) + 1) * num_envs
        if reload:
            other = TransitionRing(capacity, n, 0.9)
            other.load_state_dict(made.state_dict())
            made = other
        wanted = expected(streams.past, kept, n, 0.9)
        np.testing.assert_allclose(everything(made), wanted, rtol=1e-5, atol=1e-6)
        newest = made.slot(np.arange(made.size))[-len(written) :]
        np.testing.assert_array_equal(written, newest)


def test_the_same_as_stable_baselines3_n_step_buffer():
    buffers = pytest.importorskip("stable_baselines3.common.buffers")
    space = gymnasium.spaces
    theirs = buffers.NStepReplayBuffer(
        40, space.Box(-1e9, 1e9, (1,)), space.Discrete(9), n_envs=2, n_steps=3, gamma=0.9
    )
    streams, ours = Streams(2, seed=5, terminates=0.1, truncates=0.1), TransitionRing(40, 3, 0.9)
    for _ in range(33):
        ours.extend(streams.fragment(1))
        new = [past[-1] for past in streams.past]
        column = {
            name: np.array([getattr(step, name) for step in new])
            for name in ("observation", "next_observation", "action", "reward")
        }
        theirs.add(
            column["observation"][:, None],
            column["next_observation"][:, None],
            column["action"],
            column["reward"],
            np.array([step.terminated or step.truncated for step in new]),
            [{"TimeLimit.truncated": step.truncated} for step in new],
        )
    own = {row[0]: row for row in everything(ours)}
    sampled = theirs._get_samples(np.arange(1000) % 20)  # of environments it chooses itself
    seen = sampled.observations.flatten().tolist()
    assert set(seen) == set(own)
    for i, observation in enumerate(seen):
        _, action, reward, discount, following = own[observation]
        bootstraps = 1 - float(sampled.dones[i])
        assert action == int(sampled.actions[i])
        assert reward == pytest.approx(float(sampled.rewards[i]), abs=1e-5)
        assert discount == pytest.approx(bootstraps * float(sampled.discounts[i]))
        assert following == float(sampled.next_observations[i])


# Storage.


def test_a_row_that_does_not_go_on_from_the_last_one_is_no_transition():
    # an environment that could not be restored: 1 was followed by 2, not by 70
    made = ring(Step(0, 0, 1.0, 1), Step(1, 1, 1.0, 2), n=3)
    made.extend(fragment([[Step(70, 2, 5.0, 71), Step(90, 3, 5.0, 91)]]))
    assert everything(made) == [
        pytest.approx((0, 0, 1.9, 0.81, 2)),
        pytest.approx((1, 1, 1.0, 0.9, 2)),
        pytest.approx((70, 2, 5.0, 0.9, 71)),  # nor was 71 followed by 90
        pytest.approx((90, 3, 5.0, 0.9, 91)),
    ]


def test_a_fragment_longer_than_the_capacity_leaves_its_end():
    made = ring(*(Step(i, i, 1.0, i + 1) for i in range(10)), capacity=3)
    assert [row[0] for row in everything(made)] == [7, 8, 9]


def test_only_written_slots_are_drawn():
    buffer, streams = replay(1000, 64, updates_per_step=20), Streams(3)
    for _ in range(5):
        buffer.extend(streams.fragment(1))
        seen = {step.observation for past in streams.past for step in past}
        drawn = torch.cat([part["observation"][:, 0, 0] for part in buffer.minibatches()])
        assert set(drawn.tolist()) == seen


def test_a_sampled_batch_has_the_documented_keys_shapes_and_types():
    buffer = replay(batch_size=5, n_step=2)
    buffer.extend(Streams(2).fragment(4))
    batch = next(buffer.minibatches())
    assert batch.batch_size == torch.Size([5])
    shapes = {key: (tuple(leaf.shape), leaf.dtype) for key, leaf in batch.items()}
    assert shapes == {
        "observation": ((5, 1, 2), torch.float32),
        "action": ((5, 1), torch.int64),
        "reward": ((5, 1), torch.float32),
        "discount": ((5, 1), torch.float32),
        "next_observation": ((5, 1, 2), torch.float32),
        "mask": ((5, 1), torch.bool),
        "index": ((5,), torch.int64),
    }
    assert batch["mask"].all()


def test_a_sampled_batch_is_not_overwritten_by_later_steps():
    buffer, streams = replay(8, 8), Streams(1)
    buffer.extend(streams.fragment(4))
    batch = next(buffer.minibatches())
    before = batch.clone()
    buffer.extend(streams.fragment(4))
    list(buffer.minibatches())
    assert all(torch.equal(leaf, before[key]) for key, leaf in batch.items())


def test_feedback_means_nothing_to_uniform_replay():
    buffer = replay(40, 40)
    buffer.extend(Streams(1).fragment(4))
    buffer.feedback(torch.tensor([0]), torch.tensor([1e9]))
    assert set(next(buffer.minibatches())["index"].tolist()) == {0, 1, 2, 3}


def cheetah(steps: int) -> TensorDict:
    """Steps of HalfCheetah-v5, truncated after every 1000."""
    no = torch.zeros(1, steps, dtype=torch.bool)
    truncated = no.clone()
    truncated[:, 999::1000] = True
    observation = torch.zeros(1, steps, 17)
    leaves = {"observation": observation, "next_observation": observation, "mask": ~no}
    leaves |= {"action": torch.zeros(1, steps, 6), "reward": torch.zeros(1, steps)}
    return TensorDict({**leaves, "terminated": no, "truncated": truncated}, batch_size=[1])


@pytest.mark.parametrize("priority", [None, PriorityKnobs(alpha=0.6)])
def test_a_million_transitions_of_half_cheetah_take_less_than_120_mb(priority):
    buffer, steps = replay(1_000_000, 256, priority=priority), cheetah(100_000)
    for _ in range(13):
        buffer.extend(steps)
    assert buffer.size == 1_000_000
    assert 98e6 < buffer.nbytes < 120e6


def test_final_observations_are_overwritten_with_their_steps():
    made, streams = TransitionRing(50, 1, 0.9), Streams(2, terminates=1.0)
    made.extend(streams.fragment(50))
    before = made.nbytes
    for _ in range(50):
        made.extend(streams.fragment(20))
    assert made.nbytes == before


def test_pixels_stay_bytes():
    pixels = torch.randint(0, 256, (2, 4, 3, 8, 8), dtype=torch.uint8)
    batch = Streams(2, terminates=0, truncates=0).fragment(3)
    batch["observation"], batch["next_observation"] = pixels[:, :3], pixels[:, 1:]
    buffer = replay(32, 16, updates_per_step=5)
    buffer.extend(batch)
    sampled = next(buffer.minibatches())
    assert sampled["observation"].dtype == sampled["next_observation"].dtype == torch.uint8
    assert sampled["observation"].shape == (16, 1, 3, 8, 8)
    assert buffer.nbytes < 17 * 2 * (3 * 8 * 8 + 8 + 4 + 1 + 4) + 8 * 3 * 8 * 8
    for index, seen, following in zip(
        sampled["index"], sampled["observation"][:, 0], sampled["next_observation"][:, 0]
    ):
        step, env = divmod(int(index), 2)
        assert torch.equal(seen, pixels[env, step])
        assert torch.equal(following, pixels[env, step + 1])


def test_masked_steps_are_refused():
    batch = Streams(2).fragment(3)
    batch["mask"][1, 2] = False
    with pytest.raises(BatchError, match=r"batch\['mask'\] is False at \[1, 2\]"):
        replay().extend(batch)


def test_another_number_of_environments_is_refused():
    buffer = replay()
    buffer.extend(Streams(2).fragment(3))
    with pytest.raises(BatchError, match="3 environments, the replay was begun with 2"):
        buffer.extend(Streams(3).fragment(3))


# With environments.


class Counter(gymnasium.Env[np.ndarray, int]):
    """Observe 0, 1, 2, … and end at 3, or a little later, depending on the seed."""

    observation_space = gymnasium.spaces.Box(0.0, 100.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, truncate: bool):
        self.truncate = truncate

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.count, self.last = 0, 3 + int(self.np_random.integers(3))
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> Any:
        self.count += 1
        over = self.count == self.last
        observation = np.full(1, self.count, np.float32)
        return observation, 10.0**self.count, over and not self.truncate, over and self.truncate, {}


@pytest.mark.parametrize("truncate", [True, False])
@pytest.mark.parametrize("autoreset", [None, "next_step", "same_step", "disabled"])
def test_golden_5_staggered_counters_never_count_from_their_end_to_0(truncate, autoreset):
    rollout = GymnasiumRollout(lambda: Counter(truncate), 4, 3, autoreset=autoreset)
    policy = MLPPolicy(rollout.observation_space, rollout.action_space)
    one, three = TransitionRing(40, 1, 0.5), TransitionRing(40, 3, 0.5)
    for _ in range(9):
        batch = rollout.collect(policy)
        one.extend(batch)
        three.extend(batch)
        for observation, _, reward, discount, following in everything(one):
            assert following == observation + 1
            assert reward == 10**following
            assert discount == 0.5 or (discount == 0 and not truncate and following >= 3)
        for observation, _, reward, discount, following in everything(three):
            k = int(following - observation)
            assert 1 <= k <= 3
            assert reward == sum(0.5**i * 10 ** (observation + 1 + i) for i in range(k))
            assert discount == 0.5**k or (discount == 0 and not truncate and following >= 3)
    ends = {row[4] for row in everything(one)}
    assert ends == {1, 2, 3, 4, 5}
    rollout.close()


# How many mini-batches steps earn.


def test_no_updates_until_learning_starts_and_then_one_for_every_step():
    buffer, streams = replay(learning_starts=10), Streams(2)
    waiting = []
    for _ in range(8):
        buffer.extend(streams.fragment(1))
        waiting.append(len(buffer))
        assert len(list(buffer.minibatches())) == waiting[-1]
        assert len(buffer) == 0
    assert waiting == [0, 0, 0, 0, 0, 2, 2, 2]


def test_fractions_of_updates_are_carried():
    buffer, streams = replay(updates_per_step=0.25), Streams(1)
    waiting = []
    for _ in range(12):
        buffer.extend(streams.fragment(1))
        waiting.append(len(list(buffer.minibatches())))
    assert waiting == [0, 0, 0, 1] * 3


@pytest.mark.parametrize("rate", [0.1, 1 / 3, 0.7, 1.0, 2.5])
def test_updates_are_exact_in_the_long_run(rate):
    buffer, batch = replay(20, 1, updates_per_step=rate), Streams(1).fragment(1)
    done = 0
    for _ in range(3000):
        buffer.extend(batch)
        done += sum(1 for _ in buffer.minibatches())
    assert done == round(3000 * rate)


def test_updates_that_were_not_taken_wait():
    buffer = replay()
    buffer.extend(Streams(1).fragment(3))
    waiting = buffer.minibatches()
    next(waiting)
    assert len(buffer) == 2


# State.


def saved(state: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """Through a file, as checkpoints go, and its size."""
    file = io.BytesIO()
    torch.save(state, file)
    size = file.tell()
    file.seek(0)
    return torch.load(file, weights_only=True), size


@pytest.mark.parametrize("priority", [None, PriorityKnobs(alpha=0.6)])
@pytest.mark.parametrize("before", [0, 3, 9, 40])  # empty, part full, just full, wrapped
def test_a_buffer_continues_bit_for_bit_from_its_state(priority, before):
    options: dict[str, Any] = {"n_step": 3, "updates_per_step": 0.6, "learning_starts": 4}
    options["priority"] = priority
    buffer, streams = replay(18, 4, **options), Streams(2)

    def run(buffer: ReplayBuffer, batches: list[TensorDict]) -> list[TensorDict]:
        drawn = []
        for batch in batches:
            buffer.extend(batch)
            for part in buffer.minibatches(0.3):
                buffer.feedback(part["index"], part["reward"])
                drawn.append(part)
        return drawn

    run(buffer, [streams.fragment(1) for _ in range(before)])
    state, _ = saved(buffer.state_dict())
    other = replay(18, 4, seed=99, **options)
    other.load_state_dict(state)
    following = [streams.fragment(1) for _ in range(30)]
    one, two = run(buffer, following), run(other, following)
    assert len(one) == len(two) > 10
    for a, b in zip(one, two):
        assert all(torch.equal(leaf, b[key]) for key, leaf in a.items())


def test_only_what_is_written_is_saved():
    buffer = replay(1_000_000, 16, priority=PriorityKnobs(alpha=0.6))
    buffer.extend(cheetah(2000))
    _, size = saved(buffer.state_dict())
    assert size < 2001 * (17 * 4 + 6 * 4 + 4 + 1 + 4 + 8) + 10_000


def test_loading_an_empty_state_empties_the_buffer():
    buffer = replay()
    empty = buffer.state_dict()
    buffer.extend(Streams(2).fragment(3))
    buffer.load_state_dict(empty)
    assert buffer.size == len(buffer) == 0
    buffer.extend(Streams(3).fragment(1))
    assert buffer.size == 3


def test_the_seed_decides_the_draws():
    batch = Streams(1).fragment(50)

    def drawn(seed: int) -> list[int]:
        buffer = replay(seed=seed)
        buffer.extend(batch)
        return next(buffer.minibatches())["index"].tolist()

    assert drawn(0) == drawn(0) != drawn(1)


def test_uniform_draws_are_uniform():
    buffer = replay(60, 50, updates_per_step=100)
    for _ in range(2):
        buffer.extend(Streams(1).fragment(50))  # wrapped: the slots of the gap are not drawn
    drawn = torch.cat([part["index"] for part in buffer.minibatches()])
    count = torch.bincount(drawn, minlength=61)
    assert len(drawn) == 500_000
    assert (count == 0).sum() == 1
    chi_square = ((count[count > 0] - len(drawn) / 60) ** 2 / (len(drawn) / 60)).sum()
    assert chi_square < 110  # 59 degrees of freedom: beyond it once in 10⁴


# What is refused.


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"capacity": 0}, "capacity ≥ 1"),
        ({"batch_size": 0}, "batch_size ≥ 1"),
        ({"batch_size": 101}, "batch_size=101 is more than the replay's capacity=100"),
        ({"learning_starts": 101}, "learning_starts=101 is more than the replay's capacity=100"),
        ({"n_step": 101}, "n_step=101 is more than the replay's capacity=100"),
        ({"n_step": 0}, "n_step ≥ 1"),
        ({"learning_starts": -1}, "learning_starts ≥ 0"),
        ({"gamma": 1.1}, "0 ≤ gamma ≤ 1"),
        ({"updates_per_step": 0}, "updates_per_step > 0"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(wrong, message):
    with pytest.raises(UserError, match=message):
        replay(**wrong)


def test_knobs_that_make_no_sense_are_refused_before_there_are_data():
    with pytest.raises(UserError, match="batch_size=256 is more than the replay's capacity=200"):
        ReplayKnobs(capacity=200)


@pytest.mark.parametrize("alpha", [0.0, 0.6])
def test_knobs_build_the_buffer_that_they_describe(alpha):
    priority = PriorityKnobs(alpha=alpha)
    knobs = ReplayKnobs(50, 5, 3, learning_starts=7, updates_per_step=0.5, priority=priority)
    buffer, streams = knobs.build(0.9, seed=4), Streams(1)
    options: dict[str, Any] = {"n_step": 3, "learning_starts": 7, "updates_per_step": 0.5}
    again = replay(50, 5, seed=4, priority=priority if alpha else None, **options)
    for _ in range(30):
        batch = streams.fragment(1)
        buffer.extend(batch)
        again.extend(batch)
        parts = list(buffer.minibatches())
        for one, other in zip(parts, again.minibatches(), strict=True):
            assert all(torch.equal(leaf, other[key]) for key, leaf in one.items())


def test_a_capacity_of_fewer_than_n_steps_of_each_environment_is_refused():
    buffer = replay(8, 4, n_step=5)
    with pytest.raises(UserError, match="holds 2 steps of each of 4 environments"):
        buffer.extend(Streams(4).fragment(1))


def test_a_bound_on_single_rewards_is_refused_where_sums_are_sampled():
    ReplayKnobs(n_step=1).refuse_clamp(1.0)
    ReplayKnobs(n_step=3).refuse_clamp(None)
    with pytest.raises(UserError, match="would bound the sum of 3 rewards"):
        ReplayKnobs(n_step=3).refuse_clamp(1.0)
