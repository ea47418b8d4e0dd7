"""AdamW and the gradient's norm without torch's per-call bookkeeping.

They compute what :class:`torch.optim.AdamW` (fused) and ``clip_grad_norm_`` compute. On the small
networks of control tasks those spend nine tenths of their time on hooks, on regrouping tensors by
device and on rebuilding lists that never change; here the lists are built once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

__all__ = ["FusedAdamW", "gradient_norm"]


class FusedAdamW(torch.optim.AdamW):
    """AdamW (Loshchilov and Hutter 2019) with a lean :meth:`advance` in place of ``step``.

    Parameters
    ----------
    groups : list of dict
        Parameter groups as torch takes them; ``lr`` may be changed between steps.
    **options
        Of :class:`torch.optim.AdamW`.
    """

    def __init__(self, groups: list[dict[str, Any]], **options: Any) -> None:
        super().__init__(groups, fused=True, **options)
        self._lists: list[_Group] | None = None

    @torch.no_grad()
    def advance(self, shrink: float = 1.0) -> None:
        """Take one step on ``shrink`` times the gradients; parameters without one stay."""
        lists = self._lists
        gradients = [[p.grad for p in own.parameters if p.grad is not None] for own in lists or ()]
        if lists is None or any(
            len(given) not in (0, len(own.parameters))
            for own, given in zip(lists, gradients, strict=True)
        ):
            self._step_by_torch(shrink)
            return
        for own, given in zip(lists, gradients, strict=True):
            if not given:  # a loss that moves other groups
                continue
            group = own.group
            if shrink != 1.0:  # the kernel's own grad_scale divides, which takes twice as long
                torch._foreach_mul_(given, shrink)
            own.step += 1
            torch._fused_adamw_(
                own.parameters,
                given,
                own.averages,
                own.squares,
                [],
                own.steps,
                amsgrad=False,
                lr=group["lr"],
                beta1=group["betas"][0],
                beta2=group["betas"][1],
                weight_decay=group["weight_decay"],
                eps=group["eps"],
                maximize=False,
            )

    def _step_by_torch(self, shrink: float) -> None:
        """Let torch step, which also makes the state; then gather it, where it is all there."""
        self._separate()
        for group in self.param_groups:
            for parameter in group["params"]:
                if shrink != 1.0 and parameter.grad is not None:
                    parameter.grad.mul_(shrink)
        self.step()
        self._lists = self._gathered()

    def _gathered(self) -> list[_Group] | None:
        """Collect parameters and state by group; None while some differ in device or progress."""
        lists = []
        for group in self.param_groups:
            parameters = group["params"]
            plain = all(type(p.data) is Tensor for p in parameters)
            alike = len({(p.device, p.dtype) for p in parameters}) == 1
            if not (plain and alike and all(p in self.state for p in parameters)):
                return None
            states = [self.state[p] for p in parameters]
            if len({float(state["step"]) for state in states}) > 1:
                return None
            step = states[0]["step"].clone()
            for state in states:
                state["step"] = step  # one counter for all, so that one addition moves it
            averages = [state["exp_avg"] for state in states]
            squares = [state["exp_avg_sq"] for state in states]
            lists.append(_Group(group, parameters, averages, squares, step, [step] * len(states)))
        return lists

    def _separate(self) -> None:
        """Give every parameter a step counter of its own again: torch adds to each of them."""
        self._lists = None
        for state in self.state.values():
            state["step"] = state["step"].clone()

    def clear(self) -> None:
        """Forget every gradient."""
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from a ``state_dict``."""
        super().load_state_dict(dict(state_dict))
        self._separate()
        self._lists = self._gathered()


def gradient_norm(gradients: Sequence[Tensor]) -> Tensor:
    """Return the joint L2 norm of gradients, which may be on several devices; scalar float32."""
    if len(gradients) == 1:
        return torch.linalg.vector_norm(gradients[0])
    norms = list(torch._foreach_norm(list(gradients)))
    if len({norm.device for norm in norms}) > 1:
        norms = [norm.to(norms[0].device) for norm in norms]
    return torch.linalg.vector_norm(torch.stack(norms))


@dataclass
class _Group:
    """A parameter group and its state, as the fused kernel takes them."""

    group: dict[str, Any]
    parameters: list[Tensor]
    averages: list[Tensor]
    squares: list[Tensor]
    step: Tensor
    steps: list[Tensor]
