"""Expert gradients have the scale of one process, through a real dispatcher."""

from __future__ import annotations

import pytest
import torch
from moeframe_collectives.plugin import moeframe_offer_dispatchers
from moeframe_torch_sharding.plugin import moeframe_offer_shardings
from torch import distributed as dist
from torch import nn

from moeframe.mesh.build import build_meshes
from moeframe.mesh.degrees import Degrees
from moeframe.protocols.dispatcher import DispatcherContext
from moeframe.protocols.precision import Precision
from moeframe.protocols.sharding import ModelPlan, Parameter, Unit
from moeframe.testing.ranks import RankPool

EXPERTS = 4
CPU = torch.device("cpu")


class Scale(nn.Module):
    """Stacked experts y = w x, one number each, all 1; rows come grouped by local expert."""

    def __init__(self, local: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(local, 1, dtype=torch.float64))

    def forward(self, rows_RD: torch.Tensor, counts_E: torch.Tensor) -> torch.Tensor:
        return rows_RD * self.weight.repeat_interleave(counts_E, dim=0)


def expert_gradients(name: str, ep: int, tokens: list[tuple[float, int]], micro_batches: int = 1) -> list[float]:
    """Route (value, expert) tokens, spread over the ranks; the loss is the mean over all of all micro-batches."""
    world = dist.get_world_size()
    meshes = build_meshes(Degrees(world=world, pp=1, dp_replicate=1, ep=ep), CPU)
    model = nn.Module()
    model.experts = Scale(EXPERTS // ep)
    plan = ModelPlan(
        units=(
            Unit(name="experts", parameters=("experts.weight",), roles=frozenset({"expert"})),
            Unit(name="", parameters=(), roles=frozenset()),
        ),
        parameters={"experts.weight": Parameter(name="experts.weight", role="expert", global_shape=(EXPERTS, 1))},
        materialize=lambda _unit, _device: None,
    )
    offer = next(offer for offer in moeframe_offer_shardings() if offer.name == name)
    sharded = offer.build(offer.options()).shard(model, plan, meshes, Precision.of("float64"))
    dispatch_offer = next(offer for offer in moeframe_offer_dispatchers() if offer.name == "alltoall")
    context = DispatcherContext(
        ep_axis="ep",
        ep_size=ep,
        ep_rank=meshes.rank("ep"),
        ep_group=meshes.group("ep"),
        num_experts=EXPERTS,
        hidden_size=1,
        top_k=1,
        max_tokens=len(tokens),
        dtype=torch.float64,
        device=CPU,
    )
    dispatcher = dispatch_offer.build(dispatch_offer.options(), context)
    each = len(tokens) // world
    mine = tokens[meshes.rank("dp") * each :][:each]
    for _ in range(micro_batches):
        x_TD = torch.tensor([[value] for value, _ in mine], dtype=torch.float64, requires_grad=True)
        ids_TK = torch.tensor([[expert] for _, expert in mine])
        dispatched = dispatcher.dispatch(x_TD, torch.ones(each, 1, dtype=torch.float64), dispatcher.layout(ids_TK))
        rows_RD = sharded.module.experts(dispatched.rows_RD, dispatched.counts_E)
        (dispatcher.combine(rows_RD, dispatched).sum() / (len(tokens) * micro_batches)).backward()
    sharded.finish_gradients()
    local_E = sharded.full_gradients()["experts.weight"].flatten()
    parts = [torch.empty_like(local_E) for _ in range(ep)]
    dist.all_gather(parts, local_E, group=meshes.group("ep"))
    return torch.cat(parts).tolist()


@pytest.mark.parametrize(("world", "ep"), [(1, 1), (2, 2), (2, 1), (4, 2), (4, 4)])
@pytest.mark.parametrize("name", ["replicate", "zero1", "fsdp2", "hsdp"])
def test_c08_expert_gradients_are_those_of_one_process(ranks: RankPool, name: str, world: int, ep: int) -> None:
    """C07's four tokens; experts 2 and 3 get none."""
    tokens = [(1.0, 0), (2.0, 1), (3.0, 0), (4.0, 1)]
    assert ranks.run(expert_gradients, name, ep, tokens, world_size=world) == [[1.0, 1.5, 0.0, 0.0]] * world


@pytest.mark.parametrize("name", ["replicate", "zero1", "fsdp2", "hsdp"])
def test_c09_micro_batches_add_up_in_an_expert_group_of_one(ranks: RankPool, name: str) -> None:
    """EP = DP = 2, so each expert has one holder; four micro-batches give it a gradient of 1 each."""
    tokens = [(8.0, 0), (8.0, 3)]
    assert ranks.run(expert_gradients, name, 2, tokens, 4, world_size=2) == [[4.0, 0.0, 0.0, 4.0]] * 2


@pytest.mark.parametrize("name", ["replicate", "zero1", "fsdp2", "hsdp"])
def test_c34_ranks_that_use_different_experts_do_not_mix_them(ranks: RankPool, name: str) -> None:
    """Rank r sends x = r + 1 to expert r only, and holds all experts: 1/2 and 2/2."""
    tokens = [(1.0, 0), (2.0, 1)]
    assert ranks.run(expert_gradients, name, 1, tokens, world_size=2) == [[0.5, 1.0, 0.0, 0.0]] * 2
