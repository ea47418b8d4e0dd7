"""What a text rollout reports of the completions it sampled: figures, records, failed rewards."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from zoo.core.protocols import Completion, Prompt, Scores
from zoo.errors import UserError
from zoo.functional.returns import live_groups
from zoo.rollouts.dialogue import POLICY, transcript
from zoo.rollouts.sampling import Samples

__all__ = ["Answered", "Unpaid", "failed", "metrics", "records"]


class Unpaid(UserError):
    """Rewards failed on every completion, update after update.

    Parameters
    ----------
    updates : int
        In how many of them, the last ones.
    errors : sequence of str
        What the environment told of the last one's failures.
    ever : bool
        Whether the run might have gone on, or paid before.

    Attributes
    ----------
    traceback : str
        The last update's errors, for errors.log.
    """

    def __init__(self, updates: int, errors: Sequence[str], *, ever: bool) -> None:
        last = "1 update" if updates == 1 else f"{updates} updates"
        which, learns = (f"the last {last}", "is") if ever else (f"this run ({last})", "was")
        why = f" The first failure: {_in_a_line(errors[0])}" if errors else ""
        super().__init__(
            f"no completion of {which} got a reward: rewards failed on every one, so nothing"
            f" {learns} learned.{why}"
        )
        self.traceback = "\n".join(errors) or str(self)


@dataclass
class Answered:
    """Sampled and scored completions; row i answers ``prompts[i]``."""

    prompts: list[Prompt]
    prompt_ids: list[list[int]]
    samples: Samples
    completions: list[Completion]
    scores: Scores
    sample_s: float = 0.0
    score_s: float = 0.0


def metrics(parts: Sequence[Answered], group_size: int) -> dict[str, float]:
    """Figures of everything that was sampled for one batch, for metrics.jsonl.

    Of all of it: a batch that dynamic sampling has selected would show what it was selected for.
    """
    length = torch.cat([part.samples.sampled for part in parts]).double().cpu()
    finished = torch.cat([part.samples.finished for part in parts]).cpu()
    total = _column([part.scores.total for part in parts])
    items, grades = (_columns([getattr(p.scores, n) for p in parts]) for n in ("items", "grades"))
    valid = total.isfinite()
    right = items.get("accuracy", grades["accuracy_strict"])
    seconds = sum(part.sample_s for part in parts)
    found = {
        "reward/mean": _mean(total),
        "reward/std": float(total[valid].std()) if int(valid.sum()) > 1 else 0.0,
        "completion/length_mean": float(length.mean()),
        "completion/length_max": float(length.max()),
        "completion/truncated": float((~finished).double().mean()),
        **_group_figures(total, right, group_size),
        "time/sample": seconds,
        "time/score": sum(part.score_s for part in parts),
        "speed/sampled_tokens_per_s": float(length.sum()) / max(seconds, 1e-9),
        **_dialogue_figures(parts, length),
    }
    for name, which in (("right", right > 0.5), ("wrong", right <= 0.5)):
        if bool(which.any()):
            found[f"completion/length_{name}"] = float(length[which].mean())
    found |= {f"reward/{name}": _mean(values) for name, values in items.items()}
    found |= {f"train/{name}": _mean(values) for name, values in grades.items()}
    for name, count in _failures(parts).items():
        found[f"reward/failed/{name}"] = float(count)
    return found


def _dialogue_figures(parts: Sequence[Answered], sampled: Tensor) -> dict[str, float]:
    """Turns of the policy's and tokens of the environment's, per row; nothing of single turns."""
    turns = [c.turns for part in parts for c in part.completions]
    if not all(turns):
        return {}
    row = torch.cat([part.samples.length for part in parts]).double().cpu()
    own = [sum(turn.role == POLICY for turn in row_turns) for row_turns in turns]
    return {
        "dialogue/turns_mean": float(torch.tensor(own, dtype=torch.float64).mean()),
        "dialogue/environment_tokens_mean": float((row - sampled).mean()),
        "dialogue/row_tokens_max": float(row.max()),
    }


def _group_figures(total: Tensor, right: Tensor, group_size: int) -> dict[str, float]:
    """Shares of groups that differ, are all right, all wrong; rewards' std within a group."""
    if group_size < 2:
        return {}
    groups = len(total) // group_size
    index = torch.arange(len(total)) // group_size
    live = live_groups(total, index, total.isfinite())
    rows, graded = right.view(groups, -1), right.view(groups, -1).isfinite()
    any_graded = graded.any(1)
    all_right = ((rows > 0.5) | ~graded).all(1) & any_graded
    all_wrong = ((rows <= 0.5) | ~graded).all(1) & any_graded
    paid = [kept for kept in (g[g.isfinite()] for g in total.view(groups, -1)) if len(kept)]
    spread = [float(kept.std(correction=0)) for kept in paid]
    return {
        "reward/group_std": _mean(torch.tensor(spread, dtype=torch.float64)),
        "group/live_fraction": len(index[live].unique()) / groups,
        "group/all_right": float(all_right.double().mean()),
        "group/all_wrong": float(all_wrong.double().mean()),
    }


