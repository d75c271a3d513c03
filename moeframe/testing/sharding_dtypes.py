"""In which dtypes a sharding keeps, gathers and sums: numbers that are exact in float32 and wrong in bfloat16."""

from __future__ import annotations

import torch
from torch import distributed as dist
from torch import nn

from moeframe.mesh.build import build_meshes
from moeframe.mesh.degrees import Degrees
from moeframe.protocols.precision import DtypeName, Precision
from moeframe.protocols.sharding import ModelPlan, Parameter, Role, Unit
from moeframe.testing.device import rank_device
from moeframe.testing.sharding_bench import Subject, describe, require

__all__ = ["check_dtypes"]

MICRO_BATCHES = 2


class _Tally(nn.Module):
    """Multiplies its weight by a number, so that the number is the gradient; notes the dtype of its weight."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(rows, 3))
        self.seen: torch.dtype | None = None

    def forward(self, x_1: torch.Tensor) -> torch.Tensor:
        self.seen = self.weight.dtype
        return (self.weight.to(x_1.dtype) * x_1).sum()[None]


class _Tallies(nn.Module):
    """A unit of each role; experts have one row, one expert."""

    def __init__(self) -> None:
        super().__init__()
        self.dense, self.router, self.experts = _Tally(3), _Tally(3), _Tally(1)

    def forward(self, x_1: torch.Tensor) -> torch.Tensor:
        total_1: torch.Tensor = self.dense(x_1) + self.router(x_1) + self.experts(x_1)
        return total_1


def check_dtypes(subject: Subject, degrees: Degrees, precision_name: DtypeName) -> None:
    """Weights rest in the dtype `parameters`, arrive in `compute` or more exactly, and are summed in `reduce`.

    The first rank adds 256, every other rank and micro-batch 1: bfloat16 has no odd numbers there.
    """
    rank = dist.get_rank()
    device = rank_device(subject.device)
    precision, meshes = Precision.of(precision_name), build_meshes(degrees, device)
    place = f"{describe(degrees)}, {precision_name}, rank {rank}"
    with torch.device("meta"):
        model = _Tallies()
    tallies = {"dense": model.dense, "router": model.router, "experts": model.experts}
    roles: dict[str, Role] = {"dense": "dense", "router": "router", "experts": "expert"}

    def materialize(unit: str, where: torch.device) -> None:
        if unit:
            shape = tallies[unit].weight.shape
            tallies[unit].weight = nn.Parameter(torch.ones(shape, dtype=precision.dtype("parameters"), device=where))

    plan = ModelPlan(
        units=(
            *(
                Unit(
                    name=name,
                    parameters=(f"{name}.weight",),
                    roles=frozenset({role}),
                    high_precision=role == "router",
                )
                for name, role in roles.items()
            ),
            Unit(name="", parameters=(), roles=frozenset()),
        ),
        parameters={
            f"{name}.weight": Parameter(
                name=f"{name}.weight", role=role, global_shape=(degrees.ep if role == "expert" else 3, 3)
            )
            for name, role in roles.items()
        },
        materialize=materialize,
    )
    sharded = subject.offer.build(subject.offer.options(**subject.options)).shard(model, plan, meshes, precision)
    high, compute = precision.dtype("high"), precision.dtype("compute")
    for micro_batch in range(MICRO_BATCHES):
        total = torch.zeros(1, dtype=high, device=device)
        for name, role in roles.items():
            first = micro_batch == 0 and meshes.rank("edp" if role == "expert" else "dp") == 0
            dtype = high if role == "router" else compute
            total = total + tallies[name](torch.full((1,), 256.0 if first else 1.0, dtype=dtype, device=device)).to(
                high
            )
        total.sum().backward()  # type: ignore[no-untyped-call]
    sharded.finish_gradients()
    for name in roles:
        seen, legal = tallies[name].seen, {high} if name == "router" else {compute, precision.dtype("parameters")}
        require(seen in legal, f"{place}: the weight of unit {name!r} arrived in {seen}, expected {legal}")
    wanted_dtype = precision.dtype("parameters")
    for what, found in (("gradient", sharded.full_gradients()), ("parameter", sharded.full_parameters())):
        wrong = {name: str(tensor.dtype) for name, tensor in found.items() if tensor.dtype != wanted_dtype}
        require(not wrong, f"{place}: every {what} rests in {wanted_dtype}, but these do not: {wrong}")
    for name, gradient in sharded.full_gradients().items():
        copies = meshes.size("edp" if plan.role(name) == "expert" else "dp")
        exact = 256.0 + copies * MICRO_BATCHES - 1
        value = float(gradient.flatten()[0])
        require(
            value == exact and bool((gradient == value).all()),
            f"{place}: the gradient of {name} is {value}, the sum is {exact}: gradients of all micro-batches and ranks "
            f"are added in {precision.dtype('reduce')}, bfloat16 rounds",
        )
