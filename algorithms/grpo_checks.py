"""Which of GRPO's settings make no sense together, each with the reason in one sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zoo.errors import UserError

if TYPE_CHECKING:
    from zoo.algorithms.grpo import GRPOKnobs

__all__ = ["refuse", "refuse_on_control"]


def refuse(knobs: GRPOKnobs) -> None:
    """Refuse combinations of knobs.

    Raises
    ------
    UserError
        For the first one that makes no sense.
    """
    k = knobs
    name = type(k).__name__.removesuffix("Knobs")
    grouped = k.baseline != "none" or k.refill.rounds > 0
    for wrong, why in (
        (
            k.group_size < 2 and grouped,
            f"needs group_size ≥ 2 (got {k.group_size}): a group of one has no baseline. Use"
            " algo=reinforce_pp or algo=ppo for single samples.",
        ),
        (
            k.baseline == "none" and k.scale != "none",
            f"can't divide by scale={k.scale} without a baseline from the group: with"
            " baseline=none use scale=none and normalize_advantage=true.",
        ),
        (
            k.ratio == "sequence" and k.reduction != "sequence-mean",
            f"with ratio=sequence needs reduction=sequence-mean (got {k.reduction}): one ratio per"
            " completion is to count once, whatever the length.",
        ),
        (
            k.objective == "cispo" and (k.ratio, k.dual_clip) != ("token", None),
            "with objective=cispo takes neither ratio=sequence nor dual_clip: it bounds the weight"
            " of each token and clips no gradient.",
        ),
    ):
        if wrong:
            raise UserError(f"{name} {why}")


def refuse_on_control(knobs: GRPOKnobs) -> None:
    """Refuse what only completions have a meaning for.

    Raises
    ------
    UserError
        With the knob.
    """
    for name, given, why in (
        ("overlong_filter", knobs.overlong_filter, "a time limit is no length limit"),
        ("refill", knobs.refill.rounds, "the returns of a group almost always differ"),
    ):
        if given:
            raise UserError(f"algo.{name} is for text; on control, {why}: leave it out.")
