"""Sorting and counting of expert ids."""

from __future__ import annotations

import pytest
import torch
from moeframe_collectives.alltoall import _transposed_order
from moeframe_collectives.routing import sort_assignments

from moeframe.testing.host_syncs import HostSyncs


def test_assignments_are_sorted_by_expert_then_token_and_the_unsent_come_last() -> None:
    assignments = sort_assignments(torch.tensor([[2, 0], [-1, 2], [0, 1]]), 4)

    assert assignments.order_N.tolist() == [1, 4, 5, 0, 3, 2]
    assert assignments.place_N.tolist() == [3, 0, 5, 4, 1, 2]
    assert assignments.counts_E.tolist() == [2, 1, 2, 0]


def test_no_assignments_are_sorted_to_nothing() -> None:
    assignments = sort_assignments(torch.empty(0, 2, dtype=torch.int64), 3)

    assert assignments.order_N.tolist() == []
    assert assignments.counts_E.tolist() == [0, 0, 0]


@pytest.mark.parametrize("num_experts", [32766, 32767, 40000])
def test_expert_ids_beyond_16_bits_keep_their_order(num_experts: int) -> None:
    last = num_experts - 1
    assignments = sort_assignments(torch.tensor([[last], [-1], [0], [last - 1]]), num_experts)

    assert assignments.order_N.tolist() == [2, 3, 0, 1]
    assert assignments.counts_E[[0, last - 1, last]].tolist() == [1, 1, 1]


def test_sorting_never_waits_for_the_device() -> None:
    with HostSyncs() as syncs:
        sort_assignments(torch.tensor([[0, 1], [-1, 1]]), 2)

    assert syncs.calls == []


def test_rows_in_source_order_find_their_place_in_expert_order() -> None:
    counts_SE = torch.tensor([[2, 1, 0], [1, 0, 3]])  # rows a a b from source 0, a c c c from source 1

    to_grouped = _transposed_order(counts_SE, 7)
    to_arrival = _transposed_order(counts_SE.t(), 7)

    assert to_grouped.tolist() == [0, 1, 3, 2, 4, 5, 6]
    assert to_arrival[to_grouped].tolist() == list(range(7))
