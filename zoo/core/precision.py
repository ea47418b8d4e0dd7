"""Which precision a device multiplies in."""

from __future__ import annotations

import torch

__all__ = ["multiplies_bfloat16"]


def multiplies_bfloat16(device: torch.device) -> bool:
    """Return whether a device has instructions for bfloat16; elsewhere it's emulated, and slow."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported()
    if device.type != "cpu":
        return False
    names = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(getattr(torch.cpu, name, lambda: False)() for name in names)
