"""`alltoall`: one row per (token, expert) goes to the expert's rank and back, through `all_to_all_single`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed import ProcessGroup

from moeframe.protocols.dispatcher import Dispatched, Dispatcher, DispatcherContext, Layout
from moeframe_collectives.exchange import all_to_all, require_agreeing_splits
from moeframe_collectives.options import AllToAllOptions
from moeframe_collectives.routing import require_same_tokens, require_valid_ids, sort_assignments
from moeframe_collectives.rows import Packing, grad_anchor, require_expert_rows, sum_rows, sum_rows_rounded

__all__ = ["AllToAllDispatcher", "AllToAllLayout"]


@dataclass(frozen=True, kw_only=True)
class AllToAllLayout:
    """Who sends what to whom. N rows leave this rank, sorted by expert; R arrive, by source rank, then expert.

    `send_splits`, `receive_splits`: rows to and from each rank of the group. `choice_N`: position in the flattened
    (T, K) of each sent row; `token_N`: its token; `places_TK`: sent row of each choice, N for none. `arrival_R`: for
    each row grouped by local expert, where it arrived; `grouped_R`: its inverse. `complete`: every choice is sent.
    """

    ids_shape: tuple[int, int]
    send_splits: tuple[int, ...]
    receive_splits: tuple[int, ...]
    choice_N: torch.Tensor
    token_N: torch.Tensor
    places_TK: torch.Tensor
    arrival_R: torch.Tensor
    grouped_R: torch.Tensor
    counts_E: torch.Tensor
    counts_host: tuple[int, ...]
    complete: bool
    group: ProcessGroup | None
    check_splits: bool

    @property
    def num_tokens(self) -> int:
        """T of the call it was made for."""
        return self.ids_shape[0]


class AllToAllDispatcher(Dispatcher):
    """Collectives per layer: counts, rows with gates, rows; two more in the backward. gloo and NCCL."""

    def __init__(self, options: AllToAllOptions, context: DispatcherContext) -> None:
        """Keep the context; a group of one rank needs no communication."""
        self._context = context
        self._group = context.ep_group if context.ep_size > 1 else None
        self._validate = options.validate or context.device.type == "cpu"
        self._check_splits = options.check_splits

    def layout(self, expert_ids_TK: torch.Tensor) -> AllToAllLayout:
        """Sort the assignments and exchange counts. One collective, one host sync.

        Raises:
            ContractError: wrong dtype or shape; on a CPU or with the option `validate` also ids out of range or
                repeated in a token.
        """
        context, ids_TK = self._context, expert_ids_TK
        require_valid_ids(ids_TK, context.num_experts, context.top_k, values=self._validate)
        assignments = sort_assignments(ids_TK, context.num_experts)
        ep, local = context.ep_size, context.num_local_experts
        even = (1,) * ep
        sent_SE = assignments.counts_E.view(ep, local)
        received_SE = all_to_all(sent_SE, even, even, self._group)
        # The one host sync: what each rank gets, and each (rank, local expert) pair sends.
        host = torch.cat([sent_SE.sum(1), received_SE.reshape(-1)]).tolist()
        send_splits = tuple(host[:ep])
        by_source = [host[ep + rank * local : ep + (rank + 1) * local] for rank in range(ep)]
        receive_splits = tuple(sum(counts) for counts in by_source)
        num_sent, num_rows = sum(send_splits), sum(receive_splits)
        choice_N = assignments.order_N[:num_sent]
        return AllToAllLayout(
            ids_shape=(ids_TK.shape[0], ids_TK.shape[1]),
            send_splits=send_splits,
            receive_splits=receive_splits,
            choice_N=choice_N,
            token_N=choice_N // context.top_k,
            # choices that are not sent sort last: at num_sent or beyond
            places_TK=assignments.place_N.clamp(max=num_sent).view_as(ids_TK),
            arrival_R=_transposed_order(received_SE.t(), num_rows),
            grouped_R=_transposed_order(received_SE, num_rows),
            counts_E=received_SE.sum(0),
            counts_host=tuple(sum(counts) for counts in zip(*by_source, strict=True)),
            complete=num_sent == ids_TK.numel(),
            group=self._group,
            check_splits=self._check_splits,
        )

    def dispatch(self, x_TD: torch.Tensor, gates_TK: torch.Tensor, layout: Layout) -> Dispatched:
        """Send rows and gates, packed into one collective; regroup what arrives by local expert. No host sync.

        Raises:
            ContractError: shapes that do not belong to the layout; with the option `check_splits` also ranks that use
                layouts of different calls.
        """
        assert isinstance(layout, AllToAllLayout)
        require_same_tokens(x_TD, gates_TK, layout.ids_shape)
        rows_RD, gates_R = _Dispatch.apply(x_TD, gates_TK, grad_anchor(), layout)  # type: ignore[no-untyped-call]
        return Dispatched(
            rows_RD=rows_RD,
            gates_R=gates_R,
            counts_E=layout.counts_E,
            counts_host=layout.counts_host,
            handle=layout,
        )

    def combine(self, rows_RD: torch.Tensor, dispatched: Dispatched) -> torch.Tensor:
        """Send the rows back and sum those of each token in at least float32. No host sync.

        Raises:
            ContractError: rows that do not fit what the experts were given; with the option `check_splits` also ranks
                that combine different calls.
        """
        require_expert_rows(rows_RD, dispatched.rows_RD)
        x_TD = _Combine.apply(rows_RD, grad_anchor(), dispatched.handle)  # type: ignore[no-untyped-call]
        assert isinstance(x_TD, torch.Tensor)
        return x_TD

    def release(self) -> None:
        """Hold nothing, so free nothing."""


def _transposed_order(counts_AB: torch.Tensor, num_rows: int) -> torch.Tensor:
    """Map rows that lie in segments ordered by (a, b) to where they lie when ordered by (b, a). No host sync.

    Args:
        counts_AB: (A, B) rows of each segment.
        num_rows: their sum, known on the host.

    Returns:
        (num_rows,) int64: for each row in (a, b) order, its position in (b, a) order.
    """
    counts_N = counts_AB.reshape(-1)
    transposed_BA = counts_AB.t()
    own_start_N = counts_N.cumsum(0) - counts_N
    other_start_BA = (transposed_BA.reshape(-1).cumsum(0) - transposed_BA.reshape(-1)).view_as(transposed_BA)
    shift_N = other_start_BA.t().reshape(-1) - own_start_N
    shift_R = torch.repeat_interleave(shift_N, counts_N, output_size=num_rows)
    return shift_R + torch.arange(num_rows, device=counts_AB.device)


def _exchange(sent: torch.Tensor, layout: AllToAllLayout, *, home: bool) -> torch.Tensor:
    """Move rows to the experts' ranks, or home."""
    splits = (layout.send_splits, layout.receive_splits)
    return all_to_all(sent, splits[home], splits[not home], layout.group)


