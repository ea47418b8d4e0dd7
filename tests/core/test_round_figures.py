"""Figures of a whole round on text: quantiles by hand, and that no cut changes them."""

from __future__ import annotations

import math

import pytest
import torch
from tensordict import TensorDict

from zoo.core.protocols import Evaluation, Loss
from zoo.core.round_figures import RoundFigures


def part(rows: range, version: int = 3) -> tuple[Loss, TensorDict]:
    """Row i: ratio 1 + i/100, advantage i, sampler off by its log; the second step is dead."""
    value = torch.tensor([[float(i), math.nan] for i in rows])
    mask = torch.tensor([[True, False]] * len(rows))
    log_ratio = (1 + value / 100).log()
    batch = TensorDict(
        {
            "mask": mask,
            "advantage": value,
            "log_prob": -log_ratio,
            "old_log_prob": torch.zeros(len(rows), 2),
            "version": torch.full((len(rows),), version),
        },
        batch_size=[len(rows)],
    )
    out = Evaluation(torch.ones(len(rows), 2), torch.zeros(len(rows), 2), None)
    return Loss("x", {}, mask, out=out, log_ratio=log_ratio), batch


def figures(*parts: tuple[Loss, TensorDict]) -> dict[str, float]:
    gathered = RoundFigures(version=3)
    for loss, batch in parts:
        gathered.add(loss, batch)
    found = gathered.figures(torch.device("cpu"))
    assert found.pop("time/update") >= 0
    assert found.pop("memory/peak_rss_gib") > 0
    found.pop("speed/learned_tokens_per_s", None)
    return found


def test_by_hand() -> None:
    ratios = [1 + i / 100 for i in range(101)]
    gaps = [math.log(r) for r in ratios]
    assert figures(part(range(101))) == pytest.approx(
        {
            "policy/ratio_min": 1.0,
            "policy/ratio_p01": 1.01,
            "policy/ratio_p50": 1.5,
            "policy/ratio_p99": 1.99,
            "policy/ratio_max": 2.0,
            "advantage/mean": 50.0,
            "advantage/std": math.sqrt((101**2 - 1) / 12),
            "sampler/log_prob_gap_mean": sum(gaps) / 101,
            "sampler/log_prob_gap_max": math.log(2),
            "sampler/effective": sum(ratios) ** 2 / sum(r * r for r in ratios) / 101,
        },
        rel=1e-5,
    )


def test_they_do_not_depend_on_how_the_round_was_cut() -> None:
    whole = figures(part(range(101)))
    assert figures(part(range(70, 101)), part(range(7)), part(range(7, 70))) == pytest.approx(whole)


def test_the_samplers_gap_is_of_fresh_rows_only() -> None:
    mixed = figures(part(range(50), version=2), part(range(10)))
    assert mixed["sampler/log_prob_gap_max"] == pytest.approx(math.log(1.09), rel=1e-5)
    assert mixed["policy/ratio_max"] == pytest.approx(1.49)
    assert "sampler/effective" not in figures(part(range(50), version=2))


def test_with_one_update_the_forwards_own_log_probs_are_the_old_ones() -> None:
    loss, batch = part(range(1, 2))
    assert loss.out is not None
    found = figures((loss, batch.exclude("old_log_prob")))
    assert found["sampler/log_prob_gap_max"] == pytest.approx(1 + math.log(1.01), rel=1e-5)


def test_a_loss_without_a_ratio_shows_time_and_memory_only() -> None:
    loss, batch = part(range(3))
    loss.log_ratio = None
    assert figures((loss, batch)) == {}
