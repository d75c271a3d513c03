"""Dispatch and combine in one process, by definition. T tokens, K choices, D width, R rows, E experts."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from moeframe.errors import ContractError
from moeframe.protocols.dispatcher import Dispatched, Dispatcher, DispatcherContext, Layout

__all__ = ["ReferenceDispatcher"]


@dataclass(frozen=True, kw_only=True)
class _Layout:
    """`token_R`, `choice_R`: token of each row, and which of its choices it is; `counts`: rows of each expert."""

    num_tokens: int
    token_R: torch.Tensor
    choice_R: torch.Tensor
    counts: tuple[int, ...]


class ReferenceDispatcher(Dispatcher):
    """Rows by indexing, sums by `index_add`; autograd does the rest."""

    def __init__(self, context: DispatcherContext) -> None:
        """Keep the number of experts.

        Raises:
            ContractError: there are several ranks.
        """
        if context.ep_size != 1:
            raise ContractError(f"the reference dispatcher works in one process, not between {context.ep_size}.")
        self._num_experts = context.num_experts

    def layout(self, expert_ids_TK: torch.Tensor) -> _Layout:
        """Find the tokens of each expert."""
        found = [(expert_ids_TK == expert).nonzero(as_tuple=True) for expert in range(self._num_experts)]
        return _Layout(
            num_tokens=expert_ids_TK.shape[0],
            token_R=torch.cat([tokens for tokens, _ in found]),
            choice_R=torch.cat([choices for _, choices in found]),
            counts=tuple(len(tokens) for tokens, _ in found),
        )

    def dispatch(self, x_TD: torch.Tensor, gates_TK: torch.Tensor, layout: Layout) -> Dispatched:
        """Copy each token once per choice."""
        assert isinstance(layout, _Layout)
        return Dispatched(
            rows_RD=x_TD[layout.token_R],
            gates_R=gates_TK[layout.token_R, layout.choice_R],
            counts_E=torch.tensor(layout.counts, dtype=torch.int64, device=x_TD.device),
            counts_host=layout.counts,
            handle=layout,
        )

    def combine(self, rows_RD: torch.Tensor, dispatched: Dispatched) -> torch.Tensor:
        """Sum the rows of each token."""
        layout = dispatched.handle
        assert isinstance(layout, _Layout)
        high = torch.promote_types(rows_RD.dtype, torch.float32)
        zeros_TD = torch.zeros(layout.num_tokens, rows_RD.shape[1], dtype=high, device=rows_RD.device)
        return zeros_TD.index_add(0, layout.token_R, rows_RD.to(high)).to(rows_RD.dtype)

    def release(self) -> None:
        """Hold nothing, so free nothing."""
