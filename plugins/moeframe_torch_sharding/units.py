"""Check that a plan and the model it describes agree, before parameters are laid out by it."""

from __future__ import annotations

from torch import nn

from moeframe.errors import ContractError
from moeframe.protocols.sharding import ModelPlan, Unit

__all__ = ["require_plan_fits", "unit_modules"]


def unit_modules(model: nn.Module, plan: ModelPlan, unit: Unit) -> list[nn.Module]:
    """Return the module of a unit; of the root unit, whose name is empty, every module that a schedule calls."""
    return [model.get_submodule(name) for name in ([unit.name] if unit.name else plan.roots)]


def require_plan_fits(model: nn.Module, plan: ModelPlan) -> None:
    """Require that every parameter belongs to the innermost unit above it and that units come inside out.

    Raises:
        ContractError: with the first name that breaks the rule.
    """
    order = [unit.name for unit in plan.units]
    if not order or order[-1] or len(set(order)) != len(order):
        raise ContractError(f"A plan lists each unit once and the root ('') last. Given: {order}.")
    for position, name in enumerate(order):
        late = [inner for inner in order[position + 1 :] if inner.startswith(f"{name}.")]
        if late:
            raise ContractError(f"Unit {late[0]!r} lies inside {name!r} and must come before it in the plan.")
    claimed = {parameter: unit.name for unit in plan.units for parameter in unit.parameters}
    present = dict(model.named_parameters())
    for name in present.keys() | claimed.keys() | plan.parameters.keys():
        if name not in present or name not in claimed or name not in plan.parameters:
            raise ContractError(
                f"Parameter {name!r}: in the model {name in present}, in a unit {name in claimed}, in the plan's "
                f"parameters {name in plan.parameters}. It must be in all three."
            )
        inner = max((unit for unit in order if not unit or name.startswith(f"{unit}.")), key=len)
        if claimed[name] != inner:
            raise ContractError(f"Parameter {name!r} is listed in unit {claimed[name]!r}, but belongs to {inner!r}.")
