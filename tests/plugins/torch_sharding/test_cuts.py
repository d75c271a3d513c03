"""Pieces of tensors, and the rooms in which they travel."""

from __future__ import annotations

import pytest
import torch
from moeframe_torch_sharding.cuts import Cut, best_cut


def counting(shape: tuple[int, ...]) -> torch.Tensor:
    return torch.arange(1.0, torch.Size(shape).numel() + 1).view(shape)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
@pytest.mark.parametrize(
    ("shape", "dim"), [((7,), 0), ((1,), 0), ((6, 4), 0), ((6, 4), 1), ((3, 5, 2), 1), ((3, 5, 2), 2), ((0, 3), 0)]
)
def test_pieces_are_those_of_chunk_and_come_back(shape: tuple[int, ...], dim: int, ranks: int) -> None:
    tensor, cut = counting(shape), Cut(shape, dim, ranks)
    chunks = tensor.chunk(ranks, dim)
    rooms_RN = torch.full((ranks, cut.room), torch.nan)
    cut.pack_(rooms_RN, tensor)
    assert not rooms_RN.isnan().any(), "what is sent is all written"
    one_by_one_RN = torch.full((ranks, cut.room), torch.nan)
    for rank in range(ranks):
        piece = cut.piece(tensor, rank)
        assert torch.equal(piece, chunks[rank] if rank < len(chunks) else tensor.narrow(dim, 0, 0))
        assert torch.equal(cut.take(rooms_RN[rank], rank), piece)
        assert cut.take(rooms_RN[rank], rank).is_contiguous()
        cut.put_(one_by_one_RN[rank], piece)
    for rooms in (rooms_RN, one_by_one_RN):
        found = torch.empty_like(tensor)
        cut.unpack_(rooms, found)
        assert torch.equal(found, tensor), "what fills up a room is never read"


@pytest.mark.parametrize(
    ("shape", "ranks", "dim"),
    [
        ((6, 4), 2, 0),
        ((1, 4, 5), 2, 1),  # one expert over two holders
        ((3, 5, 4), 2, 2),  # 3 experts unevenly: 40 of 60 elements; the last dimension: 30
        ((3, 4), 2, 1),  # 8, 6
        ((3, 5), 2, 0),  # 10, 9: within an eighth of the best, and dimension 0 needs no copy
        ((256, 7168), 512, 1),
        ((5,), 8, 0),
    ],
)
def test_the_longest_piece_is_about_as_small_as_can_be(shape: tuple[int, ...], ranks: int, dim: int) -> None:
    assert best_cut(shape, ranks).dim == dim


def test_a_piece_along_dimension_0_is_a_contiguous_view() -> None:
    tensor = counting((5, 2))
    piece = Cut((5, 2), 0, 2).piece(tensor, 1)
    assert piece.is_contiguous()
    piece.zero_()
    assert tensor[3:].eq(0).all()
