"""Sum gradients between ranks in flat buffers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import distributed as dist
from torch.distributed import ProcessGroup

__all__ = ["bucketed", "sum_between_ranks_"]


def bucketed(
    tensors: Sequence[torch.Tensor], bucket_bytes: int, element_bytes: int
) -> Iterator[Sequence[torch.Tensor]]:
    """Cut a list into runs of at most `bucket_bytes`, counting `element_bytes` for each element; none is empty."""
    bucket: list[torch.Tensor] = []
    filled = 0
    for tensor in tensors:
        size = tensor.numel() * element_bytes
        if bucket and filled + size > bucket_bytes:
            yield bucket
            bucket, filled = [], 0
        bucket.append(tensor)
        filled += size
    if bucket:
        yield bucket


def sum_between_ranks_(
    tensors: Sequence[torch.Tensor], group: ProcessGroup | None, dtype: torch.dtype, bucket_bytes: int
) -> None:
    """Replace each tensor by its sum over the ranks of `group`, in place; nothing to do for one rank.

    Args:
        tensors: the same shapes in the same order on every rank.
        group: None when there is no process group.
        dtype: in which sums are taken and sent.
        bucket_bytes: largest flat buffer; at most two exist at a time.
    """
    if group is None or group.size() == 1:
        return
    waiting: tuple[dist.Work, torch.Tensor, Sequence[torch.Tensor]] | None = None
    for bucket in bucketed(tensors, bucket_bytes, dtype.itemsize):
        flat = torch.cat([tensor.reshape(-1).to(dtype) for tensor in bucket])
        work = dist.all_reduce(flat, group=group, async_op=True)
        assert work is not None
        if waiting is not None:
            _take_over(*waiting)
        waiting = (work, flat, bucket)
    if waiting is not None:
        _take_over(*waiting)


def _take_over(work: dist.Work, flat: torch.Tensor, bucket: Sequence[torch.Tensor]) -> None:
    work.wait()
    for tensor, values in zip(bucket, torch.split(flat, [tensor.numel() for tensor in bucket]), strict=True):
        tensor.copy_(values.view_as(tensor))
