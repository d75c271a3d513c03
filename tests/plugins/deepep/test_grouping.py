from __future__ import annotations

import pytest
import torch
from moeframe_deepep.grouping import Grouping

L = 4


def naive(local_ids_NK: torch.Tensor) -> list[tuple[int, int]]:
    """(token, choice) of each row, by expert, then token."""
    return [
        (token, ids.index(expert))
        for expert in range(L)
        for token, ids in enumerate(local_ids_NK.tolist())
        if expert in ids
    ]


@pytest.mark.parametrize("num_tokens", [0, 1, 7, 50])
def test_rows_are_grouped_and_summed_as_a_loop_does_it(num_tokens: int) -> None:
    generator = torch.Generator().manual_seed(num_tokens)
    ids_NK = torch.stack(
        [torch.randperm(L + 3, generator=generator)[:3] for _ in range(num_tokens)] or [torch.zeros(3)]
    )
    ids_NK = torch.where(ids_NK >= L, -1, ids_NK).long()[:num_tokens]
    counts = [int((ids_NK == expert).sum()) for expert in range(L)]
    grouping, rows = Grouping.of(ids_NK, counts), naive(ids_NK)
    tokens_ND = torch.randn(num_tokens, 5, generator=generator)
    values_NK = torch.randn(num_tokens, 3, generator=generator)

    spread_RD, picked_R = grouping.spread(tokens_ND), grouping.pick(values_NK)

    assert spread_RD.shape == (len(rows), 5)
    assert all(torch.equal(spread_RD[row], tokens_ND[token]) for row, (token, _) in enumerate(rows))
    assert picked_R.tolist() == [values_NK[token, choice].item() for token, choice in rows]
    rows_RD = torch.randn(len(rows), 5, generator=generator)
    sums_ND = torch.zeros(num_tokens, 5)
    for row, (token, _) in enumerate(rows):
        sums_ND[token] += rows_RD[row]
    torch.testing.assert_close(grouping.total(rows_RD), sums_ND)
    back_NK = grouping.put(picked_R)
    assert torch.equal(back_NK, torch.where(ids_NK >= 0, values_NK, 0.0))


def test_bfloat16_rows_are_added_in_float32() -> None:
    grouping = Grouping.of(torch.arange(L)[None], [1] * L)
    rows_RD = torch.tensor([256.0, 1, 1, 1], dtype=torch.bfloat16)[:, None]
    assert grouping.total(rows_RD).item() == torch.tensor(259.0).bfloat16().item()  # 256 + 1 is 256 in bfloat16
