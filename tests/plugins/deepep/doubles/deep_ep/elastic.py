"""`ElasticBuffer`, as in deep_ep/buffers/elastic.py of branch main."""
# ruff: noqa: PLR0917  # the signatures of the library

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from deep_ep.buffer import Buffer, EventOverlap
from deep_ep.kernel import kernel


@dataclass
class EPHandle:
    topk_idx: torch.Tensor
    num_experts: int
    num_recv_tokens_per_expert_list: list[int]
    inner: Any


class ElasticBuffer:
    def __init__(
        self,
        group,
        num_bytes=None,
        num_cpu_bytes=0,
        num_max_tokens_per_rank=0,
        hidden=0,
        num_topk=0,
        use_fp8_dispatch=False,
        deterministic=False,
        explicitly_destroy=False,
    ) -> None:
        self.deterministic, self.hidden, self.num_max_tokens = deterministic, hidden, num_max_tokens_per_rank
        self.num_topk = num_topk
        self._inner = Buffer(group, 2**31, explicitly_destroy=explicitly_destroy)

    def destroy(self) -> None:
        self._inner.destroy()

    @kernel
    def dispatch(
        self,
        x,
        topk_idx=None,
        topk_weights=None,
        cumulative_local_expert_recv_stats=None,
        num_experts=None,
        num_max_tokens_per_rank=None,
        expert_alignment=None,
        num_sms=0,
        num_qps=0,
        previous_event=None,
        async_with_compute_stream=False,
        allocate_on_comm_stream=False,
        handle=None,
        do_cpu_sync=None,
        do_expand=False,
    ):
        assert x.shape[1] <= self.hidden
        assert x.shape[0] <= self.num_max_tokens
        assert num_sms > 0, "0 asks nvidia-smi"
        if handle is not None:
            assert topk_idx is None
            assert not do_cpu_sync
            rows = self._inner.dispatch(x, handle=handle.inner)[0]
            return rows, None, None, handle, EventOverlap()
        assert topk_idx.shape[1] <= min(32, self.num_topk)
        per_rank, _, per_expert, in_rank, _ = self._inner.get_dispatch_layout(topk_idx, num_experts)
        rows, ids, weights, counts, inner, _ = self._inner.dispatch(
            x,
            num_tokens_per_rank=per_rank,
            is_token_in_rank=in_rank,
            num_tokens_per_expert=per_expert,
            topk_idx=topk_idx,
            topk_weights=topk_weights,
        )
        handle = EPHandle(topk_idx.clone(), num_experts, counts, inner)
        return rows, ids, weights, handle, EventOverlap()

    @kernel
    def combine(self, x, handle, topk_weights=None, bias=None, num_sms=0, num_qps=0):
        assert x.shape[1] * x.element_size() % 256 == 0
        return self._inner.combine(x, handle.inner, topk_weights=topk_weights)
