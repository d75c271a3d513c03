"""Packing of gates beside rows, and sums over a token's rows."""

from __future__ import annotations

import pytest
import torch
from moeframe_collectives.rows import Packing, sum_bags, sum_rows, sum_rows_rounded


@pytest.mark.parametrize("num_gates", [1, 7])
@pytest.mark.parametrize("hidden_size", [1, 7, 16])
@pytest.mark.parametrize(
    ("row_dtype", "gate_dtype"),
    [
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
        (torch.float64, torch.float32),
        (torch.float32, torch.float64),
    ],
)
def test_gates_and_rows_keep_their_bits_in_one_buffer(
    row_dtype: torch.dtype, gate_dtype: torch.dtype, hidden_size: int, num_gates: int
) -> None:
    packing = Packing(row_dtype, hidden_size, gate_dtype, num_gates)
    rows_RD = torch.randn(5, hidden_size).to(row_dtype)
    gates = torch.rand(5, num_gates).to(gate_dtype)

    packed = packing.empty(5, torch.device("cpu"))
    packing.rows(packed).copy_(rows_RD)
    packing.put_gates(packed, gates)

    assert torch.equal(packing.rows(packed), rows_RD)
    assert torch.equal(packing.gates(packed), gates)
    assert packing.gates(packed).dtype == gate_dtype
    assert packed.stride(0) * packed.itemsize % 16 == 0
    assert packing.rows(packed).storage_offset() * packed.itemsize % 16 == 0


def test_a_choice_without_a_row_adds_nothing() -> None:
    rows_RD = torch.tensor([[1.0], [2.0], [4.0]])

    total_TD = sum_rows(rows_RD, torch.tensor([[0, 2], [3, 1], [3, 3]]), complete=False)

    assert total_TD.tolist() == [[5.0], [2.0], [0.0]]


def test_bfloat16_rows_are_summed_in_float32() -> None:
    rows_RD = torch.tensor([[256.0], [1.0]], dtype=torch.bfloat16)

    total_TD = sum_rows(rows_RD, torch.tensor([[0, 1]]), complete=True)

    assert total_TD.dtype == torch.float32
    assert total_TD.item() == 257.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("complete", [True, False])
def test_bags_have_the_bits_of_the_sum_choice_by_choice(dtype: torch.dtype, complete: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    packed_RD = torch.randn(50, 40, generator=generator, dtype=torch.float64).to(dtype)
    places_TK = torch.randint(50 if complete else 51, (16, 8), generator=generator)
    for rows_RD in (packed_RD, packed_RD[:, 8:]):  # rows of a packed buffer do not lie side by side
        wanted_TD = sum_rows(rows_RD, places_TK, complete=complete)
        assert torch.equal(sum_bags(rows_RD, places_TK, complete=complete), wanted_TD)
        assert torch.equal(sum_rows_rounded(rows_RD, places_TK, complete=complete), wanted_TD)


def test_bags_of_no_token_are_empty() -> None:
    nothing = torch.empty(0, 8, dtype=torch.int64)
    for rows in (0, 3):
        assert sum_bags(torch.randn(rows, 4), nothing, complete=True).shape == (0, 4)
