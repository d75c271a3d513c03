"""Layers of stages, stages of ranks."""

from __future__ import annotations

import pytest

from moeframe.schedule.placement import rank_of_stage, split_layers, stages_of_rank


@pytest.mark.parametrize(
    ("layers", "stages", "sizes"),
    [
        (30, 4, [8, 8, 7, 7]),
        (61, 8, [8, 8, 8, 8, 8, 7, 7, 7]),
        (61, 16, [4] * 13 + [3] * 3),
        (4, 4, [1, 1, 1, 1]),
        (5, 1, [5]),
    ],
)
def test_layers_are_split_as_evenly_as_possible_and_none_is_lost_c51(layers, stages, sizes) -> None:
    split = split_layers(layers, stages)
    assert [len(part) for part in split] == sizes
    assert [layer for part in split for layer in part] == list(range(layers))


def test_a_split_of_the_users_own_is_taken_as_it_is() -> None:
    assert split_layers(6, 3, [1, 3, 2]) == (range(1), range(1, 4), range(4, 6))


@pytest.mark.parametrize(
    ("layers", "stages", "given", "message"),
    [
        (61, 8, [4] * 13 + [3] * 3, r"lists 16 stage\(s\), and there are 8"),
        (20, 1, [1], r"adds up to 1 layer\(s\), and the model has 20"),
        (30, 4, [7, 7, 7, 7], r"adds up to 28 layer\(s\), and the model has 30"),
        (4, 3, [2, 0, 2], r"stage 1 would hold 0 layer\(s\)"),
        (3, 4, None, "stage 3 would hold 0"),
    ],
)
def test_a_split_that_does_not_fit_is_refused_with_both_numbers_c53(layers, stages, given, message) -> None:
    with pytest.raises(ValueError, match=message):
        split_layers(layers, stages, given)


def test_stages_lie_in_a_loop_or_in_a_v_c52() -> None:
    assert [stages_of_rank(rank, 4, 2, "loop") for rank in range(4)] == [(0, 4), (1, 5), (2, 6), (3, 7)]
    assert [stages_of_rank(rank, 4, 2, "v") for rank in range(4)] == [(0, 7), (1, 6), (2, 5), (3, 4)]


@pytest.mark.parametrize("placement", ["loop", "v"])
def test_every_stage_is_on_exactly_one_rank(placement) -> None:
    for ranks in range(1, 6):
        for per_rank in range(1, 4):
            held = [stage for rank in range(ranks) for stage in stages_of_rank(rank, ranks, per_rank, placement)]
            assert sorted(held) == list(range(ranks * per_rank))
            assert all(rank_of_stage(s, ranks, placement) in range(ranks) for s in held)
