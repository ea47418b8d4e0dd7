"""Target networks: a copy that follows its online network slowly."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["Target"]


class Target:
    """A frozen copy θ' of a network θ, moved by θ' ← θ' + τ·(θ − θ').

    Not a module itself and no part of the online network, so that neither its parameters nor its
    buffers ever reach an optimizer or the online network's state.

    Parameters
    ----------
    online : nn.Module
        The network to follow.
    tau : float
        τ within (0, 1]; 1 copies, for targets that are replaced every so many updates.
    module : nn.Module, optional
        The copy, where it isn't simply a deep copy; its parameters and buffers must be named as
        the online network's and may be fewer.
    every : int
        Updates of the online network between two moves.
    """

    def __init__(
        self, online: nn.Module, tau: float, module: nn.Module | None = None, every: int = 1
    ) -> None:
        if not 0 < tau <= 1 or every < 1:
            raise ValueError(f"tau must be within (0, 1] and every ≥ 1, got {tau} and {every}")
        self.tau, self.every = tau, every
        self.module = copy.deepcopy(online) if module is None else module
        self.module.requires_grad_(False)
        parameters, buffers = dict(online.named_parameters()), dict(online.named_buffers())
        own_parameters = dict(self.module.named_parameters())
        own_buffers = dict(self.module.named_buffers())
        # What is frozen may be shared: the base under an adapter.
        pairs = [(own, parameters[name]) for name, own in own_parameters.items()]
        moving = [(own, online) for own, online in pairs if own is not online]
        self._own: list[Tensor] = [own for own, _ in moving]
        self._online: list[Tensor] = [online for _, online in moving]
        self._own_buffers = list(own_buffers.values())
        self._online_buffers = [buffers[name] for name in own_buffers]

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Call the copy."""
        return self.module(*arguments, **options)

    def follow(self, updates: int) -> None:
        """Move where that many updates of the online network make it due."""
        if updates % self.every == 0:
            self.update()

    @torch.no_grad()
    def update(self) -> None:
        """Move one step towards the online network; buffers (running statistics) are copied."""
        if self._own:
            torch._foreach_lerp_(self._own, self._online, self.tau)
        if self._own_buffers:
            torch._foreach_copy_(self._own_buffers, self._online_buffers)

    def state_dict(self) -> dict[str, Any]:
        """Return the copy's own state."""
        return self.module.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a :meth:`state_dict`."""
        self.module.load_state_dict(state)
