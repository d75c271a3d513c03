"""`local`: all experts are here. No communication; the oracle that other dispatchers are compared with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from moeframe.errors import ContractError
from moeframe.protocols.dispatcher import Dispatched, Dispatcher, DispatcherContext, Layout
from moeframe_collectives.options import LocalOptions
from moeframe_collectives.routing import require_same_tokens, require_valid_ids, sort_assignments
from moeframe_collectives.rows import require_expert_rows, sum_rows, sum_rows_rounded

__all__ = ["LocalDispatcher", "LocalLayout"]


@dataclass(frozen=True, kw_only=True)
class LocalLayout:
    """Rows sorted by expert. There are T K of them in every call; the assignments not sent are the padding at the end.

    `choice_R`: position in the flattened (T, K) of each row. `token_R`: its token. `places_TK`: row of each choice,
    R for none. `padding_R1`: true where a row is padding. `complete`: known that there is no padding.
    """

    ids_shape: tuple[int, int]
    choice_R: torch.Tensor
    token_R: torch.Tensor
    places_TK: torch.Tensor
    padding_R1: torch.Tensor
    counts_E: torch.Tensor
    complete: bool

    @property
    def num_tokens(self) -> int:
        """T of the call it was made for."""
        return self.ids_shape[0]


class LocalDispatcher(Dispatcher):
    """Sorts a copy of the tokens by expert, and sums the rows of each token."""

    def __init__(self, options: LocalOptions, context: DispatcherContext) -> None:
        """Keep the context.

        Raises:
            ContractError: the experts are spread over several ranks.
        """
        if context.ep_size != 1:
            raise ContractError(
                f"dispatcher 'local' was built for ep = {context.ep_size}: it holds all experts, ep = 1"
            )
        self._context = context
        self._validate = options.validate or context.device.type == "cpu"

    def layout(self, expert_ids_TK: torch.Tensor) -> LocalLayout:
        """Sort the assignments. No host sync, unless the option `validate` asks for one."""
        ids_TK, num_experts = expert_ids_TK, self._context.num_experts
        require_valid_ids(ids_TK, num_experts, self._context.top_k, values=self._validate)
        assignments = sort_assignments(ids_TK, num_experts)
        num_rows = ids_TK.numel()
        rows_R = torch.arange(num_rows, device=ids_TK.device)
        return LocalLayout(
            ids_shape=(ids_TK.shape[0], ids_TK.shape[1]),
            choice_R=assignments.order_N,
            token_R=assignments.order_N // self._context.top_k,
            places_TK=assignments.place_N.view_as(ids_TK).masked_fill(ids_TK < 0, num_rows),
            padding_R1=(rows_R >= assignments.counts_E.sum())[:, None],
            counts_E=assignments.counts_E,
            complete=ids_TK.device.type == "cpu" and bool((ids_TK >= 0).all()),
        )

    def dispatch(self, x_TD: torch.Tensor, gates_TK: torch.Tensor, layout: Layout) -> Dispatched:
        """Copy each token once per choice, grouped by expert."""
        assert isinstance(layout, LocalLayout)
        require_same_tokens(x_TD, gates_TK, layout.ids_shape)
        rows_RD, gates_R = _Spread.apply(x_TD, gates_TK, layout)  # type: ignore[no-untyped-call]  # torch's stub
        return Dispatched(rows_RD=rows_RD, gates_R=gates_R, counts_E=layout.counts_E, counts_host=None, handle=layout)

    def combine(self, rows_RD: torch.Tensor, dispatched: Dispatched) -> torch.Tensor:
        """Sum the rows of each token in at least float32.

        Raises:
            ContractError: rows that do not fit what the experts were given.
        """
        require_expert_rows(rows_RD, dispatched.rows_RD)
        x_TD = _Sum.apply(rows_RD, dispatched.handle)  # type: ignore[no-untyped-call]  # torch's stub
        assert isinstance(x_TD, torch.Tensor)
        return x_TD

    def release(self) -> None:
        """Hold nothing, so free nothing."""


class _Spread(torch.autograd.Function):
    """Tokens to rows. Its adjoint sums the rows of each token."""

    @staticmethod
    def forward(
        ctx: Any, x_TD: torch.Tensor, gates_TK: torch.Tensor, layout: LocalLayout
    ) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.layout = layout
        return x_TD.index_select(0, layout.token_R), gates_TK.reshape(-1).index_select(0, layout.choice_R)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        rows_RD, gates_R = grads
        layout: LocalLayout = ctx.layout
        x_TD = sum_rows_rounded(rows_RD, layout.places_TK, complete=layout.complete)
        return (
            x_TD,
            sum_rows(gates_R[:, None], layout.places_TK.reshape(-1, 1), complete=False).view(layout.ids_shape),
            None,
        )


class _Sum(torch.autograd.Function):
    """Rows to tokens. Its adjoint copies each token's gradient to its rows; padding gets zeros."""

    @staticmethod
    def forward(ctx: Any, rows_RD: torch.Tensor, layout: LocalLayout) -> torch.Tensor:
        ctx.layout = layout
        return sum_rows_rounded(rows_RD, layout.places_TK, complete=layout.complete)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        layout: LocalLayout = ctx.layout
        rows_RD = grads[0].index_select(0, layout.token_R)
        return rows_RD if layout.complete else rows_RD.masked_fill_(layout.padding_R1, 0), None
