"""`allgather`: every rank gathers all tokens of the group and computes the rows of its own experts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed import ProcessGroup

from moeframe import trace
from moeframe.errors import ContractError
from moeframe.protocols.dispatcher import Dispatched, Dispatcher, DispatcherContext, Layout
from moeframe_collectives.exchange import all_gather, reduce_scatter_sum
from moeframe_collectives.options import AllGatherOptions
from moeframe_collectives.routing import require_same_tokens, require_valid_ids, sort_assignments
from moeframe_collectives.rows import Packing, grad_anchor, high_dtype, require_expert_rows, sum_rows

__all__ = ["AllGatherDispatcher", "AllGatherLayout"]


@dataclass(frozen=True, kw_only=True)
class AllGatherLayout:
    """Which of the gathered tokens' choices fall to this rank.

    G gathered tokens: `padded_tokens` of each rank in rank order, the last ones of a rank padding. `choice_R`: position
    in the flattened (G, K) of each row; `token_R`: its gathered token; `places_GK`: row of each choice, R for none.
    """

    ids_shape: tuple[int, int]
    padded_tokens: int
    choice_R: torch.Tensor
    token_R: torch.Tensor
    places_GK: torch.Tensor
    counts_E: torch.Tensor
    counts_host: tuple[int, ...]
    group: ProcessGroup | None

    @property
    def num_tokens(self) -> int:
        """T of the call it was made for."""
        return self.ids_shape[0]


class AllGatherDispatcher(Dispatcher):
    """Collectives per layer: ids, tokens with gates, partial sums; two more in the backward. gloo and NCCL.

    The ids travel padded to `max_tokens` of the context, so that no count must be exchanged before them; tokens travel
    padded to the longest rank's number.
    """

    def __init__(self, options: AllGatherOptions, context: DispatcherContext) -> None:
        """Keep the context; a group of one rank needs no communication."""
        self._context = context
        self._group = context.ep_group if context.ep_size > 1 else None
        self._validate = options.validate or context.device.type == "cpu"

    def layout(self, expert_ids_TK: torch.Tensor) -> AllGatherLayout:
        """Gather all ids and sort those of this rank's experts. One collective, one host sync.

        Raises:
            ContractError: more tokens than `max_tokens`; wrong dtype or shape; on a CPU or with the option `validate`
                also ids out of range or repeated in a token.
        """
        context, ids_TK = self._context, expert_ids_TK
        require_valid_ids(ids_TK, context.num_experts, context.top_k, values=self._validate)
        num_tokens, top_k = ids_TK.shape
        if num_tokens > context.max_tokens:
            raise ContractError(
                f"{num_tokens} tokens ({trace.current()}): this dispatcher was built for at most "
                f"max_tokens = {context.max_tokens} in one call"
            )
        # One line more than the largest call, whose first element says how many lines are real.
        lines_LK = ids_TK.new_full((context.max_tokens + 1, top_k), -1)
        lines_LK[:num_tokens] = ids_TK
        lines_LK[-1, 0] = num_tokens
        lines_SLK = all_gather(lines_LK, self._group).view(context.ep_size, -1, top_k)

        local = context.num_local_experts
        first = context.ep_rank * local
        here_SLK = (lines_SLK[:, :-1] >= first) & (lines_SLK[:, :-1] < first + local)
        ids_SLK = torch.where(here_SLK, lines_SLK[:, :-1] - first, -1)
        counts_E = _count(ids_SLK, local)
        # The one host sync: tokens of each rank, and rows of each expert of this one.
        host = torch.cat([lines_SLK[:, -1, 0], counts_E]).tolist()
        # gloo and NCCL gather equal sizes only; at least one line, so that a step without a token is no special case.
        padded_tokens = max(1, *host[: context.ep_size])
        counts_host = tuple(host[context.ep_size :])
        ids_GK = ids_SLK[:, :padded_tokens].reshape(-1, top_k)
        assignments = sort_assignments(ids_GK, local)
        choice_R = assignments.order_N[: sum(counts_host)]
        return AllGatherLayout(
            ids_shape=(num_tokens, top_k),
            padded_tokens=padded_tokens,
            choice_R=choice_R,
            token_R=choice_R // top_k,
            places_GK=assignments.place_N.clamp(max=sum(counts_host)).view_as(ids_GK),
            counts_E=counts_E,
            counts_host=counts_host,
            group=self._group,
        )

    def dispatch(self, x_TD: torch.Tensor, gates_TK: torch.Tensor, layout: Layout) -> Dispatched:
        """Gather all tokens with their gates, and take the rows of this rank's experts. No host sync.

        Raises:
            ContractError: shapes that do not belong to the layout.
        """
        assert isinstance(layout, AllGatherLayout)
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
        """Sum this rank's rows of every token, then the ranks' sums, in at least float32. No host sync.

        Raises:
            ContractError: rows that do not fit what the experts were given.
        """
        require_expert_rows(rows_RD, dispatched.rows_RD)
        x_TD = _Combine.apply(rows_RD, grad_anchor(), dispatched.handle)  # type: ignore[no-untyped-call]
        assert isinstance(x_TD, torch.Tensor)
        return x_TD

    def release(self) -> None:
        """Hold nothing, so free nothing."""


def _count(ids: torch.Tensor, num_experts: int) -> torch.Tensor:
    """Count each id in 0 to num_experts - 1 and leave out -1. No host sync (bincount has one on a GPU)."""
    flat_N = ids.reshape(-1)
    counts = flat_N.new_zeros(num_experts + 1)
    counts.scatter_add_(0, flat_N + 1, torch.ones_like(flat_N))
    return counts[1:]


def _padded(part: torch.Tensor, num_lines: int) -> torch.Tensor:
    """Return `part` with zeros below, (num_lines, ...)."""
    whole = part.new_zeros(num_lines, *part.shape[1:])
    whole[: part.shape[0]] = part
    return whole


class _Dispatch(torch.autograd.Function):
    """Tokens and gates to rows. The backward sums a token's gradients over ranks. Keeps only the layout."""

    @staticmethod
    def forward(
        ctx: Any, x_TD: torch.Tensor, gates_TK: torch.Tensor, _anchor: torch.Tensor, layout: AllGatherLayout
    ) -> tuple[torch.Tensor, torch.Tensor]:
        num_tokens, top_k = layout.ids_shape
        packing = Packing(x_TD.dtype, x_TD.shape[1], gates_TK.dtype, top_k)
        own_LW = packing.empty(layout.padded_tokens, x_TD.device)
        packing.rows(own_LW)[:num_tokens] = x_TD
        packing.put_gates(own_LW[:num_tokens], gates_TK)
        all_GW = all_gather(own_LW, layout.group)
        ctx.layout = layout
        gates_GK = packing.gates(all_GW)
        return packing.rows(all_GW).index_select(0, layout.token_R), gates_GK.view(-1)[layout.choice_R]

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None, None]:
        rows_RD, gates_R = grads
        layout: AllGatherLayout = ctx.layout
        num_tokens, hidden_size = layout.num_tokens, rows_RD.shape[1]
        x_GD = sum_rows(rows_RD, layout.places_GK, complete=False)
        gates_GK = sum_rows(gates_R[:, None], layout.places_GK.reshape(-1, 1), complete=False)
        both_GW = torch.cat([x_GD, gates_GK.view_as(layout.places_GK)], dim=1)
        both_TW = reduce_scatter_sum(both_GW, layout.group)[:num_tokens]
        return both_TW[:, :hidden_size].to(rows_RD.dtype), both_TW[:, hidden_size:].to(gates_R.dtype), None, None


class _Combine(torch.autograd.Function):
    """Rows to tokens. The backward gathers all tokens' gradients. Keeps only the layout."""

    @staticmethod
    def forward(ctx: Any, rows_RD: torch.Tensor, _anchor: torch.Tensor, layout: AllGatherLayout) -> torch.Tensor:
        ctx.layout = layout
        partial_GD = sum_rows(rows_RD, layout.places_GK, complete=False)
        assert partial_GD.dtype == high_dtype(rows_RD.dtype)
        return reduce_scatter_sum(partial_GD, layout.group)[: layout.num_tokens].to(rows_RD.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        layout: AllGatherLayout = ctx.layout
        all_GD = all_gather(_padded(grads[0], layout.padded_tokens), layout.group)
        return all_GD.index_select(0, layout.token_R), None, None
