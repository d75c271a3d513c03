"""A dispatcher that takes longer: the device spins before each exchange, forward and backward."""

from __future__ import annotations

from typing import Any

import torch

from moeframe.model.block import Block
from moeframe.protocols.dispatcher import Dispatched, Dispatcher, Layout

__all__ = ["slow_down"]


class _Spin(torch.autograd.Function):
    """The identity; spins on the current stream in forward and backward."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, cycles: int) -> torch.Tensor:
        ctx.cycles = cycles
        _spin(cycles)
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        _spin(ctx.cycles)
        return grads[0], None


class _Slow(Dispatcher):
    """Another dispatcher, later. One multiprocessor spins; the others are free, as they are while data travels."""

    def __init__(self, inner: Dispatcher, cycles: int) -> None:
        self._inner = inner
        self._cycles = cycles

    def layout(self, expert_ids_TK: torch.Tensor) -> Layout:
        return self._inner.layout(expert_ids_TK)

    def dispatch(self, x_TD: torch.Tensor, gates_TK: torch.Tensor, layout: Layout) -> Dispatched:
        slow_TD = _Spin.apply(x_TD, self._cycles)  # type: ignore[no-untyped-call]  # torch's stub
        return self._inner.dispatch(slow_TD, gates_TK, layout)

    def combine(self, rows_RD: torch.Tensor, dispatched: Dispatched) -> torch.Tensor:
        slow_RD = _Spin.apply(rows_RD, self._cycles)  # type: ignore[no-untyped-call]  # torch's stub
        return self._inner.combine(slow_RD, dispatched)

    def release(self) -> None:
        self._inner.release()


def slow_down(model: torch.nn.Module, microseconds: float, device: torch.device) -> None:
    """Have every exchange of a model take that much longer, in place."""
    cycles = int(microseconds * _cycles_per_microsecond(device))
    for block in model.modules():
        if isinstance(block, Block):
            block.replace_dispatcher(lambda inner: _Slow(inner, cycles))


def _cycles_per_microsecond(device: torch.device) -> float:
    """Measure how fast the device spins; its clock rate is not what it is said to be."""
    cycles = 20_000_000
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    with torch.cuda.device(device):
        _spin(cycles)
        begin.record()
        _spin(cycles)
        end.record()
        end.synchronize()
    return cycles / (float(begin.elapsed_time(end)) * 1e3)


def _spin(cycles: int) -> None:
    torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]  # noqa: SLF001  # torch has no public name for it
