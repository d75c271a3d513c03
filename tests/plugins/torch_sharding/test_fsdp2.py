"""What is particular to fsdp2: uneven pieces, units, gathered copies."""

from __future__ import annotations

from typing import Any, Literal

import pytest
import torch
from moeframe_torch_sharding.fsdp2 import Fsdp2, Fsdp2Model, expert_shard_dim
from moeframe_torch_sharding.optimizer import local_piece
from moeframe_torch_sharding.options import Fsdp2Options
from torch import nn
from torch.distributed.tensor import DTensor, Shard

from moeframe.mesh.build import build_meshes
from moeframe.mesh.degrees import Degrees
from moeframe.protocols.precision import Precision
from moeframe.protocols.sharding import AdamWSettings, ModelPlan, Parameter, Role, Unit
from moeframe.testing.ranks import RankError, RankPool

CPU = torch.device("cpu")
SETTINGS = AdamWSettings(lr=0.5, betas=(0.0, 0.0), eps=1e-30, weight_decay=0.0)


def shard_one(
    layer: nn.Module, world: int, roles: dict[str, Role], precision: Literal["float64", "bfloat16"] = "float64"
) -> Fsdp2Model:
    """Shard a model whose only unit below the root is `layer`; the layer is materialised already."""
    meshes = build_meshes(Degrees(world=world, pp=1, dp_replicate=1, ep=1), CPU)
    model = nn.Module()
    model.layer = layer
    names = {f"layer.{name}": tuple(parameter.shape) for name, parameter in layer.named_parameters()}
    parameters = {
        name: Parameter(name=name, role=roles[name.removeprefix("layer.")], global_shape=shape)
        for name, shape in names.items()
    }
    units = (
        Unit(name="layer", parameters=tuple(names), roles=frozenset(roles.values())),
        Unit(name="", parameters=(), roles=frozenset()),
    )
    plan = ModelPlan(units=units, parameters=parameters, materialize=lambda _unit, _device: None)
    sharded = Fsdp2(Fsdp2Options()).shard(model, plan, meshes, Precision.of(precision))
    assert isinstance(sharded, Fsdp2Model)
    return sharded


def uneven_rows(world: int, rows: int) -> tuple[list[tuple[int, ...]], list[float], float, list[float]]:
    """Rank r multiplies x = r + 1; the loss is the mean over ranks. One step by the sign of the gradient."""
    layer = nn.Linear(2, rows, bias=False, dtype=torch.float64)
    nn.init.zeros_(layer.weight)
    sharded = shard_one(layer, world, {"weight": "dense"})
    rank = torch.distributed.get_rank()
    x_TD = torch.full((1, 2), rank + 1.0, dtype=torch.float64)
    (sharded.module.layer(x_TD).sum() / world).backward()
    sharded.finish_gradients()
    gradient = sharded.full_gradients()["layer.weight"].flatten().tolist()
    norm = float(sharded.clip_(None))
    sharded.optimizer(SETTINGS).step()
    shapes: list[Any] = [None] * world
    torch.distributed.all_gather_object(shapes, tuple(local_piece(sharded.parameters["layer.weight"]).shape))
    return shapes, gradient, norm, sharded.full_parameters()["layer.weight"].flatten().tolist()


def test_c35_three_rows_over_two_ranks(ranks: RankPool) -> None:
    for shapes, gradient, norm, weight in ranks.run(uneven_rows, 2, 3, world_size=2):
        assert shapes == [(2, 2), (1, 2)]
        assert gradient == [1.5] * 6
        assert norm == pytest.approx(1.5 * 6**0.5, rel=1e-15)
        assert weight == [-0.5] * 6


def test_c35_two_rows_over_four_ranks(ranks: RankPool) -> None:
    for shapes, gradient, norm, weight in ranks.run(uneven_rows, 4, 2):
        assert shapes == [(1, 2), (1, 2), (0, 2), (0, 2)]
        assert gradient == [2.5] * 4
        assert norm == 5.0
        assert weight == [-0.5] * 4


@pytest.mark.parametrize(
    ("shape", "ranks", "dim"),
    [((4, 3, 5), 2, 0), ((1, 4, 5), 2, 1), ((3, 4, 5), 2, 1), ((1, 3, 5), 2, 0), ((3, 5, 2), 2, 0), ((3,), 2, 0)],
)
def test_c36_experts_are_never_cut_unevenly_along_the_second_dimension(
    shape: tuple[int, ...], ranks: int, dim: int
) -> None:
    assert expert_shard_dim(shape, ranks) == dim


