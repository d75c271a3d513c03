"""`HybridEPBuffer` of the library: what is passed to it, and the environment that its kernels are compiled in."""

from __future__ import annotations

import inspect
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import distributed
from torch.distributed import ProcessGroup

from moeframe.protocols.dispatcher import DispatcherContext
from moeframe_deepep.options import HybridEPOptions

__all__ = ["HybridWire", "first", "open_hybrid_wire"]


class HybridWire:
    """A communication buffer of one group, and its calls on the current stream.

    The number of rows is always given, and nothing ever blocks on the device. Tensors that the library returns are its
    own allocations, exactly that many rows, in the order (expert, source rank, token). Dispatch and combine share one
    memory, so calls on different streams take turns.
    """

    def __init__(self, buffer: Any, group: ProcessGroup, device: torch.device, *, fused: bool) -> None:
        """Keep the buffer."""
        self._buffer = buffer
        self._group = group
        self._device = device
        self._fused = fused
        self._last: torch.cuda.Event | None = None

    def dispatch(
        self,
        hidden_PD: torch.Tensor,
        probs_PE: torch.Tensor | None,
        num_rows: int,
        *,
        routing_PE: torch.Tensor,
        handle: Any | None,
    ) -> tuple[torch.Tensor, torch.Tensor | None, Any]:
        """Send rows; return them grouped by expert, their gates if `probs_PE` is given, and the handle.

        Args:
            hidden_PD: (P, D) bfloat16; P is a multiple of 16 and the same on every rank.
            probs_PE: (P, E) float32, the gate of each expert.
            num_rows: R, the rows that arrive here.
            routing_PE: (P, E) bool; read only without a handle.
            handle: of an earlier dispatch with this routing.
        """
        room = max(num_rows, 1)
        routing = {"routing_map": routing_PE} if handle is None else {"handle": handle}
        with self._in_turn():
            rows, gates, _, _, handle = self._buffer.dispatch_with_permute(
                hidden=hidden_PD,
                probs=probs_PE,
                num_permuted_tokens=room,
                non_blocking=True,
                fuse_permute_dispatch=self._fused,
                **routing,
            )
        return first(rows, num_rows), None if gates is None else first(gates, num_rows), handle

    def combine(
        self, rows_RD: torch.Tensor, gates_R: torch.Tensor | None, handle: Any
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Send rows home and sum those of each token: (P, D), and (P, E) of the gates if they are given."""
        with self._in_turn():
            sums_PD, probs_PE = self._buffer.combine_with_unpermute(
                hidden=_at_least_one(rows_RD),
                probs=None if gates_R is None else _at_least_one(gates_R),
                handle=handle,
                fuse_unpermute_combine=self._fused,
            )
        return sums_PD, probs_PE if gates_R is not None else None

    @contextmanager
    def _in_turn(self) -> Iterator[None]:
        """Have the current stream wait for the call before."""
        if self._device.type != "cuda":
            yield
            return
        stream = torch.cuda.current_stream(self._device)
        if self._last is not None:
            stream.wait_event(self._last)
        yield
        self._last = stream.record_event()

    def close(self) -> None:
        """Free the memory, which the kernels of other ranks read: once every rank has come here.

        The library has no call for it, its destructor does it.
        """
        arrived = torch.zeros(1, device=self._device)
        distributed.all_reduce(arrived, group=self._group)
        arrived.item()
        self._buffer = None


def open_hybrid_wire(
    library: ModuleType, context: DispatcherContext, tokens: int, options: HybridEPOptions
) -> HybridWire:
    """Allocate a buffer for `tokens` tokens of each rank."""
    assert context.ep_group is not None
    _prepare_environment(options.cache_dir)
    make = library.HybridEPBuffer
    buffer = make(
        context.ep_group,
        hidden_dim=context.hidden_size,
        max_num_of_tokens_per_rank=tokens,
        num_local_experts=context.num_local_experts,
        use_fp8=False,
        # What an earlier buffer of this process compiled is found again in the process's own folder.
        **_known(make, load_cached_kernels=True),
    )
    return HybridWire(buffer, context.ep_group, context.device, fused=options.fused)


def first(values: torch.Tensor, number: int) -> torch.Tensor:
    """Return the first rows: the values themselves where that is all, else a copy that keeps no other memory."""
    return values if values.shape[0] == number else values[:number].clone()


_own_folders: list[tempfile.TemporaryDirectory[str]] = []


def _prepare_environment(cache_dir: str | None) -> None:
    """Set what the library reads from the environment and the user has not set.

    The library names its folder of kernels after the process id, which another process may have had: so each process
    gets a new one.
    """
    os.environ.setdefault("USE_MNNVL", "0")  # one host; it would ask for fabric handles
    if not os.environ.get("CUDA_HOME"):
        from torch.utils import cpp_extension

        if cpp_extension.CUDA_HOME:
            os.environ["CUDA_HOME"] = cpp_extension.CUDA_HOME
    if not _own_folders:
        parent = cache_dir or os.environ.get("HYBRID_EP_CACHE_DIR") or None
        if parent is not None:
            Path(parent).mkdir(parents=True, exist_ok=True)
        _own_folders.append(tempfile.TemporaryDirectory(prefix="moeframe-hybridep-", dir=parent))
        os.environ["HYBRID_EP_CACHE_DIR"] = _own_folders[0].name


def _known(make: Callable[..., Any], **wished: Any) -> dict[str, Any]:
    """Return the arguments that this version of a constructor takes."""
    parameters = inspect.signature(make).parameters
    return {name: value for name, value in wished.items() if name in parameters}


def _at_least_one(values: torch.Tensor) -> torch.Tensor:
    """Return the values contiguous; a row of zeros where there are none, since kernels take no null pointer."""
    return values.contiguous() if values.shape[0] else values.new_zeros(1, *values.shape[1:])
