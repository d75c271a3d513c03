"""`hybridep`: each token goes once to each rank that needs it, and arrives as rows grouped by expert."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import distributed

from moeframe.protocols.dispatcher import Dispatched, Dispatcher, DispatcherContext, Layout
from moeframe_deepep.checks import grad_anchor, require_ids, require_rows, require_tokens
from moeframe_deepep.hybrid_wire import HybridWire, first, open_hybrid_wire
from moeframe_deepep.library import import_library, working
from moeframe_deepep.options import HybridEPOptions
from moeframe_deepep.pool import lease
from moeframe_deepep.sizes import hybrid_tokens

__all__ = ["HybridEPDispatcher", "HybridEPLayout"]

_LOG = logging.getLogger(__name__)
_TOKEN_MULTIPLE = 16
"""Tokens that the kernels copy at once; ranks pass equal multiples of it."""

# torch 2.13 deprecates the second name; 2.11 has only that one.
_all_gather = getattr(distributed, "all_gather_single", None) or distributed.all_gather_into_tensor


@dataclass(kw_only=True)
class HybridEPLayout:
    """Who sends what to whom.

    `routing_PE`: (P, E) bool, P the tokens that every rank passes to the library: the largest T of the group, rounded
    up; rows beyond T are false. `handles`: the library's, from the first dispatch on; the later ones reuse it.
    """

    ids_TK: torch.Tensor
    routing_PE: torch.Tensor
    counts_E: torch.Tensor
    counts_host: tuple[int, ...]
    wire: HybridWire
    rank: int
    handles: list[Any] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        """T of the call it was made for."""
        return self.ids_TK.shape[0]

    @property
    def num_rows(self) -> int:
        """R, the rows that arrive here."""
        return sum(self.counts_host)


class HybridEPDispatcher(Dispatcher):
    """Per layer: counts are gathered by a collective; the library gathers the routing, dispatches and combines.

    It adds the rows of a token in float32 on each rank, and these sums, rounded to bfloat16, at home. The number of
    rows is known from the counts, so the library never waits for the device.
    """

    def __init__(self, options: HybridEPOptions, context: DispatcherContext) -> None:
        """Allocate the buffer and have the kernels compiled; every rank of the group does, at the same time.

        Raises:
            UnavailableOfferError: the library cannot be imported.
            JobFailedError: the library refused the buffer, or the kernels did not compile.
        """
        assert context.ep_group is not None, "traits demand a group"
        self._context = context
        self._validate = options.validate or context.device.type == "cpu"
        library = import_library("hybridep")
        tokens = hybrid_tokens(context.max_tokens)
        shape = (context.hidden_size, tokens, context.num_local_experts, options.fused)
        with working(context.ep_rank, "allocating the buffer of HybridEP"):
            self._lease = lease(
                context.ep_group,
                shape,
                partial(open_hybrid_wire, library, context, tokens, options),
            )
        if self._lease.is_new:
            self._compile()

    def layout(self, expert_ids_TK: torch.Tensor) -> HybridEPLayout:
        """Gather every rank's counts and number of tokens. One collective, one host sync.

        Raises:
            ContractError: wrong dtype or shape, too many tokens; with the option `validate` also ids out of range or
                repeated in a token.
        """
        context, ids_TK = self._context, expert_ids_TK
        require_ids(ids_TK, context.num_experts, context.top_k, context.max_tokens, values=self._validate)
        routing_TE = _scattered(ids_TK, torch.ones_like(ids_TK, dtype=torch.bool), context.num_experts)
        mine = torch.cat([routing_TE.sum(0), ids_TK.new_full((1,), ids_TK.shape[0])])
        every_SX = mine.new_empty(context.ep_size * mine.numel())
        _all_gather(every_SX, mine, group=context.ep_group)
        counts_SX = every_SX.view(context.ep_size, -1)
        start = context.ep_rank * context.num_local_experts
        counts_E = counts_SX[:, start : start + context.num_local_experts].sum(0)
        with working(context.ep_rank, "gathering counts"):
            answer = torch.cat([counts_E, counts_SX[:, -1].amax()[None]]).tolist()
        padded = -(-max(answer[-1], 1) // _TOKEN_MULTIPLE) * _TOKEN_MULTIPLE
        return HybridEPLayout(
            ids_TK=ids_TK.clone(),
            routing_PE=_padded(routing_TE, padded),
            counts_E=counts_E,
            counts_host=tuple(answer[:-1]),
            wire=self._lease.buffer,
            rank=context.ep_rank,
        )

    def dispatch(self, x_TD: torch.Tensor, gates_TK: torch.Tensor, layout: Layout) -> Dispatched:
        """Send rows and gates; they arrive grouped by expert. No host sync.

        Raises:
            ContractError: shapes or dtypes that do not belong to the layout.
            JobFailedError: the library failed.
        """
        assert isinstance(layout, HybridEPLayout)
        ids_shape = (layout.ids_TK.shape[0], layout.ids_TK.shape[1])
        require_tokens(x_TD, gates_TK, ids_shape, self._context.hidden_size)
        rows_RD, gates_R = _Dispatch.apply(x_TD, gates_TK, grad_anchor(), layout)  # type: ignore[no-untyped-call]
        return Dispatched(
            rows_RD=rows_RD,
            gates_R=gates_R,
            counts_E=layout.counts_E,
            counts_host=layout.counts_host,
            handle=layout,
        )

    def combine(self, rows_RD: torch.Tensor, dispatched: Dispatched) -> torch.Tensor:
        """Send the rows home and sum those of each token. No host sync.

        Raises:
            ContractError: rows that do not fit what the experts were given.
            JobFailedError: the library failed.
        """
        require_rows(rows_RD, dispatched.rows_RD)
        x_TD = _Combine.apply(rows_RD, grad_anchor(), dispatched.handle)  # type: ignore[no-untyped-call]
        assert isinstance(x_TD, torch.Tensor)
        return x_TD

    def release(self) -> None:
        """Free the buffer, unless another dispatcher of this process uses it too."""
        with working(self._context.ep_rank, "freeing the buffer"):
            self._lease.give_back()

    def _compile(self) -> None:
        """Run every kernel once: the library compiles each at its first use, which must not look like a hang."""
        context = self._context
        what = (
            f"hidden size {context.hidden_size}, {context.num_local_experts} experts on each of {context.ep_size} ranks"
        )
        tell = context.ep_rank == 0
        if tell:
            _LOG.warning(
                "hybridep compiles its kernels (%s); half a minute is usual, nothing else runs meanwhile", what
            )
        start = time.perf_counter()
        num_tokens = min(context.max_tokens, _TOKEN_MULTIPLE)
        ids_TK = torch.arange(context.top_k, device=context.device).repeat(num_tokens, 1)
        with torch.enable_grad():
            x_TD = torch.zeros(num_tokens, context.hidden_size, dtype=torch.bfloat16, device=context.device)
            gates_TK = torch.zeros(ids_TK.shape, device=context.device, requires_grad=True)
            dispatched = self.dispatch(x_TD.requires_grad_(), gates_TK, self.layout(ids_TK))
            out_TD = self.combine(dispatched.rows_RD * dispatched.gates_R[:, None].bfloat16(), dispatched)
            torch.autograd.backward(out_TD, torch.zeros_like(out_TD))
        if context.device.type == "cuda":
            torch.cuda.synchronize(context.device)
        if tell:
            _LOG.warning("hybridep: kernels are ready after %.1f s", time.perf_counter() - start)


def _scattered(ids_TK: torch.Tensor, values_TK: torch.Tensor, num_experts: int) -> torch.Tensor:
    """Return (T, E) with each choice's value at its expert, zero elsewhere. An id of -1 goes nowhere. No host sync."""
    places_TK = torch.where(ids_TK < 0, num_experts, ids_TK)
    wide_TX = values_TK.new_zeros(ids_TK.shape[0], num_experts + 1)
    return wide_TX.scatter_(1, places_TK, values_TK)[:, :num_experts]


