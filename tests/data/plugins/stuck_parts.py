"""A dispatcher that gets one rank of a job stuck, killed or wrong at a place of one's choice. Used with --plugin.

`once`: a file that is made when the fault strikes, and keeps it from striking again after a restart.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
import torch.distributed as dist
from moeframe_collectives.alltoall import AllToAllDispatcher, AllToAllLayout
from moeframe_collectives.options import AllToAllOptions

from moeframe import trace
from moeframe.hooks import DispatcherOffer, hookimpl
from moeframe.protocols.dispatcher import Dispatched, DispatcherContext, DispatcherTraits, Layout
from moeframe.protocols.stall import Stall


@dataclass(frozen=True, kw_only=True)
class StuckOptions:
    fault: Literal[
        "none",
        "kill",
        "stop",
        "raise",
        "loop",
        "kernel",
        "idle",
        "order",
        "shape",
        "dtype",
        "splits",
        "slow",
        "nan",
        "late",
    ] = "none"
    rank: int = 1
    step: int = 4
    layer: int = 2
    seconds: float = 0.0
    once: str = ""


class _NaN(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * float("nan")

    @staticmethod
    def backward(ctx, grad):
        return grad


class StuckDispatcher(AllToAllDispatcher):
    def __init__(self, options: StuckOptions, context: DispatcherContext) -> None:
        super().__init__(AllToAllOptions(), context)
        self._options = options
        self._seen = 0
        size = context.ep_size
        self._pair = [dist.new_group(list(range(dist.get_world_size()))) for _ in range(2)] if size > 1 else []
        self._rank = dist.get_rank() if dist.is_initialized() else 0

    def _strikes(self, phase: str) -> bool:
        place, options = trace.current(), self._options
        if (
            options.fault == "none"
            or place.phase != phase
            or (place.step, place.layer) != (options.step, options.layer)
        ):
            return False
        if options.once:
            if Path(options.once).exists():
                return False
            if self._rank == options.rank:
                Path(options.once).touch()
        return True

    def layout(self, expert_ids_TK: torch.Tensor) -> AllToAllLayout:
        fault = self._options.fault
        if fault == "loop" and self._rank == self._options.rank and self._strikes("attend"):
            while True:
                time.sleep(0)
        return super().layout(expert_ids_TK)

    def dispatch(self, x_TD: torch.Tensor, gates_TK: torch.Tensor, layout: Layout) -> Dispatched:
        options, mine = self._options, self._rank == self._options.rank
        if options.fault == "slow" and mine:
            time.sleep(options.seconds)
        elif self._strikes("dispatch"):
            self._fail(mine, x_TD)
        if (
            options.fault == "nan"
            and mine
            and (trace.current().step, trace.current().layer) == (options.step, options.layer)
        ):
            x_TD = _NaN.apply(x_TD)
        return super().dispatch(x_TD, gates_TK, layout)

    def combine(self, rows_RD: torch.Tensor, dispatched: Dispatched) -> torch.Tensor:
        return super().combine(rows_RD, dispatched)

    def _fail(self, mine: bool, x_TD: torch.Tensor) -> None:
        fault = self._options.fault
        if fault in ("kill", "stop") and mine:
            os.kill(os.getpid(), signal.SIGKILL if fault == "kill" else signal.SIGSTOP)
        elif fault == "raise" and mine:
            raise ValueError("no route to the experts")
        elif fault == "late" and mine:
            time.sleep(self._options.seconds)
        elif fault == "kernel":  # the ranks wait for each other outside of torch
            threading.Event().wait()
        elif fault == "order":
            first, second = self._pair if mine else self._pair[::-1]
            dist.all_reduce(torch.ones(4), group=first)
            dist.all_reduce(torch.ones(4), group=second)
        elif fault == "shape":
            dist.all_reduce(torch.ones(3 if mine else 2))  # gloo lets the shorter one go
        elif fault == "dtype":
            dist.all_reduce(torch.ones(2, dtype=torch.float32) if mine else torch.ones(1, dtype=torch.float64))
        elif fault == "splits":
            sends, receives = ([0, 2], [1, 2]) if mine else ([2, 0], [2, 0])
            dist.all_to_all_single(torch.empty(sum(receives)), torch.ones(sum(sends)), receives, sends)


def _traits(options: StuckOptions, precision: object) -> DispatcherTraits:
    return DispatcherTraits(
        fused=False,
        host_syncs_per_layer=1,
        keeps_dispatch_input=False,
        keeps_expert_input=False,
        deterministic=True,
        wire_dtypes=("float64", "float32", "bfloat16"),
    )


@hookimpl
def moeframe_offer_dispatchers() -> list[DispatcherOffer]:
    return [
        DispatcherOffer(
            name="stuck", summary="gets stuck on purpose", options=StuckOptions, build=StuckDispatcher, traits=_traits
        )
    ]


@hookimpl
def moeframe_on_stall(run_dir: Path, stall: Stall) -> None:
    (run_dir / "called").write_text(f"{stall.kind} {len(stall.table)}")
