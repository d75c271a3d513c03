"""The modules of a plan's units, and the marks by which Megatron-FSDP knows them."""

from __future__ import annotations

from torch import nn

from moeframe.protocols.sharding import ModelPlan, Unit

__all__ = ["Marked", "mark", "outermost", "own_modules"]


class Marked:
    """A class that the module of a unit has besides its own.

    The package takes unit *classes*, and every module of such a class becomes a unit. A mark makes it these modules and
    no other. torch's fully_shard does likewise.
    """


def outermost(plan: ModelPlan) -> tuple[Unit, ...]:
    """Return the units that lie in no other one but the root: the package knows no units inside units.

    What an inner unit has of another dtype or role still lies in a buffer of its own.
    """
    names = [unit.name for unit in plan.units if unit.name]
    return tuple(
        unit
        for unit in plan.units
        if unit.name and not any(unit.name.startswith(f"{other}.") for other in names if other != unit.name)
    )


def own_modules(model: nn.Module, plan: ModelPlan, unit: Unit) -> list[nn.Module]:
    """Return the module of a unit; of the root unit, whose name is empty, every module that a schedule calls."""
    return [model.get_submodule(name) for name in ([unit.name] if unit.name else plan.roots)]


def mark(module: nn.Module) -> None:
    """Give a module the mark; it keeps its class's name."""
    kind = type(module)
    if not issubclass(kind, Marked):
        module.__class__ = type(kind.__name__, (Marked, kind), {"__module__": kind.__module__})
