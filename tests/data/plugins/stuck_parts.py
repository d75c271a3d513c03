"""A dispatcher that gets a rank of a job stuck, killed or wrong at steps of one's choice. Used with --plugin.

`plan`: ``fault@step,fault@step``, in layer `layer` of `rank`, -1: its first one; ``slow@0``: in every layer of every
step. `seconds`: how long those last that end by themselves; 0: for ever. `once`: a folder in which each fault leaves a
file, so that it does not strike again after a restart. `fused`: says that it communicates by kernels of its own.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy
import torch
import torch.distributed as dist
from moeframe_collectives.alltoall import AllToAllDispatcher, AllToAllLayout
from moeframe_collectives.options import AllToAllOptions

from moeframe import trace
from moeframe.hooks import DatasetOffer, DispatcherOffer, hookimpl
from moeframe.protocols.data import Dataset, DatasetContext, DatasetTraits, TokenSequence
from moeframe.protocols.dispatcher import Dispatched, DispatcherContext, DispatcherTraits, Layout
from moeframe.protocols.stall import Stall

IN_LAYOUT = ("loop", "idle", "hot")


@dataclass(frozen=True, kw_only=True)
class StuckOptions:
    plan: str = ""
    rank: int = 1
    layer: int = 2
    seconds: float = 0.0
    once: str = ""
    fused: bool = False


class _NaNGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return grad * float("nan")


class StuckDispatcher(AllToAllDispatcher):
    def __init__(self, options: StuckOptions, context: DispatcherContext) -> None:
        super().__init__(AllToAllOptions(), context)
        self._options = options
        self._plan = {}
        for part in filter(None, options.plan.split(",")):
            fault, _, step = part.partition("@")
            self._plan[int(step)] = fault
        self._struck: set[int] = set()
        self._slow = self._plan.get(0) == "slow"
        self._rank = dist.get_rank() if dist.is_initialized() else 0
        self._mine = self._rank == options.rank
        everyone = list(range(dist.get_world_size())) if dist.is_initialized() else []
        self._pair = [dist.new_group(everyone) for _ in range(2)] if "order" in options.plan else []

    def _fault(self) -> str:
        """Return the fault that is due here and now, "" if none is."""
        place = trace.current()
        fault = self._plan.get(place.step, "")
        if not fault or self._options.layer not in (-1, place.layer):
            return ""
        if fault.startswith("nan"):  # when the step is run again, too
            return "" if place.micro_batch > 0 else fault
        if place.step in self._struck:
            return ""
        self._struck.add(place.step)
        if self._options.once:
            struck = Path(self._options.once) / f"{fault}-{place.step}-{self._rank}"
            if struck.exists():
                return ""
            struck.touch()
        return fault

    def layout(self, expert_ids_TK: torch.Tensor) -> AllToAllLayout:
        if any(fault in IN_LAYOUT for fault in self._plan.values()) and trace.current().direction == "forward":
            step = trace.current().step
            fault = self._fault() if self._plan.get(step) in IN_LAYOUT else ""
            if fault == "loop" and self._mine:
                until = time.monotonic() + (self._options.seconds or 1e9)
                while time.monotonic() < until:
                    pass
            elif fault == "idle":  # the seed of it all: every rank waits for an event that nobody sets
                threading.Event().wait(self._options.seconds or None)
            elif fault == "hot":
                expert_ids_TK = self._all_to_the_rank(expert_ids_TK)
        return super().layout(expert_ids_TK)

    def _all_to_the_rank(self, expert_ids_TK: torch.Tensor) -> torch.Tensor:
        """Return a choice of experts of `rank` alone; that rank gets no more memory than it has."""
        if self._mine:
            torch.cuda.empty_cache()
            device = self._context.device
            total = torch.cuda.get_device_properties(device).total_memory
            torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved(device) + 2**20) / total, device)
        first = self._options.rank * self._context.num_experts // self._context.ep_size
        return torch.arange(first, first + expert_ids_TK.shape[1], device=expert_ids_TK.device).expand_as(expert_ids_TK)

    def dispatch(self, x_TD: torch.Tensor, gates_TK: torch.Tensor, layout: Layout) -> Dispatched:
        fault = "" if self._plan.get(trace.current().step) in IN_LAYOUT else self._fault()
        if fault:
            self._strike(fault)
        if self._slow and self._mine:
            time.sleep(self._options.seconds)
        if fault == "nan_gradient" and self._mine:
            x_TD = _NaNGradient.apply(x_TD)
        dispatched = super().dispatch(x_TD, gates_TK, layout)
        if fault == "nan" and self._mine:
            return replace(dispatched, rows_RD=dispatched.rows_RD * float("nan"))
        return dispatched

    def _strike(self, fault: str) -> None:
        mine, seconds = self._mine, self._options.seconds or None
        if fault in ("kill", "stop", "term") and mine:
            number = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "term": signal.SIGTERM}[fault]
            os.kill(os.getpid(), number)
        elif fault == "raise" and mine:
            raise ValueError("no route to the experts")
        elif fault == "late" and mine:
            time.sleep(seconds or 1e6)
        elif fault == "spin":  # a kernel that does not return: the ranks would wait for each other inside of it
            torch.cuda._sleep(10**13)
        elif fault == "kernel":  # the ranks wait for each other outside of torch
            threading.Event().wait(seconds)
        elif fault == "order":
            first, second = self._pair if mine else self._pair[::-1]
            dist.all_reduce(self._ones(4), group=first)
            dist.all_reduce(self._ones(4), group=second)
        elif fault == "shape":
            dist.all_reduce(self._ones(3 if mine else 2))  # gloo lets the shorter one go
        elif fault == "splits":  # the peer of `rank` sends one row more than it expects
            peers = dist.get_world_size()
            sent = [1000] * peers
            expected = [1000] * peers
            if mine:
                expected[self._rank - 1] -= 1
            dist.all_to_all_single(self._ones(sum(expected)), self._ones(sum(sent)), expected, sent)
        elif fault == "segfault" and mine:
            ctypes.string_at(0)
        elif fault == "dtype":
            dist.all_reduce(self._ones(2) if mine else self._ones(1).double())

    def _ones(self, number: int) -> torch.Tensor:
        return torch.ones(number, device=self._context.device)


@dataclass(frozen=True, kw_only=True)
class UnevenOptions:
    rank: int = 1
    ends_after: int = 0
    pauses_after: int = 0
    pause_s: float = 0.0


class Uneven(Dataset):
    """On one rank, has no more after some sequences, or takes long for one; 0: never."""

    def __init__(self, options: UnevenOptions, context: DatasetContext) -> None:
        self._options = options
        self._context = context
        self._read = 0

    @property
    def num_sequences(self) -> int:
        return 64

    def sequence(self, index: int) -> TokenSequence:
        self._read += 1
        if int(os.environ.get("RANK", "0")) == self._options.rank:
            if self._options.ends_after and self._read > self._options.ends_after:
                raise StopIteration
            if self._read == self._options.pauses_after + 1 and self._options.pauses_after:
                time.sleep(self._options.pause_s)
        generator = numpy.random.default_rng(index)
        return TokenSequence(tokens=generator.integers(0, self._context.vocab_size, self._context.seq_len + 1))


def _traits(options: StuckOptions, precision: object) -> DispatcherTraits:
    return DispatcherTraits(
        fused=options.fused,
        host_syncs_per_layer=1,
        keeps_dispatch_input=False,
        keeps_expert_input=False,
        deterministic=True,
        wire_dtypes=("float64", "float32", "bfloat16"),
    )


def _data_traits(options: UnevenOptions, precision: object) -> DatasetTraits:
    return DatasetTraits(vocabulary=None)


@hookimpl
def moeframe_offer_dispatchers() -> list[DispatcherOffer]:
    return [
        DispatcherOffer(
            name="stuck", summary="gets stuck on purpose", options=StuckOptions, build=StuckDispatcher, traits=_traits
        )
    ]


@hookimpl
def moeframe_offer_datasets() -> list[DatasetOffer]:
    return [
        DatasetOffer(
            name="uneven",
            summary="ends or pauses on one rank",
            options=UnevenOptions,
            build=Uneven,
            traits=_data_traits,
        )
    ]


@hookimpl
def moeframe_on_stall(run_dir: Path, stall: Stall) -> None:
    with (run_dir / "told").open("a") as file:
        file.write(f"{stall.kind} {len(stall.table)}\n")
