from __future__ import annotations

import random

from moeframe.bench.intervals import common, length, union


def test_overlapping_and_touching_intervals_become_one() -> None:
    assert union([(5, 6), (0, 2), (1, 3), (3, 4), (7, 7)]) == [(0, 4), (5, 6)]
    assert union([]) == []


def test_common_time_is_what_both_cover() -> None:
    assert common([(0, 4), (6, 9)], [(1, 2), (3, 7), (8, 10)]) == [(1, 2), (3, 4), (6, 7), (8, 9)]
    assert common([(0, 1)], [(1, 2)]) == []


def test_arithmetic_agrees_with_counting_single_units() -> None:
    generator = random.Random(0)
    for _ in range(200):
        sides = [
            [(start, start + generator.randrange(6)) for start in generator.sample(range(40), generator.randrange(8))]
            for _ in range(2)
        ]
        units = [{unit for start, end in side for unit in range(start, end)} for side in sides]
        merged = [union(side) for side in sides]
        assert [length(side) for side in merged] == [len(found) for found in units]
        assert length(common(*merged)) == len(units[0] & units[1])
