"""Returns and advantages of trajectories [B, T] and of groups [B].

Every recursion here is y_t = x_t + c_t·y_{t+1} with c_t = 0 where an episode ends. It is linear, so
it is solved by doubling in ⌈log₂ T⌉ whole-tensor steps instead of T small ones. Shapes: ``B`` rows,
``T`` steps; flags are bool; everything else float32.

Numbers at a step that a flag makes irrelevant (the next value after a true termination, anything
where ``mask`` is False) are selected away rather than multiplied by zero, so NaN there is harmless.
Steps where ``mask`` is False are passed over, as if the live steps before and behind them stood
side by side: an environment's tokens between a language model's own.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

__all__ = [
    "discounted",
    "gae",
    "gae_loop",
    "group_advantage",
    "live_groups",
    "live_only",
    "n_step",
    "normalize",
    "reverse_scan",
    "td_errors",
]

Scale = Literal["group", "batch", "none"]
GroupBaseline = Literal["group", "leave-one-out"]


def _same_shape(dimensions: int, **tensors: Tensor | None) -> None:
    """Raise ValueError unless all tensors given have one shape of that many dimensions."""
    shapes = {name: tuple(x.shape) for name, x in tensors.items() if x is not None}
    if len(set(shapes.values())) != 1 or len(next(iter(shapes.values()))) != dimensions:
        raise ValueError(f"expected one {dimensions}-dimensional shape for all, got {shapes}")


def reverse_scan(x: Tensor, decay: Tensor) -> Tensor:
    """Solve y_t = x_t + c_t·y_{t+1} with y_T = 0, in ⌈log₂ T⌉ steps.

    After the step of width s, y_t holds the sum over the next 2s terms and c_t their joint decay
    (Hillis & Steele 1986, "Data parallel algorithms").

    Parameters
    ----------
    x, decay : Tensor
        [B, T] float; ``decay`` is c, within [-1, 1] so that its products cannot overflow.

    Returns
    -------
    Tensor
        y, [B, T].
    """
    steps = x.shape[1]
    y, c = x, decay
    width = 1
    while width < steps:
        kept = steps - width
        y = torch.cat([torch.addcmul(y[:, :kept], c[:, :kept], y[:, width:]), y[:, kept:]], 1)
        if 2 * width < steps:  # the last doubling needs no further decay
            # Past the last step everything is 0, so what decay those columns hold doesn't matter.
            c = torch.cat([c[:, :kept] * c[:, width:], c[:, kept:]], 1)
        width *= 2
    return y


def td_errors(
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    mask: Tensor | None,
    gamma: float,
    lam: float,
) -> tuple[Tensor, Tensor]:
    """Return TD errors δ and the recursion's decay, [B, T]; 0 and 1 where ``mask`` is False."""
    delta = reward + gamma * next_value.masked_fill(terminated, 0.0) - value
    decay = torch.full_like(delta, gamma * lam).masked_fill(terminated | truncated, 0.0)
    if mask is None:
        return delta, decay
    return delta.masked_fill(~mask, 0.0), decay.masked_fill(~mask, 1.0)


def gae(
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    mask: Tensor | None = None,
    gamma: float = 0.99,
    lam: float = 0.95,
) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation (Schulman et al. 2016), bootstrapping truncated steps.

    ::

        δ_t = r_t + γ·(1 − terminated_t)·V(s_{t+1}) − V(s_t)
        A_t = δ_t + γλ·(1 − terminated_t)·(1 − truncated_t)·A_{t+1}
        R_t = A_t + V(s_t)

    with t + 1 the next *live* step: dead ones between them add nothing and discount nothing.

    Parameters
    ----------
    reward, value : Tensor
        [B, T] float32.
    next_value : Tensor
        [B, T] float32, V of the *true* next state: of the final observation where the step ended an
        episode, never of the next episode's first. So no value is ever read across episodes. Before
        dead steps it is V where the next live one is taken.
    terminated, truncated : Tensor
        [B, T] bool.
    mask : Tensor, optional
        [B, T] bool, True at live steps. Elsewhere advantage and return are 0, and nothing of what
        stands there reaches earlier steps.
    gamma, lam : float
        γ and λ, both within [0, 1].

    Returns
    -------
    advantage, return : Tensor
        [B, T] float32 each.
    """
    _same_shape(
        2,
        reward=reward,
        value=value,
        next_value=next_value,
        terminated=terminated,
        truncated=truncated,
        mask=mask,
    )
    delta, decay = td_errors(reward, value, next_value, terminated, truncated, mask, gamma, lam)
    advantage = reverse_scan(delta, decay)
    return live_only(advantage, advantage + value, mask)


def gae_loop(
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    mask: Tensor | None = None,
    gamma: float = 0.99,
    lam: float = 0.95,
) -> tuple[Tensor, Tensor]:
    """Compute what :func:`gae` computes, one step after the other as the textbook writes it.

    Kept as the plain statement that the fast form is tested against.
    """
    delta, decay = td_errors(reward, value, next_value, terminated, truncated, mask, gamma, lam)
    advantage = torch.zeros_like(delta)
    following = torch.zeros_like(delta[:, 0])
    for t in reversed(range(delta.shape[1])):
        following = delta[:, t] + decay[:, t] * following
        advantage[:, t] = following
    return live_only(advantage, advantage + value, mask)


def live_only(advantage: Tensor, target: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return both, 0 where ``mask`` is False."""
    if mask is None:
        return advantage, target
    return advantage.masked_fill(~mask, 0.0), target.masked_fill(~mask, 0.0)


