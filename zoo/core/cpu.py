"""What small networks need of the CPU: memory that stays, and as many threads as were asked for."""

from __future__ import annotations

import ctypes
import platform
from pathlib import Path

__all__ = ["keep_freed_memory", "set_blas_threads"]

#: glibc's names for the parameters of mallopt
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3


def keep_freed_memory(size: int = 1 << 28) -> None:
    """Have glibc keep up to ``size`` freed bytes for the next allocations; elsewhere do nothing.

    By default it gives memory back so eagerly that every update of networks of 256 units faults
    some 400 pages in again: a tenth of its time, more on a virtual machine.
    """
    if platform.libc_ver()[0] == "glibc":
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_TRIM_THRESHOLD, size)
        mallopt(_MMAP_THRESHOLD, size)


def set_blas_threads(threads: int) -> None:
    """Set the threads of NumPy's OpenBLAS, where NumPy has one; torch's are not touched."""
    maps = Path("/proc/self/maps")
    lines = maps.read_text().splitlines() if maps.exists() else []
    for file in {line.split()[-1] for line in lines if "openblas" in line}:
        library = ctypes.CDLL(file)
        for prefix in ("scipy_", ""):
            for suffix in ("64_", ""):
                setter = getattr(library, f"{prefix}openblas_set_num_threads{suffix}", None)
                if setter is not None:
                    setter(threads)
