"""`deepep`: each token goes once to each rank that holds one of its experts, and is permuted there."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from moeframe.protocols.dispatcher import Dispatched, Dispatcher, DispatcherContext, Layout
from moeframe_deepep.checks import grad_anchor, require_ids, require_rows, require_tokens
from moeframe_deepep.generation import chosen_api
from moeframe_deepep.grouping import Grouping
from moeframe_deepep.library import import_library, working
from moeframe_deepep.options import DeepEPOptions
from moeframe_deepep.pool import lease
from moeframe_deepep.sizes import gate_width, packed_width
from moeframe_deepep.wire import Route, Wire, WireSize, open_wire

__all__ = ["DeepEPDispatcher", "DeepEPLayout"]


@dataclass(frozen=True, kw_only=True)
class DeepEPLayout:
    """Who sends what to whom, and how what arrives is permuted."""

    ids_shape: tuple[int, int]
    route: Route
    grouping: Grouping
    counts_E: torch.Tensor
    wire: Wire
    rank: int

    @property
    def num_tokens(self) -> int:
        """T of the call it was made for."""
        return self.ids_shape[0]


class DeepEPDispatcher(Dispatcher):
    """Three calls of the library per layer, and two in the backward.

    A narrow dispatch brings expert ids and counts, a second one the rows with their gates; then combine. The backward
    of each is the other. All but the first call reuse its handle.

    A token's rows are summed in float32 on each rank, rounded to bfloat16 for the way home, and summed there in float32
    over the ranks.
    """

    def __init__(self, options: DeepEPOptions, context: DispatcherContext) -> None:
        """Allocate the buffer; every rank of the group does, at the same time.

        Raises:
            UnavailableOfferError: the library cannot be imported.
            JobFailedError: the library refused the buffer.
        """
        assert context.ep_group is not None, "traits demand a group"
        library = import_library("deepep")
        api = chosen_api(options.api)
        size = WireSize(
            width=packed_width(context.hidden_size, context.top_k),
            top_k=context.top_k,
            max_tokens=context.max_tokens,
        )
        with working(context.ep_rank, f"allocating the buffer of {api!r}"):
            self._lease = lease(
                context.ep_group,
                (api, size, options.num_sms),
                partial(open_wire, library, api, context.ep_group, size, options),
            )
        self._context = context
        self._validate = options.validate or context.device.type == "cpu"

    def layout(self, expert_ids_TK: torch.Tensor) -> DeepEPLayout:
        """Exchange counts and expert ids, and work out the permutation of what arrives. One host sync.

        Raises:
            ContractError: wrong dtype or shape, too many tokens; with the option `validate` also ids out of range or
                repeated in a token.
            JobFailedError: the library failed.
        """
        context, ids_TK = self._context, expert_ids_TK
        require_ids(ids_TK, context.num_experts, context.top_k, context.max_tokens, values=self._validate)
        wire = self._lease.buffer
        with working(context.ep_rank, "exchanging counts"):
            route = wire.route(ids_TK.contiguous(), context.num_experts)
        return DeepEPLayout(
            ids_shape=(ids_TK.shape[0], ids_TK.shape[1]),
            route=route,
            grouping=Grouping.of(route.local_ids_NK, route.counts),
            counts_E=_on_device(route.counts, ids_TK.device),
            wire=wire,
            rank=context.ep_rank,
        )

    def dispatch(self, x_TD: torch.Tensor, gates_TK: torch.Tensor, layout: Layout) -> Dispatched:
        """Send rows and gates, packed into one, and permute what arrives. No host sync.

        Raises:
            ContractError: shapes or dtypes that do not belong to the layout.
            JobFailedError: the library failed.
        """
        assert isinstance(layout, DeepEPLayout)
        require_tokens(x_TD, gates_TK, layout.ids_shape, self._context.hidden_size)
        rows_RD, gates_R = _Dispatch.apply(x_TD, gates_TK, grad_anchor(), layout)  # type: ignore[no-untyped-call]
        return Dispatched(
            rows_RD=rows_RD,
            gates_R=gates_R,
            counts_E=layout.counts_E,
            counts_host=layout.route.counts,
            handle=layout,
        )

    def combine(self, rows_RD: torch.Tensor, dispatched: Dispatched) -> torch.Tensor:
        """Sum each token's rows of this rank, send them home and sum over the ranks. No host sync.

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


def _on_device(counts: tuple[int, ...], device: torch.device) -> torch.Tensor:
    """Return int64 counts on the device without waiting for it."""
    host = torch.tensor(counts, dtype=torch.int64)
    return host if device.type == "cpu" else host.pin_memory().to(device, non_blocking=True)


def _packed(x_TD: torch.Tensor, gates_TK: torch.Tensor) -> torch.Tensor:
    """Return (T, W) bfloat16: the bits of the float32 gates, then the row, each from a multiple of 32 bytes."""
    num_tokens, hidden = x_TD.shape
    start = gate_width(gates_TK.shape[1])
    packed_TW = x_TD.new_empty(num_tokens, packed_width(hidden, gates_TK.shape[1]))
    packed_TW[:, : 2 * gates_TK.shape[1]] = gates_TK.contiguous().view(torch.bfloat16)
    packed_TW[:, start : start + hidden] = x_TD
    return packed_TW


def _unpacked(packed_NW: torch.Tensor, hidden: int, top_k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the rows (N, D), a view, and the float32 gates (N, K), a copy."""
    start = gate_width(top_k)
    gates_NK = packed_NW[:, : 2 * top_k].contiguous().view(torch.float32)
    return packed_NW[:, start : start + hidden], gates_NK


class _Dispatch(torch.autograd.Function):
    """Tokens and gates to grouped rows. Keeps only the layout; both exchanges run on every rank."""

    @staticmethod
    def forward(
        ctx: Any, x_TD: torch.Tensor, gates_TK: torch.Tensor, _anchor: torch.Tensor, layout: DeepEPLayout
    ) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.layout = layout
        with working(layout.rank, "dispatch"):
            received_NW = layout.wire.send(_packed(x_TD, gates_TK), layout.route)
        rows_ND, gates_NK = _unpacked(received_NW, x_TD.shape[1], gates_TK.shape[1])
        return layout.grouping.spread(rows_ND), layout.grouping.pick(gates_NK)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None, None, None]:
        rows_RD, gates_R = grads
        layout: DeepEPLayout = ctx.layout
        rows_ND, gates_NK = layout.grouping.total(rows_RD), layout.grouping.put(gates_R)
        with working(layout.rank, "combine as the backward of dispatch"):
            x_TD, gates_TK = layout.wire.home(rows_ND, layout.route, gates_NK)
        return x_TD, gates_TK, None, None


class _Combine(torch.autograd.Function):
    """Grouped rows to tokens. Keeps only the layout; the exchange runs on every rank."""

    @staticmethod
    def forward(ctx: Any, rows_RD: torch.Tensor, _anchor: torch.Tensor, layout: DeepEPLayout) -> torch.Tensor:
        ctx.layout = layout
        rows_ND = layout.grouping.total(rows_RD)
        with working(layout.rank, "combine"):
            return layout.wire.home(rows_ND, layout.route)[0]

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        layout: DeepEPLayout = ctx.layout
        with working(layout.rank, "dispatch as the backward of combine"):
            rows_ND = layout.wire.send(grads[0], layout.route)
        return layout.grouping.spread(rows_ND), None, None