def discounted(
    reward: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    gamma: float,
    bootstrap: Tensor | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """Discounted return of every step until its episode ends or the row does.

    ::

        G_t = r_t + γ·(0              where terminated_t
                       bootstrap_t    where truncated_t, or t is the row's last live step
                       G_{t+1}        elsewhere, t + 1 being the next live step)

    Parameters
    ----------
    reward : Tensor
        [B, T] float32.
    terminated, truncated : Tensor
        [B, T] bool.
    gamma : float
        γ within [0, 1].
    bootstrap : Tensor, optional
        [B, T] float32, V of the true next state; None stands for 0.
    mask : Tensor, optional
        [B, T] bool, True at live steps; the return is 0 elsewhere.

    Returns
    -------
    Tensor
        G, [B, T] float32.
    """
    _same_shape(
        2,
        reward=reward,
        terminated=terminated,
        truncated=truncated,
        bootstrap=bootstrap,
        mask=mask,
    )
    live = torch.ones_like(terminated) if mask is None else mask
    last = live & (live.flip(1).cumsum(1).flip(1) == 1)
    reward = reward.masked_fill(~live, 0.0)
    if bootstrap is not None:
        counts = (truncated | last) & ~terminated & live
        reward = reward + gamma * bootstrap.masked_fill(~counts, 0.0)
    decay = torch.full_like(reward, gamma).masked_fill(terminated | truncated | last, 0.0)
    return reverse_scan(reward, decay.masked_fill(~live, 1.0)).masked_fill(~live, 0.0)


def n_step(
    reward: Tensor, terminated: Tensor, truncated: Tensor, gamma: float, n: int
) -> tuple[Tensor, Tensor, Tensor]:
    """n-step rewards of rows of consecutive steps.

    With k the number of steps from t until n, the episode's end or the row's end, whichever comes
    first::

        R_t = Σ_{i<k} γ^i·r_{t+i},   target = R_t + discount_t·Q(next observation of step index_t)
        discount_t = 0 if step t+k−1 terminated, else γ^k,   index_t = t + k − 1

    Parameters
    ----------
    reward : Tensor
        [B, T] float32.
    terminated, truncated : Tensor
        [B, T] bool.
    gamma : float
        γ within [0, 1].
    n : int
        At least 1.

    Returns
    -------
    reward, discount : Tensor
        [B, T] float32.
    index : Tensor
        [B, T] int64: the step whose *next* observation the target bootstraps from.
    """
    _same_shape(2, reward=reward, terminated=terminated, truncated=truncated)
    if n < 1:
        raise ValueError(f"n must be at least 1, got {n}")
    steps = reward.shape[1]
    ended = terminated | truncated
    total, discount = reward.clone(), torch.full_like(reward, gamma)
    index = torch.arange(steps, device=reward.device).expand_as(reward).clone()
    alive = ~ended  # whether the window that starts at t goes on past its present last step
    for i in range(1, min(n, steps)):
        going = alive[:, :-i]
        total[:, :-i] += torch.where(going, gamma**i * reward[:, i:], 0.0)
        discount[:, :-i] = torch.where(going, gamma ** (i + 1), discount[:, :-i])
        index[:, :-i] += going.long()
        alive = going & ~ended[:, i:]
        alive = torch.nn.functional.pad(alive, (0, i), value=False)
    return total, discount.masked_fill(terminated.gather(1, index), 0.0), index


def live_groups(
    reward: Tensor, group: Tensor, valid: Tensor | None = None, tolerance: float = 0.0
) -> Tensor:
    """Tell which rows belong to a group whose valid rewards are not all equal.

    By max − min, never by the standard deviation: eight times .35 in float32 have a residue.

    Parameters
    ----------
    reward : Tensor
        [B] float32, one per trajectory.
    group : Tensor
        [B] int64, any labels.
    valid : Tensor, optional
        [B] bool; a row that is not valid is never live and does not enter the comparison.
    tolerance : float
        Rewards that differ by no more than this share of the larger one are equal: sums of the same
        items in another order differ by their rounding.

    Returns
    -------
    Tensor
        [B] bool.
    """
    _same_shape(1, reward=reward, group=group, valid=valid)
    labels, index = torch.unique(group, return_inverse=True)
    if valid is None:
        valid = torch.ones_like(group, dtype=torch.bool)
    high = reward.new_full(labels.shape, -torch.inf)
    high = high.scatter_reduce(0, index, reward.masked_fill(~valid, -torch.inf), "amax")
    low = reward.new_full(labels.shape, torch.inf)
    low = low.scatter_reduce(0, index, reward.masked_fill(~valid, torch.inf), "amin")
    apart = high - low > tolerance * torch.maximum(high.abs(), low.abs())
    return apart[index] & valid


def group_advantage(
    reward: Tensor,
    group: Tensor,
    scale: Scale = "group",
    valid: Tensor | None = None,
    baseline: GroupBaseline = "group",
) -> Tensor:
    """Group-relative advantage (GRPO, Shao et al. 2024, §4.1; RLOO, Ahmadian et al. 2024, §2.1).

    ::

        A_i = (r_i − b_i) / (std + 1e-4)
        b_i = mean_{j∈group(i)} r_j          baseline="group"
        b_i = mean_{j∈group(i), j≠i} r_j     baseline="leave-one-out": n/(n − 1) times the former

    where std has n − 1 in its denominator and is that of the group (``scale="group"``), of all
    valid rewards of the batch (``"batch"``), or left out altogether (``"none"``, Dr. GRPO).

    A group whose rewards are all equal gets exactly 0 under every scale; so does a group of one.

    Parameters
    ----------
    reward : Tensor
        [B] float32, one per trajectory.
    group : Tensor
        [B] int64, any labels.
    scale : {"group", "batch", "none"}
        What to divide by.
    valid : Tensor, optional
        [B] bool; an invalid row (its reward failed; NaN is fine there) gets 0 and enters neither
        mean nor std.
    baseline : {"group", "leave-one-out"}
        Whether a row's own reward enters the mean it is compared with.

    Returns
    -------
    Tensor
        A, [B] float32.

    Examples
    --------
    >>> group_advantage(torch.tensor([1.0, 0.0, 0.0, 0.0]), torch.zeros(4, dtype=torch.long))
    tensor([ 1.4997, -0.4999, -0.4999, -0.4999])
    """
    if scale not in ("group", "batch", "none"):
        raise ValueError(f"scale is group, batch or none, got {scale!r}")
    if baseline not in ("group", "leave-one-out"):
        raise ValueError(f"baseline is group or leave-one-out, got {baseline!r}")
    live = live_groups(reward, group, valid)
    if valid is None:
        valid = torch.ones_like(live)
    reward = reward.masked_fill(~valid, 0.0)
    count = valid.to(reward.dtype)
    labels, index = torch.unique(group, return_inverse=True)

    def per_group(x: Tensor) -> Tensor:  # [B] -> [B], the sum over the row's group
        return reward.new_zeros(labels.shape).index_add_(0, index, x)[index]

    size = per_group(count)
    centred = (reward - per_group(reward) / size.clamp(min=1)).masked_fill(~valid, 0.0)
    if scale == "group":
        std = (per_group(centred.square()) / (size - 1).clamp(min=1)).sqrt() + 1e-4
    elif scale == "batch":
        mean = reward.sum() / count.sum().clamp(min=1)
        spread = (reward - mean).masked_fill(~valid, 0.0).square().sum()
        std = (spread / (count.sum() - 1).clamp(min=1)).sqrt() + 1e-4
    else:
        std = torch.ones_like(centred)
    if baseline == "leave-one-out":
        centred = centred * size / (size - 1).clamp(min=1)
    return (centred / std).masked_fill(~live, 0.0)


def normalize(advantage: Tensor, mask: Tensor | None = None, eps: float = 1e-8) -> Tensor:
    """Shift and scale the live entries to mean 0 and standard deviation 1 (n − 1).

    A single live entry has no spread to be scaled by and is returned as it is; equal entries become
    exactly 0 instead of their rounding residue divided by ``eps``.

    Parameters
    ----------
    advantage : Tensor
        Any shape, float32.
    mask : Tensor, optional
        Same shape, bool; entries where it is False become 0 and do not count.
    eps : float
        Added to the standard deviation.

    Returns
    -------
    Tensor
        Same shape, float32.
    """
    live = torch.ones_like(advantage, dtype=torch.bool) if mask is None else mask
    if live.shape != advantage.shape:
        raise ValueError(f"mask {tuple(live.shape)} is not {tuple(advantage.shape)}")
    if advantage.numel() == 0:
        return advantage
    kept = advantage.masked_fill(~live, 0.0)
    count = live.sum()
    mean = kept.sum() / count.clamp(min=1)
    centred = (kept - mean).masked_fill(~live, 0.0)
    std = (centred.square().sum() / (count - 1).clamp(min=1)).sqrt()
    low = advantage.masked_fill(~live, torch.inf).amin()
    high = advantage.masked_fill(~live, -torch.inf).amax()
    scaled = torch.where(high > low, centred / (std + eps), 0.0)
    return torch.where(count == 1, kept, scaled)
