"""`zero1`: whole parameters and gradients on every rank, optimizer state and the update shared between the ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar

import torch
from torch import nn
from torch.distributed import ProcessGroup
from torch.distributed.tensor import Shard

from moeframe.errors import ContractError
from moeframe.protocols.precision import Precision
from moeframe.protocols.sharding import AdamWSettings, Meshes, ModelPlan, Sharding
from moeframe_torch_sharding.buckets import fill_from_pieces_, summed_pieces
from moeframe_torch_sharding.cuts import Cut, best_cut
from moeframe_torch_sharding.laid_out import LaidOutModel
from moeframe_torch_sharding.optimizer import PieceAdamW
from moeframe_torch_sharding.options import Zero1Options
from moeframe_torch_sharding.spread import Spread
from moeframe_torch_sharding.units import require_plan_fits

__all__ = ["SharedAdamW", "Zero1", "Zero1Model"]


class SharedAdamW(PieceAdamW):
    """AdamW on this rank's piece of each parameter; `step` is collective and ends with whole parameters again.

    Args:
        parameters: by name; plain and whole.
        settings: of AdamW.
        own: returns this rank's piece of a parameter, a view.
        gather: makes all parameters whole from the pieces of all ranks, by name.
    """

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        settings: AdamWSettings,
        own: Callable[[str], torch.Tensor],
        gather: Callable[[Mapping[str, torch.Tensor]], None],
    ) -> None:
        # A piece that is not contiguous in its parameter is a copy: the fused kernel takes no other.
        super().__init__(parameters, settings, {name: own(name).contiguous() for name in parameters})
        self._own = own
        self._copies = {name for name in parameters if not own(name).is_contiguous()}
        self.register_step_pre_hook(lambda *_: self._refresh())
        self.register_step_post_hook(lambda *_: gather(self.pieces))

    def _refresh(self) -> None:
        """Follow what was loaded into the parameters since the last step."""
        with torch.no_grad():
            for name in self._copies:
                self.pieces[name].copy_(self._own(name))

    def zero_grad(self, set_to_none: bool = True) -> None:  # noqa: FBT001, FBT002 - torch's signature
        """Clear the gradients of the model's parameters; a backward adds to whole ones only."""
        super().zero_grad(set_to_none=True)
        if not set_to_none:
            for owner in self.parameters.values():
                owner.grad = torch.zeros_like(owner)


class Zero1Model(LaidOutModel):
    """Gradients gather whole in `.grad`; `finish_gradients` leaves each rank its piece of their sums there, a DTensor.

    Dense parameters are cut over all data ranks, experts over their replicas, each where pieces are smallest. Optimizer
    state exists for the own pieces only. Parameters whose ranks are one stay whole.
    """

    dense_axis: ClassVar[str | None] = "dp"
    expert_axis: ClassVar[str | None] = "dp"

    def __init__(
        self, module: nn.Module, plan: ModelPlan, meshes: Meshes, precision: Precision, bucket_bytes: int
    ) -> None:
        self._cuts: dict[str, Cut] = {}
        super().__init__(module, plan, meshes, precision)
        self._bucket_bytes = bucket_bytes

    def _share(self, name: str, stack: Spread) -> Spread:
        axes = self._mesh_axes(name)
        group = self._meshes.group(*axes)
        if group is None or group.size() == 1:
            return stack
        if not stack.shape:
            raise ContractError(f"Parameter {name!r} is a scalar, which cannot be cut. Give it the shape (1,).")
        self._cuts[name] = best_cut(stack.shape, group.size())
        return Spread(stack.shape, self._meshes.mesh(*axes), (Shard(self._cuts[name].dim),))

    def _by_group(self) -> list[tuple[ProcessGroup, list[str]]]:
        """Return the groups over which parameters are cut, each with their names."""
        found: list[tuple[ProcessGroup, list[str]]] = []
        for axes in dict.fromkeys((self.dense_mesh, self.expert_mesh)):
            names = [name for name in self._cuts if self._mesh_axes(name) == axes]
            group = self._meshes.group(*axes)
            if names:
                assert group is not None
                found.append((group, names))
        return found

    def finish_gradients(self) -> None:
        """Sum gradients in the reduce dtype and keep this rank's pieces; whole gradients are freed."""
        super().finish_gradients()
        for group, names in self._by_group():
            gradients = [gradient for name in names if (gradient := self.parameters[name].grad) is not None]
            pieces = summed_pieces(
                gradients,
                [self._cuts[name] for name in names],
                group,
                self._precision.dtype("reduce"),
                self._bucket_bytes,
            )
            for name, piece in zip(names, pieces, strict=True):
                self.parameters[name].grad = self._shares[name].wrap(piece)

    def optimizer(self, settings: AdamWSettings) -> SharedAdamW:
        """Return AdamW over this rank's pieces; its `step` is collective."""
        return SharedAdamW(self.parameters, settings, self._own, self._gather)

    def _gather(self, pieces: Mapping[str, torch.Tensor]) -> None:
        for group, names in self._by_group():
            fill_from_pieces_(
                [self.parameters[name] for name in names],
                [pieces[name] for name in names],
                [self._cuts[name] for name in names],
                group,
                self._bucket_bytes,
            )


class Zero1(Sharding):
    """Lays a model out whole; its memory is the model's, that of its gradients, and a share of the optimizer's."""

    def __init__(self, options: Zero1Options) -> None:
        self._options = options

    def shard(self, model: nn.Module, plan: ModelPlan, mesh: Meshes, precision: Precision) -> Zero1Model:
        """Materialise every unit on the device of `mesh`."""
        require_plan_fits(model, plan)
        for unit in plan.units:
            plan.materialize(unit.name, mesh.device)
        return Zero1Model(model, plan, mesh, precision, self._options.bucket_bytes)
