"""Exchange tensors between ranks in flat buffers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice

import torch
from torch import distributed as dist
from torch.distributed import ProcessGroup

from moeframe_torch_sharding.cuts import Cut

__all__ = ["bucketed", "fill_from_pieces_", "sum_between_ranks_", "summed_pieces"]

# torch 2.13 deprecates the second name of each pair; 2.11 has only that one.
_all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


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

    def started() -> Iterator[_Exchange]:
        for bucket in bucketed(tensors, bucket_bytes, dtype.itemsize):
            flat = torch.cat([tensor.reshape(-1).to(dtype) for tensor in bucket])
            work = dist.all_reduce(flat, group=group, async_op=True)
            yield work, flat, partial(_take_over, flat, bucket)

    _finish_each_while_the_next_runs(started())


def summed_pieces(
    tensors: Sequence[torch.Tensor],
    cuts: Sequence[Cut],
    group: ProcessGroup,
    dtype: torch.dtype,
    bucket_bytes: int,
) -> list[torch.Tensor]:
    """Sum each tensor over the ranks of `group` and return this rank's pieces of the sums, in the tensors' dtype.

    Args:
        tensors: the same shapes in the same order on every rank.
        cuts: of each tensor, into as many pieces as `group` has ranks.
        group: of two ranks or more.
        dtype: in which sums are taken and sent.
        bucket_bytes: largest flat buffer, padding not counted; at most two exist at a time.
    """
    sums: list[torch.Tensor] = []
    rank, ranks = group.rank(), group.size()
    left = iter(cuts)

    def take_over(own_N: torch.Tensor, bucket: Sequence[torch.Tensor], bucket_cuts: Sequence[Cut]) -> None:
        rooms = torch.split(own_N, [cut.room for cut in bucket_cuts])
        for tensor, cut, room_N in zip(bucket, bucket_cuts, rooms, strict=True):
            # A copy, so that a small piece does not keep the whole buffer alive.
            sums.append(cut.take(room_N, rank).to(tensor.dtype, copy=True))

    def started() -> Iterator[_Exchange]:
        for bucket in bucketed(tensors, bucket_bytes, dtype.itemsize):
            bucket_cuts = list(islice(left, len(bucket)))
            width = sum(cut.room for cut in bucket_cuts)
            flat_RN = torch.empty(ranks, width, dtype=dtype, device=bucket[0].device)
            rooms = torch.split(flat_RN, [cut.room for cut in bucket_cuts], dim=1)
            for tensor, cut, rooms_RN in zip(bucket, bucket_cuts, rooms, strict=True):
                cut.pack_(rooms_RN, tensor)
            own_N = flat_RN.new_empty(width)
            work = _reduce_scatter_single(own_N, flat_RN.view(-1), group=group, async_op=True)
            yield work, flat_RN, partial(take_over, own_N, bucket, bucket_cuts)

    _finish_each_while_the_next_runs(started())
    return sums


def fill_from_pieces_(
    tensors: Sequence[torch.Tensor],
    pieces: Sequence[torch.Tensor],
    cuts: Sequence[Cut],
    group: ProcessGroup,
    bucket_bytes: int,
) -> None:
    """Put each tensor together from the pieces of all ranks, in place.

    Args:
        tensors: the same shapes in the same order on every rank; those of one dtype travel together.
        pieces: this rank's, as `cuts` cut them; they may be views of the tensors.
        cuts: of each tensor, into as many pieces as `group` has ranks.
        group: of two ranks or more.
        bucket_bytes: largest flat buffer, padding not counted; at most two exist at a time.
    """

    def started(dtype: torch.dtype) -> Iterator[_Exchange]:
        chosen = [index for index, tensor in enumerate(tensors) if tensor.dtype == dtype]
        left = iter(chosen)
        for bucket in bucketed([tensors[index] for index in chosen], bucket_bytes, dtype.itemsize):
            indices = list(islice(left, len(bucket)))
            bucket_cuts = [cuts[index] for index in indices]
            widths = [cut.room for cut in bucket_cuts]
            own_N = torch.empty(sum(widths), dtype=dtype, device=bucket[0].device)
            for index, room_N in zip(indices, torch.split(own_N, widths), strict=True):
                cuts[index].put_(room_N, pieces[index])
            flat_RN = own_N.new_empty(group.size(), own_N.numel())
            work = _all_gather_single(flat_RN.view(-1), own_N, group=group, async_op=True)
            yield work, own_N, partial(_put_together, flat_RN, widths, bucket, bucket_cuts)

    with torch.no_grad():
        for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
            _finish_each_while_the_next_runs(started(dtype))


_Exchange = tuple[dist.Work | None, torch.Tensor, Callable[[], None]]
"""A collective that runs, the buffer it sends, and what to do with its result."""


def _finish_each_while_the_next_runs(started: Iterable[_Exchange]) -> None:
    waiting: _Exchange | None = None
    for current in started:
        if waiting is not None:
            _finish(*waiting)
        waiting = current
    if waiting is not None:
        _finish(*waiting)


def _finish(work: dist.Work | None, sent: torch.Tensor, take_over: Callable[[], None]) -> None:  # noqa: ARG001 - held
    assert work is not None
    work.wait()
    take_over()


def _take_over(flat: torch.Tensor, bucket: Sequence[torch.Tensor]) -> None:
    for tensor, values in zip(bucket, torch.split(flat, [tensor.numel() for tensor in bucket]), strict=True):
        tensor.copy_(values.view_as(tensor))


def _put_together(
    flat_RN: torch.Tensor, widths: Sequence[int], bucket: Sequence[torch.Tensor], cuts: Sequence[Cut]
) -> None:
    for tensor, cut, rooms_RN in zip(bucket, cuts, torch.split(flat_RN, list(widths), dim=1), strict=True):
        cut.unpack_(rooms_RN, tensor)
