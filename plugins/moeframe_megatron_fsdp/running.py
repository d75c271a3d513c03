"""Hooks by which a model that the package has wrapped runs unit by unit, as schedules do, not only as a whole.

The package gathers weights and watches the backward from the root module's call. Here any unit may be called without
the root, a unit's parameters may be read by a module above their own, and the root may be one of several stages.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from moeframe.protocols.sharding import ModelPlan
from moeframe_megatron_fsdp.engine import Engine
from moeframe_megatron_fsdp.names import alias
from moeframe_megatron_fsdp.units import outermost, own_modules

__all__ = ["attach"]


def attach(engine: Engine, model: nn.Module, plan: ModelPlan) -> None:
    """Put the hooks on the modules of every unit."""
    outer = {unit.name for unit in outermost(plan)} | {""}
    for unit in plan.units:
        own = [engine.raw(alias(plan, name)) for name in unit.parameters]
        for module in own_modules(model, plan, unit):
            module.register_forward_pre_hook(partial(_before, engine, own), prepend=True)
            if unit.name in outer:
                module.register_forward_hook(partial(_after, engine, _whole_unit(engine, plan, unit.name)))


def _whole_unit(engine: Engine, plan: ModelPlan, unit: str) -> list[nn.Parameter]:
    """Return the parameters of a unit and of those inside it; of the root, only its own."""
    inside = [
        name
        for other in plan.units
        if other.name == unit or (unit and other.name.startswith(f"{unit}."))
        for name in other.parameters
    ]
    return [engine.raw(alias(plan, name)) for name in inside]


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _before(engine: Engine, parameters: list[nn.Parameter], module: nn.Module, args: Any) -> None:  # noqa: ARG001
    engine.use_raw()
    engine.gather(parameters)


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _after(engine: Engine, parameters: list[nn.Parameter], module: nn.Module, args: Any, output: Any) -> Any:  # noqa: ARG001
    """Hang the start of the backward on the outputs, before what the package has hung there: on views of them."""
    if not torch.is_grad_enabled():
        return None
    leaves, spec = pytree.tree_flatten(output)
    chosen = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    if not chosen:
        return None
    for i in chosen:
        leaves[i] = leaves[i].view_as(leaves[i])

    def begin(_: torch.Tensor) -> None:
        engine.begin_backward()
        # The package finds outputs in tuples and lists only.
        engine.gather(parameters, backward=True)

    torch.autograd.graph.register_multi_grad_hook([leaves[i] for i in chosen], begin, mode="any")
    return pytree.tree_unflatten(leaves, spec)
