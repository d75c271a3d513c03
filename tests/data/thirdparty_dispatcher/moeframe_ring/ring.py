"""`ring`: in round s, rank r sends to rank r + s and receives from rank r - s, point to point. Any backend that can
send and receive; tested on gloo.

N rows leave this rank, one per assignment that is sent, sorted by expert and so by destination; R rows arrive, by
source, then expert.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed
from torch.distributed import P2POp, ProcessGroup

from moeframe import trace
from moeframe.errors import ContractError
from moeframe.protocols.dispatcher import Dispatched, Dispatcher, DispatcherContext, Layout

if TYPE_CHECKING:
    from moeframe_ring.plugin import RingOptions


@dataclass(frozen=True, kw_only=True)
class RingLayout:
    """What depends on the routing alone.

    `send`, `receive`: rows to and from each rank. `choice_N`: position in the flattened (T, K) of each row that
    leaves. `place_TK`: which of these rows belongs to each choice, N for none. `arrival_R`: for each row grouped by
    local expert, where it arrived.
    """

    num_tokens: int
    send: tuple[int, ...]
    receive: tuple[int, ...]
    choice_N: torch.Tensor
    place_TK: torch.Tensor
    arrival_R: torch.Tensor
    counts_E: torch.Tensor
    counts_host: tuple[int, ...]


class RingDispatcher(Dispatcher):
    """Exchanges rows in ep_size - 1 rounds."""

    def __init__(self, options: RingOptions, context: DispatcherContext) -> None:
        self._context = context
        self._ring = _Ring(context.ep_group, context.ep_size, context.ep_rank, -1 if options.reverse else 1)

    def layout(self, expert_ids_TK: torch.Tensor) -> RingLayout:
        """Sort the assignments by expert and tell every rank the counts. One host sync.

        Invalid ids are counted beside the assignments, so all ranks hear of them at no further cost.
        """
        context = self._context
        if expert_ids_TK.dtype != torch.int64 or expert_ids_TK.dim() != 2:
            raise ContractError(
                f"expert ids have dtype {expert_ids_TK.dtype} and shape {tuple(expert_ids_TK.shape)} "
                f"({trace.current()}). They are int64 (T, K).",
            )
        tokens, top_k = expert_ids_TK.shape
        invalid = _Invalid(expert_ids_TK, context.num_experts)
        ids_C = expert_ids_TK.reshape(-1)
        # What is not sent sorts behind every expert, and so does what is invalid.
        key_C = torch.where((ids_C < 0) | (ids_C >= context.num_experts), context.num_experts, ids_C)
        order_C = torch.argsort(key_C, stable=True)
        counts = ids_C.new_zeros(context.num_experts + 1).scatter_add_(0, key_C, torch.ones_like(key_C))
        counts[-1] = invalid.count
        counts_GE = self._ring.gather_counts(counts)
        self._require_valid(invalid, [numbers.pop() for numbers in counts_GE])

        first = context.ep_rank * context.num_local_experts
        local = range(first, first + context.num_local_experts)
        by_source = [[counts[expert] for expert in local] for counts in counts_GE]
        mine = counts_GE[context.ep_rank]
        send = tuple(sum(mine[rank * len(local) : (rank + 1) * len(local)]) for rank in range(context.ep_size))
        num_sent = sum(send)
        place_C = torch.empty_like(order_C)
        place_C[order_C] = torch.arange(ids_C.numel(), device=ids_C.device)
        # Arrival is by (source, expert); the experts want (expert, source).
        counts_N = torch.tensor(by_source, dtype=torch.int64).reshape(-1)
        experts_N = torch.arange(len(local)).repeat(context.ep_size)
        expert_R = experts_N.repeat_interleave(counts_N, output_size=sum(map(sum, by_source)))
        counts_host = tuple(sum(counts) for counts in zip(*by_source, strict=True))
        return RingLayout(
            num_tokens=tokens,
            send=send,
            receive=tuple(sum(counts) for counts in by_source),
            choice_N=order_C[:num_sent],
            place_TK=place_C.clamp(max=num_sent).view(tokens, top_k),
            arrival_R=torch.argsort(expert_R, stable=True).to(ids_C.device),
            counts_E=torch.tensor(counts_host, dtype=torch.int64).to(ids_C.device),
            counts_host=counts_host,
        )

    def dispatch(self, x_TD: torch.Tensor, gates_TK: torch.Tensor, layout: Layout) -> Dispatched:
        """Send each token's row and gates; group what arrives by local expert."""
        assert isinstance(layout, RingLayout)
        if x_TD.shape[0] != layout.num_tokens or gates_TK.shape != layout.place_TK.shape:
            raise ContractError(
                f"x of shape {tuple(x_TD.shape)} and gates of shape {tuple(gates_TK.shape)} do not belong to a layout "
                f"of {layout.num_tokens} tokens ({trace.current()}). Pass the layout of this routing.",
            )
        rows_ND = _Spread.apply(x_TD, layout)
        gates_N = gates_TK.reshape(-1).index_select(0, layout.choice_N)
        rows_RD, gates_R = _Exchange.apply(_anchor(), self._ring, layout.send, layout.receive, rows_ND, gates_N)
        return Dispatched(
            rows_RD=rows_RD.index_select(0, layout.arrival_R),
            gates_R=gates_R.index_select(0, layout.arrival_R),
            counts_E=layout.counts_E,
            counts_host=layout.counts_host,
            handle=layout,
        )

    def combine(self, rows_RD: torch.Tensor, dispatched: Dispatched) -> torch.Tensor:
        """Send every row back and sum those of each token."""
        layout: RingLayout = dispatched.handle
        if rows_RD.shape != dispatched.rows_RD.shape:
            raise ContractError(
                f"the experts returned rows of shape {tuple(rows_RD.shape)} for {tuple(dispatched.rows_RD.shape)} "
                f"({trace.current()}). Return one row for each row given, in the same order.",
            )
        if torch.is_grad_enabled() and dispatched.rows_RD.requires_grad and not rows_RD.requires_grad:
            raise ContractError(
                f"the experts' output has no gradient ({trace.current()}), so this rank would miss the exchange of the "
                "backward. Compute on zero rows too.",
            )
        arrived_RD = rows_RD.index_select(0, torch.argsort(layout.arrival_R))
        (rows_ND,) = _Exchange.apply(_anchor(), self._ring, layout.receive, layout.send, arrived_RD)
        x_TD: torch.Tensor = _Collect.apply(rows_ND, layout)
        return x_TD

    def release(self) -> None:
        """Hold no buffers."""

    def _require_valid(self, invalid: _Invalid, count_by_rank: Sequence[int]) -> None:
        """Raise on every rank of the group when any rank was given invalid ids."""
        if count_by_rank[self._context.ep_rank]:
            raise ContractError(f"{invalid.describe()} ({trace.current()}).")
        for rank, count in enumerate(count_by_rank):
            if count:
                raise ContractError(f"rank {rank} of the ep group was given {count} invalid expert ids.")


