"""The settings that every run has, whatever its algorithm and environment."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from zoo.core.schema import in_range
from zoo.errors import UserError

__all__ = ["CheckpointSettings", "EvalSettings", "RunSettings", "SaveSettings", "require_seed"]


@dataclass(frozen=True)
class EvalSettings:
    """When to evaluate, and how. The unit of ``every`` is the budget's: env steps, or updates."""

    #: evaluate each time this much of the budget is spent; None: not in between
    every: int | None = None
    #: evaluate before the first update
    at_start: bool = False
    #: evaluate when the budget is spent
    at_end: bool = True
    #: what the rollout's evaluate() takes: episodes, seed; prompts, samples, …
    options: dict[str, Any] = field(default_factory=dict)
    #: those of them that are others once the budget is spent, as in {episodes: 100, seed: 20_000}
    final: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse what measures nothing."""
        _positive("eval.every", self.every)
        for group, values in (("options", self.options), ("final", self.final)):
            for name, value in values.items():
                _require_option(f"eval.{group}.{name}", name, value)


@dataclass(frozen=True)
class CheckpointSettings:
    """Saving: at the end, when interrupted, at every best evaluation, and now and then."""

    #: seconds between the saves of checkpoints/last.pt, and what kill -9 can cost; null: at the end
    every_s: float | None = 60.0

    def __post_init__(self) -> None:
        """Refuse what makes no sense."""
        if self.every_s is not None and self.every_s < 0:
            raise UserError(f"checkpoint.every_s must be 0 or more (got {self.every_s}).")


@dataclass(frozen=True)
class SaveSettings:
    """What else is kept of a run."""

    #: write every collected batch into the run folder's rollouts/, for rollout=stored
    rollouts: bool = False
    #: GiB that these files may take; later rollouts are not saved
    max_gib: float = 2.0

    def __post_init__(self) -> None:
        """Refuse room for nothing."""
        in_range(self, "max_gib", low=0, above=True)


@dataclass(frozen=True)
class RunSettings:
    """What the command line may set without a group's name in front."""

    #: seed of everything random
    seed: int = 0
    #: folder of the run; None makes runs/<algo>-<env>-<time>
    run_dir: str | None = None
    #: cpu, cuda, cuda:1, …; auto takes an accelerator for language models and the CPU for control
    device: str = "auto"
    #: environment steps (control)
    total_steps: int | None = None
    #: rounds of sampling and optimisation (text)
    updates: int | None = None
    #: torch's CPU threads; None lets the size of the network decide
    threads: int | None = None
    #: budget (environment steps, or updates) per row of metrics.jsonl; null writes one per round
    log_every: int | None = None
    #: evaluation while training
    eval: EvalSettings = field(default_factory=EvalSettings)
    #: saving
    checkpoint: CheckpointSettings = field(default_factory=CheckpointSettings)
    #: keeping what was collected
    save: SaveSettings = field(default_factory=SaveSettings)

    def __post_init__(self) -> None:
        """Refuse budgets of nothing."""
        _positive("total_steps", self.total_steps)
        _positive("updates", self.updates)
        _positive("threads", self.threads)
        _positive("log_every", self.log_every)
        require_seed("seed", self.seed)


def require_seed(key: str, value: int) -> None:
    """Refuse seeds that NumPy's (from 0) or torch's generators (63 bits) do not take."""
    if not 0 <= value < 2**63:
        raise UserError(f"{key} must be from 0 to 2**63 - 1 (got {value}).")


def _require_option(key: str, name: str, value: Any) -> None:
    if value is None and name in ("episodes", "samples", "seed"):
        raise UserError(f"{key} takes a whole number, not null.")
    if name == "seed":
        require_seed(key, value)
    elif name in ("episodes", "prompts"):
        _positive(key, value)


def _positive(key: str, value: int | None) -> None:
    if value is not None and not 1 <= value < 2**63:
        wrong = f"must be 1 or more (got {value})" if value < 1 else "must be less than 2**63"
        raise UserError(f"{key} {wrong}.")
