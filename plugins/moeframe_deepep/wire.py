"""The library's two generations of one-row-per-(token, rank) buffers, behind one face."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Protocol

import torch
from torch.distributed import ProcessGroup
from torch.utils import deterministic

from moeframe_deepep.generation import Api
from moeframe_deepep.options import DeepEPOptions
from moeframe_deepep.sizes import BF16

__all__ = ["Route", "Wire", "open_wire"]


@dataclass(frozen=True, kw_only=True)
class Route:
    """Where tokens go. `handle` is the library's.

    `local_ids_NK`: (N, K) int64, local expert of each choice of the N tokens that arrive here, -1 for one of another
    rank. `counts`: rows of each local expert.
    """

    handle: Any
    local_ids_NK: torch.Tensor
    counts: tuple[int, ...]


class Wire(Protocol):
    """A communication buffer of one group. Calls work on the current stream, and what they return is ready there."""

    def route(self, ids_TK: torch.Tensor, num_experts: int) -> Route:
        """Exchange counts and expert ids. One host sync."""

    def send(self, rows_TD: torch.Tensor, route: Route) -> torch.Tensor:
        """Send each row once to every rank of its route; bits are kept. No host sync."""

    def home(
        self, rows_ND: torch.Tensor, route: Route, values_NK: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Send rows home and sum those of each token over the ranks, and the float32 values likewise. No host sync."""

    def close(self) -> None:
        """Free the memory; on every rank of the group, in the same order."""


@dataclass(frozen=True, kw_only=True)
class WireSize:
    """What a wire is opened for. `width`: bfloat16 elements of the widest row."""

    width: int
    top_k: int
    max_tokens: int


class _BufferWire:
    """`Buffer`: DeepEP 1.x and the branch hybrid-ep.

    Its kernels run on a stream of its own, which waits for the current one and which the current one waits for. So
    nothing but the current stream ever uses what a call takes or returns, no tensor needs `record_stream`, and work of
    other streams goes on beside it.
    """

    def __init__(self, library: ModuleType, group: ProcessGroup, size: WireSize, num_sms: int) -> None:
        make = library.Buffer
        make.set_num_sms(num_sms)
        ranks = group.size()
        hints = (make.get_dispatch_config(ranks), make.get_combine_config(ranks))
        num_bytes = max(hint.get_nvl_buffer_size_hint(size.width * BF16, ranks) for hint in hints)
        self._buffer = make(group, num_bytes, 0, **_known(make, explicitly_destroy=True))
        self._can_destroy = "explicitly_destroy" in inspect.signature(make).parameters

    def route(self, ids_TK: torch.Tensor, num_experts: int) -> Route:
        with _unfilled():
            layout = self._buffer.get_dispatch_layout(ids_TK, num_experts)
            per_rank, per_node, per_expert, in_rank, _ = layout
            answer = self._buffer.dispatch(
                _probe(ids_TK, _BUFFER_PROBE),
                num_tokens_per_rank=per_rank,
                num_tokens_per_rdma_rank=per_node,
                is_token_in_rank=in_rank,
                num_tokens_per_expert=per_expert,
                topk_idx=ids_TK,
                topk_weights=_no_gates(ids_TK),
            )
        _, local_ids_NK, _, counts, handle, _ = answer
        return Route(handle=handle, local_ids_NK=local_ids_NK, counts=tuple(counts))

    def send(self, rows_TD: torch.Tensor, route: Route) -> torch.Tensor:
        with _unfilled():
            received: torch.Tensor = self._buffer.dispatch(rows_TD.contiguous(), handle=route.handle)[0]
        return received

    def home(
        self, rows_ND: torch.Tensor, route: Route, values_NK: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        with _unfilled():
            sums_TD, values_TK, _ = self._buffer.combine(rows_ND.contiguous(), route.handle, topk_weights=values_NK)
        return sums_TD, values_TK

    def close(self) -> None:
        if self._can_destroy:
            self._buffer.destroy()


class _ElasticWire:
    """`ElasticBuffer`: DeepEP 2.x. It sorts what arrives, so that equal input gives equal bits."""

    def __init__(self, library: ModuleType, group: ProcessGroup, size: WireSize, num_sms: int) -> None:
        make = library.ElasticBuffer
        self._buffer = make(
            group,
            num_max_tokens_per_rank=size.max_tokens,
            hidden=size.width,
            num_topk=size.top_k,
            **_known(make, deterministic=True, explicitly_destroy=True),
        )
        self._num_sms = num_sms

    def route(self, ids_TK: torch.Tensor, num_experts: int) -> Route:
        with _unfilled():
            _, local_ids_NK, _, handle, _ = self._buffer.dispatch(
                _probe(ids_TK, _ELASTIC_PROBE),
                topk_idx=ids_TK,
                topk_weights=_no_gates(ids_TK),
                num_experts=num_experts,
                num_sms=self._num_sms,
            )
        counts = tuple(handle.num_recv_tokens_per_expert_list)
        return Route(handle=handle, local_ids_NK=local_ids_NK.long(), counts=counts)

    def send(self, rows_TD: torch.Tensor, route: Route) -> torch.Tensor:
        with _unfilled():
            answer = self._buffer.dispatch(rows_TD.contiguous(), handle=route.handle, num_sms=self._num_sms)
        received: torch.Tensor = answer[0]
        return received

    def home(
        self, rows_ND: torch.Tensor, route: Route, values_NK: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        with _unfilled():
            answer = self._buffer.combine(
                rows_ND.contiguous(), route.handle, topk_weights=values_NK, num_sms=self._num_sms
            )
        return answer[0], answer[1]

    def close(self) -> None:
        self._buffer.destroy()


_BUFFER_PROBE = 16
_ELASTIC_PROBE = 128
"""Elements of the rows that `route` sends for nothing but their expert ids: the narrowest that the kernels take."""

_WIRES: dict[Api, type[_BufferWire | _ElasticWire]] = {"buffer": _BufferWire, "elastic": _ElasticWire}


def open_wire(library: ModuleType, api: Api, group: ProcessGroup, size: WireSize, options: DeepEPOptions) -> Wire:
    """Allocate a buffer on every rank of the group."""
    return _WIRES[api](library, group, size, options.num_sms)


@contextmanager
def _unfilled() -> Iterator[None]:
    """Have torch not fill what the library allocates, should it fill unwritten memory (deterministic algorithms).

    The library orders its stream behind the current one before it allocates, so that a fill would race with its kernels
    and overwrite what they wrote. They write all of it.
    """
    before = deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    try:
        yield
    finally:
        deterministic.fill_uninitialized_memory = before  # type: ignore[attr-defined]


def _known(make: Callable[..., Any], **wished: Any) -> dict[str, Any]:
    """Return the arguments that this generation of a constructor takes."""
    parameters = inspect.signature(make).parameters
    return {name: value for name, value in wished.items() if name in parameters}


def _probe(ids_TK: torch.Tensor, width: int) -> torch.Tensor:
    return torch.zeros(ids_TK.shape[0], width, dtype=torch.bfloat16, device=ids_TK.device)


def _no_gates(ids_TK: torch.Tensor) -> torch.Tensor:
    """Return zeros: the kernels send ids and gates together or not at all."""
    return torch.zeros(ids_TK.shape, dtype=torch.float32, device=ids_TK.device)
