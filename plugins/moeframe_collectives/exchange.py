"""Collectives on one group, under the names that torch 2.11 and 2.13 both have."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import distributed
from torch.distributed import ProcessGroup

from moeframe import trace
from moeframe.errors import ContractError

__all__ = ["all_gather", "all_to_all", "reduce_scatter_sum", "require_agreeing_splits"]

# torch 2.13 deprecates the first name of each pair; 2.11 has only that one.
_all_gather_single = getattr(distributed, "all_gather_single", None) or distributed.all_gather_into_tensor
_reduce_scatter_single = getattr(distributed, "reduce_scatter_single", None) or distributed.reduce_scatter_tensor


def all_to_all(
    sent: torch.Tensor, send_splits: Sequence[int], receive_splits: Sequence[int], group: ProcessGroup | None
) -> torch.Tensor:
    """Send ``send_splits[r]`` leading rows to each rank r; return the received rows, by source rank. None: one rank."""
    if group is None:
        return sent
    received = sent.new_empty(sum(receive_splits), *sent.shape[1:])
    distributed.all_to_all_single(received, sent.contiguous(), list(receive_splits), list(send_splits), group=group)
    return received


def all_gather(part: torch.Tensor, group: ProcessGroup | None) -> torch.Tensor:
    """Return the parts of all ranks, one after the other; every part has the same shape. None: one rank."""
    if group is None:
        return part
    whole = part.new_empty(group.size() * part.shape[0], *part.shape[1:])
    _all_gather_single(whole, part.contiguous(), group=group)
    return whole


def reduce_scatter_sum(whole: torch.Tensor, group: ProcessGroup | None) -> torch.Tensor:
    """Sum the ranks' tensors; return this rank's part of the leading dimension. None: one rank."""
    if group is None:
        return whole
    part = whole.new_empty(whole.shape[0] // group.size(), *whole.shape[1:])
    _reduce_scatter_single(part, whole.contiguous(), group=group)
    return part


def require_agreeing_splits(
    send_splits: Sequence[int], receive_splits: Sequence[int], group: ProcessGroup | None, device: torch.device
) -> None:
    """Raise on every rank of the group unless each expects what the others send it.

    A mismatch is otherwise no error: the receiver reads uninitialised rows. One collective and one host sync.

    Raises:
        ContractError: names each pair of ranks that disagrees, both numbers, and the place in the job.
    """
    if group is None:
        return
    mine = torch.tensor([[*send_splits, *receive_splits]], device=device)
    splits = all_gather(mine, group).tolist()
    size = group.size()
    wrong = [
        f"rank {sender} sends {splits[sender][receiver]} rows to rank {receiver}, "
        f"rank {receiver} expects {splits[receiver][size + sender]}"
        for sender in range(size)
        for receiver in range(size)
        if splits[sender][receiver] != splits[receiver][size + sender]
    ]
    if wrong:
        raise ContractError(
            f"{'; '.join(wrong)} ({trace.current()}; ranks of the ep group): the ranks use layouts of different calls. "
            "Dispatch and combine on all ranks in the same order, each with the layout of that call"
        )
