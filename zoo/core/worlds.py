"""What differs between control and text as a matter of counting."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["WORLDS", "Counting"]


@dataclass(frozen=True)
class Counting:
    """How the runs of a world are counted and ranked.

    Attributes
    ----------
    budget : str
        The setting that holds the budget.
    unit : str
        The counter that the budget bounds.
    counted : str
        The counter that rounds add their live steps to.
    score : str
        The figure of an evaluation by which it is ranked.
    """

    budget: str
    unit: str
    counted: str
    score: str


WORLDS = {
    "control": Counting("total_steps", "env_steps", "env_steps", "return_mean"),
    "text": Counting("updates", "updates", "tokens", "accuracy_strict"),
}
