"""The one reduction: the same number however an update is cut."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from zoo.functional.reduce import Denominators, aggregate, denominators, weights

MODES = ("token-mean", "sequence-mean", "constant")
VALUES = torch.tensor([[1.0, 2.0, 3.0, torch.nan], [10.0, torch.nan, 0.0, 0.0], [torch.nan] * 4])
MASK = torch.tensor([[1, 1, 1, 0], [1, 0, 0, 0], [0, 0, 0, 0]], dtype=torch.bool)


@pytest.mark.parametrize(
    ("mode", "expected"),
    # 16/4 tokens; (2 + 10)/2 sequences; 16/(2 sequences of at most 8)
    [("token-mean", 4.0), ("sequence-mean", 6.0), ("constant", 1.0)],
)
def test_each_mode_by_hand(mode, expected):
    assert aggregate(VALUES, MASK, mode, denominators(MASK, max_length=8)).item() == expected


def test_golden_23_micro_batches_of_10_and_100_tokens_are_divided_by_110():
    generator = torch.Generator().manual_seed(0)
    first, second = torch.rand(1, 10, generator=generator), torch.rand(1, 100, generator=generator)
    masks = [torch.ones(1, 10, dtype=torch.bool), torch.ones(1, 100, dtype=torch.bool)]
    whole = denominators(torch.arange(100) < torch.tensor([[10], [100]]))
    assert whole.tokens.item() == 110 and whole.constant is None
    parts = [
        aggregate(x, m, "token-mean", whole) for x, m in zip((first, second), masks, strict=True)
    ]
    torch.testing.assert_close(sum(parts), (first.sum() + second.sum()) / 110)
    assert abs(sum(parts) - (first.mean() + second.mean()) / 2) > 1e-3


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), size=st.integers(1, 9), mode=st.sampled_from(MODES))
def test_golden_23_gradients_do_not_depend_on_the_micro_batch(seed, size, mode):
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(9, 6, generator=generator)
    length = torch.randint(0, 7, (9,), generator=generator)
    mask = torch.arange(6) < length[:, None]
    whole = denominators(mask, max_length=6)

    def gradient(rows: int) -> torch.Tensor:
        weight = torch.ones(6, requires_grad=True)
        order = torch.randperm(9, generator=generator)
        for part in order.split(rows):
            aggregate((values * weight)[part], mask[part], mode, whole).backward()
        return weight.grad

    torch.testing.assert_close(gradient(size), gradient(9), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dense", [True, False])
def test_weights_are_the_derivative_of_the_aggregate(mode, dense):
    mask = (
        torch.ones(3, 4, dtype=torch.bool)
        if dense
        else torch.arange(4) < torch.tensor([[2], [0], [3]])
    )
    whole = denominators(mask, max_length=7)
    values = torch.randn(3, 4, requires_grad=True)
    aggregate(values, mask, mode, whole).backward()
    assert torch.equal(weights(mask, mode, whole), values.grad)


def test_weights_without_a_limit_or_a_known_mode_are_refused():
    mask = torch.ones(2, 3, dtype=torch.bool)
    with pytest.raises(ValueError, match="max_length"):
        weights(mask, "constant", denominators(mask))
    with pytest.raises(ValueError, match="mode is"):
        weights(mask, "mean", denominators(mask))


def test_an_update_without_a_live_step_is_zero():
    mask = torch.zeros(2, 3, dtype=torch.bool)
    for mode in MODES:
        values = torch.full((2, 3), torch.nan, requires_grad=True)
        total = aggregate(values, mask, mode, denominators(mask, max_length=3))
        total.backward()
        assert total.item() == 0 and values.grad.eq(0).all()


def test_one_live_step_is_divided_by_one():
    mask, values = torch.tensor([[True, False]]), torch.tensor([[3.0, torch.nan]])
    for mode in MODES:
        whole = denominators(mask, max_length=1)
        assert aggregate(values, mask, mode, whole).item() == 3.0
        assert weights(mask, mode, whole).tolist() == [[1.0, 0.0]]


def test_only_a_mask_without_a_gap_is_dense():
    assert denominators(torch.ones(1, 1, dtype=torch.bool)).dense
    assert not denominators(torch.tensor([[True, False]])).dense
    assert not denominators(torch.ones(0, 4, dtype=torch.bool)).dense


def test_a_group_of_one_process_counts_as_that_process_alone(tmp_path):
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1
    )
    try:
        whole = denominators(MASK, max_length=8).across_ranks()
        without = denominators(MASK).across_ranks()
    finally:
        torch.distributed.destroy_process_group()
    own = denominators(MASK, max_length=8)
    assert (whole.tokens, whole.sequences, whole.constant) == (
        own.tokens,
        own.sequences,
        own.constant,
    )
    assert without.constant is None and whole.dense == own.dense


def test_mistakes_are_refused():
    mask = torch.ones(2, 3, dtype=torch.bool)
    values, whole = torch.zeros(2, 3), denominators(mask)
    with pytest.raises(ValueError, match="max_length"):
        aggregate(values, mask, "constant", whole)
    with pytest.raises(ValueError, match="mean"):
        aggregate(values, mask, "mean", whole)
    with pytest.raises(ValueError, match="differ"):
        aggregate(values[:, :1], mask, "token-mean", whole)
    with pytest.raises(ValueError, match="bool"):
        denominators(mask.float())


def gradient_of_rank(rank: int, folder: str) -> None:
    """One of two processes: its rows, the denominators of both, gradients summed."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2
    )
    batch = torch.load(f"{folder}/batch.pt", weights_only=True)
    rows = slice(0, 2) if rank == 0 else slice(2, 7)
    values, mask = batch["values"][rows], batch["mask"][rows]
    whole = denominators(mask, max_length=5).across_ranks()
    result = {}
    for mode in MODES:
        weight = torch.ones(5, requires_grad=True)
        aggregate(values * weight, mask, mode, whole).backward()
        torch.distributed.all_reduce(weight.grad)
        result[mode] = weight.grad
    without = denominators(mask).across_ranks()
    assert without.constant is None and without.tokens == whole.tokens
    if rank == 0:
        torch.save(result, f"{folder}/result.pt")
    torch.distributed.destroy_process_group()


def test_golden_23_gradients_do_not_depend_on_the_world_size(tmp_path):
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(7, 5, generator=generator)
    mask = torch.arange(5) < torch.tensor([5, 1, 2, 0, 4, 3, 5])[:, None]
    torch.save({"values": values, "mask": mask}, tmp_path / "batch.pt")
    torch.multiprocessing.spawn(gradient_of_rank, args=(str(tmp_path),), nprocs=2)
    result = torch.load(tmp_path / "result.pt", weights_only=True)
    whole = denominators(mask, max_length=5)
    for mode in MODES:
        weight = torch.ones(5, requires_grad=True)
        aggregate(values * weight, mask, mode, whole).backward()
        torch.testing.assert_close(result[mode], weight.grad, atol=1e-6, rtol=1e-6)


def test_alone_the_denominators_are_ones_own():
    whole = Denominators(torch.tensor(3), torch.tensor(2))
    assert whole.across_ranks() is whole
