"""What is particular to hsdp: where shards and their replicas lie."""

from __future__ import annotations

import pytest
import torch
from moeframe_torch_sharding.hsdp import Hsdp, HsdpModel
from moeframe_torch_sharding.optimizer import local_piece
from moeframe_torch_sharding.options import Fsdp2Options
from torch.distributed.tensor import DTensor

from moeframe.mesh.build import build_meshes
from moeframe.mesh.degrees import Degrees
from moeframe.protocols.precision import Precision
from moeframe.protocols.sharding import AdamWSettings
from moeframe.testing.ranks import RankPool
from moeframe.testing.sharding_toy import Placement, Toy, plan_of

CPU = torch.device("cpu")
SETTINGS = AdamWSettings(lr=0.1, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0)


def lay_out(dp_replicate: int, ep: int) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]], list[str], int]:
    """Return the local shapes of a dense parameter, an expert stack and their global state, and of Adam's moments."""
    meshes = build_meshes(Degrees(world=4, pp=1, dp_replicate=dp_replicate, ep=ep), CPU)
    placement = Placement(num_experts=4, ep_size=ep, ep_rank=meshes.rank("ep"), ep_group=meshes.group("ep"))
    with torch.device("meta"):
        model = Toy(placement)
    plan = plan_of(model, placement, torch.float64)
    sharded = Hsdp(Fsdp2Options()).shard(model, plan, meshes, Precision.of("float64"))
    assert isinstance(sharded, HsdpModel)
    names = ("blocks.0.attend.project.weight", "blocks.0.experts.routed.up")
    state = sharded.state_dict()
    moments = sharded.optimizer_state_dict(sharded.optimizer(SETTINGS))
    placements = []
    for name in names:
        assert isinstance(state[name], DTensor)
        assert moments[name]["exp_avg"].placements == state[name].placements
        placements.append(f"{state[name].device_mesh.mesh_dim_names} {state[name].placements}")
    return (
        [tuple(local_piece(sharded.parameters[name]).shape) for name in names],
        [tuple(state[name].shape) for name in names],
        placements,
        sum(local_piece(held["exp_avg"]).numel() for held in moments.values()),
    )


@pytest.mark.parametrize(
    ("dp_replicate", "ep", "dense", "expert"),
    [
        (2, 1, (3, 6), (2, 6, 5)),  # two shards of the project's 6 rows, of the 4 experts
        (2, 2, (3, 6), (2, 6, 5)),  # an expert stack of 2 has one shard in each replica
        (4, 1, (6, 6), (4, 6, 5)),  # every rank is a replica
    ],
)
def test_shards_lie_within_a_replica(
    ranks: RankPool, dp_replicate: int, ep: int, dense: tuple[int, ...], expert: tuple[int, ...]
) -> None:
    found = ranks.run(lay_out, dp_replicate, ep)
    for pieces, shapes, placements, _ in found:
        assert pieces == [dense, expert]
        assert shapes == [(6, 6), (4, 6, 5)]
        assert placements == [
            "('dp_replicate', 'dp_shard') (Replicate(), Shard(dim=0))",
            "('ep', 'dp_replicate', 'edp_shard') (Shard(dim=0), Replicate(), Shard(dim=0))",
        ]
    with torch.device("meta"):
        whole = sum(parameter.numel() for parameter in Toy(Placement(num_experts=4)).parameters())
    assert sum(moments for *_, moments in found) == dp_replicate * whole, "each replica holds everything once"
