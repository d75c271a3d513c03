"""`Buffer`, as in deep_ep/buffer.py."""
# ruff: noqa: PLR0917  # the signatures of the library

from __future__ import annotations

from typing import ClassVar

import torch

from deep_ep.kernel import kernel
from deep_ep.rows import exchange, gather, scatter


class EventOverlap:
    def __init__(self, event=None) -> None:
        self.event = event


class Config:
    def __init__(self, num_sms: int, send: int, receive: int) -> None:
        self.num_sms, self.send, self.receive = num_sms, send, receive

    def get_nvl_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        """csrc/config.hpp, without NVSHMEM."""
        assert num_ranks < 8 or num_ranks % 8 == 0
        a_channel = 5 * 4 + self.receive * (hidden_bytes + 128 * 8 + 128 * 4 + 128 * 4)
        num_bytes = self.num_sms // 2 * min(num_ranks, 8) * a_channel
        return (num_bytes + 127) // 128 * 128


class Buffer:
    num_sms = 20
    opened: ClassVar[list[int]] = []
    """Sizes of the buffers that were made and not destroyed, for tests."""

    def __init__(
        self, group, num_nvl_bytes=0, num_rdma_bytes=0, low_latency_mode=False, explicitly_destroy=False
    ) -> None:
        self.group, self.rank, self.group_size = group, group.rank(), group.size()
        self.num_nvl_bytes, self.explicitly_destroy = num_nvl_bytes, explicitly_destroy
        assert num_rdma_bytes == 0
        assert not low_latency_mode
        Buffer.opened.append(num_nvl_bytes)

    def destroy(self) -> None:
        assert self.explicitly_destroy, "`explicitly_destroy` flag must be set"
        Buffer.opened.remove(self.num_nvl_bytes)
        self.group = None

    @staticmethod
    def set_num_sms(new_num_sms: int) -> None:
        assert new_num_sms % 2 == 0, "The SM count must be even"
        Buffer.num_sms = new_num_sms

    @staticmethod
    def get_dispatch_config(num_ranks: int) -> Config:
        assert num_ranks in (2, 4, 8), f"Unsupported number of EP ranks: {num_ranks}"
        return Config(Buffer.num_sms, 24 if num_ranks == 2 else 6, 256)

    @staticmethod
    def get_combine_config(num_ranks: int) -> Config:
        assert num_ranks in (2, 4, 8), f"Unsupported number of EP ranks: {num_ranks}"
        return Config(Buffer.num_sms, 10 if num_ranks == 2 else 4, 256)

    @kernel
    def get_dispatch_layout(
        self, topk_idx, num_experts, previous_event=None, async_finish=False, allocate_on_comm_stream=False
    ):
        assert topk_idx.dim() == 2
        assert topk_idx.is_contiguous()
        assert topk_idx.dtype == torch.int64
        per_rank = num_experts // self.group_size
        ranks = torch.where(topk_idx < 0, self.group_size, topk_idx // per_rank)
        in_rank = torch.zeros(topk_idx.shape[0], self.group_size + 1, dtype=torch.bool)
        in_rank = in_rank.scatter_(1, ranks, True)[:, :-1].contiguous()
        flat = topk_idx[topk_idx >= 0]
        counts = torch.bincount(flat, minlength=num_experts).int()
        return in_rank.sum(0).int(), None, counts, in_rank, EventOverlap()

    @kernel
    def dispatch(
        self,
        x,
        handle=None,
        num_tokens_per_rank=None,
        num_tokens_per_rdma_rank=None,
        is_token_in_rank=None,
        num_tokens_per_expert=None,
        topk_idx=None,
        topk_weights=None,
        expert_alignment=1,
        num_worst_tokens=0,
        config=None,
        previous_event=None,
        async_finish=False,
        allocate_on_comm_stream=False,
    ):
        assert x.dim() == 2
        assert x.is_contiguous()
        assert x.shape[1] * x.element_size() % 32 == 0
        assert x.shape[1] <= 8176
        self._fits(x.shape[1] * x.element_size())
        if handle is not None:
            assert topk_idx is None
            assert topk_weights is None
            in_rank, received = handle
            assert x.shape[0] == in_rank.shape[0]
            return scatter(x, in_rank, self.group), None, None, None, None, EventOverlap()
        assert num_tokens_per_rank is not None
        assert is_token_in_rank is not None
        assert num_tokens_per_expert is not None
        assert (topk_idx is None) == (topk_weights is None)
        assert topk_weights.dtype == torch.float32
        assert num_tokens_per_expert.shape[0] // self.group_size <= 1024
        first = self.rank * (num_tokens_per_expert.shape[0] // self.group_size)
        last = first + num_tokens_per_expert.shape[0] // self.group_size
        ids = scatter(topk_idx, is_token_in_rank, self.group)
        here = (ids >= first) & (ids < last)
        weights = torch.where(here, scatter(topk_weights, is_token_in_rank, self.group), 0.0)
        ids = torch.where(here, ids - first, -1)
        counts = torch.bincount(ids[here], minlength=last - first)
        counts = (counts + expert_alignment - 1) // expert_alignment * expert_alignment
        sizes = [torch.zeros(int(number), 1) for number in num_tokens_per_rank]
        received = [part.shape[0] for part in exchange(sizes, self.group)]
        handle = (is_token_in_rank, received)
        return scatter(x, is_token_in_rank, self.group), ids, weights, counts.tolist(), handle, EventOverlap()

    @kernel
    def combine(
        self,
        x,
        handle,
        topk_weights=None,
        bias=None,
        config=None,
        previous_event=None,
        async_finish=False,
        allocate_on_comm_stream=False,
    ):
        assert x.dtype == torch.bfloat16
        assert x.is_contiguous()
        assert x.shape[1] * x.element_size() % 16 == 0
        self._fits(x.shape[1] * x.element_size())
        in_rank, received = handle
        assert x.shape[0] == sum(received)
        weights = None
        if topk_weights is not None:
            assert topk_weights.dtype == torch.float32
            assert topk_weights.is_contiguous()
            weights = gather(topk_weights, in_rank, received, self.group)
        return gather(x, in_rank, received, self.group), weights, EventOverlap()

    def _fits(self, row_bytes: int) -> None:
        assert self.group is not None, "destroyed"
        needed = Buffer.num_sms // 2 * self.group_size * 256 * (row_bytes + 4)
        assert needed <= self.num_nvl_bytes, f"{needed} <= num_nvl_bytes = {self.num_nvl_bytes}"
