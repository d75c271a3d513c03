"""One tensor of global shape whose pieces lie on many ranks."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Shard

from moeframe.errors import ContractError

__all__ = ["Spread"]


@dataclass(frozen=True)
class Spread:
    """Where the pieces of a tensor of shape `shape` lie: one placement for each dimension of `mesh`.

    Without a mesh every rank holds the whole tensor. Pieces are cut as torch.chunk cuts, mesh dimension by mesh
    dimension, which is what DTensor and fully_shard do.
    """

    shape: tuple[int, ...]
    mesh: DeviceMesh | None = None
    placements: tuple[Placement, ...] = ()

    def wrap(self, piece: torch.Tensor) -> torch.Tensor:
        """Return this rank's piece as a tensor of global shape; shares its storage, communicates nothing."""
        piece = piece.detach()
        if self.mesh is None:
            return piece
        stride = torch.empty(self.shape, device="meta").stride()
        shape = torch.Size(self.shape)
        return DTensor.from_local(piece, self.mesh, self.placements, run_check=False, shape=shape, stride=stride)

    def whole(self, piece: torch.Tensor) -> torch.Tensor:
        """Return a copy of the whole tensor, given this rank's piece; collective over the mesh."""
        # Where nothing is cut full_tensor would share storage with the piece.
        if not self._is_cut():
            return piece.detach().clone()
        wrapped = self.wrap(piece)
        assert isinstance(wrapped, DTensor)
        return wrapped.full_tensor()

    def _is_cut(self) -> bool:
        sizes = () if self.mesh is None else self.mesh.shape
        return any(isinstance(placed, Shard) and size > 1 for placed, size in zip(self.placements, sizes, strict=True))

    def piece(self, name: str, value: torch.Tensor) -> torch.Tensor:
        """Return this rank's piece of a tensor of global shape, which may lie in another layout.

        Collective when `value` is a DTensor of another layout: it is made whole on every rank then.

        Raises:
            ContractError: the shape of `value` is not the global shape; `name` says whose.
        """
        if tuple(value.shape) != self.shape:
            raise ContractError(
                f"{name}: the state has shape {tuple(value.shape)}, this model has the global shape {self.shape}. "
                "Load a state of the same model dimensions."
            )
        if isinstance(value, DTensor):
            if value.device_mesh == self.mesh and tuple(value.placements) == self.placements:
                return value.to_local()
            value = value.full_tensor()
        if self.mesh is None:
            return value
        coordinate = self.mesh.get_coordinate()
        assert coordinate is not None
        for placement, size, rank in zip(self.placements, self.mesh.shape, coordinate, strict=True):
            if isinstance(placement, Shard):
                length = value.size(placement.dim)
                step = -(-length // size)
                start = min(rank * step, length)
                value = value.narrow(placement.dim, start, min(step, length - start))
        return value
