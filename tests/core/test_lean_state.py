"""Adam's state in host memory and in eight bits."""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from zoo.core import lean_state
from zoo.core.lean_state import EightBitAdamW, OffloadedAdamW, make_optimizer
from zoo.core.optimizer import FusedAdamW
from zoo.errors import UserError

OPTIONS: dict[str, Any] = {"lr": 0.01, "betas": (0.9, 0.98), "eps": 1e-8}


def network(width: int = 6) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, width), nn.Linear(width, 3))


def groups(module: nn.Module) -> list[dict[str, Any]]:
    first, second = module.children()
    return [
        {"params": list(first.parameters()), "lr": 0.1, "weight_decay": 0.0},
        {"params": list(second.parameters()), "lr": 0.01, "weight_decay": 0.1},
    ]


def step(module: nn.Module, optimizer: Any, number: int, only_first: bool = False) -> None:
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(number))
    part = next(module.children()) if only_first else module
    part(x).square().sum().backward()
    optimizer.param_groups[0]["lr"] = 0.1 / (number + 1)
    optimizer.advance(0.5 if number == 1 else 1.0)
    optimizer.clear()


def same(one: nn.Module, other: nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters()))


@pytest.mark.parametrize("part", [1, 30, 2**26])
@pytest.mark.parametrize("missing", [(), (0,), (2,)])
def test_offloaded_steps_equal_those_on_the_device_bit_for_bit(
    monkeypatch: pytest.MonkeyPatch, part: int, missing: tuple[int, ...]
) -> None:
    monkeypatch.setattr(lean_state, "PART", part)
    ours, theirs = network(), network()
    offloaded = OffloadedAdamW(groups(ours), **OPTIONS)
    plain = FusedAdamW(groups(theirs), **OPTIONS)
    for number in range(5):
        step(ours, offloaded, number, number in missing)
        step(theirs, plain, number, number in missing)
        assert same(ours, theirs)
    assert not same(ours, network())
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        for name in ("exp_avg", "exp_avg_sq", "step"):
            assert torch.equal(offloaded.state[mine][name], plain.state[other][name])


def test_the_offloaded_state_is_not_what_the_kernel_works_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[int] = []
    kernel = torch._fused_adamw_

    def spy(*arguments: Any, **named: Any) -> None:
        seen.extend(moment.data_ptr() for moments in arguments[2:4] for moment in moments)
        kernel(*arguments, **named)

    monkeypatch.setattr(torch, "_fused_adamw_", spy)
    module = network()
    optimizer = OffloadedAdamW(groups(module), **OPTIONS)
    step(module, optimizer, 0)
    kept = {s[n].data_ptr() for s in optimizer.state.values() for n in ("exp_avg", "exp_avg_sq")}
    assert len(seen) == len(kept) == 8 and not kept & set(seen)


@pytest.mark.parametrize("maker", [OffloadedAdamW, FusedAdamW])
def test_an_offloaded_optimizer_continues_exactly_from_its_own_and_from_a_plain_state(
    maker: Any, tmp_path: Path
) -> None:
    module = network()
    optimizer = maker(groups(module), **OPTIONS)
    for number in range(3):
        step(module, optimizer, number)
    torch.save(optimizer.state_dict(), tmp_path / "state.pt")
    twin = copy.deepcopy(module)
    resumed = OffloadedAdamW(groups(twin), **OPTIONS)
    resumed.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    for number in range(3, 6):
        step(module, optimizer, number)
        step(twin, resumed, number)
    assert same(module, twin)
    assert all(float(state["step"]) == 6 for state in resumed.state.values())


def test_on_a_cpu_nothing_is_offloaded() -> None:
    assert type(make_optimizer("host", groups(network()), **OPTIONS)) is FusedAdamW
    assert type(make_optimizer("device", groups(network()), **OPTIONS)) is FusedAdamW
    accelerated = [{"params": [nn.Parameter(torch.empty(3, device="meta"))]}]
    assert type(make_optimizer("host", accelerated, **OPTIONS)) is OffloadedAdamW


def test_eight_bits_without_bitsandbytes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    monkeypatch.setitem(sys.modules, "bitsandbytes.optim", None)
    with pytest.raises(UserError, match="pip install bitsandbytes"):
        make_optimizer("8bit", groups(network()), **OPTIONS)


def test_eight_bit_state_takes_a_quarter_and_steps_nearly_the_same() -> None:
    pytest.importorskip("bitsandbytes")
    ours, theirs = network(2048), network(2048)
    eight = make_optimizer("8bit", groups(ours), **OPTIONS)
    plain = FusedAdamW(groups(theirs), **OPTIONS)
    assert isinstance(eight, EightBitAdamW)
    for number in range(4):
        step(ours, eight, number)
        step(theirs, plain, number)
    weight, other = (next(m.parameters()).detach() for m in (ours, theirs))
    states = [s for s in eight.adam.state.values() if s["state1"].dtype == torch.uint8]
    assert len(states) == 2  # both matrices; biases have fewer than 4,096 numbers
    moved = (other - next(network(2048).parameters()).detach()).abs().mean()
    assert float((weight - other).abs().mean()) < 0.05 * float(moved)
    assert not torch.equal(weight, other)


def test_eight_bit_state_resumes_bit_for_bit(tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes")
    module = network(2048)
    optimizer = EightBitAdamW(groups(module), **OPTIONS)
    for number in range(3):
        step(module, optimizer, number)
    torch.save(optimizer.state_dict(), tmp_path / "state.pt")
    twin = copy.deepcopy(module)
    resumed = EightBitAdamW(groups(twin), **OPTIONS)
    resumed.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    for number in range(3, 6):
        step(module, optimizer, number)
        step(twin, resumed, number)
    assert same(module, twin)
    before = copy.deepcopy(twin)
    step(twin, resumed, 1)
    assert not same(before, twin)
