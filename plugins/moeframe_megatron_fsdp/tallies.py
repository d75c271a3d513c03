"""A small model for trials: the gradient of every weight is a number that is known beforehand."""

from __future__ import annotations

from typing import Final

import torch
from torch import nn

from moeframe.protocols.precision import Precision
from moeframe.protocols.sharding import Meshes, ModelPlan, Parameter, Role, Unit

__all__ = ["DENSE_ELEMENTS", "DENSE_UNITS", "Tallies", "plan_of", "seen"]

DENSE_UNITS: Final = 16
SHAPES: Final[dict[Role, tuple[int, int]]] = {"dense": (64, 256), "router": (3, 5), "expert": (3, 7)}
DENSE_ELEMENTS: Final = 64 * 256


class Tally(nn.Module):
    """Adds its weight times a number to the sum that goes through it; notes the mean of the weight it has seen."""

    def __init__(self, role: Role) -> None:
        super().__init__()
        self.role: Role = role
        self.weight = nn.Parameter(torch.empty(SHAPES[role]))
        self.seen = torch.zeros(())

    def forward(self, sum_1: torch.Tensor, number: float) -> torch.Tensor:
        """Return the sum (1,) with this module's part."""
        self.seen = self.weight.detach().float().mean()
        return sum_1 + (self.weight * number).sum().to(sum_1.dtype)


class Tallies(nn.Module):
    """A router, dense units, and experts in two units; on the meta device."""

    def __init__(self) -> None:
        """Build it without values."""
        super().__init__()
        roles: list[Role] = ["router", *(["dense"] * DENSE_UNITS), "expert", "expert"]  # type: ignore[list-item]
        with torch.device("meta"):
            self.parts = nn.ModuleList([Tally(role) for role in roles])

    def forward(self, number: float, device: torch.device) -> torch.Tensor:
        """Return the sum (1,) of all parts; every weight's gradient is the number."""
        sum_1 = torch.zeros(1, dtype=torch.float32, device=device)
        for part in self.parts:
            sum_1 = part(sum_1, number)
        return sum_1


def seen(model: Tallies) -> dict[str, float]:
    """Return the mean of every weight in the last forward, by parameter name."""
    return {f"parts.{i}.weight": float(part.seen) for i, part in enumerate(model.parts) if isinstance(part, Tally)}


def plan_of(model: Tallies, mesh: Meshes, precision: Precision) -> ModelPlan:
    """Describe the model; weights are filled with ones."""
    parts = {f"parts.{index}": part for index, part in enumerate(model.parts) if isinstance(part, Tally)}

    def materialize(unit: str, device: torch.device) -> None:
        if unit:
            ones = torch.ones(SHAPES[parts[unit].role], dtype=precision.dtype("parameters"), device=device)
            parts[unit].weight = nn.Parameter(ones)

    units = [
        Unit(
            name=name,
            parameters=(f"{name}.weight",),
            roles=frozenset({part.role}),
            high_precision=part.role == "router",
        )
        for name, part in parts.items()
    ]
    parameters = {}
    for name, part in parts.items():
        rows, columns = SHAPES[part.role]
        holders = mesh.size("ep") if part.role == "expert" else 1
        weight = f"{name}.weight"
        parameters[weight] = Parameter(name=weight, role=part.role, global_shape=(rows * holders, columns))
    return ModelPlan(
        units=(*units, Unit(name="", parameters=(), roles=frozenset())), parameters=parameters, materialize=materialize
    )
