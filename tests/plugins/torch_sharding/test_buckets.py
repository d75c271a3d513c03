"""Flat sums of gradients."""

from __future__ import annotations

import pytest
import torch
from moeframe_torch_sharding.buckets import bucketed, fill_from_pieces_, sum_between_ranks_, summed_pieces
from moeframe_torch_sharding.cuts import Cut
from torch import distributed as dist

from moeframe.testing.ranks import RankPool


@pytest.mark.parametrize(
    ("bucket_bytes", "sizes"),
    [(1, [[3], [1], [2], [0], [9]]), (16, [[3, 1], [2, 0], [9]]), (1000, [[3, 1, 2, 0, 9]])],
)
def test_buckets_hold_whole_tensors_in_order(bucket_bytes: int, sizes: list[list[int]]) -> None:
    tensors = [torch.zeros(size) for size in (3, 1, 2, 0, 9)]
    assert [[tensor.numel() for tensor in bucket] for bucket in bucketed(tensors, bucket_bytes, 4)] == sizes


def sum_of(dtype_name: str, bucket_bytes: int) -> list[list[float]]:
    dtype = getattr(torch, dtype_name)
    rank = dist.get_rank()
    tensors = [torch.full((2, 2), rank + 1.0, dtype=dtype).t(), torch.tensor(256.0 if rank == 0 else 1.0, dtype=dtype)]
    sum_between_ranks_(tensors, dist.group.WORLD, torch.float32, bucket_bytes)
    return [tensor.flatten().tolist() for tensor in tensors]


@pytest.mark.parametrize("bucket_bytes", [1, 1000])
def test_every_tensor_becomes_its_sum(ranks: RankPool, bucket_bytes: int) -> None:
    assert ranks.run(sum_of, "float64", bucket_bytes) == [[[10.0] * 4, [259.0]]] * 4


def test_bfloat16_gradients_are_summed_in_the_reduce_dtype(ranks: RankPool) -> None:
    """256 + 1 + 1 + 1 in bfloat16 is 256; the float32 sum 259 rounds to 260."""
    assert ranks.run(sum_of, "bfloat16", 1000) == [[[10.0] * 4, [260.0]]] * 4


def alone() -> list[float]:
    tensor = torch.tensor([1.0])
    for _ in range(4):
        sum_between_ranks_([tensor], dist.group.WORLD, torch.float32, 1000)
    return tensor.tolist()


def test_c09_a_group_of_one_changes_nothing(ranks: RankPool) -> None:
    assert ranks.run(alone, world_size=1) == [[1.0]]


def pieces_of(bucket_bytes: int) -> tuple[list[list[float]], list[str], list[list[float]]]:
    """Sum three tensors into pieces, the middle one in bfloat16; double the pieces; put them together again."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    group = dist.group.WORLD
    assert group is not None
    tensors = [
        torch.full((3, 2), rank + 1.0),
        torch.full((1, 8), 256.0 if rank == 0 else 1.0, dtype=torch.bfloat16).T.contiguous().T,
        torch.arange(5.0),
    ]
    cuts = [Cut((3, 2), 0, ranks), Cut((1, 8), 1, ranks), Cut((5,), 0, ranks)]
    pieces = summed_pieces(tensors, cuts, group, torch.float32, bucket_bytes)
    found = [piece.flatten().tolist() for piece in pieces]
    for piece in pieces:
        piece.mul_(2)
    fill_from_pieces_(tensors, pieces, cuts, group, bucket_bytes)
    return found, [str(piece.dtype) for piece in pieces], [tensor.flatten().tolist() for tensor in tensors]


@pytest.mark.parametrize("bucket_bytes", [1, 25, 1000])
def test_pieces_of_sums_and_tensors_of_pieces(ranks: RankPool, bucket_bytes: int) -> None:
    """Over four ranks the rows 3 are 1, 1, 1, 0, the 5 numbers 2, 2, 1, 0; the float32 sum 259 rounds to 260."""
    found = ranks.run(pieces_of, bucket_bytes)
    assert [pieces for pieces, *_ in found] == [
        [[10.0, 10.0], [260.0, 260.0], [0.0, 4.0]],
        [[10.0, 10.0], [260.0, 260.0], [8.0, 12.0]],
        [[10.0, 10.0], [260.0, 260.0], [16.0]],
        [[], [260.0, 260.0], []],
    ]
    for _, dtypes, wholes in found:
        assert dtypes == ["torch.float32", "torch.bfloat16", "torch.float32"]
        assert wholes == [[20.0] * 6, [520.0] * 8, [0.0, 8.0, 16.0, 24.0, 32.0]]
