"""What a run tells: rows to the run folder and to the loggers, and its summary at the end."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

from zoo.core.before_after import change
from zoo.core.memory import peak_rss_gib
from zoo.core.protocols import Report
from zoo.core.rows import Row

__all__ = ["Recorder"]


class Recorder:
    """Pass figures, records, notices and errors on to the run folder and the loggers.

    Parameters
    ----------
    folder : RunFolder, optional
        Where files go; None writes nothing.
    loggers : sequence of Logger
        Console, TensorBoard, W&B.
    every : int, optional
        Budget (environment steps, or updates) per row of figures; None writes one per round.
    """

    def __init__(
        self, folder: Any = None, loggers: Sequence[Any] = (), every: int | None = None
    ) -> None:
        self.folder, self.loggers, self.every = folder, list(loggers), every
        self._row, self._written = Row(), 0
        self._counters: dict[str, Any] = {}
        self._file = ""
        self.evaluations: dict[str, Any] = {"first": None, "last": None, "best": None}
        self.outcomes: dict[str, Any] = {"first": None, "last": None}

    def begin(self, done: int, total: int) -> None:
        """Tell the loggers where the run stands and its budget, which may have grown."""
        for logger in self.loggers:
            logger.done, logger.total = done, total

    def log(
        self,
        counters: Mapping[str, Any],
        metrics: Mapping[str, float],
        report: Report | None = None,
        file: str = "",
    ) -> None:
        """Record one round: its figures, sampled records, notices and tracebacks."""
        report = report or Report()
        for text in report.errors:
            if self.folder:
                self.folder.append_error(text)
            else:
                self.notice(text)
        for text in report.notices:
            self.notice(text)
        self._row.add(metrics, report.records)
        self._counters, self._file = dict(counters), file or self._file
        done = counters["env_steps"] or counters["updates"]
        due = self.every is None or done // self.every > self._written // self.every
        if due or any(name.startswith("eval/") for name in metrics):
            self._write(done)

    def _write(self, done: int) -> None:
        """Write the row that was gathered."""
        row, records = {**self._counters, **self._row.figures()}, self._row.records
        self._row, self._written = Row(), done
        if self.folder:
            self.folder.append_metrics(row)
            if records:
                self.folder.append_records(self._file, records)
        for logger in self.loggers:
            logger.log(row["updates"], row, records)

    def notice(self, text: str) -> None:
        """Say one sentence to the user, now: where there is no logger, on standard error."""
        for logger in self.loggers:
            logger.notice(text)
        if not self.loggers:
            print(text, file=sys.stderr, flush=True)

    def keep(
        self,
        result: dict[str, float],
        counters: Mapping[str, Any],
        score: str,
        outcomes: Mapping[str, Any] | None = None,
    ) -> bool:
        """Remember an evaluation as the last one, and return whether it is the best so far.

        ``outcomes`` is what each of its prompts was worth, where it had any.
        """
        kept = self.evaluations
        if outcomes is not None:
            each = {**outcomes, "updates": counters["updates"]}
            self.outcomes["first"], self.outcomes["last"] = self.outcomes["first"] or each, each
        result = {**result, **{k: counters[k] for k in ("env_steps", "updates")}}
        kept["first"], kept["last"] = kept["first"] or result, result
        best = kept["best"] is None or result[score] > kept["best"][score]
        if best:
            kept["best"] = result
        return best

    def measured(self, counters: Mapping[str, Any]) -> bool:
        """Return whether the last evaluation is of the weights as they are."""
        last = self.evaluations["last"]
        return last is not None and bool(last["updates"] == counters["updates"])

    def failed(self, error: BaseException, counters: Mapping[str, Any]) -> None:
        """Keep the traceback of what ended the run, the user's own one where there is one."""
        if isinstance(error, KeyboardInterrupt):
            self.summarise("interrupted", counters)
            return
        if self.folder:
            own = getattr(error, "traceback", None)
            self.folder.append_error(own or "".join(traceback.format_exception(error)))
        self.summarise("failed", counters)

    def summarise(self, status: str, counters: Mapping[str, Any]) -> dict[str, Any]:
        """Write the last row and summary.json, and return what that holds."""
        self._counters = dict(counters)
        if self._row.rounds and status != "interrupted":  # a resumed run goes on with the row
            self._write(self._written)
        earlier = self.folder.read_summary() if self.folder else {}  # of a run that was resumed
        summary = {
            "status": status,
            **counters,
            "peak_rss_gib": max(peak_rss_gib(), earlier.get("peak_rss_gib") or 0.0),
            "eval": self.evaluations["last"],
            "eval_first": self.evaluations["first"],
            "eval_best": self.evaluations["best"],
        }
        first, last = self.outcomes["first"], self.outcomes["last"]
        if first is not None and first["updates"] < last["updates"]:
            summary["eval_change"] = change(first, last)
        written: dict[str, Any] = self.folder.write_summary(summary) if self.folder else summary
        return written

    def state_dict(self) -> dict[str, Any]:
        """Return the evaluations so far, and the row that is not written yet."""
        return {
            "evaluations": dict(self.evaluations),
            "outcomes": dict(self.outcomes),
            "row": self._row.state_dict(),
            "written": self._written,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a :meth:`state_dict`."""
        self.evaluations, self._written = dict(state["evaluations"]), state["written"]
        self.outcomes = dict(state.get("outcomes") or self.outcomes)
        self._row.load_state_dict(state["row"])

    def close(self) -> None:
        """Flush and close the loggers, and let go of the folder."""
        for logger in self.loggers:
            logger.close()
        if self.folder:
            self.folder.unlock()
