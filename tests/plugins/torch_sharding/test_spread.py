"""Pieces of tensors of global shape."""

from __future__ import annotations

import pytest
import torch
from moeframe_torch_sharding.spread import Spread
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from moeframe.errors import ContractError
from moeframe.testing.ranks import RankPool


def cut(shape: tuple[int, ...]) -> bool:
    """Cut a counting tensor over 2 x 2 ranks: by both along rows, by both along different dimensions, by one only."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("outer", "inner"))
    whole = torch.arange(float(torch.Size(shape).numel())).view(shape)
    outer, inner = dist.get_rank() // 2, dist.get_rank() % 2
    rows = whole.chunk(2)[outer]
    expected = {
        (Shard(0), Shard(0)): (*rows.chunk(2), rows[:0])[inner],
        (Shard(0), Shard(1)): rows.chunk(2, dim=1)[inner],
        (Shard(0), Replicate()): rows,
    }
    for placements, wanted in expected.items():
        spread = Spread(shape, mesh, placements)
        piece = spread.piece("x", whole)
        assert torch.equal(piece, wanted), placements
        wrapped = spread.wrap(piece)
        assert isinstance(wrapped, DTensor)
        assert tuple(wrapped.shape) == shape
        assert torch.equal(spread.whole(piece), whole)
        assert spread.piece("x", wrapped).data_ptr() == piece.data_ptr(), "a tensor of this layout is not moved"
    elsewhere = distribute_tensor(whole, init_device_mesh("cpu", (4,)), [Shard(1)])
    assert torch.equal(Spread(shape, mesh, (Shard(0), Shard(0))).piece("x", elsewhere), rows.chunk(2)[inner])
    return True


@pytest.mark.parametrize("shape", [(4, 4), (6, 2)], ids=str)
def test_pieces_are_cut_as_dtensor_cuts_them(ranks: RankPool, shape: tuple[int, ...]) -> None:
    assert all(ranks.run(cut, shape))


def cut_alone() -> bool:
    piece, size = torch.ones(2), dist.get_world_size()
    line = Spread((2,), init_device_mesh("cpu", (size,)), (Replicate(),))
    square = Spread((2,), init_device_mesh("cpu", (size, 1)), (Replicate(), Shard(0)))
    return all(spread.whole(piece).data_ptr() != piece.data_ptr() for spread in (line, square))


def test_the_whole_is_a_copy_where_nothing_is_cut(ranks: RankPool) -> None:
    assert ranks.run(cut_alone, world_size=1) == [True]
    assert ranks.run(cut_alone, world_size=2) == [True] * 2
    piece = torch.ones(2)
    assert Spread((2,)).whole(piece).data_ptr() != piece.data_ptr()
    assert Spread((2,)).wrap(piece).data_ptr() == piece.data_ptr()


def test_another_shape_is_refused() -> None:
    with pytest.raises(ContractError, match=r"w: the state has shape \(3,\), this model has the global shape \(2,\)"):
        Spread((2,)).piece("w", torch.ones(3))
