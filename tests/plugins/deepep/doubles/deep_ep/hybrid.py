"""`HybridEPBuffer`, as in deep_ep/hybrid_ep_buffer.py of branch hybrid-ep."""

from __future__ import annotations

import torch
from torch import distributed

from deep_ep.kernel import kernel
from deep_ep.rows import exchange


class HybridEPBuffer:
    opened = 0
    """How many live, for tests."""

    def __init__(
        self,
        group,
        hidden_dim,
        max_num_of_tokens_per_rank,
        num_local_experts,
        use_fp8=False,
        num_sms_dispatch_api=None,
        num_sms_combine_api=None,
        load_cached_kernels=False,
    ) -> None:
        self.group, self.rank, self.size = group, group.rank(), group.size()
        self.hidden, self.max_tokens, self.local = hidden_dim, max_num_of_tokens_per_rank, num_local_experts
        assert hidden_dim % 16 == 0
        assert hidden_dim // 128 > 0, "cuMemGetAddressRange: named symbol not found"
        assert num_local_experts * self.size % 4 == 0
        assert max_num_of_tokens_per_rank >= 512
        assert max_num_of_tokens_per_rank % 64 == 0
        HybridEPBuffer.opened += 1

    def __del__(self) -> None:
        HybridEPBuffer.opened -= 1

    @kernel
    def dispatch_with_permute(
        self,
        *,
        hidden,
        topk_idx=None,
        topk_weights=None,
        num_of_experts_per_rank=None,
        num_of_experts=None,
        use_fp8=None,
        routing_map=None,
        probs=None,
        scaling_factor=None,
        num_permuted_tokens=None,
        pad_multiple=None,
        handle=None,
        non_blocking=False,
        fuse_permute_dispatch=False,
    ):
        assert hidden.dtype == torch.bfloat16
        assert hidden.is_contiguous()
        assert hidden.shape[1] == self.hidden
        self._equal_tokens(hidden.shape[0])
        assert not non_blocking or num_permuted_tokens is not None
        if handle is None:
            assert routing_map.dtype == torch.bool
            assert routing_map.is_contiguous()
            assert routing_map.shape == (hidden.shape[0], self.local * self.size)
            everyone = [torch.empty_like(routing_map) for _ in range(self.size)]
            distributed.all_gather(everyone, routing_map, group=self.group)
            own = slice(self.rank * self.local, (self.rank + 1) * self.local)
            handle = (routing_map.clone(), [part[:, own].clone() for part in everyone], hidden.shape[0])
        routing, arriving, tokens = handle
        assert tokens == hidden.shape[0]
        if probs is not None:
            assert probs.dtype == torch.float32
            assert probs.is_contiguous()
            assert probs.shape == routing.shape
        rows = self._sent(hidden, routing, arriving, lambda x, expert: x)
        gates = None if probs is None else self._sent(probs, routing, arriving, lambda x, expert: x[:, expert, None])
        counts = torch.stack([part.sum(0) for part in arriving]).sum(0)
        needed = int(counts.sum())
        room = needed if num_permuted_tokens is None else num_permuted_tokens
        assert needed <= room, "rows would be dropped"
        filler = torch.full((room - needed, self.hidden), torch.nan, dtype=torch.bfloat16)
        rows = torch.cat([rows, filler])
        if gates is not None:
            gates = torch.cat([gates[:, 0], torch.full((room - needed,), torch.nan)])
        return rows, gates, None, counts, handle

    @kernel
    def combine_with_unpermute(
        self, *, hidden, probs=None, handle=None, pad_multiple=None, fuse_unpermute_combine=False
    ):
        assert hidden.dtype == torch.bfloat16
        assert hidden.is_contiguous()
        assert hidden.shape[0] > 0, "a null pointer"
        routing, arriving, _ = handle
        sums = self._home(hidden, routing, arriving)
        if probs is None:
            return sums.bfloat16(), None
        assert probs.dtype == torch.float32
        assert probs.shape[0] == hidden.shape[0]
        values = torch.zeros(routing.shape, dtype=torch.float32)
        for expert, (chosen, part) in enumerate(self._by_expert(probs[:, None], routing, arriving)):
            values[chosen, expert] = part[:, 0]
        return sums.bfloat16(), values

    def _equal_tokens(self, tokens: int) -> None:
        assert tokens % 16 == 0
        assert 0 < tokens <= self.max_tokens
        numbers = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        distributed.all_gather(numbers, torch.tensor([tokens]), group=self.group)
        assert all(int(number) == tokens for number in numbers), "ranks pass different numbers of tokens"

    def _sent(self, x, routing, arriving, part_for):
        """Rows in the order (expert, source rank, token)."""
        received = []
        for expert in range(self.local):
            parts = []
            for rank in range(self.size):
                number = rank * self.local + expert
                parts.append(part_for(x[routing[:, number]], number).contiguous())
            received += exchange(parts, self.group)
        return torch.cat(received)

    def _by_expert(self, rows, routing, arriving):
        """Yield, for each global expert, the tokens here that chose it and what came back for them."""
        start, back = 0, []
        for expert in range(self.local):
            parts = []
            for rank in range(self.size):
                number = int(arriving[rank][:, expert].sum())
                parts.append(rows[start : start + number])
                start += number
            back.append(exchange(parts, self.group))
        for rank in range(self.size):
            for expert in range(self.local):
                yield routing[:, rank * self.local + expert], back[expert][rank]

    def _home(self, rows, routing, arriving):
        total = torch.zeros(routing.shape[0], self.hidden, dtype=torch.float32)
        for number, (chosen, part) in enumerate(self._by_expert(rows, routing, arriving)):
            assert part.shape[0] == int(routing[:, number].sum())
            total[chosen] += part.float()
        return total
