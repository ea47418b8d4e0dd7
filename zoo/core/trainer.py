"""The loop: collect → plugins → prepare → buffer → update → log → evaluate → save."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from tensordict import TensorDict

from zoo.core import checkpoint, loop
from zoo.core.batch import check, live_steps
from zoo.core.learner import Learner
from zoo.core.protocols import Buffer, Plugin, Report, Rollout
from zoo.core.recorder import Recorder
from zoo.core.worlds import WORLDS

if TYPE_CHECKING:
    from zoo.core.algorithm import Algorithm

__all__ = ["Trainer"]


class Trainer:
    """Run one algorithm on one rollout until the budget of ``config`` is spent."""

    def __init__(
        self,
        algorithm: Algorithm,
        rollout: Rollout,
        buffer: Buffer,
        learner: Learner,
        plugins: Sequence[Plugin],
        config: dict[str, Any],
        recorder: Recorder | None = None,
    ) -> None:
        self.algorithm, self.rollout, self.buffer = algorithm, rollout, buffer
        self.learner, self.plugins, self.config = learner, list(plugins), config
        self.recorder = recorder or Recorder()
        world = WORLDS[rollout.world]
        self.unit, self.score, self.counted = world.unit, world.score, world.counted
        self.speed = f"speed/{self.counted.removeprefix('env_')}_per_s"
        self.total = int(config[world.budget] or 0)
        self.counters: dict[str, Any] = {"env_steps": 0, "updates": 0, "tokens": 0, "wall_s": 0.0}
        self.interrupted = self.incomplete = False
        self.report = Report()  # of the round that is under way

    @property
    def done(self) -> int:
        """Environment steps (control) or updates (text) so far."""
        return int(self.counters[self.unit])

    def interrupt(self) -> None:
        """Stop after the present round, save, and report the status ``interrupted``."""
        self.interrupted = True

    def run(self) -> dict[str, Any]:
        """Train until the budget is spent; return the summary."""
        return loop.run([self], self.round)[0]

    def round(self) -> dict[str, float]:
        """Collect one rollout, learn from it, and log what happened."""
        start, before, policy = perf_counter(), self.done, self.algorithm.policy
        policy.done, policy.total = before, self.total
        with self.learner.autocast():
            batch = check(self.rollout.collect(policy, budget=self.total - before))
            collected, steps = perf_counter(), live_steps(batch)
            metrics = self.take(batch)
        total, spent = max(self.total, 1), steps if self.unit == self.counted else 1
        metrics |= self.learner.learn(self.buffer, before / total, spent / total)
        return self.finish(metrics, steps, collected - start, perf_counter() - collected)

    def take(self, batch: TensorDict) -> dict[str, float]:
        """Show a rollout to plugins and algorithm, fill the buffer, and return its figures."""
        self.report = self.rollout.report()  # once: notices are said to who asks first
        metrics = dict(self.report.metrics)
        for plugin in self.plugins:
            metrics.update(plugin.on_rollout(batch, self.algorithm.policy))
        self.buffer.extend(self.algorithm.prepare(batch))
        return metrics

    def finish(
        self, metrics: dict[str, float], steps: int, collect_s: float, learn_s: float
    ) -> dict[str, float]:
        """Count a round, evaluate where that is due, and log; return all figures."""
        before, spent, report = self.done, collect_s + learn_s, self.report
        said = [plugin.after_update(metrics) for plugin in self.plugins]
        report.notices.extend(sentence for sentence in said if sentence)
        self.algorithm.policy.version = self.learner.steps
        for counter, amount in (("updates", 1), (self.counted, steps), ("wall_s", spent)):
            self.counters[counter] += amount
        metrics |= {"time/collect": collect_s, "time/learn": learn_s, self.speed: steps / spent}
        every, ended = self.config["eval"]["every"] or self.total, self.done >= self.total
        if self.config["eval"]["at_end"] if ended else before // every < self.done // every:
            metrics |= self.measure()
        self.recorder.log(self.counters, metrics, report, self.rollout.record_file)
        return metrics

    def evaluate(self, **options: Any) -> dict[str, float]:
        """Measure the policy with the options configured for this point of the run, or others."""
        settings, ended = self.config["eval"], self.done >= self.total
        configured = settings.get("options", {}) | (settings.get("final", {}) if ended else {})
        return self.rollout.evaluate(self.algorithm.policy, **{**configured, **options})

    def measure(self) -> dict[str, float]:
        """Evaluate, keep the weights that measured best, and return the figures."""
        start, result = perf_counter(), self.evaluate()
        each = getattr(self.rollout, "outcomes", None)
        best = self.recorder.keep(result, self.counters, self.score, each)
        if best and self.recorder.folder:
            path = self.recorder.folder.checkpoints / "best.pt"
            checkpoint.save(checkpoint.lightened(self.state_dict()), path)
        return {f"eval/{k}": v for k, v in result.items()} | {"time/eval": perf_counter() - start}

    def save(self, path: Path | str | None = None) -> None:
        """Write a checkpoint, by default the run folder's last one."""
        checkpoint.save(self.state_dict(), path or self.recorder.folder.checkpoints / "last.pt")

    def _parts(self) -> dict[str, Any]:
        own = {k: getattr(self, k) for k in ("learner", "rollout", "buffer", "recorder")}
        return {"policy": self.algorithm.policy, **own, **{p.name: p for p in self.plugins}}

    def state_dict(self) -> dict[str, Any]:
        """Return everything that changes, the configuration and the random generators."""
        own = {"config": self.config, "counters": self.counters, "total": self.total}
        parts = {name: part.state_dict() for name, part in self._parts().items()}
        return {**own, **parts, "rng": checkpoint.rng_state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a :meth:`state_dict`; from a complete one bit for bit on the CPU."""
        self.counters, self.total = dict(state["counters"]), state["total"]
        for name, part in self._parts().items():
            if state[name] is not None:
                part.load_state_dict(state[name])
        self.incomplete = state["buffer"] is None
        self.algorithm.policy.version = self.learner.steps
        checkpoint.set_rng_state(state["rng"])

    def close(self) -> None:
        """Release environments, workers and loggers."""
        self.rollout.close()
        self.recorder.close()
