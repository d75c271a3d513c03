"""The device that a rank of a pool computes on."""

from __future__ import annotations

import torch

__all__ = ["rank_device"]


def rank_device(kind: str) -> torch.device:
    """Return the CPU, or, for "cuda", the GPU that the pool has made this rank's (`RankPool`)."""
    return torch.device("cuda", torch.cuda.current_device()) if kind == "cuda" else torch.device("cpu")
