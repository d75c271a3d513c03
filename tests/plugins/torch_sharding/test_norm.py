"""Global norm and clipping over several groups."""

from __future__ import annotations

import math

import pytest
import torch
from moeframe_torch_sharding.norm import Share, clip_to_norm_, global_norm
from moeframe_torch_sharding.optimizer import local_piece
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from moeframe.testing.ranks import RankPool

CPU = torch.device("cpu")


def clip_dense_and_experts(max_norm: float) -> tuple[float, list[float], float]:
    """C10: dense [3, 4] on both ranks; expert 0 has 12 on rank 0, expert 1 has 84 on rank 1."""
    dense = torch.tensor([3.0, 4.0], dtype=torch.float64)
    expert = torch.tensor([[12.0, 84.0][dist.get_rank()]], dtype=torch.float64)
    norm = global_norm([Share([dense], None), Share([expert], dist.group.WORLD)], None, CPU, torch.float64)
    clip_to_norm_([dense, expert], norm, max_norm)
    return float(norm), dense.tolist(), float(expert)


def test_c10_every_expert_counts_once_and_dense_gradients_once(ranks: RankPool) -> None:
    for norm, dense, _ in ranks.run(clip_dense_and_experts, 1e9, world_size=2):
        assert norm == 85.0
        assert dense == [3.0, 4.0]


def test_c11_all_ranks_scale_by_the_same_factor(ranks: RankPool) -> None:
    found = ranks.run(clip_dense_and_experts, 8.5, world_size=2)
    assert [norm for norm, _, _ in found] == [85.0, 85.0]
    assert [dense for _, dense, _ in found] == [pytest.approx([0.3, 0.4], rel=1e-15)] * 2
    assert [expert for *_, expert in found] == pytest.approx([1.2, 8.4], rel=1e-15)


def norm_over_two_meshes() -> float:
    """C38: four 3.0 sharded over 4 ranks; 4x4 ones sharded over 2 of a 2x2 mesh and replicated over the others."""
    line = init_device_mesh("cpu", (4,))
    square = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicas", "shards"))
    a = distribute_tensor(torch.full((4,), 3.0), line, [Shard(0)])
    b = distribute_tensor(torch.ones(4, 4), square, [Replicate(), Shard(0)])
    shares = [Share([local_piece(a)], line.get_group()), Share([local_piece(b)], square.get_group("shards"))]
    return float(global_norm(shares, None, CPU, torch.float32))


def test_c38_gradients_of_two_meshes_have_one_norm(ranks: RankPool) -> None:
    assert ranks.run(norm_over_two_meshes) == [pytest.approx(math.sqrt(52), rel=1e-6)] * 4


def norm_of_plain_and_sharded() -> float:
    """C39: four 1.0 plain on each rank, four 1.0 sharded."""
    line = init_device_mesh("cpu", (2,))
    sharded = distribute_tensor(torch.ones(4), line, [Shard(0)])
    shares = [Share([torch.ones(4)], None), Share([local_piece(sharded)], line.get_group())]
    return float(global_norm(shares, None, CPU, torch.float32))


def test_c39_plain_and_sharded_gradients_have_one_norm(ranks: RankPool) -> None:
    assert ranks.run(norm_of_plain_and_sharded, world_size=2) == [pytest.approx(2.8284271, rel=1e-6)] * 2


def norm_over_stages() -> float:
    """Two data ranks in each of two pipeline stages; the pieces are 1, 2 | 2, 4."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "dp"))
    piece = torch.tensor([[1.0, 2.0], [2.0, 4.0]][mesh.get_local_rank("pp")][mesh.get_local_rank("dp")])
    return float(global_norm([Share([piece], mesh.get_group("dp"))], mesh.get_group("pp"), CPU, torch.float32))


def test_pipeline_stages_add_up(ranks: RankPool) -> None:
    assert ranks.run(norm_over_stages) == [5.0] * 4


def test_bfloat16_gradients_are_squared_in_float32() -> None:
    gradient = torch.full((4096,), 1.0, dtype=torch.bfloat16)
    norm = global_norm([Share([gradient, torch.empty(0)], None)], None, CPU, torch.float32)
    assert float(norm) == 64.0


def test_no_gradients_have_norm_zero_and_clip_to_nothing() -> None:
    norm = global_norm([Share([], None)], None, CPU, torch.float64)
    assert float(norm) == 0.0
    gradient = torch.zeros(2, dtype=torch.float64)
    clip_to_norm_([gradient], norm, 1.0)
    assert gradient.tolist() == [0.0, 0.0]
