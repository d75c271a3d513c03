"""How whole tensors are cut into one piece for each rank of a line, and how the pieces lie in a flat buffer."""

from __future__ import annotations

from dataclasses import dataclass

import torch

__all__ = ["Cut", "best_cut"]


@dataclass(frozen=True)
class Cut:
    """Pieces of a tensor along one dimension, cut as torch.chunk cuts: the last ones may be short or empty.

    In a flat buffer every piece has the same room, that of the longest: `room_N` is one, `rooms_RN` those of all ranks.
    """

    shape: tuple[int, ...]
    dim: int
    ranks: int

    @property
    def step(self) -> int:
        """Length of the longest piece along `dim`."""
        return -(-self.shape[self.dim] // self.ranks)

    @property
    def room_shape(self) -> tuple[int, ...]:
        """Shape of the longest piece."""
        return (*self.shape[: self.dim], self.step, *self.shape[self.dim + 1 :])

    @property
    def room(self) -> int:
        """Number of elements of the longest piece."""
        return torch.Size(self.room_shape).numel()

    def piece(self, tensor: torch.Tensor, rank: int) -> torch.Tensor:
        """Return the piece of a rank, a view."""
        start = min(rank * self.step, self.shape[self.dim])
        return tensor.narrow(self.dim, start, min(self.step, self.shape[self.dim] - start))

    def pack_(self, rooms_RN: torch.Tensor, tensor: torch.Tensor) -> None:
        """Write all pieces of a tensor into their rooms, and zeros where a piece is short."""
        missing = self.step * self.ranks - self.shape[self.dim]
        if missing:
            filler = tensor.new_zeros(*self.shape[: self.dim], missing, *self.shape[self.dim + 1 :])
            tensor = torch.cat([tensor, filler], self.dim)
        self._pieces(rooms_RN).copy_(self._split(tensor))

    def unpack_(self, rooms_RN: torch.Tensor, tensor: torch.Tensor) -> None:
        """Read all pieces out of their rooms into a tensor."""
        pieces = self._pieces(rooms_RN)
        if self.step * self.ranks == self.shape[self.dim]:
            self._split(tensor).copy_(pieces)
        else:
            joined = pieces.movedim(0, self.dim).flatten(self.dim, self.dim + 1)
            tensor.copy_(joined.narrow(self.dim, 0, self.shape[self.dim]))

    def put_(self, room_N: torch.Tensor, piece: torch.Tensor) -> None:
        """Write one piece into its room; what a short piece leaves free keeps its values."""
        room_N.view(self.room_shape).narrow(self.dim, 0, piece.size(self.dim)).copy_(piece)

    def take(self, room_N: torch.Tensor, rank: int) -> torch.Tensor:
        """Return the piece of a rank, contiguous; it may share the room's storage."""
        room = room_N.view(self.room_shape)
        start = min(rank * self.step, self.shape[self.dim])
        return room.narrow(self.dim, 0, min(self.step, self.shape[self.dim] - start)).contiguous()

    def _split(self, tensor: torch.Tensor) -> torch.Tensor:
        """View a tensor of `ranks` full pieces as the stack of these."""
        sizes = (*self.shape[: self.dim], self.ranks, self.step, *self.shape[self.dim + 1 :])
        return tensor.view(sizes).movedim(self.dim, 0)

    def _pieces(self, rooms_RN: torch.Tensor) -> torch.Tensor:
        return rooms_RN.view(self.ranks, *self.room_shape)


def best_cut(shape: tuple[int, ...], ranks: int) -> Cut:
    """Cut a tensor of at least one dimension along the first that is good enough.

    That is one whose longest piece is at most an eighth larger than the smallest possible: pieces of dimension 0 need
    no copies.
    """
    cuts = [Cut(shape, dim, ranks) for dim in range(len(shape))]
    smallest = min(cut.room for cut in cuts)
    return next(cut for cut in cuts if cut.room * 8 <= smallest * 9)
