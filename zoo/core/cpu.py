"""NumPy's share of the CPU: its matrix products have threads of their own."""

from __future__ import annotations

import ctypes
from pathlib import Path

__all__ = ["set_blas_threads"]


def set_blas_threads(threads: int) -> None:
    """Set the threads of NumPy's OpenBLAS, where NumPy has one; torch's are not touched.

    By default it takes every core: on two, an update of networks of 256 units ends a fifth sooner
    and costs half as much processor time again, which runs side by side pay for.
    """
    maps = Path("/proc/self/maps")
    lines = maps.read_text().splitlines() if maps.exists() else []
    for file in {line.split()[-1] for line in lines if "openblas" in line}:
        library = ctypes.CDLL(file)
        for prefix in ("scipy_", ""):
            for suffix in ("64_", ""):
                setter = getattr(library, f"{prefix}openblas_set_num_threads{suffix}", None)
                if setter is not None:
                    setter(threads)
