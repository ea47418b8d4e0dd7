"""Schedules by their literal values; the rollout buffer yields every row once per pass."""

import math

import pytest
import torch
from tensordict import TensorDict

from zoo.core.buffer import RolloutBuffer
from zoo.core.schedule import schedule
from zoo.errors import UserError


@pytest.mark.parametrize(
    ("kind", "progress", "expected"),
    [
        ("constant", 0.7, 1.0),
        ("linear", 0.25, 0.75),
        ("linear", 2.0, 0.0),
        ("cosine", 0.0, 1.0),
        ("cosine", 1 / 3, 0.75),
        ("cosine", 1.0, 0.0),
        ("warmup-cosine", 0.05, 0.5),
        ("warmup-cosine", 0.1, 1.0),
        ("warmup-cosine", 0.55, 0.5),
        ("warmup-cosine", 1.0, 0.0),
        # a *linear* decay after the warm-up would give 0.75 here
        ("warmup-cosine", 0.325, (1 + math.cos(math.pi / 4)) / 2),
    ],
)
def test_schedule_values(kind: str, progress: float, expected: float) -> None:
    assert schedule(kind, progress) == pytest.approx(expected, abs=1e-12)


def test_the_first_round_of_a_warm_up_learns() -> None:
    assert schedule("warmup-cosine", 0.0, warmup=0.1, share=0.02) == pytest.approx(0.2)
    assert schedule("warmup-cosine", 0.09, warmup=0.1, share=0.02) == 1.0


def test_an_unknown_schedule_names_the_nearest() -> None:
    with pytest.raises(UserError, match="Did you mean 'cosine'"):
        schedule("cosin", 0.5)


def rows(count: int) -> TensorDict:
    return TensorDict({"x": torch.arange(count)}, batch_size=[count])


def test_every_row_comes_once_per_epoch_in_a_new_order() -> None:
    buffer = RolloutBuffer(epochs=2, minibatch_size=3, seed=0)
    buffer.extend(rows(8))
    parts = [part["x"].tolist() for part in buffer.minibatches()]
    assert [len(p) for p in parts] == [3, 3, 2, 3, 3, 2]
    first, second = sum(parts[:3], []), sum(parts[3:], [])
    assert sorted(first) == sorted(second) == list(range(8))
    assert first != second
    assert list(buffer.minibatches()) == []  # fresh data are used once


def test_the_whole_rollout_at_once_is_not_copied_or_shuffled() -> None:
    buffer = RolloutBuffer(epochs=1, minibatch_size=None)
    batch = rows(4)
    buffer.extend(batch)
    assert next(iter(buffer.minibatches())) is batch


def test_the_shuffle_continues_from_its_state() -> None:
    one, other = RolloutBuffer(1, 2, seed=3), RolloutBuffer(1, 2, seed=99)
    one.extend(rows(6))
    list(one.minibatches())
    other.load_state_dict(one.state_dict())
    orders = []
    for buffer in (one, other):
        buffer.extend(rows(6))
        orders.append([part["x"].tolist() for part in buffer.minibatches()])
    assert orders[0] == orders[1]
