"""How much memory this process took, and how much there is."""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

__all__ = ["budget_warning", "machine_gib", "peak_cuda_gib", "peak_rss_gib", "replay_warning"]


def peak_rss_gib() -> float:
    """Return the largest resident set of this process so far, in GiB.

    Linux's getrusage also counts what the process held before it became this program: a child of a
    large process would report its parent's memory. /proc tells of this program alone.
    """
    try:
        status = Path("/proc/self/status").read_text("ascii", errors="replace")
        return int(status.partition("VmHWM:")[2].split()[0]) / 2**20  # in KiB
    except (OSError, ValueError, IndexError):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak / (2**30 if sys.platform == "darwin" else 2**20)


def peak_cuda_gib(device: torch.device) -> float:
    """Return the most memory that torch's tensors took on an accelerator so far, in GiB."""
    import torch

    return torch.cuda.max_memory_allocated(device) / 2**30


def machine_gib() -> float:
    """Return the machine's memory in GiB."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30


def replay_warning(kept: int, observation: int, available: float) -> str | None:
    """Say so where replay will take more than half of the memory.

    Parameters
    ----------
    kept : int
        Transitions that will be stored at most.
    observation : int
        Bytes of one observation; beside large ones the rest of a transition does not count.
    available : float
        GiB of memory.
    """
    needed = kept * observation / 2**30
    if needed <= available / 2:
        return None
    return (
        f"replay will grow to {needed:.1f} GiB ({kept:,} observations of {observation:,} bytes),"
        f" and this machine has {available:.0f} GiB: lower algo.replay.capacity, or make"
        " observations smaller (env.pixels)"
    )


def budget_warning(budget: int | None, longest: int) -> str | None:
    """Say so where a row of text may have more tokens than a micro-batch is meant to hold.

    Parameters
    ----------
    budget : int, optional
        ``algo.max_tokens_per_micro_batch``.
    longest : int
        Tokens of the longest prompt and the longest completion that the rollout lets through.
    """
    if budget is None or longest <= budget:
        return None
    return (
        f"a row may have {longest:,} tokens, more than algo.max_tokens_per_micro_batch={budget:,}:"
        " such a row makes a micro-batch of its own"
    )