class _Invalid:
    """The expert ids that break a rule."""

    def __init__(self, ids_TK: torch.Tensor, num_experts: int) -> None:
        self._ids_TK = ids_TK
        self._num_experts = num_experts
        self._outside_TK = (ids_TK < -1) | (ids_TK >= num_experts)
        self._ordered_TK = ids_TK.sort(dim=1).values
        left_TK, right_TK = self._ordered_TK[:, :-1], self._ordered_TK[:, 1:]
        self._twice_TK = (left_TK == right_TK) & (left_TK >= 0)
        self.count = self._outside_TK.sum() + self._twice_TK.sum()

    def describe(self) -> str:
        """Name the first one. Syncs the host."""
        for token, choice in self._outside_TK.nonzero().tolist():
            expert = self._ids_TK[token, choice].item()
            return f"token {token} has the expert id {expert}, outside of 0 to {self._num_experts - 1} (-1: not sent)"
        token, choice = self._twice_TK.nonzero()[0].tolist()
        return f"token {token} names expert {self._ordered_TK[token, choice].item()} twice"


class _Ring:
    """The ranks of one group, and the rounds between them."""

    def __init__(self, group: ProcessGroup | None, size: int, rank: int, direction: int) -> None:
        self._group = group if size > 1 else None
        self._size = size
        self._rank = rank
        self._direction = direction

    def gather_counts(self, counts_E: torch.Tensor) -> list[list[int]]:
        """Return the counts of every rank, on the host."""
        if self._group is None:
            return [counts_E.tolist()]
        gathered = [torch.empty_like(counts_E) for _ in range(self._size)]
        distributed.all_gather(gathered, counts_E, group=self._group)
        counts: list[list[int]] = torch.stack(gathered).tolist()
        return counts

    def exchange(self, sent: torch.Tensor, send: Sequence[int], receive: Sequence[int]) -> torch.Tensor:
        """Send the next ``send[r]`` leading rows to each rank r; return what arrives, by source rank."""
        received = sent.new_empty(sum(receive), *sent.shape[1:])
        outgoing, incoming = sent.contiguous().split(list(send)), received.split(list(receive))
        incoming[self._rank].copy_(outgoing[self._rank])
        for step in range(1, self._size):
            target = (self._rank + self._direction * step) % self._size
            source = (self._rank - self._direction * step) % self._size
            operations = []
            if send[target]:
                operations.append(P2POp(distributed.isend, outgoing[target], group=self._group, group_peer=target))
            if receive[source]:
                operations.append(P2POp(distributed.irecv, incoming[source], group=self._group, group_peer=source))
            for work in distributed.batch_isend_irecv(operations) if operations else []:
                work.wait()
        return received


