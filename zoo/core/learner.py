"""The learner: the one place with an optimizer, and the one place that divides.

An algorithm yields elementwise losses; the learner sums them over micro-batches with denominators
of the *whole* update (and of all ranks), so that gradients do not depend on how the update was cut.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor

from zoo.core.lean_state import AdamState, make_optimizer
from zoo.core.optimizer import gradient_norm
from zoo.core.precision import multiplies_bfloat16
from zoo.core.protocols import Buffer, Loss, Plugin, Update
from zoo.core.round_figures import RoundFigures
from zoo.core.schedule import schedule
from zoo.core.schema import in_range
from zoo.errors import UserError
from zoo.functional.reduce import Denominators, aggregate, denominators, weights

if TYPE_CHECKING:
    from tensordict import TensorDict

    from zoo.core.algorithm import Algorithm

__all__ = ["Learner", "OptimizerKnobs"]


@dataclass(frozen=True)
class OptimizerKnobs:
    """How parameters move; every algorithm's knobs contain these."""

    #: AdamW's step size; the first knob to touch, and divide by 10 when a run diverges
    lr: float = 3e-4
    #: step size of the critic's parameters; None means lr
    critic_lr: float | None = None
    #: constant, linear, cosine or warmup-cosine over the run's budget
    lr_schedule: Literal["constant", "linear", "cosine", "warmup-cosine"] = "constant"
    #: fraction of the run spent warming up (warmup-cosine only)
    warmup: float = 0.1
    #: AdamW's betas
    betas: tuple[float, float] = (0.9, 0.999)
    #: AdamW's epsilon; 1e-6 for large models in bf16
    adam_eps: float = 1e-8
    #: decoupled weight decay
    weight_decay: float = 0.0
    #: AdamW's moments: on the parameters' device, in host memory (an accelerator's runs; elsewhere
    #: nothing changes), or in 8 bits by bitsandbytes (which changes what is learned a little)
    adam_state: AdamState = "device"
    #: largest L2 norm of an update's gradient; 0 turns clipping off
    max_grad_norm: float = 1.0
    #: how elementwise losses become one number: token-mean, sequence-mean or constant
    reduction: Literal["token-mean", "sequence-mean", "constant"] = "token-mean"
    #: rows per forward and backward; None takes a mini-batch at once. Changes memory, not gradients
    micro_batch_size: int | None = None
    #: in its place, for text: the most tokens per forward and backward, prompts and padding counted
    max_tokens_per_micro_batch: int | None = None
    #: float32; bfloat16 for autocast in the forward; auto takes that where the device has it
    precision: Literal["float32", "bfloat16", "auto"] = "float32"

    def __post_init__(self) -> None:
        """Refuse what would train wrong in silence; subclasses call this and add their own."""
        in_range(self, "lr", "critic_lr", "adam_eps", "weight_decay", "max_grad_norm", low=0)
        in_range(self, "betas", low=0, high=1, below=True)
        in_range(self, "warmup", low=0, high=1)
        in_range(self, "micro_batch_size", "max_tokens_per_micro_batch", low=1)
        if self.micro_batch_size and self.max_tokens_per_micro_batch:
            raise UserError(
                "algo.micro_batch_size and algo.max_tokens_per_micro_batch both say how an update"
                " is cut: set one of them and leave the other at null."
            )


