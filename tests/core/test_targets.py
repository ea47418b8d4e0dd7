"""Target networks."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from zoo.core.targets import Target


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def test_the_copy_moves_by_tau():
    online = network()
    target = Target(online, 0.25)
    start = [p.clone() for p in target.module.parameters()]
    with torch.no_grad():
        for p in online.parameters():
            p.add_(4.0)
    target.update()
    for before, now in zip(start, target.module.parameters(), strict=True):
        torch.testing.assert_close(now, before + 1.0)


def test_golden_10_optimizers_hold_online_parameters_only_and_buffers_are_copied():
    online = network()
    target = Target(online, 0.01)
    optimizer = torch.optim.Adam(online.parameters())
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    assert held.isdisjoint(id(p) for p in target.module.parameters())
    assert not any(p.requires_grad for p in target.module.parameters())
    for _ in range(3):
        online(torch.randn(8, 3) + 5)
    assert not torch.equal(online[1].running_mean, target.module[1].running_mean)
    target.update()
    assert torch.equal(online[1].running_mean, target.module[1].running_mean)
    assert target.module[1].num_batches_tracked == 3
    assert all(p.requires_grad for p in online.parameters())


def test_tau_one_copies_exactly():
    online = network()
    target = Target(online, 1.0)
    with torch.no_grad():
        for p in online.parameters():
            p.normal_()
    target.update()
    online.eval(), target.module.eval()
    x = torch.randn(5, 3)
    assert torch.equal(target(x), online(x))


def test_state_comes_back_in_place():
    online = network()
    target, other = Target(online, 0.5), Target(online, 0.5)
    with torch.no_grad():
        online[0].weight.add_(1.0)
    target.update()
    other.load_state_dict(target.state_dict())
    target.update()
    other.update()
    assert torch.equal(target.module[0].weight, other.module[0].weight)


@pytest.mark.parametrize("tau", [0.0, 1.5])
def test_a_tau_that_never_moves_or_overshoots_is_refused(tau):
    with pytest.raises(ValueError, match="tau"):
        Target(network(), tau)
