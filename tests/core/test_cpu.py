"""NumPy's threads follow the run's setting."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest

from zoo.core.cpu import set_blas_threads


def test_openblas_takes_the_threads_it_is_told() -> None:
    np.dot(np.ones((2, 2)), np.ones((2, 2)))
    maps = Path("/proc/self/maps").read_text().splitlines() if Path("/proc").exists() else []
    files = {line.split()[-1] for line in maps if "numpy" in line and "openblas" in line}
    if not files:
        pytest.skip("this NumPy has no OpenBLAS of its own")
    library = ctypes.CDLL(files.pop())
    getter = getattr(library, "scipy_openblas_get_num_threads64_", None)
    if getter is None:
        pytest.skip("this OpenBLAS names its functions otherwise")
    before = getter()
    try:
        for threads in (2, 1):
            set_blas_threads(threads)
            assert getter() == threads
    finally:
        set_blas_threads(before)
