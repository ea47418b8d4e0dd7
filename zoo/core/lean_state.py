"""Where AdamW's two moments live when the accelerator has no room for them in full.

Adam keeps eight bytes per float32 parameter, twice what the weights take. Between steps they can
lie in host memory (`OffloadedAdamW`), or be kept in eight bits each (`EightBitAdamW`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from zoo.core.optimizer import FusedAdamW
from zoo.errors import UserError

__all__ = ["AdamState", "EightBitAdamW", "OffloadedAdamW", "make_optimizer"]

AdamState = Literal["device", "host", "8bit"]
PART = 2**26  # numbers of each moment that are on the accelerator at one time; or one tensor's


def make_optimizer(
    kind: AdamState, groups: list[dict[str, Any]], **options: Any
) -> FusedAdamW | EightBitAdamW:
    """Return the AdamW that keeps its state so; on a CPU the host's memory is the device's."""
    if kind == "8bit":
        return EightBitAdamW(groups, **options)
    on_host = all(p.device.type == "cpu" for group in groups for p in group["params"])
    if kind == "host" and not on_host:
        return OffloadedAdamW(groups, **options)
    return FusedAdamW(groups, **options)


class OffloadedAdamW(FusedAdamW):
    """AdamW whose moments stay in (pinned) host memory and visit the device part by part.

    Every number is what `FusedAdamW` computes. A step moves 16 bytes per parameter over the bus;
    copies and kernels run in order on one stream, so nothing waits until the state is read.
    """

    @torch.no_grad()
    def advance(self, shrink: float = 1.0) -> None:
        """Take one step on ``shrink`` times the gradients; parameters without one stay."""
        for group in self.param_groups:
            for part in _parts([p for p in group["params"] if p.grad is not None]):
                states = [self._state_of(p) for p in part]
                gradients = [p.grad for p in part if p.grad is not None]
                if shrink != 1.0:
                    torch._foreach_mul_(gradients, shrink)
                averages = [_visiting(s["exp_avg"], p) for s, p in zip(states, part, strict=True)]
                squares = [_visiting(s["exp_avg_sq"], p) for s, p in zip(states, part, strict=True)]
                steps = [s["step"] for s in states]
                torch._foreach_add_(steps, 1.0)
                torch._fused_adamw_(
                    part,
                    gradients,
                    averages,
                    squares,
                    [],
                    steps,
                    amsgrad=False,
                    lr=group["lr"],
                    beta1=group["betas"][0],
                    beta2=group["betas"][1],
                    weight_decay=group["weight_decay"],
                    eps=group["eps"],
                    maximize=False,
                )
                for state, average, square in zip(states, averages, squares, strict=True):
                    state["exp_avg"].copy_(average, non_blocking=True)
                    state["exp_avg_sq"].copy_(square, non_blocking=True)

    def _state_of(self, parameter: Tensor) -> dict[str, Tensor]:
        state = self.state[parameter]
        if not state:
            state["step"] = torch.zeros((), device=parameter.device)
            state["exp_avg"] = _home(torch.zeros_like(parameter, device="cpu"), parameter)
            state["exp_avg_sq"] = _home(torch.zeros_like(parameter, device="cpu"), parameter)
        return state

    def state_dict(self) -> dict[str, Any]:
        """Return the state once the last step's copies have arrived."""
        if any(p.is_cuda for group in self.param_groups for p in group["params"]):
            torch.cuda.synchronize()
        return super().state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from a ``state_dict``, this class's or `FusedAdamW`'s."""
        super().load_state_dict(state_dict)
        self._separate()
        for parameter, state in self.state.items():  # torch put them where the parameters are
            for name in ("exp_avg", "exp_avg_sq"):
                state[name] = _home(state[name].to("cpu"), parameter)


class EightBitAdamW:
    """AdamW with moments quantised block by block to eight bits (Dettmers et al. 2022).

    bitsandbytes computes it; tensors of fewer than 4,096 numbers keep float32 moments there.

    Parameters
    ----------
    groups : list of dict
        Parameter groups as torch takes them; ``lr`` may be changed between steps.
    **options
        ``lr``, ``betas``, ``eps``.

    Raises
    ------
    UserError
        Where bitsandbytes is not installed.
    """

    def __init__(self, groups: list[dict[str, Any]], **options: Any) -> None:
        # on import it tells of kernels that it did not find, which this optimizer has no use for
        logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
        try:
            from bitsandbytes.optim import AdamW8bit
        except ImportError as error:
            raise UserError(
                "algo.adam_state=8bit is computed by bitsandbytes, which is not installed:"
                " `pip install bitsandbytes`, or use algo.adam_state=host."
            ) from error
        self.adam = AdamW8bit(groups, **options)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The groups, whose ``lr`` may be set."""
        return self.adam.param_groups

    @torch.no_grad()
    def advance(self, shrink: float = 1.0) -> None:
        """Take one step on ``shrink`` times the gradients; parameters without one stay."""
        if shrink != 1.0:
            for group in self.param_groups:
                given = [p.grad for p in group["params"] if p.grad is not None]
                if given:
                    torch._foreach_mul_(given, shrink)
        self.adam.step()

    def clear(self) -> None:
        """Forget every gradient."""
        self.adam.zero_grad(set_to_none=True)

    def state_dict(self) -> dict[str, Any]:
        """Return the quantised state."""
        return self.adam.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from a :meth:`state_dict`."""
        self.adam.load_state_dict(dict(state_dict))


def _parts(parameters: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Cut into runs of one device and dtype, of at most `PART` numbers or one tensor."""
    part: list[Tensor] = []
    for parameter in parameters:
        alike = not part or (part[0].device, part[0].dtype) == (parameter.device, parameter.dtype)
        if part and not (alike and sum(p.numel() for p in part) + parameter.numel() <= PART):
            yield part
            part = []
        part.append(parameter)
    if part:
        yield part


def _visiting(home: Tensor, parameter: Tensor) -> Tensor:
    """A copy beside the parameter; also where that is the same memory."""
    return torch.empty_like(home, device=parameter.device).copy_(home, non_blocking=True)


def _home(tensor: Tensor, parameter: Tensor) -> Tensor:
    """The tensor in memory that an accelerator can copy from while the host goes on."""
    return tensor.pin_memory() if parameter.is_cuda else tensor
