"""One update for several seeds: losses side by side, and gradients from one backward pass.

Seeds share no parameters, so the gradient of the sum of their objectives holds each seed's own.
What couples the rows of a single run is done per seed: the mean over its rows, the norm of its
gradient and the clipping by it, the update that is skipped. The arithmetic is the
:class:`~zoo.core.learner.Learner`'s, whose state each seed keeps: its optimizer's moments are views
of a row here.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDict
from torch import Tensor

from zoo.core.algorithm import Algorithm
from zoo.core.buffer import RolloutBuffer
from zoo.core.learner import Learner
from zoo.core.protocols import Update

if TYPE_CHECKING:
    from zoo.core.weight_stack import WeightStack

__all__ = ["StackedLearner", "minibatches"]


def minibatches(buffers: Sequence[RolloutBuffer]) -> Iterator[TensorDict]:
    """Yield the buffers' mini-batches side by side: rows of seed after seed, each in its order."""
    batches = [buffer.drain() for buffer in buffers]
    joint: Any = torch.cat(batches)  # type: ignore[arg-type]
    first, rows = buffers[0], len(batches[0])
    size = first.minibatch_size or rows
    offsets = torch.arange(len(buffers))[:, None] * rows
    for _ in range(first.epochs):
        if size >= rows:
            yield joint
            continue
        order = torch.stack([buffer.order(rows) for buffer in buffers]) + offsets
        for start in range(0, rows, size):
            yield joint[order[:, start : start + size].reshape(-1)]


class StackedLearner:
    """Update the policies of S seeds at once.

    Parameters
    ----------
    learners : sequence of Learner
        One for each seed, with equal knobs.
    stack : WeightStack
        The parameters of all.
    algorithm : Algorithm
        Bound to the stacked policy; yields the losses of all rows.
    """

    def __init__(
        self, learners: Sequence[Learner], stack: WeightStack, algorithm: Algorithm
    ) -> None:
        self.learners, self.stack, self.algorithm = list(learners), stack, algorithm
        self._averages = torch.zeros_like(stack.weights.data)
        self._squares = torch.zeros_like(stack.weights.data)
        #: [group][seed]: updates taken
        self._steps: list[list[Tensor]] = [[] for _ in stack.groups]
        for row, learner in enumerate(learners):
            self._adopt(row, learner)
        fixed = stack.weights.data, self._averages, self._squares
        #: [group] of weights and moments, a row for each seed
        self._rows = [[t[:, part].unbind(0) for t in fixed] for part in stack.groups.values()]

    def _adopt(self, row: int, learner: Learner) -> None:
        """Make an optimizer's moments views of a row, whatever they hold so far."""
        averages = iter(self.stack.rows_of(self._averages[row]))
        squares = iter(self.stack.rows_of(self._squares[row]))
        for steps, group in zip(self._steps, learner.optimizer.param_groups, strict=True):
            states = [learner.optimizer.state[p] for p in group["params"]]
            steps.append(states[0]["step"].clone() if states[0] else torch.zeros(()))
            for state in states:
                own = {"exp_avg": next(averages), "exp_avg_sq": next(squares)}
                for name, view in own.items():
                    if state:
                        view.copy_(state[name])
                state.update(own, step=steps[-1])

    def learn(
        self, buffers: Sequence[RolloutBuffer], progress: float, share: float
    ) -> list[dict[str, float]]:
        """Update on every mini-batch of the buffers; return each seed's mean figures."""
        results: list[dict[str, Tensor]] = []
        for learner in self.learners:
            learner.set_lr(progress, share)
        every = buffers[0].diagnosed_every
        for number, batch in enumerate(minibatches(buffers)):
            step = self.learners[0].updates
            update = Update(step=step, progress=progress, diagnose=step % every == 0)
            results.append(self.update(batch, update, tell_plugins=number == 0))
        names = dict.fromkeys(name for result in results for name in result)
        figures = {
            n: torch.stack([r[n] for r in results if n in r]).mean(0).tolist() for n in names
        }
        lr = self.learners[0].optimizer.param_groups[0]["lr"]
        return [
            {**{n: v[row] for n, v in figures.items()}, "lr": lr, **learner.counts()}
            for row, learner in enumerate(self.learners)
        ]

    def update(
        self, batch: TensorDict, update: Update, tell_plugins: bool = False
    ) -> dict[str, Tensor]:
        """Take one step for every seed on rows of seed after seed; return [S] figures."""
        (loss,) = self.algorithm.losses(batch, update)
        terms = dict(loss.terms)
        plugins = self.learners[0].plugins
        if loss.out is not None:
            for plugin in plugins:
                terms.update(plugin.terms(loss.out, batch, update))
            if tell_plugins:  # some keep how far the run was when they were asked last
                for learner in self.learners[1:]:
                    for plugin in learner.plugins:
                        plugin.terms(loss.out, batch, update)
        objective = functools.reduce(torch.add, terms.values())
        (gradient,) = torch.autograd.grad(self._means(objective).sum(), [self.stack.weights])
        metrics = {"grad_norm": self._step(gradient)}
        if update.diagnose:
            with torch.no_grad():
                figures: dict[str, Tensor] = {f"loss/{n}": t.detach() for n, t in terms.items()}
                figures |= loss.metrics
                if loss.out is not None:
                    for plugin in plugins:
                        figures |= plugin.figures(loss.out, batch)
                metrics |= {name: self._means(value) for name, value in figures.items()}
        return metrics

    def _means(self, values: Tensor) -> Tensor:
        """Return each seed's mean, [S], over its rows [M, 1], all of which are live."""
        return values.view(len(self.learners), -1).mean(1)

    def _step(self, gradient: Tensor) -> Tensor:
        """Clip each seed's gradient by its norm and step; return the norms [S]."""
        norms = torch.linalg.vector_norm(gradient, dim=1)
        limit = self.learners[0].knobs.max_grad_norm or float("inf")
        shrink = (limit / (norms + 1e-6)).clamp(max=1.0)
        gradient *= torch.where(norms.isfinite(), shrink, 0.0)[:, None]
        live = []
        for row, (learner, norm) in enumerate(zip(self.learners, norms.tolist(), strict=True)):
            learner.updates += 1
            if 0.0 < norm < float("inf"):
                learner.steps += 1
                live.append(row)
            elif norm != 0.0:
                learner.skipped += 1
        if live:
            self._advance(gradient, live)
        return norms

    @torch.no_grad()
    def _advance(self, gradient: Tensor, live: list[int]) -> None:
        """Take AdamW's step in the rows that have a gradient."""
        options = map(_options, self.learners[0].optimizer.param_groups)
        parts = zip(self.stack.groups.values(), self._rows, self._steps, options, strict=True)
        for part, (weights, averages, squares), steps, own in parts:
            rows = weights, gradient[:, part].unbind(0), averages, squares, steps
            w, g, m, v, taken = ([row[s] for s in live] for row in rows)
            torch._foreach_add_(taken, 1)
            torch._fused_adamw_(w, g, m, v, [], taken, amsgrad=False, maximize=False, **own)

    def release(self) -> None:
        """Give every learner's optimizer moments of its own again."""
        for learner in self.learners:
            for state in learner.optimizer.state.values():
                state.update({name: value.clone() for name, value in state.items()})
            learner.load_state_dict(learner.state_dict())


def _options(group: Mapping[str, Any]) -> dict[str, Any]:
    beta1, beta2 = group["betas"]
    own = {name: group[name] for name in ("lr", "weight_decay", "eps")}
    return {**own, "beta1": beta1, "beta2": beta2}
