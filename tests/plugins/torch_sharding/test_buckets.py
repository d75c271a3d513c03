"""Flat sums of gradients."""

from __future__ import annotations

import pytest
import torch
from moeframe_torch_sharding.buckets import bucketed, sum_between_ranks_
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
