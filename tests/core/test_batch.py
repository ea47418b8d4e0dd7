"""The batch schema names what is wrong; fragments flatten without losing a live step."""

import pytest
import torch
from tensordict import TensorDict

from zoo.core.batch import BatchError, check, flatten_steps, live_steps


def make_batch(rows: int = 2, steps: int = 3) -> TensorDict:
    shape = (rows, steps)
    return TensorDict(
        {
            "observation": torch.arange(rows * steps * 4.0).reshape(rows, steps, 4),
            "action": torch.zeros(shape, dtype=torch.long),
            "log_prob": torch.zeros(shape),
            "reward": torch.arange(6.0).reshape(2, 3) if shape == (2, 3) else torch.zeros(shape),
            "terminated": torch.zeros(shape, dtype=torch.bool),
            "truncated": torch.zeros(shape, dtype=torch.bool),
            "mask": torch.ones(shape, dtype=torch.bool),
            "group": torch.tensor([7, 8])[:rows],
            "version": torch.zeros(rows, dtype=torch.long),
        },
        batch_size=[rows],
    )


def test_a_good_batch_passes_and_is_returned() -> None:
    batch = make_batch()
    assert check(batch) is batch
    assert live_steps(batch) == 6


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("reward", torch.zeros(2, 2), r"batch\['reward'\] has shape \[2, 2\], expected \[2, 3\]"),
        ("reward", torch.zeros(2, 3, 1), r"'reward'\] has shape \[2, 3, 1\], expected \[2, 3\]"),
        ("reward", torch.zeros(2, 3).double(), r"'reward'\] has dtype torch.float64"),
        ("action", torch.zeros(2, 4), r"'action'\] has shape \[2, 4\], expected \[2, 3\]"),
        ("group", torch.zeros(2, 3).long(), r"'group'\] has shape \[2, 3\], expected \[2\]"),
        ("mask", torch.zeros(2).bool(), r"'mask'\] must be a \[B, T\]"),
        ("advantage", torch.zeros(2, 9), r"'advantage'\] has shape \[2, 9\]"),
    ],
)
def test_a_wrong_leaf_is_named_with_both_shapes(
    key: str, value: torch.Tensor, message: str
) -> None:
    batch = make_batch()
    batch[key] = value
    with pytest.raises(BatchError, match=message):
        check(batch)


def test_a_missing_key_is_named() -> None:
    batch = make_batch()
    del batch["log_prob"]
    with pytest.raises(BatchError, match=r"batch\['log_prob'\] is missing"):
        check(batch)
    with pytest.raises(BatchError, match=r"batch\['advantage'\] is missing"):
        check(make_batch(), require=["advantage"])


def test_a_step_cannot_be_both_terminated_and_truncated() -> None:
    batch = make_batch()
    batch["terminated"][1, 2] = batch["truncated"][1, 2] = True
    with pytest.raises(BatchError, match=r"step \[1, 2\] is both"):
        check(batch)


def test_flattening_keeps_live_steps_in_order_and_repeats_the_rows_keys() -> None:
    batch = make_batch()
    batch["mask"][0, 2] = False
    flat = flatten_steps(batch)
    assert flat.batch_size == torch.Size([5])
    assert flat["reward"].flatten().tolist() == [0.0, 1.0, 3.0, 4.0, 5.0]
    assert flat["group"].tolist() == [7, 7, 8, 8, 8]
    assert flat["observation"].shape == (5, 1, 4)
    assert flat["observation"][2, 0].tolist() == [12.0, 13.0, 14.0, 15.0]
    assert bool(flat["mask"].all())
