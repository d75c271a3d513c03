"""AdamW on this rank's pieces of the parameters."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from moeframe.protocols.sharding import AdamWSettings

__all__ = ["PieceAdamW", "local_piece"]


def local_piece(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's piece of a parameter or gradient, sharing its storage."""
    with torch.no_grad():  # to_local builds an autograd node otherwise
        return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach()


class PieceAdamW(torch.optim.AdamW):
    """AdamW over plain tensors that share storage with the pieces this rank holds.

    AdamW works element by element, so a piece needs nothing from the others, and the list kernels never see DTensors:
    one list takes sharded and whole parameters of any mesh, without the dispatch cost of a DTensor operation for each
    of them. `param_groups` holds one group. Moments exist from the start, so that a checkpoint can be loaded into them.

    Args:
        parameters: by name; gradients are taken from them.
        settings: of AdamW.
        pieces: what to update; by default what this rank holds of each parameter. A gradient must lie as its piece.
    """

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        settings: AdamWSettings,
        pieces: Mapping[str, torch.Tensor] | None = None,
    ) -> None:
        self.parameters = dict(parameters)
        if pieces is None:
            pieces = {name: local_piece(owner) for name, owner in self.parameters.items()}
        self.pieces = {name: nn.Parameter(pieces[name]) for name in self.parameters}
        super().__init__(
            self.pieces.values(),
            lr=settings.lr,
            betas=settings.betas,
            eps=settings.eps,
            weight_decay=settings.weight_decay,
            fused=True,
        )
        for piece in self.pieces.values():
            self.state[piece] = {
                "step": torch.zeros((), dtype=torch.float32, device=piece.device),
                "exp_avg": torch.zeros_like(piece),
                "exp_avg_sq": torch.zeros_like(piece),
            }
        self.register_step_pre_hook(lambda *_: self._attach_gradients())

    def _attach_gradients(self) -> None:
        for name, owner in self.parameters.items():
            self.pieces[name].grad = None if owner.grad is None else local_piece(owner.grad)

    def zero_grad(self, set_to_none: bool = True) -> None:  # noqa: FBT001, FBT002 - torch's signature
        """Clear the gradients of the model's parameters."""
        for owner in self.parameters.values():
            if set_to_none:
                owner.grad = None
            elif owner.grad is not None:
                owner.grad.zero_()
        for piece in self.pieces.values():
            piece.grad = None

    def moments(self) -> dict[str, dict[str, torch.Tensor]]:
        """Return step count and moments of this rank's pieces, by parameter name; the tensors themselves."""
        return {name: self.state[piece] for name, piece in self.pieces.items()}
