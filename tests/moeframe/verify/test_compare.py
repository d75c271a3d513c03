from __future__ import annotations

import math
from collections.abc import Mapping

import numpy
import pytest

from moeframe.verify.compare import compare, cover, groups_of
from moeframe.verify.records import Array, RankNumbers, StepNumbers

EXPERTS = "blocks.1.experts.routed.up"
NAMES = (
    "embedding.weight",
    "blocks.0.attend.norm.weight",
    "blocks.1.attend.norm.weight",
    "blocks.0.experts.mlp.weight",
    "blocks.1.experts.routed.up",
    "blocks.1.experts.routed.down",
    "blocks.1.experts.shared.weight",
)


def rank(tensors: Mapping[str, Array], *, number: int = 0, first_expert: int = 0, norm: float = 2.0) -> RankNumbers:
    step = StepNumbers(
        losses={"ce_loss": 1.5},
        loads=numpy.asarray([[4, 4]]),
        own_loads={},
        grad_norm=norm,
        gradients=tensors,
        clipped={},
        biases={},
        parameters=tensors,
    )
    return RankNumbers(
        rank=number,
        data_rank=number,
        pipeline_rank=0,
        first_expert=first_expert,
        experts=frozenset({EXPERTS}),
        own_sequences=((0,),),
        steps=(step,),
        formulas=(),
    )


WHOLE = {"norm.weight": numpy.asarray([1.0, -2.0]), EXPERTS: numpy.asarray([[1.0], [2.0], [3.0], [4.0]])}


def halves(**changes: Array) -> list[RankNumbers]:
    """Two ranks with two experts each; `changes` replaces tensors of the second."""
    first = {**WHOLE, EXPERTS: WHOLE[EXPERTS][:2]}
    second = {**WHOLE, EXPERTS: WHOLE[EXPERTS][2:], **changes}
    return [rank(first), rank(second, number=1, first_expert=2)]


def test_equal_numbers_differ_in_nothing() -> None:
    compared = compare(halves(), rank(WHOLE))
    assert not compared.differences
    assert set(compared.worst.values()) == {0.0}


def test_a_difference_counts_relative_to_the_largest_value_of_the_tensor() -> None:
    just_inside = numpy.asarray([1.0 + 2e-9, -2.0])
    assert not compare(halves(**{"norm.weight": just_inside}), rank(WHOLE)).differences
    beyond = numpy.asarray([1.0 + 3e-9, -2.0])
    compared = compare(halves(**{"norm.weight": beyond}), rank(WHOLE))
    assert {one.name for one in compared.differences} == {"norm.weight"}
    assert {one.rank for one in compared.differences} == {1}
    assert compared.worst["gradients"] == pytest.approx(1.5e-9, rel=1e-5)


def test_experts_are_compared_by_their_global_number() -> None:
    swapped = halves(**{EXPERTS: WHOLE[EXPERTS][:2]})
    assert {one.name for one in compare(swapped, rank(WHOLE)).differences} == {EXPERTS}


def test_a_missing_half_of_the_experts_is_a_difference() -> None:
    first, second = halves()
    again = rank({**WHOLE, EXPERTS: WHOLE[EXPERTS][:2]}, number=1)
    assert not compare([first, second], rank(WHOLE)).differences
    compared = compare([first, again], rank(WHOLE))
    assert {(one.quantity, one.name, one.rank) for one in compared.differences} == {
        ("gradients", EXPERTS, -1),
        ("parameters", EXPERTS, -1),
    }
    assert math.isinf(compared.worst["gradients"])


def test_nan_and_wrong_shapes_are_differences() -> None:
    for bad in (numpy.asarray([numpy.nan, -2.0]), numpy.asarray([1.0, -2.0, 0.0])):
        compared = compare(halves(**{"norm.weight": bad}), rank(WHOLE))
        assert math.isinf(compared.worst["gradients"])
        assert compared.differences


def test_one_factor_everywhere_is_a_ratio_and_different_ones_are_not() -> None:
    doubled, bent = WHOLE["norm.weight"] * 2, WHOLE["norm.weight"] * [2, 3]
    ratios = [compare(halves(**{"norm.weight": t}), rank(WHOLE)).of("gradients")[0].ratio for t in (doubled, bent)]
    assert ratios == [pytest.approx(2.0), None]


def test_ranks_with_different_factors_have_no_common_one() -> None:
    ranks = [rank({**WHOLE, "norm.weight": WHOLE["norm.weight"] * factor}, number=factor) for factor in (2, 3)]
    (group,) = groups_of(compare(ranks, rank(WHOLE)), "gradients", WHOLE)
    assert group.ratio is None
    assert group.ranks == (2, 3)


@pytest.mark.parametrize(
    ("chosen", "patterns"),
    [
        (set(NAMES), ["*"]),
        ({"blocks.1.experts.routed.up", "blocks.1.experts.routed.down"}, ["blocks.*.experts.routed.*"]),
        ({"blocks.0.attend.norm.weight", "blocks.1.attend.norm.weight"}, ["blocks.*.attend.norm.weight"]),
        ({"blocks.1.attend.norm.weight"}, ["blocks.1.attend.norm.weight"]),
        ({"embedding.weight"}, ["embedding.weight"]),
        ({"blocks.1.experts.routed.up"}, ["blocks.*.experts.routed.up"]),
    ],
)
def test_patterns_match_what_is_wrong_and_nothing_else(chosen: set[str], patterns: list[str]) -> None:
    assert cover(chosen, NAMES) == patterns
