"""The global L2 norm of gradient pieces that lie on many ranks, and clipping to it. No host sync."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import distributed as dist
from torch.distributed import ProcessGroup

__all__ = ["clip_to_norm_", "norm_over"]


def norm_over(
    pieces: Sequence[torch.Tensor], groups: Sequence[ProcessGroup], device: torch.device, dtype: torch.dtype
) -> torch.Tensor:
    """Return the norm over the pieces of all ranks of all groups, summed in `dtype`; a scalar, equal on all ranks."""
    filled = [piece for piece in pieces if piece.numel()]
    total = torch.zeros((), device=device, dtype=dtype)
    with torch.no_grad():
        if filled:
            # The list operations have no public name; torch.nn.utils clips with the same one.
            total = torch.stack(torch._foreach_norm(filled, 2.0, dtype=dtype)).square().sum()  # noqa: SLF001
        for group in groups:
            if group.size() > 1:
                dist.all_reduce(total, group=group)
        return total.sqrt()


def clip_to_norm_(pieces: Sequence[torch.Tensor], norm: torch.Tensor, max_norm: float) -> None:
    """Multiply pieces of one dtype by min(1, max_norm / norm), in place. A norm of 0 changes nothing; NaN spreads."""
    filled = [piece for piece in pieces if piece.numel()]
    if filled:
        with torch.no_grad():
            torch._foreach_mul_(filled, (max_norm / norm).clamp(max=1.0).to(filled[0].dtype))
