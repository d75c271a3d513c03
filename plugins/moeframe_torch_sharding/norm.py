"""The global L2 norm of gradients whose pieces lie on many ranks, and clipping to it. No host sync."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import distributed as dist
from torch.distributed import ProcessGroup

__all__ = ["Share", "clip_to_norm_", "global_norm"]


@dataclass(frozen=True)
class Share:
    """Gradients of this rank, and the group over which all pieces lie, each exactly once.

    `group` is None when this rank holds everything that there is.
    """

    gradients: Sequence[torch.Tensor]
    group: ProcessGroup | None


def _sum_of_squares(gradients: Sequence[torch.Tensor], device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """Return the sum of squares as a scalar of `dtype`."""
    filled = [gradient for gradient in gradients if gradient.numel()]
    if not filled:
        return torch.zeros((), device=device, dtype=dtype)
    # The list operations have no public name; torch.nn.utils clips with the same one.
    norms = torch._foreach_norm(filled, 2.0, dtype=dtype)  # noqa: SLF001
    return torch.stack(norms).square().sum()


def global_norm(
    shares: Sequence[Share], stages: ProcessGroup | None, device: torch.device, dtype: torch.dtype
) -> torch.Tensor:
    """Return the L2 norm over all shares and all pipeline stages, the same on every rank.

    Args:
        shares: what this rank holds; every rank names the same groups in the same order. Gradients are plain tensors.
        stages: the group along the pipeline, or None.
        device: of the result.
        dtype: in which squares are summed; at least float32.
    """
    total = torch.zeros((), device=device, dtype=dtype)
    with torch.no_grad():
        for group in dict.fromkeys(share.group for share in shares):
            squares = [_sum_of_squares(share.gradients, device, dtype) for share in shares if share.group is group]
            total += _sum_over(torch.stack(squares).sum(), group)
        return _sum_over(total, stages).sqrt()


def _sum_over(value: torch.Tensor, group: ProcessGroup | None) -> torch.Tensor:
    if group is not None and group.size() > 1:
        dist.all_reduce(value, group=group)
    return value


def clip_to_norm_(gradients: Sequence[torch.Tensor], norm: torch.Tensor, max_norm: float) -> None:
    """Multiply gradients by min(1, max_norm / norm), in place. A norm of 0 changes nothing; NaN spreads to all."""
    by_dtype: dict[torch.dtype, list[torch.Tensor]] = {}
    for gradient in gradients:
        by_dtype.setdefault(gradient.dtype, []).append(gradient)
    with torch.no_grad():
        factor = (max_norm / norm).clamp(max=1.0)
        for dtype, group in by_dtype.items():
            torch._foreach_mul_(group, factor.to(dtype))
