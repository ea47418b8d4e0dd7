"""Steps that the mask leaves out in the middle of a row are passed over."""

from __future__ import annotations

import pytest
import torch

from zoo.functional import returns
from zoo.functional.vtrace import vtrace, vtrace_loop
from zoo.policies.language import _of_next

NAN = float("nan")


def flags(*row: int) -> torch.Tensor:
    return torch.tensor([row], dtype=torch.bool)


# own, own, environment, environment, own, padding
OWN = flags(1, 1, 0, 0, 1, 0)
END = flags(0, 0, 0, 0, 1, 0)
NEVER = flags(0, 0, 0, 0, 0, 0)
REWARD = torch.tensor([[0.0, 0.0, NAN, NAN, 1.0, NAN]])
VALUE = torch.tensor([[0.1, 0.2, NAN, NAN, 0.4, NAN]])


def test_the_next_value_is_of_the_next_own_token() -> None:
    value = torch.tensor([[0.1, 0.2, 7.0, 8.0, 0.4, 9.0]])
    expected = torch.tensor([[0.2, 0.4, 0.4, 0.4, 0.0, 0.0]])
    assert torch.equal(_of_next(value, OWN), expected)
    assert _of_next(value, None).tolist()[0] == pytest.approx([0.2, 7.0, 8.0, 0.4, 9.0, 0.0])


@pytest.mark.parametrize("gae", [returns.gae, returns.gae_loop])
def test_gae_passes_over_environment_tokens(gae) -> None:
    # γ = .5, λ = .5: δ = [.5·.2 − .1, .5·.4 − .2, ·, ·, 1 − .4] = [0, 0, ·, ·, .6]
    # A_4 = .6;  A_1 = 0 + .25·.6 = .15;  A_0 = 0 + .25·.15 = .0375
    advantage, target = gae(REWARD, VALUE, _of_next(VALUE, OWN), END, NEVER, OWN, 0.5, 0.5)
    torch.testing.assert_close(advantage, torch.tensor([[0.0375, 0.15, 0.0, 0.0, 0.6, 0.0]]))
    torch.testing.assert_close(target, torch.tensor([[0.1375, 0.35, 0.0, 0.0, 1.0, 0.0]]))


@pytest.mark.parametrize("estimate", [vtrace, vtrace_loop])
def test_vtrace_passes_over_environment_tokens(estimate) -> None:
    # w = [1, .5, ·, ·, .5], γ = .5, λ = 1, δ as above: v_4 = .4 + .5·.6 = .7;
    # v_1 = .2 + .5·0 + .5·.5·.3 = .275; v_0 = .1 + 0 + .5·1·.075 = .1375
    # A_4 = .6; A_1 = 0 + .5·.3 = .15; A_0 = 0 + .5·.075 = .0375
    weight = torch.tensor([[1.0, 0.5, NAN, NAN, 0.5, NAN]])
    advantage, target = estimate(
        REWARD, VALUE, _of_next(VALUE, OWN), END, NEVER, weight, OWN, gamma=0.5, lam=1.0
    )
    torch.testing.assert_close(target, torch.tensor([[0.1375, 0.275, 0.0, 0.0, 0.7, 0.0]]))
    torch.testing.assert_close(advantage, torch.tensor([[0.0375, 0.15, 0.0, 0.0, 0.6, 0.0]]))


def test_the_discounted_return_passes_over_environment_tokens() -> None:
    found = returns.discounted(REWARD, END, NEVER, 0.5, mask=OWN)
    assert found.tolist() == [[0.25, 0.5, 0.0, 0.0, 1.0, 0.0]]
    bootstrap = torch.full((1, 6), 4.0)  # at the last own step alone, which nothing ended
    open_end = returns.discounted(REWARD, NEVER, NEVER, 0.5, bootstrap, OWN)
    assert open_end.tolist() == [[0.75, 1.5, 0.0, 0.0, 3.0, 0.0]]


def test_rows_with_gaps_equal_the_rows_without_them() -> None:
    g = torch.Generator().manual_seed(0)
    own = torch.rand(5, 30, generator=g) < 0.6
    own[:, 0] = True
    last = own & (own.flip(1).cumsum(1).flip(1) == 1)
    reward, value = torch.randn(2, 5, 30, generator=g)
    never = torch.zeros_like(own)
    advantage, _ = returns.gae(reward, value, _of_next(value, own), last, never, own, 0.9, 0.8)
    for i in range(5):
        r, v, end = (x[i][own[i]][None] for x in (reward, value, last))
        alone, _ = returns.gae(r, v, _of_next(v, None), end, torch.zeros_like(end), None, 0.9, 0.8)
        torch.testing.assert_close(advantage[i][own[i]], alone[0])
        assert bool((advantage[i][~own[i]] == 0).all())
