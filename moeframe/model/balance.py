"""The sequence-wise balance loss (DeepSeek-V3 report, equations 17 to 20), injected as a gradient.

In a pipeline only the last stage has a loss to add to, so each layer adds the gradient of its own balance loss.
B sequences, S positions, E experts.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable

__all__ = ["balance_sum", "inject"]


def balance_sum(
    scores_BSE: torch.Tensor, counts_BE: torch.Tensor, valid_BS: torch.Tensor | None, *, top_k: int, alpha: float
) -> torch.Tensor:
    """Return the sum over sequences of n x L, with n the valid tokens of a sequence and L its balance loss.

    ``L = alpha * sum_e f_e P_e``, ``f_e = E / (K n) * count_e``, ``P_e`` the mean over tokens of ``s_e / sum_j s_j``.
    Gradient flows through P only.

    Args:
        scores_BSE: scores of the router, before the correction bias.
        counts_BE: tokens of each sequence that chose each expert.
        valid_BS: false for padding; None: no padding.
        top_k: experts of a token.
        alpha: factor of the loss.
    """
    shares_BSE = scores_BSE / (scores_BSE.sum(-1, keepdim=True) + 1e-20)
    if valid_BS is None:
        per_expert_BE = shares_BSE.sum(1)
        tokens: float | torch.Tensor = float(scores_BSE.shape[1])
    else:
        per_expert_BE = torch.where(valid_BS.unsqueeze(-1), shares_BSE, 0).sum(1)
        tokens = valid_BS.sum(1, keepdim=True).clamp_min(1)
    num_experts = scores_BSE.shape[2]
    # An integer tensor divided by a number would be float32, in a float64 run too.
    return (counts_BE.to(per_expert_BE.dtype) / tokens * per_expert_BE).sum() * (alpha * num_experts / top_k)


class _Inject(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, carrier: torch.Tensor, loss: torch.Tensor) -> torch.Tensor:
        ctx.loss_dtype = loss.dtype
        return carrier.view_as(carrier)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return grad, torch.ones((), dtype=ctx.loss_dtype, device=grad.device)


def inject(carrier: torch.Tensor, loss: torch.Tensor) -> torch.Tensor:
    """Return `carrier`; whoever runs its backward also runs that of the scalar `loss`, with gradient 1.

    The gradient of `loss` does not depend on what reaches the carrier, so the carrier must be in the graph of every
    backward.
    """
    injected: torch.Tensor = _Inject.apply(carrier, loss)  # type: ignore[no-untyped-call]
    return injected
