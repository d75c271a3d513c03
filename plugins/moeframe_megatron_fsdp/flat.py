"""Tensors whose flat elements lie on the ranks of a group, each rank holding one run of them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import distributed as dist
from torch.distributed import ProcessGroup

__all__ = ["Run", "by_rows", "in_rank_order"]


@dataclass(frozen=True)
class Run:
    """The elements [start, stop) of a flattened tensor, held by this rank; `group` holds each element once."""

    shape: tuple[int, ...]
    start: int
    stop: int
    group: ProcessGroup

    def of(self, whole: torch.Tensor) -> torch.Tensor:
        """Return this rank's elements of a whole tensor, flat; a view where `whole` is contiguous."""
        return whole.reshape(-1)[self.start : self.stop]

    def whole(self, piece: torch.Tensor) -> torch.Tensor:
        """Return a copy of the whole tensor, given this rank's elements; collective over the group.

        The other ranks' elements are zeros here, so that a sum puts the pieces together, wherever they lie.
        """
        if self.stop - self.start == torch.Size(self.shape).numel() and self.group.size() == 1:
            return piece.detach().reshape(self.shape).clone()
        flat = piece.new_zeros(torch.Size(self.shape).numel())
        flat[self.start : self.stop].copy_(piece.detach().reshape(-1))
        dist.all_reduce(flat, group=self.group)
        return flat.view(self.shape)


def by_rows(shape: tuple[int, ...], group: ProcessGroup) -> Run:
    """Cut along dimension 0 as torch.chunk and DTensor do: the last ranks may hold less or nothing."""
    rows, width = shape[0], torch.Size(shape[1:]).numel()
    step = -(-rows // group.size())
    start = min(group.rank() * step, rows)
    return Run(shape, start * width, min(start + step, rows) * width, group)


def in_rank_order(shapes: list[tuple[int, ...]], lengths: list[int], group: ProcessGroup) -> list[Run]:
    """Say which elements each rank holds, given how many this one does; collective.

    Args:
        shapes: of the whole tensors, the same on every rank.
        lengths: of this rank's pieces; rank 0 holds the first elements, rank 1 the next.
        group: the ranks.

    Raises:
        ValueError: the pieces of a tensor are not as many elements as it has; with its place in `shapes`.
    """
    every: list[list[int]] = [lengths] * group.size()
    if group.size() > 1:
        dist.all_gather_object(every, lengths, group=group)
    runs = []
    for index, shape in enumerate(shapes):
        start = sum(held[index] for held in every[: group.rank()])
        total = sum(held[index] for held in every)
        if total != torch.Size(shape).numel():
            raise ValueError(f"{index}: its pieces have {total} elements, the tensor {torch.Size(shape).numel()}")
        runs.append(Run(shape, start, start + lengths[index], group))
    return runs
