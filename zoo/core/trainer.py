"""The loop: collect → plugins → prepare → buffer → update → log → evaluate → save."""

from __future__ import annotations

import resource
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from zoo.core import checkpoint
from zoo.core.algorithm import Algorithm
from zoo.core.batch import check, live_steps
from zoo.core.learner import Learner
from zoo.core.protocols import Buffer, Plugin, Rollout
from zoo.errors import UserError

__all__ = ["Trainer"]


class Trainer:
    """Run one algorithm on one rollout until its budget is spent.

    Parameters
    ----------
    algorithm, rollout, buffer, learner, plugins
        The parts; each has its own state, and the trainer's is all of them plus the counters.
    config : dict
        The resolved configuration; ``total_steps``, ``updates``, ``eval`` and ``checkpoint`` are
        read here.
    folder : RunFolder, optional
        Where the run leaves its files; None writes nothing.
    loggers : sequence of Logger
        See every round's figures.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        rollout: Rollout,
        buffer: Buffer,
        learner: Learner,
        plugins: Sequence[Plugin],
        config: dict[str, Any],
        folder: Any = None,
        loggers: Sequence[Any] = (),
    ) -> None:
        self.algorithm, self.rollout, self.buffer = algorithm, rollout, buffer
        self.learner, self.plugins, self.config = learner, list(plugins), config
        self.folder, self.loggers = folder, list(loggers)
        control = rollout.world == "control"
        self.unit, self.score = ("env_steps", "return_mean") if control else ("updates", "accuracy_strict")
        self.total: int = config["total_steps" if control else "updates"] or 0
        self.counters: dict[str, Any] = {"env_steps": 0, "updates": 0, "tokens": 0, "wall_s": 0.0}
        self.evaluations: dict[str, Any] = {"first": None, "last": None, "best": None}
        self._interrupted = False

    @property
    def done(self) -> int:
        """Environment steps (control) or updates (text) so far."""
        return int(self.counters[self.unit])

    def extend(self, total_steps: int | None = None, updates: int | None = None) -> None:
        """Set the budget to what is done plus that many steps or updates."""
        given, other = (total_steps, updates) if self.unit == "env_steps" else (updates, total_steps)
        if other is not None:
            right = "total_steps" if self.unit == "env_steps" else "updates"
            raise UserError(f"the budget of a {self.rollout.world} task is given as {right}=….")
        if given is not None:
            self.total = self.done + given

    def interrupt(self) -> None:
        """Stop after the present round, save, and report the status ``interrupted``."""
        self._interrupted = True

    def run(self) -> dict[str, Any]:
        """Train until the budget is spent; return the summary."""
        every, saved = self.config["checkpoint"]["every_s"], time.monotonic()
        self._interrupted = False
        try:
            if self.config["eval"]["at_start"] and not self.done:
                self._evaluate_and_keep()
            while self.done < self.total and not self._interrupted:
                self.round()
                if self.folder and every is not None and time.monotonic() - saved >= every:
                    self.save()
                    saved = time.monotonic()
            if self.config["eval"]["at_end"] and not self._interrupted:
                self._evaluate_and_keep()
            if self.folder:
                self.save()
            status = "interrupted" if self._interrupted else "finished"
        except BaseException:
            self._summarise("failed")
            raise
        return self._summarise(status)

    def round(self) -> dict[str, float]:
        """Collect one rollout, learn from it, and log what happened."""
        start = time.perf_counter()
        policy, progress = self.algorithm.policy, self.done / max(self.total, 1)
        batch = self.rollout.collect(policy, budget=self.total - self.done)
        collected = time.perf_counter()
        check(batch)
        steps = live_steps(batch)
        report = self.rollout.report()
        metrics = dict(report.metrics)
        with self.learner.autocast():
            for plugin in self.plugins:
                metrics.update(plugin.on_rollout(batch, policy))
            batch = self.algorithm.prepare(batch)
        self.buffer.extend(batch)
        results = [self.learner.update(part, progress) for part in self.buffer.minibatches()]
        metrics.update(_means(results))
        for plugin in self.plugins:
            plugin.after_update(metrics)
        policy.version = self.learner.steps
        learned = time.perf_counter()

        control = self.rollout.world == "control"
        self.counters["updates"] += 1
        self.counters["env_steps" if control else "tokens"] += steps
        self.counters["wall_s"] += learned - start
        metrics["time/collect"], metrics["time/learn"] = collected - start, learned - collected
        metrics[f"speed/{'steps' if control else 'tokens'}_per_s"] = steps / (learned - start)
        metrics["update/skipped"] = float(self.learner.skipped)
        every, before = self.config["eval"]["every"], self.done - (steps if control else 1)
        if every and self.done // every > before // every and self.done < self.total:
            self._evaluate_and_keep(metrics)
        self._log(metrics, report)
        return metrics

    def evaluate(self, **options: Any) -> dict[str, float]:
        """Measure the policy with the configured options, or others."""
        configured = dict(self.config["eval"].get("options") or {})
        return self.rollout.evaluate(self.algorithm.policy, **{**configured, **options})

    def _evaluate_and_keep(self, metrics: dict[str, float] | None = None) -> None:
        start = time.perf_counter()
        result = {**self.evaluate(), "env_steps": self.counters["env_steps"], "updates": self.counters["updates"]}
        seconds = time.perf_counter() - start
        best = self.evaluations["best"]
        self.evaluations["first"] = self.evaluations["first"] or result
        self.evaluations["last"] = result
        if best is None or result[self.score] > best[self.score]:
            self.evaluations["best"] = result
            if self.folder:
                self.save(self.folder.checkpoints / "best.pt")
        figures = {f"eval/{k}": v for k, v in result.items() if k not in self.counters}
        figures["time/eval"] = seconds
        if metrics is None:
            self._log(figures)
        else:
            metrics.update(figures)

    def _log(self, metrics: dict[str, float], report: Any = None) -> None:
        row = {**self.counters, **metrics}
        records = report.records if report else []
        if self.folder:
            self.folder.append_metrics(row)
            self.folder.append_records(self.rollout.record_file, records)
        for logger in self.loggers:
            logger.log(self.counters["updates"], row, records)

    def _summarise(self, status: str) -> dict[str, Any]:
        summary = {
            "status": status,
            **self.counters,
            "peak_rss_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
            "eval": self.evaluations["last"],
            "eval_first": self.evaluations["first"],
            "eval_best": self.evaluations["best"],
        }
        return self.folder.write_summary(summary) if self.folder else summary

    def save(self, path: Path | str | None = None) -> None:
        """Write a checkpoint, by default the run folder's last one."""
        checkpoint.save(self.state_dict(), path or self.folder.checkpoints / "last.pt")

    def state_dict(self) -> dict[str, Any]:
        """Return everything that changes, the configuration and the random generators."""
        return {
            "config": self.config,
            "counters": dict(self.counters),
            "total": self.total,
            "evaluations": self.evaluations,
            "policy": self.algorithm.policy.state_dict(),
            "learner": self.learner.state_dict(),
            "plugins": {p.name: p.state_dict() for p in self.plugins},
            "rollout": self.rollout.state_dict(),
            "buffer": self.buffer.state_dict(),
            "rng": checkpoint.rng_state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a :meth:`state_dict`, bit for bit on the CPU."""
        self.counters, self.evaluations = dict(state["counters"]), dict(state["evaluations"])
        self.total = state["total"]
        self.algorithm.policy.load_state_dict(state["policy"])
        self.learner.load_state_dict(state["learner"])
        self.algorithm.policy.version = self.learner.steps
        for plugin in self.plugins:
            plugin.load_state_dict(state["plugins"][plugin.name])
        self.rollout.load_state_dict(state["rollout"])
        self.buffer.load_state_dict(state["buffer"])
        checkpoint.set_rng_state(state["rng"])

    def close(self) -> None:
        """Release environments, workers and loggers."""
        self.rollout.close()
        for logger in self.loggers:
            logger.close()


def _means(results: Sequence[Mapping[str, torch.Tensor]]) -> dict[str, float]:
    """Average each figure over the mini-batches that gave it, with one transfer at the end."""
    names = {name: None for result in results for name in result}
    return {n: float(torch.stack([r[n].detach() for r in results if n in r]).mean()) for n in names}
