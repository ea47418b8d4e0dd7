"""Several seeds of one setting trained at once, in one process, for little more than one costs.

Every seed is an ordinary :class:`~zoo.core.trainer.Trainer` with its own rollout, buffer, learner,
plugins and run folder, and its round is that trainer's; only the two parts that cost time are done
for all at once: environments are stepped as one (:mod:`zoo.rollouts.side_by_side`) and networks
computed and updated as one (:mod:`zoo.core.stacked_learner`). A seed's folder is that of a run of
its own and can be resumed alone or with the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

from zoo.core import loop
from zoo.core.batch import check, live_steps
from zoo.core.stacked_learner import StackedLearner
from zoo.core.weight_stack import WeightStack
from zoo.errors import UserError

if TYPE_CHECKING:
    from zoo.core.algorithm import Algorithm
    from zoo.core.trainer import Trainer

__all__ = ["ManySeeds", "refuse_world", "together"]

_ALONE = "run the seeds in processes, with `zoo bench` or one `zoo train` each"
#: settings in which the runs may differ
_FREE = ("seed", "run_dir", "logger")


class ManySeeds:
    """Train several seeds in step.

    Parameters
    ----------
    trainers : sequence of Trainer
        Of one setting but for their seeds and folders. Where some are behind, as after a process
        that was killed while it saved, these catch up by themselves first.

    Raises
    ------
    UserError
        Where they differ, or are of a kind that is not trained at once.
    """

    def __init__(self, trainers: Sequence[Trainer]) -> None:
        self.trainers = list(trainers)
        _refuse(self.trainers)

    @property
    def interrupted(self) -> bool:
        """Whether the runs end after the present round."""
        return any(trainer.interrupted for trainer in self.trainers)

    def interrupt(self) -> None:
        """Stop all after the present round, save, and report the status ``interrupted``."""
        for trainer in self.trainers:
            trainer.interrupt()

    def run(self) -> list[dict[str, Any]]:
        """Train until the budget is spent; return every seed's summary."""
        from zoo.policies.stacked_mlp import StackedMLP
        from zoo.rollouts.side_by_side import SideBySide

        self._catch_up()
        first, policies = self.trainers[0], [t.algorithm.policy for t in self.trainers]
        stack = WeightStack([policy.parameter_groups() for policy in policies])
        policy = StackedMLP(policies, stack)
        algorithm = type(first.algorithm).bind(first.algorithm.knobs, policy, first.plugins)
        self._rollout = SideBySide([t.rollout for t in self.trainers], policy)  # type: ignore[misc]
        self._learner = StackedLearner([t.learner for t in self.trainers], stack, algorithm)
        for trainer in self.trainers:
            trainer.counters["seeds_together"] = len(self.trainers)
        try:
            return loop.run(self.trainers, self.round)
        finally:
            self._rollout.release()
            self._learner.release()
            stack.release()

    def round(self) -> None:
        """Collect one rollout for every seed, learn from them, and log what happened."""
        start, first = perf_counter(), self.trainers[0]
        before = first.done
        policies = [trainer.algorithm.policy for trainer in self.trainers]
        for policy in policies:
            policy.done, policy.total = before, first.total
        versions = [policy.version for policy in policies]
        batches = [check(batch) for batch in self._rollout.gather(first.total - before, versions)]
        collected, steps = perf_counter(), live_steps(batches[0])
        pairs = zip(self.trainers, batches, strict=True)
        metrics = [trainer.take(batch) for trainer, batch in pairs]
        total = max(first.total, 1)
        buffers: Any = [trainer.buffer for trainer in self.trainers]
        learned = self._learner.learn(buffers, before / total, steps / total)
        spent = collected - start, perf_counter() - collected
        for trainer, own, figures in zip(self.trainers, metrics, learned, strict=True):
            trainer.finish(own | figures, steps, *spent)

    def _catch_up(self) -> None:
        furthest = max(trainer.done for trainer in self.trainers)
        for trainer in self.trainers:
            while trainer.done < furthest:
                trainer.round()

    def close(self) -> None:
        """Release environments and loggers of all."""
        for trainer in self.trainers:
            trainer.close()


