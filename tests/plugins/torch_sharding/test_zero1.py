"""What is particular to zero1: shares of optimizer state, pieces of gradients, whole parameters after a step."""

from __future__ import annotations

from typing import Any, Literal

import pytest
import torch
from moeframe_torch_sharding.options import Zero1Options
from moeframe_torch_sharding.zero1 import Zero1, Zero1Model
from torch import nn
from torch.distributed.tensor import DTensor

from moeframe.errors import ContractError
from moeframe.mesh.build import build_meshes
from moeframe.mesh.degrees import Degrees
from moeframe.protocols.precision import Precision
from moeframe.protocols.sharding import AdamWSettings, ModelPlan, Parameter, Role, Unit
from moeframe.testing.ranks import RankError, RankPool

CPU = torch.device("cpu")
SETTINGS = AdamWSettings(lr=0.5, betas=(0.0, 0.0), eps=1e-30, weight_decay=0.0)
"""A step of 0.5 against the sign of the gradient."""


class Holder(nn.Module):
    """Parameters of given shapes, all ones; the forward is the sum of all, times a number."""

    def __init__(self, shapes: dict[str, tuple[int, ...]], dtype: torch.dtype) -> None:
        super().__init__()
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter(torch.ones(shape, dtype=dtype)))

    def forward(self, factor: float) -> torch.Tensor:
        return torch.stack([parameter.sum() for parameter in self.parameters()]).sum() * factor


def shard(
    shapes: dict[str, tuple[int, ...]],
    world: int,
    ep: int = 1,
    precision: Literal["float64", "float32", "bfloat16"] = "float64",
    bucket_bytes: int = 2**20,
) -> Zero1Model:
    """Lay out a holder; names that start with `expert` are experts, with the shape of the local stack."""
    meshes = build_meshes(Degrees(world=world, pp=1, dp_replicate=1, ep=ep), CPU)
    policy = Precision.of(precision)
    model = Holder(shapes, policy.dtype("parameters"))
    parameters = {}
    for name, shape in shapes.items():
        role: Role = "expert" if name.startswith("expert") else "dense"
        wanted = (shape[0] * ep, *shape[1:]) if role == "expert" else shape
        parameters[name] = Parameter(name=name, role=role, global_shape=wanted)
    plan = ModelPlan(
        units=(Unit(name="", parameters=tuple(shapes), roles=frozenset(p.role for p in parameters.values())),),
        parameters=parameters,
        materialize=lambda _unit, _device: None,
    )
    return Zero1(Zero1Options(bucket_bytes=bucket_bytes)).shard(model, plan, meshes, policy)


SHAPES: dict[str, tuple[int, ...]] = {
    "even": (8, 6),
    "uneven": (7, 4),
    "vector": (5,),
    "few": (1, 12),
    "expert_stack": (2, 4, 3),
    "expert_one": (1, 8, 3),
}


def all_are(value: float) -> dict[str, list[float]]:
    return {name: [value] for name in SHAPES}


def state_bytes(world: int, ep: int) -> tuple[int, int, int]:
    """Return the bytes of the moments, of the parameters, and of the gradients' pieces on this rank."""
    sharded = shard(SHAPES, world, ep)
    moments = sharded.optimizer(SETTINGS).moments()
    sharded.module(1.0).backward()
    sharded.finish_gradients()
    gradients = [p.grad.to_local() if isinstance(p.grad, DTensor) else p.grad for p in sharded.parameters.values()]
    return (
        sum(held[key].nbytes for held in moments.values() for key in ("exp_avg", "exp_avg_sq")),
        sum(parameter.nbytes for parameter in sharded.parameters.values()),
        sum(gradient.nbytes for gradient in gradients if gradient is not None),
    )