class Stack(nn.Module):
    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.arange(float(torch.Size(shape).numel()), dtype=torch.float64).view(shape))

    def forward(self, x_EM: torch.Tensor) -> torch.Tensor:
        return torch.einsum("em,emn->n", x_EM, self.weight)


def expert_pieces(shape: tuple[int, int, int]) -> tuple[int, list[float]]:
    """Rank r feeds r + 1 to every row of every expert."""
    sharded = shard_one(Stack(shape), 2, {"weight": "expert"})
    x_EM = torch.full(shape[:2], torch.distributed.get_rank() + 1.0, dtype=torch.float64)
    sharded.module.layer(x_EM).sum().backward()
    sharded.finish_gradients()
    parameter = sharded.parameters["layer.weight"]
    assert isinstance(parameter, DTensor)
    (placement,) = parameter.placements
    assert isinstance(placement, Shard)
    assert torch.equal(sharded.full_parameters()["layer.weight"], Stack(shape).weight.detach())
    return placement.dim, sharded.full_gradients()["layer.weight"].flatten().tolist()


@pytest.mark.parametrize(("shape", "dim"), [((2, 3, 5), 0), ((1, 4, 3), 1), ((1, 3, 2), 0), ((3, 3, 1), 0)], ids=str)
def test_c36_any_expert_stack_can_be_sharded(ranks: RankPool, shape: tuple[int, int, int], dim: int) -> None:
    wanted = [3.0] * torch.Size(shape).numel()
    assert ranks.run(expert_pieces, shape, world_size=2) == [(dim, wanted)] * 2


def weights_seen(load_after_forward: bool) -> list[float]:
    """The last unit keeps its gathered weights after a forward; later changes must reach the next forward."""
    layer = nn.Linear(2, 1, bias=False, dtype=torch.float64)
    nn.init.ones_(layer.weight)
    sharded = shard_one(layer, 2, {"weight": "dense"})
    x_TD = torch.ones(1, 2, dtype=torch.float64)
    with torch.no_grad():
        seen = [float(sharded.module.layer(x_TD))]
    if load_after_forward:
        sharded.load_state_dict({"layer.weight": torch.full((1, 2), 5.0, dtype=torch.float64)})
    else:
        optimizer = sharded.optimizer(SETTINGS)
        sharded.module.layer(x_TD).sum().backward()
        with torch.no_grad():
            sharded.module.layer(x_TD)
        sharded.finish_gradients()
        optimizer.step()
    with torch.no_grad():
        return [*seen, float(sharded.module.layer(x_TD))]


def test_a_forward_after_a_step_or_a_load_sees_the_new_weights(ranks: RankPool) -> None:
    assert ranks.run(weights_seen, False, world_size=2) == [[2.0, 1.0]] * 2
    assert ranks.run(weights_seen, True, world_size=2) == [[2.0, 10.0]] * 2


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.routed = nn.Parameter(torch.ones(2, 2))
        self.shared = nn.Parameter(torch.ones(2))


def shard_mixed() -> None:
    shard_one(Mixed(), 2, {"routed": "expert", "shared": "dense"})


def test_experts_and_dense_parameters_in_one_unit_are_refused(ranks: RankPool) -> None:
    with pytest.raises(RankError, match=r"'layer' holds parameters of the roles \['dense', 'expert'\]"):
        ranks.run(shard_mixed, world_size=2)


class Recorder(nn.Module):
    """Says in which dtypes its weight and its inputs arrive."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))

    def forward(self, *inputs: torch.Tensor) -> list[str]:
        return [str(tensor.dtype) for tensor in (self.weight, *inputs)]


def dtypes_seen() -> tuple[list[str], str]:
    sharded = shard_one(Recorder(), 2, {"weight": "dense"}, "bfloat16")
    seen = sharded.module.layer(torch.ones(1, dtype=torch.bfloat16), torch.ones(1))
    return seen, str(sharded.parameters["layer.weight"].dtype)


def test_bfloat16_gathers_weights_in_bfloat16_and_leaves_inputs_alone(ranks: RankPool) -> None:
    wanted = (["torch.bfloat16", "torch.bfloat16", "torch.float32"], "torch.float32")
    assert ranks.run(dtypes_seen, world_size=2) == [wanted] * 2
