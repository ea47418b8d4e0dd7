"""The results file: what comes back is what went in, and it is small."""

from __future__ import annotations

import dataclasses
import gzip
import json
import math
from pathlib import Path

import numpy as np
import pytest
from made_runs import zoo_run

from zoo.benchmarks.readers import read, write_results
from zoo.benchmarks.records import Collection, Curve, Note, Run
from zoo.errors import UserError


def run_of(seed, points=3, **changed):
    steps = np.arange(1.0, points + 1) * 100
    rng = np.random.default_rng(seed)
    curves = {
        "evaluation": Curve(steps, rng.normal(100, 30, points).round(4), steps / 1000),
        "training": Curve(steps, rng.normal(100, 30, points).round(4)),
    }
    facts = {"wall_s": 12.5, "seed_of": seed, "versions": {"torch": "2.9"}, "budget": 300}
    fields = {
        "label": "ppo",
        "env": "CartPole-v1",
        "seed": seed,
        "source": Path(f"runs/ppo-{seed}"),
        "kind": "zoo",
        "unit": "environment steps",
        "metric": "return",
        "curves": curves,
        "status": "finished",
        "settings": {"algo.lr": 1e-3, "algo.betas": [0.9, 0.999], "seed": seed},
        "facts": facts,
        "named": seed == 1,
    }
    return Run(**{**fields, **changed})


def same(run, other):
    for field in dataclasses.fields(Run):
        a, b = getattr(run, field.name), getattr(other, field.name)
        if field.name == "source":
            assert a.name == b.name
        elif field.name == "curves":
            assert a.keys() == b.keys()
            for name in a:
                assert a[name].step.tolist() == b[name].step.tolist()
                assert a[name].value.tolist() == b[name].value.tolist()
                walls = [curve.wall_s for curve in (a[name], b[name])]
                assert [w is None for w in walls] in ([True, True], [False, False])
                assert walls[0] is None or walls[0].tolist() == walls[1].tolist()
        else:
            assert a == b, field.name


@pytest.mark.parametrize("name", ["x.results.json", "x.results.json.gz"])
def test_runs_come_back_as_they_were(tmp_path, name):
    runs = (
        run_of(1),
        run_of(2, label="other", settings={"algo.lr": 0.1}, status="diverged", curves={}),
        run_of(None, env="Acrobot-v1", kind="csv", unit="steps", metric="accuracy", facts={}),
    )
    path = tmp_path / "new" / "sub" / name
    write_results(Collection(runs, (Note("careful", Path("runs/ppo-1")), Note("so"))), path)
    collection = read([str(path)])
    assert len(collection.runs) == 3
    for run, other in zip(runs, collection.runs, strict=True):
        same(run, other)
    # what is said of all runs together is not kept: it is found again where it still holds
    assert [note.text for note in collection.notes if note.source] == ["careful"]
    assert "so" not in [note.text for note in collection.notes]
    assert collection.runs[0].source == path / "ppo-1"


def test_writing_again_what_was_read_changes_nothing(tmp_path):
    first, second = tmp_path / "a.results.json.gz", tmp_path / "b.results.json.gz"
    write_results(Collection(tuple(run_of(seed, 5000) for seed in range(3))), first)
    write_results(read([str(first)]), second)
    assert first.read_bytes() == second.read_bytes()


def test_curves_are_thinned_to_two_hundred_points_and_keep_the_last(tmp_path):
    path, run = tmp_path / "x.results.json", run_of(1, 5000)
    write_results(Collection((run,)), path)
    for name, curve in read([str(path)]).runs[0].curves.items():
        assert len(curve.step) <= 200
        assert curve.step[-1] == 500_000
        assert curve.value[-1] == run.curves[name].value[-1]


def test_numbers_are_rounded_to_seven_digits_but_settings_are_not(tmp_path):
    path = tmp_path / "x.results.json"
    curve = Curve(np.array([123_456_789.0]), np.array([math.pi * 1000]))
    settings = {"algo.lr": math.pi / 1e4}
    run = run_of(1, curves={"evaluation": curve}, settings=settings, facts={"wall_s": math.e})
    write_results(Collection((run, run_of(2))), path)
    again = read([str(path)]).runs[0]
    assert again.curves["evaluation"].step.tolist() == [123_456_789]
    assert again.curves["evaluation"].value.tolist() == [3141.593]
    assert again.settings == settings
    assert again.facts["wall_s"] == 2.718282