def records(
    parts: Sequence[Answered], group_size: int, groups: int, wanted: int, offset: int
) -> list[dict[str, Any]]:
    """A few rows for the record file, from different groups, moving on with every update.

    Parameters
    ----------
    groups : int
        Groups numbered so far, these included.
    wanted : int
        How many rows.
    offset : int
        Updates so far.
    """
    rows = [(part, i) for part in parts for i in range(len(part.prompts))]
    count = len(rows)
    first = groups - count // group_size
    found = []
    for j in range(min(wanted, count)):
        k = (j * count // min(wanted, count) + offset) % count
        part, i = rows[k]
        scores = part.scores
        found.append(
            {
                "id": part.prompts[i].id,
                "group": first + k // group_size,
                "prompt": part.prompts[i].question,
                "answer": part.prompts[i].answer,
                "completion": transcript(part.completions[i]),
                "tokens": len(part.completions[i].token_ids),
                "finished": part.completions[i].finished,
                "reward": _plain(scores.total[i]),
                "items": {n: _plain(v[i]) for n, v in scores.items.items()},
                **{n: _plain(v[i]) for n, v in scores.grades.items()},
            }
        )
    return found


def failed(parts: Sequence[Answered]) -> list[str]:
    """Say which rewards failed and what that cost; one of weight 0 costs no completion."""
    each = [f"'{name}' on {count}" for name, count in _failures(parts).items() if count]
    if not each:
        return []
    totals = [total for part in parts for total in part.scores.total]
    out = sum(not math.isfinite(total) for total in totals)
    cost = f"{out} are left out of training" if out else "all of them are trained on"
    return [
        f"warning: of {len(totals)} completions, rewards failed: {', '.join(each)}; {cost}."
        " The tracebacks are in the run folder's errors.log, or printed where there is none."
    ]


def _in_a_line(error: str) -> str:
    """Return where an error happened and what it was, without the traceback in between."""
    first, *rest = error.strip().splitlines()
    return f"{first.partition(' (')[0]}: {rest[-1].strip()}" if rest else first


def _failures(parts: Sequence[Answered]) -> dict[str, int]:
    found: dict[str, int] = {}
    for part in parts:
        for name, count in part.scores.failures.items():
            found[name] = found.get(name, 0) + count
    return found


def _columns(parts: Sequence[Mapping[str, Sequence[float]]]) -> dict[str, Tensor]:
    return {name: _column([part[name] for part in parts]) for name in parts[0]}


def _column(parts: Sequence[Sequence[float]]) -> Tensor:
    return torch.tensor([float(x) for part in parts for x in part], dtype=torch.float64)


def _mean(values: Tensor) -> float:
    """Mean of what is a number; NaN where nothing is."""
    kept = values[values.isfinite()]
    return float(kept.mean()) if len(kept) else float("nan")


def _plain(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
