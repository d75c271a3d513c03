from __future__ import annotations

import tracemalloc
from collections import Counter
from itertools import pairwise, permutations

import pytest

from moeframe.train.permutation import Permutation


def order(length: int, *key: int) -> list[int]:
    permutation = Permutation(length, *key)
    return [permutation[index] for index in range(length)]


@pytest.mark.parametrize("length", [*range(1, 40), 63, 64, 65, 100, 1000, 1023, 1024, 1025, 4097])
def test_every_index_comes_up_once(length: int) -> None:
    assert sorted(order(length, 7, 3)) == list(range(length))


def test_another_seed_or_another_epoch_gives_an_unrelated_order() -> None:
    orders = [order(1000, seed, epoch) for seed in range(3) for epoch in range(3)]
    for number, one in enumerate(orders):
        for other in orders[:number]:
            # Two random orders agree in one place on average; 10 or more places are a chance of 1e-7.
            assert sum(a == b for a, b in zip(one, other, strict=True)) < 10


def test_seed_and_epoch_are_not_added_up() -> None:
    assert order(100, 1, 2) != order(100, 2, 1)
    assert order(100, 1, 2) != order(100, 12)


def test_all_orders_of_a_few_are_about_equally_likely() -> None:
    counts = Counter(tuple(order(4, seed, 0)) for seed in range(4800))
    assert set(counts) == set(permutations(range(4)))
    # 200 each are expected, with a deviation of 14.
    assert 130 < min(counts.values()) <= max(counts.values()) < 270


def test_neighbours_are_scattered_and_every_part_is_mixed_evenly() -> None:
    length = 10_000
    shuffled = order(length, 5, 0)
    assert sum(abs(b - a) == 1 for a, b in pairwise(shuffled)) < 15  # 2 are expected
    first_half = Counter(value // 1000 for value in shuffled[: length // 2])
    assert all(400 < first_half[tenth] < 600 for tenth in range(10))  # 500 each, with a deviation of 16


def test_length_costs_no_memory() -> None:
    tracemalloc.start()
    try:
        permutation = Permutation(10**15, 0, 0)
        values = [permutation[index] for index in range(0, 10**15, 10**13)]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(set(values)) == 100
    assert all(0 <= value < 10**15 for value in values)
    assert peak < 100_000


@pytest.mark.parametrize("index", [-1, 7])
def test_an_index_outside_is_refused(index: int) -> None:
    with pytest.raises(IndexError, match="one of 7 indices"):
        Permutation(7, 0)[index]
    assert len(Permutation(7, 0)) == 7