def together(algorithms: Iterable[Algorithm], total_steps: int | None = None) -> None:
    """Train algorithms that differ in their seeds at once; each is as before then, but trained.

    Parameters
    ----------
    algorithms : iterable of Algorithm
        As in ``[PPO("CartPole-v1", seed=s) for s in range(10)]``.
    total_steps : int, optional
        How many more environment steps each takes; by default what is left of their budget.

    Raises
    ------
    UserError
        Where they can't be trained at once.
    """
    trainers = [algorithm.trainer for algorithm in algorithms]
    many = ManySeeds(trainers)
    if total_steps is not None:
        for trainer in trainers:
            trainer.total = trainer.done + total_steps
    many.run()


def refuse_world(world: str) -> None:
    """Refuse what is no control task; this needs no model loaded and no folder made.

    Raises
    ------
    UserError
        For text.
    """
    if world != "control":
        raise UserError(f"seeds= is for control tasks, not for {world}: {_ALONE}.")


def _refuse(trainers: Sequence[Trainer]) -> None:
    from zoo.core.buffer import RolloutBuffer
    from zoo.policies.control import MLPKnobs
    from zoo.policies.mlp import MLPPolicy
    from zoo.rollouts.gymnasium import GymnasiumRollout

    if not trainers:
        raise UserError("no seeds were given to train.")
    first = trainers[0]
    seeds = [trainer.config["seed"] for trainer in trainers]
    if len(set(seeds)) < len(seeds):
        raise UserError(f"seeds that are trained at once must differ (got {seeds}).")
    for trainer in trainers[1:]:
        for key in first.config.keys() | trainer.config.keys():
            if key not in _FREE and trainer.config.get(key) != first.config.get(key):
                raise UserError(
                    f"runs that are trained at once may differ in their seeds only: seed"
                    f" {seeds[0]} and seed {trainer.config['seed']} differ in {key}."
                )
        if type(trainer.algorithm) is not type(first.algorithm) or trainer.total != first.total:
            raise UserError("runs that are trained at once need one algorithm and one budget.")
    name = first.algorithm.name
    refuse_world(first.rollout.world)
    if not isinstance(first.buffer, RolloutBuffer):
        raise UserError(f"seeds= is for on-policy algorithms, which {name} is not: {_ALONE}.")
    if hasattr(first.algorithm.knobs, "group_size"):
        raise UserError(f"seeds= trains on fragments, not on groups as {name} does: {_ALONE}.")
    rollout: Any = first.rollout
    if type(rollout) is not GymnasiumRollout:
        raise UserError(f"seeds= collects anew and saves no rollouts: {_ALONE}.")
    policy, knobs = first.algorithm.policy, first.algorithm.knobs
    config = getattr(policy, "config", None)
    special = type(config) is not MLPKnobs or config.use_sde
    if type(policy) is not MLPPolicy or policy.device.type != "cpu" or special:
        raise UserError(f"seeds= trains multilayer perceptrons on the CPU: {_ALONE}.")
    if getattr(knobs, "precision", "float32") == "bfloat16":
        raise UserError(f"seeds= computes in float32: leave algo.precision alone, or {_ALONE}.")
    if getattr(knobs, "adam_state", "device") == "8bit":
        raise UserError(f"seeds= keeps Adam's state in float32, not in 8 bits: {_ALONE}.")
    if getattr(knobs, "target_kl", None) is not None:
        raise UserError(
            "seeds= takes every seed through equally many updates, which algo.target_kl ends early:"
            f" {_ALONE}."
        )
    for plugin in first.plugins:
        own = getattr(plugin, "knobs", None)
        adaptive = getattr(own, "target", None) is not None and plugin.name == "kl"
        if plugin.parameters() or adaptive or getattr(own, "estimator", None) == "exact":
            raise UserError(
                f"seeds= can't train with a {plugin.name} term that adapts itself or needs the"
                f" exact divergence, which would be each seed's own: {_ALONE}."
            )