class Learner:
    """Take one optimizer step per loss that the algorithm yields.

    Parameters
    ----------
    algorithm : Algorithm
        Yields the losses; its ``policy`` holds the parameters.
    plugins : iterable of Plugin
        Add their terms to every loss that carries the policy's evaluation.
    knobs : OptimizerKnobs
        The optimizer's settings.
    max_length : int, optional
        The longest a row can be: the divisor of each under ``reduction="constant"``.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        plugins: Iterable[Plugin],
        knobs: OptimizerKnobs,
        max_length: int | None = None,
    ) -> None:
        self.algorithm = algorithm
        self.plugins = list(plugins)
        self.knobs = knobs
        self.max_length = max_length
        if knobs.reduction == "constant" and max_length is None:
            raise UserError(
                "algo.reduction=constant divides by the longest length a row can have, which only"
                " text tasks have a limit for: use token-mean or sequence-mean."
            )
        if knobs.max_tokens_per_micro_batch and max_length is None:
            raise UserError(
                "algo.max_tokens_per_micro_batch counts tokens, which control tasks don't have:"
                " use algo.micro_batch_size there."
            )
        self.steps = 0
        self.skipped = 0
        self.halts = 0
        self.updates = 0
        self._groups = dict(algorithm.policy.parameter_groups())
        plugin_groups = {p.name: p.parameters() for p in self.plugins if p.parameters()}
        self._plugin_parameters = [x for group in plugin_groups.values() for x in group]
        options: list[dict[str, Any]] = []
        for name, parameters in {**self._groups, **plugin_groups}.items():
            lr = knobs.critic_lr if name == "critic" and knobs.critic_lr is not None else knobs.lr
            plugin = next((p for p in self.plugins if p.name == name), None)
            lr = getattr(plugin, "lr", None) or lr
            decay = 0.0 if plugin else knobs.weight_decay
            options.append({"params": list(parameters), "lr": lr, "weight_decay": decay})
        self._base_lr = [group["lr"] for group in options]
        self.optimizer: Any = make_optimizer(
            knobs.adam_state, options, lr=knobs.lr, betas=tuple(knobs.betas), eps=knobs.adam_eps
        )
        self._parameters = [p for group in options for p in group["params"]]
        self._every_group = frozenset(self._groups)
        self._feedback: list[tuple[Tensor, Tensor]] = []
        self._halted = False
        self._round: RoundFigures | None = None
        self._counted: tuple[Tensor, Denominators, Tensor] | None = None

    def learn(self, buffer: Buffer, progress: float = 0.0, share: float = 0.0) -> dict[str, float]:
        """Update on every mini-batch of the buffer; return each figure's mean.

        Gradient norms are of all of them; losses and diagnostics of those that the buffer picks.
        Where a loss finds that the policy has moved too far, that is the last one.
        """
        # figures that are only logged cost a sixth of a small network's update
        policy, results = self.algorithm.policy, []
        every = buffer.diagnosed_every if policy.stepwise else 1
        self._round = None if policy.stepwise else RoundFigures(policy.version)
        with _collector_paused(policy.stepwise):
            for part in buffer.minibatches(progress):
                diagnose = self.updates % every < self.algorithm.cycle
                results.append(self.update(part, progress, share, diagnose))
                for index, error in self._feedback:
                    buffer.feedback(index, error)
                if self._halted:
                    self.halts += 1
                    break
        metrics = {}
        for name in dict.fromkeys(name for result in results for name in result):
            values = [float(result[name]) for result in results if name in result]
            metrics[name] = sum(values) / len(values)
        if self._round is not None:
            metrics |= self._round.figures(self._parameters[0].device)
            self._round = None
        return {**metrics, **self.counts()}

    def counts(self) -> dict[str, float]:
        """Return how many steps were taken, skipped and held back so far."""
        counts = {"steps": self.steps, "skipped": self.skipped, "halts": self.halts}
        return {f"update/{name}": float(n) for name, n in counts.items()}

    def update(
        self,
        minibatch: TensorDict,
        progress: float = 0.0,
        share: float = 0.0,
        diagnose: bool = True,
    ) -> dict[str, Tensor | float]:
        """Run every loss of the algorithm on one mini-batch; return its averaged figures.

        ``progress`` is the fraction of the budget spent before this round, ``share`` what the
        round spends of it.
        """
        update = Update(step=self.updates, progress=progress, diagnose=diagnose)
        self.updates += 1
        self._halted = False
        self._feedback.clear()
        self.set_lr(progress, share)
        mask = minibatch["mask"]
        if self._counted is None or self._counted[0] is not mask:  # replay's is always the same
            whole = denominators(mask, self.max_length).across_ranks()
            self._counted = mask, whole, weights(mask, self.knobs.reduction, whole)
        _, whole, weight = self._counted
        metrics: dict[str, Tensor | float] = {}
        if not whole.tokens:
            return metrics
        policy = self.algorithm.policy
        if self.knobs.max_tokens_per_micro_batch:
            parts = policy.micro_batches(minibatch, None, self.knobs.max_tokens_per_micro_batch)
            metrics["update/micro_batches"] = float(len(parts))
        else:
            parts = policy.micro_batches(minibatch, self.knobs.micro_batch_size)
        runs = [self.algorithm.losses(part, update) for part in parts]
        autocast, reduction = self.autocast(), self.knobs.reduction
        while True:
            groups: tuple[str, ...] = ()
            moved: Any
            moved, limit = 0.0, math.inf
            for part, run in zip(parts, runs, strict=True):
                with autocast:
                    loss = next(run, None)
                if loss is None:
                    continue
                groups, name = loss.groups, loss.name
                if part is not minibatch:  # cut, and of text also in another order
                    weight = weights(loss.mask, reduction, whole)
                self._backward(loss, part, update, whole, weight, metrics)
                if loss.divergence is not None:
                    mean = aggregate(loss.divergence, loss.mask, "token-mean", whole)
                    moved, limit = moved + mean, loss.limit
            if not groups:
                break
            if limit < math.inf and float(_over_ranks(moved)) > limit:
                self.optimizer.clear()
                self.updates -= 1  # nothing was learned from it
                self._halted = True
                return metrics
            partial = not self._every_group.issubset(groups)
            metrics[f"grad_norm/{name}" if partial else "grad_norm"] = self._step()
        for target in self.algorithm.targets.values():
            target.follow(self.updates)
        metrics["lr"] = self.optimizer.param_groups[0]["lr"]
        return metrics

    def set_lr(self, progress: float, share: float) -> None:
        """Set every group's step size for a round, by the schedule."""
        factor = schedule(self.knobs.lr_schedule, progress, self.knobs.warmup, share=share)
        for group, lr in zip(self.optimizer.param_groups, self._base_lr, strict=True):
            group["lr"] = lr * factor

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """Return the context in which every forward of this run is computed."""
        device, precision = self._parameters[0].device, self.knobs.precision
        if precision == "float32" or (precision == "auto" and not multiplies_bfloat16(device)):
            return contextlib.nullcontext()
        return torch.autocast(device.type, torch.bfloat16)

    def _backward(
        self,
        loss: Loss,
        part: TensorDict,
        update: Update,
        whole: Denominators,
        weight: Tensor,
        metrics: dict[str, Tensor | float],
    ) -> None:
        terms = dict(loss.terms)
        if loss.td_error is not None:
            self._feedback.append((part["index"], loss.td_error.detach()))
        if loss.out is not None:
            for plugin in self.plugins:
                terms.update(plugin.terms(loss.out, part, update))
        if loss.mask is not part["mask"] and not torch.equal(loss.mask, part["mask"]):
            raise ValueError(
                f"the mask of the loss '{loss.name}' differs from batch['mask'], by which the"
                " update's denominators were counted: take steps out in prepare()."
            )
        objective = functools.reduce(torch.add, terms.values())
        moved = None
        if not self._every_group.issubset(loss.groups):
            moved = [p for name in loss.groups for p in self._groups.get(name, [])]
            moved += self._plugin_parameters
        objective.backward(weight, inputs=moved)  # the derivative of aggregate(objective, …)
        if update.diagnose:
            with torch.no_grad():
                for name, term in terms.items():
                    value = aggregate(term.detach(), loss.mask, self.knobs.reduction, whole)
                    _add(metrics, f"loss/{name}", value)
                figures = dict(loss.metrics)
                if loss.out is not None:
                    for plugin in self.plugins:
                        figures.update(plugin.figures(loss.out, part))
                for name, value in figures.items():
                    _add(metrics, name, aggregate(value, loss.mask, "token-mean", whole))
            if self._round is not None:
                self._round.add(loss, part)

    def _step(self) -> float:
        parameters = [p for p in self._parameters if p.grad is not None]
        for parameter in parameters:
            _over_ranks(parameter.grad)
        limit = self.knobs.max_grad_norm or float("inf")
        norm = float(gradient_norm([p.grad for p in parameters]))
        if 0.0 < norm < float("inf"):
            self.optimizer.advance(min(1.0, limit / (norm + 1e-6)))
            self.steps += 1
        elif norm != 0.0:  # NaN or infinite: the step would destroy the weights
            self.skipped += 1
        # a gradient of exactly 0 teaches nothing; a step would only follow Adam's old momentum
        self.optimizer.clear()
        return norm

    def state_dict(self) -> dict[str, Any]:
        """Return the optimizer's state, the target networks and the counters."""
        return {
            "optimizer": self.optimizer.state_dict(),
            "targets": {n: t.state_dict() for n, t in self.algorithm.targets.items()},
            "steps": self.steps,
            "skipped": self.skipped,
            "halts": self.halts,
            "updates": self.updates,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a :meth:`state_dict`."""
        # torch keeps the very tensors it is given; two learners must not share their moments
        self.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
        for name, target in self.algorithm.targets.items():
            target.load_state_dict(state["targets"][name])
        self.steps, self.skipped = state["steps"], state["skipped"]
        self.halts, self.updates = state.get("halts", 0), state["updates"]


@contextlib.contextmanager
def _collector_paused(pause: bool) -> Iterator[None]:
    """Keep Python's cycle collector out of a round of small updates, of which it takes 7 %."""
    if not (pause and gc.isenabled()):
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _over_ranks(value: Any) -> Any:
    """Return a tensor summed over all ranks, in place; itself where there is one."""
    if dist.is_available() and dist.is_initialized():
        dist.all_reduce(value)
    return value


def _add(metrics: dict[str, Tensor | float], name: str, value: Tensor) -> None:
    metrics[name] = metrics[name] + value if name in metrics else value
