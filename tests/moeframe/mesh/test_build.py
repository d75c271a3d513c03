"""Process groups and device meshes."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import torch
from torch import distributed as dist

from moeframe.errors import ContractError, TopologyError
from moeframe.mesh.build import AXES, build_meshes
from moeframe.mesh.degrees import Degrees
from moeframe.protocols.sharding import Meshes
from moeframe.testing.ranks import RankError, RankPool

CPU = torch.device("cpu")
SEVERAL = [
    ("dp_replicate", "dp_shard"),
    ("edp", "ep"),
    ("ep", "edp"),
    ("dp_replicate", "edp_shard"),
    ("ep", "dp_replicate", "edp_shard"),
]


def degrees_of(layout: tuple[int, int, int, int]) -> Degrees:
    world, pp, dp_replicate, ep = layout
    return Degrees(world=world, pp=pp, dp_replicate=dp_replicate, ep=ep)


def describe(layout: tuple[int, int, int, int]) -> dict[str, Any]:
    """What one rank sees: for every axis its ranks, size, coordinate and a sum over its group; meshes over several."""
    meshes: Meshes = build_meshes(degrees_of(layout), CPU, timeout=timedelta(seconds=30))
    seen: dict[str, Any] = {}
    for axis in AXES:
        group = meshes.group(axis)
        assert group is not None
        total = torch.tensor(10 ** dist.get_rank())
        dist.all_reduce(total, group=group)
        mesh = meshes.mesh(axis)
        assert mesh is meshes.mesh(axis)
        assert mesh.get_group() is group
        assert (mesh.size(), mesh.get_local_rank()) == (meshes.size(axis), meshes.rank(axis))
        seen[axis] = (dist.get_process_group_ranks(group), meshes.size(axis), meshes.rank(axis), int(total))
    for axes in SEVERAL:
        mesh = meshes.mesh(*axes)
        assert [mesh.get_group(axis) for axis in axes] == [meshes.group(axis) for axis in axes]
        assert mesh.get_coordinate() is not None
        assert tuple(mesh.get_coordinate() or ()) == tuple(meshes.rank(axis) for axis in axes)
        seen["x".join(axes)] = mesh.mesh.tolist()
    return seen


LINES: dict[tuple[int, int, int, int], dict[str, list[list[int]]]] = {
    (4, 1, 1, 2): {
        "pp": [[0], [1], [2], [3]],
        "dp_replicate": [[0], [1], [2], [3]],
        "dp_shard": [[0, 1, 2, 3]],
        "dp": [[0, 1, 2, 3]],
        "ep": [[0, 1], [2, 3]],
        "edp": [[0, 2], [1, 3]],
        "edp_shard": [[0, 2], [1, 3]],
    },
    (4, 2, 1, 2): {
        "pp": [[0, 2], [1, 3]],
        "dp_replicate": [[0], [1], [2], [3]],
        "dp_shard": [[0, 1], [2, 3]],
        "dp": [[0, 1], [2, 3]],
        "ep": [[0, 1], [2, 3]],
        "edp": [[0], [1], [2], [3]],
        "edp_shard": [[0], [1], [2], [3]],
    },
    (4, 1, 2, 2): {
        "pp": [[0], [1], [2], [3]],
        "dp_replicate": [[0, 2], [1, 3]],
        "dp_shard": [[0, 1], [2, 3]],
        "dp": [[0, 1, 2, 3]],
        "ep": [[0, 1], [2, 3]],
        "edp": [[0, 2], [1, 3]],
        "edp_shard": [[0], [1], [2], [3]],
    },
    (4, 1, 2, 1): {
        "pp": [[0], [1], [2], [3]],
        "dp_replicate": [[0, 2], [1, 3]],
        "dp_shard": [[0, 1], [2, 3]],
        "dp": [[0, 1, 2, 3]],
        "ep": [[0], [1], [2], [3]],
        "edp": [[0, 1, 2, 3]],
        "edp_shard": [[0, 1], [2, 3]],
    },
    (1, 1, 1, 1): {axis: [[0]] for axis in AXES},
}


@pytest.mark.parametrize("layout", LINES, ids=str)
def test_every_axis_has_its_ranks_in_order(ranks: RankPool, layout: tuple[int, int, int, int]) -> None:
    for rank, seen in enumerate(ranks.run(describe, layout, world_size=layout[0])):
        for axis, lines in LINES[layout].items():
            (line,) = [line for line in lines if rank in line]
            assert seen[axis] == (line, len(line), line.index(rank), sum(10**r for r in line)), axis


def test_meshes_over_several_axes_cover_the_data_ranks_of_one_pipeline_stage(ranks: RankPool) -> None:
    seen = ranks.run(describe, (4, 1, 2, 2))
    assert seen[3]["dp_replicatexdp_shard"] == [[0, 1], [2, 3]]
    assert seen[3]["edpxep"] == [[0, 1], [2, 3]]
    assert seen[3]["epxedp"] == [[0, 2], [1, 3]]
    assert seen[3]["dp_replicatexedp_shard"] == [[1], [3]], "of this rank's experts only"
    assert seen[3]["epxdp_replicatexedp_shard"] == [[[0], [2]], [[1], [3]]]
    assert ranks.run(describe, (4, 1, 2, 1))[2]["dp_replicatexedp_shard"] == [[0, 1], [2, 3]]
    staged = ranks.run(describe, (4, 2, 1, 2))
    assert staged[1]["epxedp"] == [[0], [1]]
    assert staged[2]["epxedp"] == [[2], [3]]


def test_one_process_without_a_group_has_axes_of_size_one() -> None:
    meshes = build_meshes(degrees_of((1, 1, 1, 1)), CPU)
    for axis in AXES:
        assert (meshes.size(axis), meshes.rank(axis), meshes.group(axis)) == (1, 0, None)
    with pytest.raises(ContractError, match="without a process group"):
        meshes.mesh("dp")
    with pytest.raises(KeyError, match="no axis 'tp'"):
        meshes.group("tp")


def test_more_ranks_than_processes_are_refused() -> None:
    with pytest.raises(TopologyError, match=r"needs 4 processes \(pp 2 x dp_replicate 1 x dp_shard 2\), but 1 run"):
        build_meshes(degrees_of((4, 2, 1, 2)), CPU)


def ask_for(axes: tuple[str, ...]) -> None:
    build_meshes(degrees_of((2, 1, 1, 2)), CPU).mesh(*axes)


@pytest.mark.parametrize("axes", [("pp", "ep"), ("tp",)])
def test_a_mesh_that_does_not_exist_is_refused(ranks: RankPool, axes: tuple[str, ...]) -> None:
    with pytest.raises(RankError, match="There is no mesh over"):
        ranks.run(ask_for, axes, world_size=2)