class _Dispatch(torch.autograd.Function):
    """Tokens and gates to grouped rows. Keeps only the layout; both exchanges run on every rank."""

    @staticmethod
    def forward(
        ctx: Any, x_TD: torch.Tensor, gates_TK: torch.Tensor, _anchor: torch.Tensor, layout: AllToAllLayout
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if layout.check_splits:
            require_agreeing_splits(layout.send_splits, layout.receive_splits, layout.group, x_TD.device)
        packing = Packing(x_TD.dtype, x_TD.shape[1], gates_TK.dtype, 1)
        sent_NW = packing.empty(layout.token_N.numel(), x_TD.device)
        torch.index_select(x_TD, 0, layout.token_N, out=packing.rows(sent_NW))
        packing.put_gates(sent_NW, gates_TK.reshape(-1, 1).index_select(0, layout.choice_N))
        received_RW = _exchange(sent_NW, layout, home=False)
        ctx.layout, ctx.packing = layout, packing
        rows_RD = packing.rows(received_RW).index_select(0, layout.arrival_R)
        return rows_RD, packing.gates(received_RW)[:, 0].index_select(0, layout.arrival_R)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None, None]:
        rows_RD, gates_R = grads
        layout: AllToAllLayout = ctx.layout
        packing: Packing = ctx.packing
        sent_RW = packing.empty(rows_RD.shape[0], rows_RD.device)
        torch.index_select(rows_RD, 0, layout.grouped_R, out=packing.rows(sent_RW))
        packing.put_gates(sent_RW, gates_R[:, None].index_select(0, layout.grouped_R))
        home_NW = _exchange(sent_RW, layout, home=True)
        x_TD = sum_rows_rounded(packing.rows(home_NW), layout.places_TK, complete=layout.complete)
        places_N1 = layout.places_TK.reshape(-1, 1)
        gates_TK = sum_rows(packing.gates(home_NW), places_N1, complete=layout.complete).view(layout.ids_shape)
        return x_TD, gates_TK, None, None


class _Combine(torch.autograd.Function):
    """Grouped rows to tokens. Keeps only the layout; the exchange runs on every rank."""

    @staticmethod
    def forward(ctx: Any, rows_RD: torch.Tensor, _anchor: torch.Tensor, layout: AllToAllLayout) -> torch.Tensor:
        if layout.check_splits:
            require_agreeing_splits(layout.receive_splits, layout.send_splits, layout.group, rows_RD.device)
        ctx.layout = layout
        home_ND = _exchange(rows_RD.index_select(0, layout.grouped_R), layout, home=True)
        return sum_rows_rounded(home_ND, layout.places_TK, complete=layout.complete)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        layout: AllToAllLayout = ctx.layout
        received_RD = _exchange(grads[0].index_select(0, layout.token_N), layout, home=False)
        return received_RD.index_select(0, layout.arrival_R), None, None
