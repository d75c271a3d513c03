"""AdamW over this rank's pieces of the weights.

The package offers `fully_shard_optimizer` to wrap an optimizer. Its released version runs a step with zero gradients to
make state: Adam counts from 1 then, and weight decay is applied once. This one is made over the pieces themselves, and
no step is run before the first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import nn

from moeframe.protocols.sharding import AdamWSettings

__all__ = ["ShardAdamW"]


class ShardAdamW(torch.optim.AdamW):
    """AdamW whose parameters are views of the weight buffers; an element needs nothing from the others.

    `param_groups` holds one group. Moments exist from the start, so that a checkpoint can be loaded into them.

    Args:
        weights: flat pieces by parameter name.
        gradients: gives the final gradients, flat pieces by the same names.
        settings: of AdamW.
        updated: called after a step, to bring the new weights to the model.
        cleared: called by `zero_grad`.
    """

    def __init__(
        self,
        weights: Mapping[str, torch.Tensor],
        gradients: Callable[[], Mapping[str, torch.Tensor]],
        settings: AdamWSettings,
        updated: Callable[[], None],
        cleared: Callable[[], None],
    ) -> None:
        self.pieces = {name: nn.Parameter(piece) for name, piece in weights.items()}
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
        self._gradients = gradients
        self._cleared = cleared
        self.register_step_pre_hook(lambda *_: self._attach_gradients())
        self.register_step_post_hook(lambda *_: updated())

    def _attach_gradients(self) -> None:
        found = self._gradients()
        for name, piece in self.pieces.items():
            piece.grad = found[name]

    def zero_grad(self, set_to_none: bool = True) -> None:  # noqa: FBT001, FBT002, ARG002 - torch's signature
        """Clear the gradient buffers, which a backward adds to."""
        for piece in self.pieces.values():
            piece.grad = None
        self._cleared()

    def moments(self) -> dict[str, dict[str, torch.Tensor]]:
        """Return step count and moments of this rank's pieces, by parameter name; the tensors themselves."""
        return {name: self.state[piece] for name, piece in self.pieces.items()}
