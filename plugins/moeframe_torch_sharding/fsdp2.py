"""`fsdp2`: parameters, gradients and optimizer state sharded by torch's fully_shard."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import Shard

from moeframe.errors import ContractError
from moeframe.protocols.precision import Precision
from moeframe.protocols.sharding import Meshes, ModelPlan, Sharding, Unit
from moeframe_torch_sharding.laid_out import LaidOutModel
from moeframe_torch_sharding.options import Fsdp2Options
from moeframe_torch_sharding.replicate import ReplicatedModel
from moeframe_torch_sharding.units import require_plan_fits, unit_modules

__all__ = ["Fsdp2", "Fsdp2Model", "expert_shard_dim"]


def expert_shard_dim(shape: tuple[int, ...], ranks: int) -> int:
    """Return the dimension along which a local expert stack is cut into `ranks` pieces.

    Whole experts when they divide, else the next dimension when that divides, else whole experts unevenly: fully_shard
    cuts unevenly along dimension 0 only.
    """
    if shape[0] % ranks and len(shape) > 1 and shape[1] % ranks == 0:
        return 1
    return 0


class Fsdp2Model(LaidOutModel):
    """Dense parameters are sharded over all data ranks, experts over their replicas.

    Gradients are summed into shards during each backward, or, once they are held, all in `finish_gradients`. Between
    that and the next forward, and while state is loaded, no gathered weights exist that could be out of date.
    """

    dense_axis: ClassVar[str | None] = "dp"
    expert_axis: ClassVar[str | None] = "dp"
    _holding = False

    def hold_gradients(self) -> None:
        """Sum no gradients and free no weights in the backwards from here on."""
        self._holding = True
        for root in self._roots():
            _let_backwards_sum(root, wanted=False)

    def finish_gradients(self) -> None:
        """Sum held gradients; free gathered weights; give zeros to parameters that no micro-batch used."""
        if self._holding:
            self._holding = False
            for root in self._roots():
                _let_backwards_sum(root, wanted=True)
                _run_empty_backward(root)
        self._drop_gathered()
        super().finish_gradients()

    def _drop_gathered(self) -> None:
        for root in self._roots():
            for module in root.modules():  # type: ignore[attr-defined]  # torch's mixin hides that it is a module
                if isinstance(module, FSDPModule):
                    module.reshard()

    def _roots(self) -> Iterator[FSDPModule]:
        for name in self._plan.roots:
            root = self.module.get_submodule(name)
            assert isinstance(root, FSDPModule)
            yield root


class Fsdp2(Sharding):
    """Lays a model out with one fully_shard call for each unit of its plan.

    Every rank must run every unit in every micro-batch: a unit's gather and its reduction are collective. A unit's
    forward takes and returns its differentiable tensors as tensors, tuples, lists or dicts, and none as a view: that is
    where fully_shard hangs its backward hooks.
    """

    model_class: ClassVar[type[Fsdp2Model]] = Fsdp2Model

    def __init__(self, options: Fsdp2Options) -> None:
        self._options = options

    def shard(
        self, model: nn.Module, plan: ModelPlan, mesh: Meshes, precision: Precision
    ) -> Fsdp2Model | ReplicatedModel:
        """Materialise and shard unit by unit; no more than one unit is whole at a time.

        One process without a process group has nothing to share: its only shard is the whole model.
        """
        require_plan_fits(model, plan)
        if mesh.group("dp") is None:
            for unit in plan.units:
                plan.materialize(unit.name, mesh.device)
            return ReplicatedModel(model, plan, mesh, precision, bucket_bytes=0)
        units = [unit for unit in plan.units if _stands_alone(unit, plan, precision)]
        for unit in plan.units:
            plan.materialize(unit.name, mesh.device)
            if unit in units:
                # The backward of the last unit follows its forward at once: freeing its weights would save nothing.
                for module in unit_modules(model, plan, unit):
                    self._fully_shard(module, unit, mesh, precision, is_last=unit in units[-2:])
                    for method in unit.methods:
                        register_fsdp_forward_method(module, method)
        for root in plan.roots:
            _make_root(model.get_submodule(root))
        return self.model_class(model, plan, mesh, precision)

    def _fully_shard(self, module: nn.Module, unit: Unit, mesh: Meshes, precision: Precision, *, is_last: bool) -> None:
        holds_experts = "expert" in unit.roles
        if holds_experts and len(unit.roles) > 1:
            raise ContractError(
                f"Unit {unit.name!r} holds parameters of the roles {sorted(unit.roles)}. Experts are sharded over "
                "other ranks than the rest, so they need a unit of their own."
            )
        axes = self.model_class.expert_mesh if holds_experts else self.model_class.dense_mesh
        ranks = mesh.size(axes[-1])
        wanted = self._options.reshards_experts if holds_experts else self._options.reshard_after_forward
        sharded = fully_shard(
            module,
            mesh=mesh.mesh(*axes),
            reshard_after_forward=wanted and not is_last,
            shard_placement_fn=(lambda p: Shard(expert_shard_dim(tuple(p.shape), ranks))) if holds_experts else None,
            # Modules choose their own input dtypes: gates stay in float32 beside activations in bfloat16.
            mp_policy=MixedPrecisionPolicy(
                param_dtype=precision.dtype("high" if unit.high_precision else "compute"),
                reduce_dtype=precision.dtype("reduce"),
                cast_forward_inputs=False,
            ),
        )
        # A plain sum over shards and replicas, by an operation that gloo has too.
        sharded.set_gradient_divide_factor(1.0)
        sharded.set_force_sum_reduction_for_comms(True)


def _stands_alone(unit: Unit, plan: ModelPlan, precision: Precision) -> bool:
    """Say whether a unit is gathered by itself.

    A unit whose only distinction is its dtype (the router) joins the unit around it when that computes in the same one:
    one gather and one reduction fewer.
    """
    if not unit.parameters or not unit.name:
        return not unit.name
    if "expert" in unit.roles or not unit.high_precision or precision.high != precision.compute:
        return True
    around = [other for other in plan.units if unit.name.startswith(f"{other.name}.")]
    return not around or not around[0].parameters or "expert" in around[0].roles


def _make_root(model: nn.Module) -> None:
    """Let `model` be the root of all its units, before anything runs.

    The first sharded module to run becomes the root of what lies below it, so a schedule that calls phases alone would
    make each its own root. Running an empty method of `model` as a forward settles it, by public means only.
    Collective: it gathers the parameters that belong to the root itself.
    """
    _run_as_forward(model, None)  # torch 2.11 takes no call without arguments on CUDA
    assert isinstance(model, FSDPModule)
    model.reshard()


def _run_empty_backward(root: FSDPModule) -> None:
    """Have fully_shard do what it does at the end of a backward, for all units below `root`. Collective.

    That is to sum the gradients that units have gathered; it hangs on the backward of any forward of the root.
    """
    assert isinstance(root, nn.Module)
    nothing = torch.zeros((), device=next(root.parameters()).device, requires_grad=True)
    _run_as_forward(root, nothing).backward()


def _run_as_forward(model: nn.Module, value: torch.Tensor | None) -> Any:
    """Return the value, through a method that fully_shard takes for a forward of the model."""
    name = "_empty_forward"
    setattr(model, name, lambda given: None if given is None else given * 1)
    register_fsdp_forward_method(model, name)
    returned = getattr(model, name)(value)
    delattr(model, name)
    return returned


def _let_backwards_sum(root: FSDPModule, *, wanted: bool) -> None:
    """Have backwards end with sums into shards and freed weights, or with neither."""
    root.set_is_last_backward(wanted)
    root.set_requires_gradient_sync(wanted)
    root.set_reshard_after_backward(wanted)