def _anchor() -> torch.Tensor:
    """Return an input that has a gradient, so that an exchange takes part in the backward of every rank."""
    return torch.empty(0, requires_grad=torch.is_grad_enabled())


class _Exchange(torch.autograd.Function):
    """Rows go to their ranks; in the backward their gradients come back. All tensors in one node, so in one order."""

    @staticmethod
    def forward(
        ctx: Any, anchor: torch.Tensor, ring: _Ring, send: Sequence[int], receive: Sequence[int], *sent: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        ctx.ring, ctx.send, ctx.receive = ring, send, receive
        return tuple(ring.exchange(one, send, receive) for one in sent)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return (None, None, None, None, *(ctx.ring.exchange(one, ctx.receive, ctx.send) for one in grads))


class _Spread(torch.autograd.Function):
    """One row for each assignment that is sent; the backward sums the rows of each token."""

    @staticmethod
    def forward(ctx: Any, x_TD: torch.Tensor, layout: RingLayout) -> torch.Tensor:
        ctx.layout = layout
        return _spread(x_TD, layout)

    @staticmethod
    def backward(ctx: Any, grad_ND: torch.Tensor) -> tuple[torch.Tensor, None]:
        return _collect(grad_ND, ctx.layout), None


class _Collect(torch.autograd.Function):
    """The sum of each token's rows; the backward gives each row the gradient of its token."""

    @staticmethod
    def forward(ctx: Any, rows_ND: torch.Tensor, layout: RingLayout) -> torch.Tensor:
        ctx.layout = layout
        return _collect(rows_ND, layout)

    @staticmethod
    def backward(ctx: Any, grad_TD: torch.Tensor) -> tuple[torch.Tensor, None]:
        return _spread(grad_TD, ctx.layout), None


def _spread(x_TD: torch.Tensor, layout: RingLayout) -> torch.Tensor:
    return x_TD.index_select(0, layout.choice_N // layout.place_TK.shape[1])


def _collect(rows_ND: torch.Tensor, layout: RingLayout) -> torch.Tensor:
    """Sum in the order of the choices, in at least float32: gathers, so the same bits every time."""
    padded_ND = torch.cat([rows_ND, rows_ND.new_zeros(1, rows_ND.shape[1])])
    high = torch.promote_types(rows_ND.dtype, torch.float32)
    total_TD = torch.zeros(layout.num_tokens, rows_ND.shape[1], dtype=high, device=rows_ND.device)
    for place_T in layout.place_TK.unbind(1):
        total_TD += padded_ND.index_select(0, place_T)
    return total_TD.to(rows_ND.dtype)