def test_ten_runs_fit_in_a_hundred_kilobytes(tmp_path):
    path = tmp_path / "x.results.json.gz"
    settings = {f"algo.knob_{i}": i / 7 for i in range(90)}
    runs = tuple(run_of(seed, 5000, settings={**settings, "seed": seed}) for seed in range(10))
    write_results(Collection(runs), path)
    assert path.stat().st_size < 100_000
    plain = json.loads(gzip.decompress(path.read_bytes()))
    assert plain["runs"][0]["settings"] == {"seed": 0}  # what they share is there once


def test_run_folders_and_the_file_made_of_them_give_the_same_runs(tmp_path):
    for seed in (1, 2):
        zoo_run(tmp_path / "runs" / f"a{seed}", seed=seed)
    runs = read([str(tmp_path / "runs")])
    path = tmp_path / "x.results.json"
    write_results(runs, path)
    for run, other in zip(runs.runs, read([str(path)]).runs, strict=True):
        same(run, other)
    # and given both, no run counts twice
    assert len(read([str(tmp_path)]).runs) == 2


def test_figures_that_are_not_finite_become_null(tmp_path):
    path = tmp_path / "x.results.json"
    write_results(Collection((run_of(1, facts={"evaluation": {"return_ci95": math.nan}}),)), path)
    assert read([str(path)]).runs[0].facts == {"evaluation": {"return_ci95": None}}


def test_a_label_is_taken_over(tmp_path):
    path = tmp_path / "x.results.json"
    write_results(Collection((run_of(1), run_of(2, label="b"))), path)
    assert [r.label for r in read([f"old={path}"]).runs] == ["old ppo", "old b"]
    write_results(Collection((run_of(1), run_of(2))), path)
    assert {(r.label, r.named) for r in read([f"old={path}"]).runs} == {("old", True)}
    with pytest.raises(UserError, match="leave @Pong out"):
        read([f"old@Pong={path}"])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.results.json", b"", "is no results file"),
        ("x.results.json", b"[1]", "is no results file"),
        ("x.results.json", b'{"format": "other"}', "is no results file"),
        ("x.results.json", b"\xff\xfe", "is no results file"),
        ("x.results.json.gz", b"plain", "can't read"),
        ("x.results.json.gz", gzip.compress(b"{}" * 99, mtime=0)[:-12], "is no results file"),
        (
            "x.results.json",
            b'{"format": "algorithm-zoo results", "version": 99}',
            "written by a later version",
        ),
    ],
)
def test_what_is_no_results_file_is_one_sentence(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message):
        read([str(tmp_path / name)])


@pytest.mark.parametrize(
    "curve",
    [
        [[1, 1], [2, 3], None],
        [[2, 1], [2, 3], None],
        [[1, 2], [2, None], None],
        [[1, 2], [2], None],
        [[1, 2], [2, 3], [5, 4]],
        [[], [], None],
    ],
)
def test_a_curve_that_somebody_changed_is_not_taken(tmp_path, curve):
    path = tmp_path / "x.results.json"
    write_results(Collection((run_of(1),)), path)
    content = json.loads(path.read_text())
    content["runs"][0]["curves"]["evaluation"] = curve
    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match="is no results file"):
        read([str(path)])


def test_a_name_that_would_not_be_read_again_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"must end in \.results\.json"):
        write_results(Collection(()), tmp_path / "x.json")


def test_a_file_that_cannot_be_written_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="can't write"):
        write_results(Collection(()), tmp_path / "file" / "x.results.json")


def test_the_settings_of_the_shared_part_are_those_of_every_run(tmp_path):
    path = tmp_path / "x.results.json"
    runs = (run_of(1, settings={"a": 1, "b": None}), run_of(2, settings={"a": 1}))
    write_results(Collection(runs), path)
    assert [run.settings for run in read([str(path)]).runs] == [{"a": 1, "b": None}, {"a": 1}]
