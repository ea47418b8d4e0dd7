"""Rounds until the budget is spent, of one run or of several in step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any

from zoo.core.checkpoint import INCOMPLETE

if TYPE_CHECKING:
    from zoo.core.trainer import Trainer

__all__ = ["run"]


def run(trainers: Sequence[Trainer], one_round: Callable[[], Any]) -> list[dict[str, Any]]:
    """Train until every budget is spent or one was interrupted; return the summaries.

    Parameters
    ----------
    trainers : sequence of Trainer
        Runs with equal settings, but for their seeds and folders.
    one_round : callable
        Takes all of them one round further.
    """
    every, saved = trainers[0].config["checkpoint"]["every_s"], monotonic()
    for trainer in trainers:
        trainer.interrupted = False
    try:
        for trainer in trainers:
            _begin(trainer)
        while not any(trainer.interrupted or trainer.done >= trainer.total for trainer in trainers):
            one_round()
            if every is not None and monotonic() - saved >= every:
                for trainer in trainers:
                    if trainer.recorder.folder:
                        trainer.save()
                saved = monotonic()
        statuses = [_end(trainer) for trainer in trainers]
    except BaseException as error:
        for trainer in trainers:
            trainer.recorder.failed(error, trainer.counters)
        raise
    pairs = zip(trainers, statuses, strict=True)
    return [trainer.recorder.summarise(status, trainer.counters) for trainer, status in pairs]


def _begin(trainer: Trainer) -> None:
    """Tell the loggers where the run stands; measure the policy as it is, where asked for."""
    trainer.recorder.begin(trainer.done, trainer.total)
    if trainer.incomplete:
        trainer.recorder.notice(INCOMPLETE)
        trainer.incomplete = False
    if trainer.config["eval"]["at_start"] and trainer.recorder.evaluations["first"] is None:
        trainer.recorder.log(trainer.counters, trainer.measure())


def _end(trainer: Trainer) -> str:
    """Measure and save the policy at the end of a run; return the run's status."""
    ended, recorder = trainer.done >= trainer.total, trainer.recorder
    if trainer.config["eval"]["at_end"] and ended and not recorder.measured(trainer.counters):
        recorder.log(trainer.counters, trainer.measure())
    if recorder.folder:
        trainer.save()
    return "finished" if ended else "interrupted"
