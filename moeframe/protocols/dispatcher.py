"""The dispatcher protocol: send each token to the ranks that hold its experts, and bring the results back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    import torch
    from torch.distributed import ProcessGroup

__all__ = ["Buffer", "BufferRequest", "Dispatched", "Dispatcher", "DispatcherContext", "DispatcherTraits", "Layout"]


@dataclass(frozen=True, kw_only=True)
class DispatcherTraits:
    """What the rest of a job may rely on. A trait without a default must be stated by every dispatcher.

    Traits replace any per-backend flag: two members of one family may differ, and a flag named after the family cannot
    say so.
    """

    fused: bool
    """Communication runs in the backend's own kernels, not in c10d collectives."""
    host_syncs_per_layer: int
    """Device-to-host copies per MoE layer and forward; all of them in `layout`. Recompute and backward add none."""
    keeps_dispatch_input: bool
    """The backward reads the tensor that was given to `dispatch`: its storage must live until then."""
    keeps_expert_input: bool
    """`rows_RD` shares storage with something the backward reads: it must live until then."""
    deterministic: bool
    """Equal input gives bit-equal output."""
    keeps_combine_input: bool = False
    """The backward reads the tensor that was given to `combine`. A sum of rows has no need to."""
    needs_equal_tokens: bool = False
    """Every rank must pass the same number of tokens; the plugin pads and slices on its own if false."""
    token_multiple: int = 1
    """The number of tokens of a call must be a multiple of this."""
    max_topk: int | None = None
    hidden_multiple: int = 1
    supports_capacity_drop: bool = True
    """An expert id of -1 means: not sent. Used for padding and for dropped assignments."""
    static_shapes: bool = False
    """`rows_RD` has the same number of rows in every call, whatever the routing."""
    async_comm: bool = False
    """Work runs on the caller's stream and returns before it is done, so it can hide behind compute."""
    wire_dtypes: tuple[str, ...] = ("float64", "float32", "bfloat16")
    min_group: int = 1
    max_group: int | None = None
    group_sizes: tuple[int, ...] | None = None
    """The only legal sizes of the ep group, ascending; None: every size from `min_group` to `max_group`."""
    min_hidden: int = 1
    max_hidden: int | None = None
    max_local_experts: int | None = None
    """Experts that one rank may hold."""
    experts_multiple: int = 1
    """The number of all experts must be a multiple of this."""

    def allows_group(self, size: int) -> bool:
        """Say whether an ep group may have that many ranks."""
        if self.group_sizes is not None:
            return size in self.group_sizes
        return self.min_group <= size <= (self.max_group or size)


@dataclass(frozen=True, kw_only=True)
class BufferRequest:
    """What a dispatcher's buffers depend on: numbers of a `DispatcherContext`."""

    ep_size: int
    num_experts: int
    hidden_size: int
    top_k: int
    max_tokens: int

    @property
    def num_local_experts(self) -> int:
        """Experts that one rank holds."""
        return self.num_experts // self.ep_size


@dataclass(frozen=True, kw_only=True)
class Buffer:
    """Device memory that a dispatcher holds on every rank for the whole job. `formula` says how `num_bytes` arises."""

    name: str
    num_bytes: int
    formula: str


@dataclass(frozen=True, kw_only=True)
class DispatcherContext:
    """What a dispatcher is built for.

    `num_experts` counts all experts of a layer; rank r of the ep axis holds the contiguous range
    ``[r * num_experts // ep_size, (r + 1) * num_experts // ep_size)``. `max_tokens` is the largest T of one call on
    one rank. `ep_group` is None exactly when no process group exists (one process, ep_size 1).
    """

    ep_axis: str
    ep_size: int
    ep_rank: int
    ep_group: ProcessGroup | None
    num_experts: int
    hidden_size: int
    top_k: int
    max_tokens: int
    dtype: torch.dtype
    device: torch.device

    @property
    def num_local_experts(self) -> int:
        """Experts that this rank holds."""
        return self.num_experts // self.ep_size


class Layout(Protocol):
    """What depends on the routing alone; made once, reused by recompute and by both backward passes."""

    @property
    def num_tokens(self) -> int:
        """T of the call it was made for."""


@dataclass(frozen=True, kw_only=True)
class Dispatched:
    """Tokens as they arrived at this rank's experts. Only `combine` of the same dispatcher may read `handle`.

    `rows_RD`: one row per (token, local expert) pair, grouped by local expert in ascending order, the compute dtype.
    `gates_R`: the gate of each row, float32, differentiable. `counts_E`: int64, rows of each local expert, on the
    device. `counts_host`: the same on the host when the layout had to know it, else None. Rows beyond the sum of
    `counts_E` are padding and hold no meaning.
    """

    rows_RD: torch.Tensor
    gates_R: torch.Tensor
    counts_E: torch.Tensor
    counts_host: tuple[int, ...] | None
    handle: Any


@runtime_checkable
class Dispatcher(Protocol):
    """One dispatcher object serves every MoE layer of a rank.

    All state of a call lives in its layout and handle, so two dispatches can be in flight. Zero tokens anywhere is
    ordinary input; token counts may differ between ranks unless `needs_equal_tokens`. Every call works on the current
    stream, and what it returns is ready there. Subclass this class: later versions may add members with bodies.
    """

    def layout(self, expert_ids_TK: torch.Tensor) -> Layout:
        """Work out who sends what to whom; exchanges counts. At most one host sync, and here.

        Args:
            expert_ids_TK: (T, K) int64, global expert ids in [0, num_experts), distinct within a token; -1 for an
                assignment that is not sent (padding, dropped).

        Raises:
            ContractError: an id is out of range or appears twice in one token (checked where it costs no host sync).
        """
        ...

    def dispatch(self, x_TD: torch.Tensor, gates_TK: torch.Tensor, layout: Layout) -> Dispatched:
        """Send each token to the ranks of its experts. Differentiable in `x_TD` and `gates_TK`.

        Args:
            x_TD: (T, D) tokens in the compute dtype, not modified.
            gates_TK: (T, K) float32 gates; they travel with the rows.
            layout: of this routing; not modified.
        """
        ...

    def combine(self, rows_RD: torch.Tensor, dispatched: Dispatched) -> torch.Tensor:
        """Bring expert outputs home and sum the rows of each token, accumulating in float32. Differentiable.

        A plain sum: the caller has multiplied by `gates_R`. A token with no assignment gets zeros.

        Args:
            rows_RD: (R, D), in the order of `dispatched.rows_RD`.
            dispatched: what `dispatch` returned for these rows.

        Returns:
            (T, D) in the dtype of `rows_RD`.
        """
        ...

    def release(self) -> None:
        """Free communication buffers. Called once, on every rank, at the end of a job that has not failed."""
        ...
