"""Legal numbers of micro-batches."""

from __future__ import annotations

import pytest
from moeframe_pipelining import counts


@pytest.mark.parametrize(
    ("rule", "ranks", "legal"),
    [
        (counts.any_number, 4, [1, 2, 3, 4, 5, 6, 7, 8, 9]),
        (counts.at_least_ranks, 4, [4, 5, 6, 7, 8, 9]),
        (counts.at_least_stages, 4, [8, 9]),
        (counts.whole_rounds, 2, [1, 2, 3, 4, 6, 8]),
        (counts.whole_rounds, 4, [1, 2, 3, 4, 5, 6, 7, 8]),
    ],
)
def test_the_legal_numbers_are_those_of_torch(rule, ranks, legal) -> None:
    assert [n for n in range(1, 10) if rule(ranks, n) is None] == legal


def test_a_refusal_lists_legal_numbers_on_both_sides_c48() -> None:
    assert counts.refusal(counts.whole_rounds, 2, 4) is None
    assert counts.refusal(counts.whole_rounds, 2, 5) == (
        "it cuts 5 micro-batches into 5 // 2 = 2 rounds, which must be equally long. "
        "Legal near 5: 1, 2, 3, 4, 6, 8, 10, 12."
    )
    assert counts.refusal(counts.at_least_ranks, 2, 1) == (
        "it needs as many micro-batches as pipeline ranks (2) or more. Legal near 1: 2, 3, 4, 5."
    )


def test_the_next_legal_number_is_the_smallest_that_is_enough() -> None:
    assert counts.next_legal(counts.whole_rounds, 2, 5) == 6
    assert counts.next_legal(counts.at_least_stages, 3, 1) == 6
    assert counts.next_legal(counts.any_number, 3, 0) == 1
