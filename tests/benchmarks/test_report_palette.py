"""The colours can be told apart by everybody, on both pages."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from zoo.benchmarks.report.palette import COLOURS, NUM_COLOURS, series_class
from zoo.benchmarks.report.picture import style

THEMES = (0, 1)
SERIES = [f"c{i}" for i in range(NUM_COLOURS)]
#: linear RGB as people see it (Machado, Oliveira, Fernandes 2009, severity 1)
SIGHT = {
    "normal": np.eye(3),
    "protanopia": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "deuteranopia": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.01182, 0.04294, 0.968881],
        ]
    ),
    "tritanopia": np.array(
        [
            [1.255528, -0.076749, -0.178779],
            [-0.078411, 0.930809, 0.147602],
            [0.004733, 0.691367, 0.3039],
        ]
    ),
}
XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def linear(name, theme):
    text = COLOURS[name][theme]
    share = np.array([int(text[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)


def contrast(name, ground, theme):
    lights = sorted(float(linear(n, theme) @ XYZ[1]) + 0.05 for n in (name, ground))
    return lights[1] / lights[0]


def lab(name, theme, sight):
    white = XYZ @ np.ones(3)
    ratio = XYZ @ np.clip(SIGHT[sight] @ linear(name, theme), 0, 1) / white
    x, y, z = np.where(ratio > 0.008856, np.cbrt(ratio), 7.787 * ratio + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("name", SERIES)
def test_lines_stand_out_from_the_page(name, theme):
    assert contrast(name, "page", theme) >= 3  # WCAG 1.4.11


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("ground", ["page", "raised", "note-page"])
@pytest.mark.parametrize("name", ["ink", "muted", "accent"])
def test_words_can_be_read(name, ground, theme):
    assert contrast(name, ground, theme) >= 4.5  # WCAG 1.4.3


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("sight", SIGHT)
def test_colours_differ_for_everybody(sight, theme):
    places = [lab(name, theme, sight) for name in SERIES]
    assert min(np.linalg.norm(a - b) for a, b in combinations(places, 2)) > 15


def test_repeated_colours_differ_by_their_dashes():
    classes = [series_class(i) for i in range(4 * NUM_COLOURS)]
    assert len(set(classes)) == len(classes)
    assert (classes[0], classes[9], series_class(-1)) == ("c0", "c1 d1", "cx")
    assert all(f".{part} " in style() for name in classes for part in name.split())
