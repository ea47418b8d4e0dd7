"""The lean AdamW against torch's own."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from zoo.core.optimizer import FusedAdamW, gradient_norm

OPTIONS: dict[str, Any] = {"betas": (0.8, 0.95), "eps": 1e-6}


def networks() -> tuple[torch.nn.Module, torch.nn.Module]:
    torch.manual_seed(0)
    one = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Linear(5, 2))
    return one, copy.deepcopy(one)


def groups(module: torch.nn.Module) -> list[dict[str, Any]]:
    first, second = module.children()
    return [
        {"params": list(first.parameters()), "lr": 0.1, "weight_decay": 0.0},
        {"params": list(second.parameters()), "lr": 0.01, "weight_decay": 0.1},
    ]


def backward(module: torch.nn.Module, seed: int, only_first: bool = False) -> None:
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(seed))
    part = next(module.children()) if only_first else module
    part(x).square().sum().backward()


@pytest.mark.parametrize("missing", [(), (0,), (2,)])
def test_steps_equal_torchs_own(missing: tuple[int, ...]) -> None:
    ours, theirs = networks()
    lean = FusedAdamW(groups(ours), **OPTIONS)
    reference = torch.optim.AdamW(groups(theirs), **OPTIONS)
    for step in range(5):
        for optimizer in (lean, reference):
            optimizer.param_groups[0]["lr"] = 0.1 / (step + 1)
        backward(ours, step, step in missing)
        backward(theirs, step, step in missing)
        lean.advance()
        reference.step()
        lean.clear()
        reference.zero_grad()
        for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(a, b)
    moved, _ = networks()
    assert not torch.equal(next(moved.parameters()), next(ours.parameters()))


def test_a_loaded_optimizer_continues_exactly() -> None:
    ours, _ = networks()
    lean = FusedAdamW(groups(ours), **OPTIONS)
    for step in range(3):
        backward(ours, step)
        lean.advance()
        lean.clear()
    twin = copy.deepcopy(ours)
    loaded = FusedAdamW(groups(twin), **OPTIONS)
    loaded.load_state_dict(copy.deepcopy(lean.state_dict()))
    for step in range(3, 6):
        for module, optimizer in ((ours, lean), (twin, loaded)):
            backward(module, step)
            optimizer.advance()
            optimizer.clear()
    for a, b in zip(ours.parameters(), twin.parameters(), strict=True):
        assert torch.equal(a, b)
    state = lean.state_dict()["state"][0]
    assert float(state["step"]) == 6 and torch.equal(
        state["exp_avg"], loaded.state_dict()["state"][0]["exp_avg"]
    )


def test_clipped_steps_equal_torchs_own() -> None:
    ours, theirs = networks()
    lean = FusedAdamW(groups(ours), **OPTIONS)
    reference = torch.optim.AdamW(groups(theirs), **OPTIONS)
    for step, limit in enumerate([1.0, 0.1, 1e9, 3.0]):
        backward(ours, step)
        backward(theirs, step)
        norm = gradient_norm([p.grad for p in ours.parameters() if p.grad is not None])
        expected = torch.nn.utils.clip_grad_norm_(theirs.parameters(), limit)
        torch.testing.assert_close(norm, expected)
        lean.advance(min(1.0, limit / (float(norm) + 1e-6)))
        reference.step()
        lean.clear()
        reference.zero_grad()
        for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(a, b)
