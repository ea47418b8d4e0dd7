"""That intervals hold what the documentation claims: the stored simulation, and cells made anew."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from zoo.benchmarks import coverage
from zoo.benchmarks.candidates import CANDIDATES
from zoo.benchmarks.experiments import PARTS
from zoo.benchmarks.shapes import SHAPES, true_value

PAGE = Path(__file__).parents[2] / "docs" / "statistics.md"
STORED = json.loads(coverage.STORED.read_text("utf-8"))


def experiment(part, name):
    return next(e for e in PARTS[part] if e.name == name)


def column(*runs):
    """One experiment, as the methods take many: [runs, 1]."""
    return np.array(runs, dtype=float)[:, None]


def test_every_claim_stands_in_the_stored_simulation():
    held = {
        (part, name, runs): covered
        for part, experiments in STORED["parts"].items()
        for name, cells in experiments.items()
        for runs, covered in cells.items()
        if coverage.claimed(part, name, int(runs))
    }
    assert len(held) > 250
    assert {cell: c for cell, c in held.items() if c < 0.93} == {}


def test_stored_simulation_is_of_todays_experiments():
    assert {p: list(e) for p, e in STORED["parts"].items()} == {
        part: [e.name for e in experiments] for part, experiments in PARTS.items()
    }
    assert STORED["repetitions"] >= 4000


def test_page_shows_the_stored_simulation():
    shown = PAGE.read_text("utf-8").split(coverage.MARKERS[0])[1].split(coverage.MARKERS[1])[0]
    assert shown.strip() == coverage.tables(STORED)


@pytest.mark.parametrize(
    ("part", "name", "runs"),
    [
        ("level", "normal", 8),
        ("difference", "skewed – skewed, thrice as wide", 5),
        ("paired", "heavy tails, both, correlation 0.5", 6),
    ],
)
def test_claimed_cells_cover_when_simulated_anew(part, name, runs):
    assert coverage.claimed(part, name, runs)
    found = experiment(part, name).cell(runs, 1500).coverage
    assert 0.93 <= found <= 0.99
    assert found == pytest.approx(STORED["parts"][part][name][str(runs)], abs=0.02)


def test_what_is_not_claimed_does_not_hold():
    late = experiment("level", "a third fails")
    assert not coverage.claimed("level", late.name, 5)
    assert late.cell(5, 1000).coverage < 0.92
    assert not coverage.claimed("aggregate", "3 tasks, iqm, normal", 10)
    assert not coverage.claimed("profile", "80% of the runs above, 1 task", 30)


def test_rliables_percentiles_do_not_cover_with_few_runs():
    normal = experiment("level", "normal")
    assert normal.cell(3, 1000, "percentile").coverage < 0.8
    assert normal.cell(5, 1000, "percentile").coverage < 0.93


def test_true_values_are_those_of_the_distributions():
    # 35 % at 0: half of the scores are kept, 10 % of them at 0 and 40 % at 1
    assert true_value(SHAPES["a third fails"]) == pytest.approx(0.8, abs=1e-3)
    assert true_value(SHAPES["a third fails"], "mean") == pytest.approx(0.65, abs=1e-3)
    lognormal = (math.exp(0.75**2 / 2) - 1) / 0.75
    assert true_value(SHAPES["skewed"], "mean") == pytest.approx(lognormal, abs=1e-3)
    assert true_value(SHAPES["normal"]) == pytest.approx(0, abs=1e-9)


def test_correlated_pairs_differ_by_less():
    apart, close = (
        experiment("paired", f"normal, both, correlation {r}").cell(8, 300).width
        for r in (0.0, 0.9)
    )
    # standard deviations √2 and √0.2
    assert close / apart == pytest.approx(math.sqrt(0.1), rel=0.1)


def test_student_and_welch_are_the_textbooks():
    # mean 3, s² = 2.5, t(4) = 2.77645
    low, high = CANDIDATES["Student's t of means"]([column(1, 2, 3, 4, 5)])
    half = 2.77645 * math.sqrt(2.5 / 5)
    np.testing.assert_allclose([low[0], high[0]], [3 - half, 3 + half], atol=1e-4)
    # against mean 0, s² = 10, n = 5: df = (0.5 + 2)² / ((0.5² + 2²) / 4) = 5.88235, t = 2.45888
    wide = column(-4, -2, 0, 2, 4)
    low, high = CANDIDATES["Student's t of means"]([column(1, 2, 3, 4, 5), wide])
    assert (high - low)[0] / 2 == pytest.approx(2.45888 * math.sqrt(2.5), rel=1e-4)
    assert (high + low)[0] / 2 == pytest.approx(3)


def test_yuen_winsorises():
    # 0 1 2 3 10: trimmed mean 2; winsorised 1 1 2 3 3, variance 4 / (3·2), t(2) = 4.30265
    low, high = CANDIDATES["Yuen's t"]([column(10, 0, 3, 1, 2)])
    half = 4.30265 * math.sqrt(4 / 6)
    np.testing.assert_allclose([low[0], high[0]], [2 - half, 2 + half], atol=1e-4)


@pytest.mark.parametrize("method", CANDIDATES)
def test_methods_follow_the_sign_of_a_difference(method):
    x, y = np.random.default_rng(0).normal(size=(2, 10, 300))
    low, high = CANDIDATES[method]([x + 1, y])
    assert np.mean((low < 1) & (high > 1)) > 0.85
    assert np.mean((low < -1) & (high > -1)) < 0.15


def test_command_writes_what_it_simulated(tmp_path, monkeypatch, capsys):
    parts = {part: [PARTS[part][0]] for part in ("level", "difference")}
    monkeypatch.setattr(coverage, "PARTS", parts)
    page, out = tmp_path / "page.md", tmp_path / "coverage.json"
    page.write_text(
        f"before\n{coverage.MARKERS[0]}\nstale\n{coverage.MARKERS[1]}\nafter\n", "utf-8"
    )
    coverage.main(["--repetitions", "40", "--out", str(out), "--page", str(page)])
    stored = json.loads(out.read_text("utf-8"))
    assert (
        stored["parts"]["level"]["normal"]["8"]
        == experiment("level", "normal").cell(8, 40).coverage
    )
    text = page.read_text("utf-8")
    assert text.startswith("before\n") and text.endswith("\nafter\n") and "stale" not in text
    assert coverage.tables(stored) in text
    assert coverage.tables(stored) in capsys.readouterr().out


def test_page_without_markers_is_left_alone(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("no markers", "utf-8")
    with pytest.raises(SystemExit, match="does not hold the lines"):
        coverage.write_page(page, STORED)
    assert page.read_text("utf-8") == "no markers"