def _padded(values_TX: torch.Tensor, num_rows: int) -> torch.Tensor:
    """Return the values contiguous, with rows of zeros up to `num_rows`."""
    missing = num_rows - values_TX.shape[0]
    if missing == 0:
        return values_TX.contiguous()
    return torch.cat([values_TX, values_TX.new_zeros(missing, *values_TX.shape[1:])])


class _Dispatch(torch.autograd.Function):
    """Tokens and gates to grouped rows. Keeps only the layout; both exchanges run on every rank."""

    @staticmethod
    def forward(
        ctx: Any, x_TD: torch.Tensor, gates_TK: torch.Tensor, _anchor: torch.Tensor, layout: HybridEPLayout
    ) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.layout = layout
        padded, num_experts = layout.routing_PE.shape
        with working(layout.rank, "dispatch"):
            rows_RD, gates_R, handle = layout.wire.dispatch(
                _padded(x_TD, padded),
                _padded(_scattered(layout.ids_TK, gates_TK, num_experts), padded),
                layout.num_rows,
                routing_PE=layout.routing_PE,
                handle=layout.handles[0] if layout.handles else None,
            )
        if not layout.handles:
            layout.handles.append(handle)
        assert gates_R is not None
        return rows_RD, gates_R

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None, None]:
        rows_RD, gates_R = grads
        layout: HybridEPLayout = ctx.layout
        with working(layout.rank, "combine as the backward of dispatch"):
            x_PD, probs_PE = layout.wire.combine(rows_RD, gates_R, layout.handles[0])
        assert probs_PE is not None
        ids_TK, num_tokens = layout.ids_TK, layout.num_tokens
        gates_TK = probs_PE[:num_tokens].gather(1, ids_TK.clamp(min=0)).masked_fill(ids_TK < 0, 0.0)
        return first(x_PD, num_tokens), gates_TK, None, None


class _Combine(torch.autograd.Function):
    """Grouped rows to tokens. Keeps only the layout; the exchange runs on every rank."""

    @staticmethod
    def forward(ctx: Any, rows_RD: torch.Tensor, _anchor: torch.Tensor, layout: HybridEPLayout) -> torch.Tensor:
        ctx.layout = layout
        with working(layout.rank, "combine"):
            x_PD, _ = layout.wire.combine(rows_RD, None, layout.handles[0])
        return first(x_PD, layout.num_tokens)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        layout: HybridEPLayout = ctx.layout
        with working(layout.rank, "dispatch as the backward of combine"):
            rows_RD, _, _ = layout.wire.dispatch(
                _padded(grads[0], layout.routing_PE.shape[0]),
                None,
                layout.num_rows,
                routing_PE=layout.routing_PE,
                handle=layout.handles[0],
            )
        return rows_RD, None, None