@pytest.mark.parametrize(("world", "ep"), [(1, 1), (2, 1), (4, 1), (4, 2)])
def test_optimizer_state_is_one_share_of_the_parameters(ranks: RankPool, world: int, ep: int) -> None:
    found = ranks.run(state_bytes, world, ep, world_size=world)
    dense = 8 * sum(torch.Size(shape).numel() for name, shape in SHAPES.items() if not name.startswith("expert"))
    experts = 8 * sum(torch.Size(shape).numel() for name, shape in SHAPES.items() if name.startswith("expert"))
    assert sum(moments for moments, *_ in found) == 2 * (dense + ep * experts), "each moment is somewhere, once"
    padding = 8 * 4 * 4  # of a piece: a row of `uneven`, and one number each of what does not divide
    share = dense / world + experts / (world // ep)
    for moments, parameters, gradients in found:
        assert parameters == dense + experts, "parameters stay whole"
        assert moments <= 2 * (share + padding)
        assert gradients <= share + padding, "whole gradients are freed"


def gradients_after(micro_batches: int, bucket_bytes: int) -> dict[str, list[float]]:
    """Rank r and micro-batch m add r + m; bfloat16 policy, so parameters are float32."""
    sharded = shard(SHAPES, 2, precision="bfloat16", bucket_bytes=bucket_bytes)
    rank = torch.distributed.get_rank()
    for micro_batch in range(micro_batches):
        sharded.module(float(rank + micro_batch)).backward()
    sharded.finish_gradients()
    for parameter in sharded.parameters.values():
        assert isinstance(parameter.grad, DTensor)
        assert parameter.dtype == parameter.grad.dtype == torch.float32
        assert parameter.grad.shape == parameter.shape
    return {name: gradient.unique().tolist() for name, gradient in sharded.full_gradients().items()}


@pytest.mark.parametrize("bucket_bytes", [1, 100, 2**20])
def test_final_gradients_are_sums_in_pieces(ranks: RankPool, bucket_bytes: int) -> None:
    assert ranks.run(gradients_after, 3, bucket_bytes, world_size=2) == [all_are(9.0)] * 2


def two_steps(set_to_none: bool, load_between: bool) -> dict[str, list[float]]:
    """Step by 0.5 twice, from 1 or from what was loaded between the steps."""
    sharded = shard(SHAPES, 2)
    optimizer = sharded.optimizer(SETTINGS)
    for step in range(2):
        if step and load_between:
            sharded.load_state_dict({name: torch.full_like(p, 7.0) for name, p in sharded.parameters.items()})
        sharded.module(1.0).backward()
        sharded.finish_gradients()
        optimizer.step()
        optimizer.zero_grad(set_to_none=set_to_none)
        assert all((parameter.grad is None) is set_to_none for parameter in sharded.parameters.values())
    assert all(type(parameter.data) is torch.Tensor for parameter in sharded.parameters.values())
    return {name: parameter.unique().tolist() for name, parameter in sharded.parameters.items()}


@pytest.mark.parametrize("set_to_none", [True, False])
def test_every_rank_holds_whole_new_parameters(ranks: RankPool, set_to_none: bool) -> None:
    assert ranks.run(two_steps, set_to_none, False, world_size=2) == [all_are(0.0)] * 2


def test_pieces_follow_what_is_loaded(ranks: RankPool) -> None:
    """Also the pieces that are copies, because their cut is not along dimension 0."""
    assert ranks.run(two_steps, True, True, world_size=2) == [all_are(6.5)] * 2


def test_one_process_without_a_group_cuts_nothing() -> None:
    sharded = shard(SHAPES, 1)
    optimizer = sharded.optimizer(SETTINGS)
    sharded.module(2.0).backward()
    sharded.finish_gradients()
    optimizer.step()
    assert {name: parameter.unique().tolist() for name, parameter in sharded.parameters.items()} == all_are(0.5)
    assert not any(isinstance(value, DTensor) for value in sharded.state_dict().values())


def shard_scalar() -> Any:
    return shard({"scalar": ()}, 2) and None


def test_a_scalar_is_refused(ranks: RankPool) -> None:
    with pytest.raises(
        RankError, match=r"'scalar' is a scalar, which cannot be cut. Give it the shape \(1,\)"
    ) as error:
        ranks.run(shard_scalar, world_size=2)
    assert isinstance(error.value.error, ContractError)
