"""`replicate`: whole parameters on every rank, gradients summed once a step."""

from __future__ import annotations

from typing import ClassVar

from torch import nn

from moeframe.protocols.precision import Precision
from moeframe.protocols.sharding import Meshes, ModelPlan, Sharding
from moeframe_torch_sharding.buckets import sum_between_ranks_
from moeframe_torch_sharding.laid_out import LaidOutModel
from moeframe_torch_sharding.options import ReplicateOptions
from moeframe_torch_sharding.units import require_plan_fits

__all__ = ["Replicate", "ReplicatedModel"]


class ReplicatedModel(LaidOutModel):
    """Every rank holds all dense parameters and its own experts; gradients gather in `.grad` until the step's end."""

    dense_axis: ClassVar[str | None] = None
    expert_axis: ClassVar[str | None] = "ep"

    def __init__(
        self, module: nn.Module, plan: ModelPlan, meshes: Meshes, precision: Precision, bucket_bytes: int
    ) -> None:
        super().__init__(module, plan, meshes, precision)
        self._bucket_bytes = bucket_bytes

    def finish_gradients(self) -> None:
        """Sum gradients in the reduce dtype: experts between their replicas, all others between all data ranks."""
        super().finish_gradients()
        for axis, expert in (("dp", False), ("edp", True)):
            sum_between_ranks_(
                self._gradient_pieces(expert=expert),
                self._meshes.group(axis),
                self._precision.dtype("reduce"),
                self._bucket_bytes,
            )


class Replicate(Sharding):
    """Lays a model out whole; its memory is the model's, the optimizer's and one bucket's."""

    def __init__(self, options: ReplicateOptions) -> None:
        self._options = options

    def shard(self, model: nn.Module, plan: ModelPlan, mesh: Meshes, precision: Precision) -> ReplicatedModel:
        """Materialise every unit on the device of `mesh`."""
        require_plan_fits(model, plan)
        for unit in plan.units:
            plan.materialize(unit.name, mesh.device)
        return ReplicatedModel(model, plan, mesh, precision, self._options.bucket_bytes)
