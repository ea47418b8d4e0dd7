"""Where a run's figures go besides its folder: the terminal, TensorBoard, Weights & Biases."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TextIO

from zoo.core.config import Config, locate
from zoo.core.sample_table import Every, columns, for_terminal
from zoo.core.worlds import WORLDS

__all__ = ["Console", "Logger", "TensorBoard", "WandB", "make_loggers"]

#: world → the figures that matter, each under a short name; the first one present of each is shown
_FIGURES = {
    "control": (
        ("return", ("return/mean",)),
        ("eval", ("eval/return_mean",)),
        ("length", ("episode/length",)),
        ("entropy", ("policy/entropy",)),
        ("grad", ("grad_norm", "grad_norm/critic")),
        ("steps/s", ("speed/steps_per_s",)),
    ),
    "text": (
        ("reward", ("reward/mean",)),
        ("held-out", ("eval/accuracy_strict",)),
        ("length", ("completion/length_mean",)),
        ("entropy", ("policy/entropy",)),
        ("live groups", ("group/live_fraction",)),
        ("tokens/s", ("speed/tokens_per_s",)),
    ),
}


class Logger(Protocol):
    """Receives every round's figures.

    Attributes
    ----------
    total : int
        The run's budget, 0 where it is not known: environment steps (control) or updates (text).
    done : int
        How much of it was spent when the run began or went on.
    """

    total: int
    done: int

    def log(
        self, updates: int, metrics: Mapping[str, Any], records: Sequence[Mapping[str, Any]]
    ) -> None:
        """Take one round: its counters and figures, and the records sampled in it."""
        ...

    def notice(self, text: str) -> None:
        """Take one sentence for the user."""
        ...

    def close(self) -> None:
        """Flush what is held back."""
        ...


def make_loggers(config: Config, folder: Path, done: int = 0) -> list[Logger]:
    """Make the loggers that the settings name; ``done`` is how much of the budget is spent."""
    loggers: list[Logger] = []
    for entry in config["logger"].values():
        options = {k: v for k, v in entry.items() if k != "_target_"}
        loggers.append(locate(entry["_target_"])(config, folder, done=done, **options))
    return loggers


class Console:
    """Progress, the six figures that matter and, on text, sampled completions now and then.

    On a terminal a bar with the remaining time stands below the lines; elsewhere only lines come.

    Parameters
    ----------
    config : Config
        The run's settings: its world and budget are read.
    folder : Path
        The run folder, named at the start.
    done : int
        How much of the budget a resumed run has spent.
    every_s : float
        Least time between two lines of figures.
    samples_every : int
        Updates between two tables of sampled completions; 0 shows none.
    samples : int
        Completions in each.
    stream : file, optional
        In place of standard output.
    """

    def __init__(
        self,
        config: Config,
        folder: Path,
        done: int = 0,
        every_s: float = 10.0,
        samples_every: int = 25,
        samples: int = 1,
        stream: TextIO | None = None,
    ) -> None:
        from rich.console import Console as Rich

        class Terminal(Rich):
            def on_broken_pipe(self) -> None:
                """Fall silent where nobody reads on (``| head``); the run itself goes on."""
                self.quiet = True
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

        self.world = config.world
        self.unit = WORLDS[self.world].unit
        self.progress: Any = None
        self._total, self._done = _budget(config), done
        self.every_s, self.tables = every_s, Every("console", samples_every, samples)
        self.terminal = Terminal(file=stream or sys.stdout, highlight=False, soft_wrap=True)
        self.started, self.shown = time.monotonic(), -math.inf
        self.latest: dict[str, Any] = {}  # of every figure, the last one that was known
        if self.terminal.is_terminal:
            self.progress = self._bar(done)
        self.notice(f"run folder: {folder}")

    @property
    def total(self) -> int:
        """The budget; ``train(total)`` sets another than the configured one."""
        return self._total

    @total.setter
    def total(self, total: int) -> None:
        self._total = total
        if self.progress:
            self.progress.update(self.task, total=total or None)

    @property
    def done(self) -> int:
        """How much of the budget was spent when the run began or went on."""
        return self._done

    @done.setter
    def done(self, done: int) -> None:
        self._done, self.started = done, time.monotonic()
        if self.progress:
            self.progress.update(self.task, completed=done)

    def log(
        self, updates: int, metrics: Mapping[str, Any], records: Sequence[Mapping[str, Any]]
    ) -> None:
        """Show the round, unless the one before it was shown just now."""
        now, done = time.monotonic(), int(metrics.get(self.unit, updates))
        evaluated = any(key.startswith("eval/") for key in metrics)
        self.latest.update({k: v for k, v in metrics.items() if v is not None})
        line = figures(self.world, self.latest)
        if self.progress:
            self.progress.update(self.task, completed=done, figures=line)
        if (
            evaluated
            or done >= self.total
            or (not self.progress and now - self.shown >= self.every_s)
        ):
            rate = (done - self.done) / max(now - self.started, 1e-9)
            left = duration((self.total - done) / rate) if rate > 0 else "?"
            unit = self.unit.replace("env_", "")
            head = f"{unit} {done:,}/{self.total:,}"
            self._print(f"{head}  {line}" + (f"  left {left}" if done < self.total else ""))
            self.shown = now
        if self.tables.due(updates, records):
            self.terminal.print(for_terminal(records[: self.tables.samples]), soft_wrap=False)

    def notice(self, text: str) -> None:
        """Print one sentence."""
        self._print(text)

    def close(self) -> None:
        """Take the bar away."""
        if self.progress:
            self.progress.stop()

    def _print(self, text: str) -> None:
        self.terminal.print(text, markup=False)

    def _bar(self, done: int) -> Any:
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
        from rich.table import Column

        def fixed(width: int) -> Column:
            return Column(no_wrap=True, min_width=width)

        rest = Column(no_wrap=True, overflow="ellipsis", ratio=1)
        bar = Progress(
            TextColumn("{task.percentage:>3.0f}%", table_column=fixed(4)),
            BarColumn(bar_width=12, table_column=fixed(12)),
            TimeRemainingColumn(compact=True, table_column=fixed(7)),
            TextColumn("{task.fields[figures]}", markup=False, table_column=rest),
            expand=True,
            console=self.terminal,
            transient=True,
        )
        self.task = bar.add_task("train", total=self.total or None, completed=done, figures="")
        bar.start()
        return bar


class TensorBoard:
    """Event files in the run folder, or in ``directory``."""

    def __init__(
        self, config: Config, folder: Path, done: int = 0, directory: str | None = None
    ) -> None:
        self.total, self.done = _budget(config), done
        writer = locate("torch.utils.tensorboard.SummaryWriter", "loggers")
        self.writer = writer(log_dir=directory or str(folder / "tensorboard"))

    def log(
        self, updates: int, metrics: Mapping[str, Any], records: Sequence[Mapping[str, Any]]
    ) -> None:
        """Add every figure at this update, and the first sample's text."""
        for key, value in numbers(metrics).items():
            self.writer.add_scalar(key, value, updates)
        if records and "completion" in records[0]:
            self.writer.add_text("sample", sample(records[0]), updates)

    def notice(self, text: str) -> None:
        """Keep the sentence as text."""
        self.writer.add_text("notice", text)

    def close(self) -> None:
        """Flush the event file."""
        self.writer.close()


