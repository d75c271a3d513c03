"""Backends with one of the mistakes that people make. Used with --plugin; `options.fault` says which."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from moeframe_collectives.alltoall import AllToAllDispatcher
from moeframe_collectives.options import AllToAllOptions
from moeframe_schedules.accumulate import Accumulate
from moeframe_torch_compute.compute import TorchCompute
from moeframe_torch_compute.experts import LoopExperts
from moeframe_torch_compute.options import TorchComputeOptions
from moeframe_torch_sharding.norm import Share, clip_to_norm_, global_norm
from moeframe_torch_sharding.options import ReplicateOptions
from moeframe_torch_sharding.replicate import Replicate, ReplicatedModel
from moeframe_torch_sharding.units import require_plan_fits
from torch import nn

from moeframe.hooks import ComputeOffer, DispatcherOffer, ScheduleOffer, ShardingOffer, hookimpl
from moeframe.protocols.compute import ComputeContext, ComputeTraits
from moeframe.protocols.data import MicroBatch
from moeframe.protocols.dispatcher import Dispatched, DispatcherContext, DispatcherTraits, Layout
from moeframe.protocols.schedule import ScheduleContext, ScheduleTraits, Stage, StepResult
from moeframe.protocols.sharding import ShardingTraits


@dataclass(frozen=True, kw_only=True)
class FaultOptions:
    fault: str = ""


# --- dispatcher


class FaultyDispatcher(AllToAllDispatcher):
    def __init__(self, options: FaultOptions, context: DispatcherContext) -> None:
        super().__init__(AllToAllOptions(), context)
        self.fault = options.fault
        self.buffer: torch.Tensor | None = None

    def dispatch(self, x_TD: torch.Tensor, gates_TK: torch.Tensor, layout: Layout) -> Dispatched:
        if self.fault == "gates in bfloat16":
            gates_TK = gates_TK.to(torch.bfloat16).to(gates_TK.dtype)
        if self.fault == "raises" and self._context.ep_size > 1:
            raise RuntimeError("no route to the experts")
        return super().dispatch(x_TD, gates_TK, layout)

    def combine(self, rows_RD: torch.Tensor, dispatched: Dispatched) -> torch.Tensor:
        out_TD = super().combine(rows_RD, dispatched)
        if self.fault == "adds to stale rows":
            stale_TD, self.buffer = self.buffer, out_TD.detach().clone()
            return out_TD if stale_TD is None or stale_TD.shape != out_TD.shape else out_TD + stale_TD
        return out_TD


def _dispatcher_traits(options: FaultOptions, precision: object) -> DispatcherTraits:
    return DispatcherTraits(
        fused=False,
        host_syncs_per_layer=1,
        keeps_dispatch_input=False,
        keeps_expert_input=False,
        deterministic=True,
        wire_dtypes=("bfloat16",) if options.fault == "knows no float64" else ("float64", "float32", "bfloat16"),
    )


# --- compute


class RoundedGates(LoopExperts):
    def forward(self, rows_RD: torch.Tensor, gates_R: torch.Tensor, *counts: Any) -> torch.Tensor:
        return super().forward(rows_RD, gates_R.to(torch.bfloat16).to(gates_R.dtype), *counts)


class FaultyCompute(TorchCompute):
    def __init__(self, options: FaultOptions, context: ComputeContext) -> None:
        super().__init__(TorchComputeOptions(), context)

    def grouped_experts(self, num_local_experts: int, hidden_size: int, intermediate_size: int) -> nn.Module:
        return RoundedGates(num_local_experts, hidden_size, intermediate_size, self._parameters)


# --- sharding


class FaultyModel(ReplicatedModel):
    fault: str

    def finish_gradients(self) -> None:
        super().finish_gradients()
        if self.fault == "no division by ep":
            for piece in self._gradient_pieces(expert=True):
                piece.mul_(self._meshes.size("ep"))
        if self.fault == "averages":
            for expert in (True, False):
                for piece in self._gradient_pieces(expert=expert):
                    piece.div_(self._meshes.size("dp"))

    def clip_(self, max_norm: float | None) -> torch.Tensor:
        dense, experts = self._gradient_pieces(expert=False), self._gradient_pieces(expert=True)
        shares = [Share(dense, None), Share(experts, self._meshes.group("ep"))]
        if self.fault == "local norm":
            shares = [Share(dense, None), Share(experts, None)]
        elif self.fault == "dense counted twice":
            shares[0] = Share(dense, self._meshes.group("ep"))
        elif self.fault == "replicas counted":
            shares[1] = Share(experts, self._meshes.group("dp"))
        norm = global_norm(shares, None, self._meshes.device, torch.float64)
        if max_norm is not None:
            clip_to_norm_(dense if self.fault == "experts not clipped" else [*dense, *experts], norm, max_norm)
        return norm

    def full_parameters(self) -> dict[str, torch.Tensor]:
        found = super().full_parameters()
        return {name: value for name, value in found.items() if self.fault != "loses the head" or "head" not in name}


class FaultySharding(Replicate):
    def __init__(self, options: FaultOptions) -> None:
        super().__init__(ReplicateOptions())
        self.fault = options.fault

    def shard(self, model: nn.Module, plan: Any, mesh: Any, precision: Any) -> FaultyModel:
        require_plan_fits(model, plan)
        for unit in plan.units:
            plan.materialize(unit.name, mesh.device)
        sharded = FaultyModel(model, plan, mesh, precision, 2**20)
        sharded.fault = self.fault
        return sharded


def _sharding_traits(options: FaultOptions, precision: object) -> ShardingTraits:
    return ShardingTraits(parameters_stay_whole=True)


# --- schedule


class FaultySchedule(Accumulate):
    def __init__(self, options: FaultOptions, context: ScheduleContext) -> None:
        self.fault = options.fault
        self.count = context.num_micro_batches

    def run_step(self, stages: Sequence[Stage], micro_batches: Sequence[MicroBatch]) -> StepResult:
        if self.fault == "divides by micro-batches":
            for parameter in stages[0].module.parameters():
                parameter.register_hook(lambda grad: grad / self.count)
        result = super().run_step(stages, micro_batches)
        return replace(result, ce_sum=result.ce_sum * 0) if self.fault == "loses the loss" else result


def _schedule_traits(options: FaultOptions, precision: object) -> ScheduleTraits:
    return ScheduleTraits(splits_backward=False, pipelines=False)


def _any_number(options: FaultOptions, pp: int, n: int) -> str | None:
    return None


def _compute_traits(options: FaultOptions, precision: object) -> ComputeTraits:
    return ComputeTraits(saves_expert_input=True, splits_expert_backward=False)


def _with(build: Any, traits: Any) -> Mapping[str, Any]:
    return {"name": "faulty", "summary": "goes wrong on purpose", "options": FaultOptions, "build": build, "traits": traits}


def _build_stale(options: FaultOptions, context: DispatcherContext) -> FaultyDispatcher:
    return FaultyDispatcher(FaultOptions(fault="adds to stale rows"), context)


def _alone(options: FaultOptions, precision: object) -> DispatcherTraits:
    return replace(_dispatcher_traits(options, precision), max_group=1)


@hookimpl
def moeframe_offer_dispatchers() -> list[DispatcherOffer]:
    stale = {**_with(_build_stale, _alone), "name": "faulty_alone"}
    return [DispatcherOffer(**_with(FaultyDispatcher, _dispatcher_traits)), DispatcherOffer(**stale)]


@hookimpl
def moeframe_offer_computes() -> list[ComputeOffer]:
    return [ComputeOffer(**_with(FaultyCompute, _compute_traits))]


@hookimpl
def moeframe_offer_shardings() -> list[ShardingOffer]:
    return [ShardingOffer(**_with(FaultySharding, _sharding_traits))]


@hookimpl
def moeframe_offer_schedules() -> list[ScheduleOffer]:
    return [ScheduleOffer(**_with(FaultySchedule, _schedule_traits), legal_micro_batches=_any_number)]