class WandB:
    """Weights & Biases; ``WANDB_MODE=offline`` keeps everything in the run folder.

    ``samples_every`` is the number of updates between two tables ``completions``; 0 sends none.
    """

    def __init__(
        self,
        config: Config,
        folder: Path,
        done: int = 0,
        project: str = "algorithm-zoo",
        entity: str | None = None,
        samples_every: int = 25,
    ) -> None:
        self.total, self.done = _budget(config), done
        self.tables = Every("wandb", samples_every)
        init = locate("wandb.init", "loggers")
        self.run = init(
            project=project,
            entity=entity,
            name=folder.name,
            id=folder.name,
            dir=str(folder),
            config=config.to_dict(),
            resume="allow",
        )

    def log(
        self, updates: int, metrics: Mapping[str, Any], records: Sequence[Mapping[str, Any]]
    ) -> None:
        """Send every figure at this update, and the completions where that is due."""
        row: dict[str, Any] = dict(numbers(metrics))
        if self.tables.due(updates, records):
            names, values = columns(records)
            # numbers that are whole in one row need not be in the next
            table = locate("wandb.Table", "loggers")(names, values, allow_mixed_types=True)
            row["completions"] = table
        self.run.log(row, step=updates)

    def notice(self, text: str) -> None:
        """Put the sentence into the run's notes."""
        self.run.notes = f"{self.run.notes or ''}{text}\n"

    def close(self) -> None:
        """Finish the run."""
        self.run.finish()


def _budget(config: Config) -> int:
    return int(config["total_steps" if config.world == "control" else "updates"] or 0)


def numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return the finite figures among the metrics."""
    return {
        k: float(v) for k, v in metrics.items() if isinstance(v, int | float) and math.isfinite(v)
    }


def figures(world: str, metrics: Mapping[str, Any]) -> str:
    """Return the figures that matter in one line; those that are not there yet are left out."""
    shown = []
    for name, keys in _FIGURES[world]:
        value = next((metrics[k] for k in keys if metrics.get(k) is not None), None)
        if value is not None:
            shown.append(f"{name} {short(float(value))}")
    return "  ".join(shown)


def short(value: float) -> str:
    """Return a number in at most six characters or so.

    Examples
    --------
    >>> short(12345.6), short(0.51234), short(12.34)
    ('12,346', '0.512', '12.3')
    """
    size = abs(value)
    if size >= 1000:
        return f"{value:,.0f}"
    if size >= 1:
        return f"{value:.1f}"
    return f"{value:.3f}" if size >= 0.001 or size == 0 else f"{value:.0e}"


def duration(seconds: float) -> str:
    """Return a length of time for people.

    Examples
    --------
    >>> duration(42), duration(125), duration(7500)
    ('42s', '2m05s', '2h05m')
    """
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"


def sample(record: Mapping[str, Any], width: int = 400) -> str:
    """Return the end of a prompt and the start of its completion, with the reward."""
    prompt = str(record.get("prompt", "")).strip()[-width:]
    completion = str(record.get("completion", "")).strip()
    cut = "…" if len(completion) > width else ""
    reward = record.get("reward")
    head = "sample" if reward is None else f"sample (reward {short(float(reward))})"
    return f"{head}\n  prompt: {prompt}\n  completion: {completion[:width]}{cut}"
