"""What a dispatcher's results must be, by formula: no dispatcher, no autograd, no communication."""

from __future__ import annotations

from dataclasses import dataclass

import torch

__all__ = ["CallData", "Expected", "call_data", "expected_rows", "expected_values", "expert_weights"]


@dataclass(frozen=True, kw_only=True)
class CallData:
    """Input of one rank in one call, in float64: small multiples of 1/2, so that sums are exact in every dtype.

    `x_TD`: tokens. `gates_TK`: gates. `grad_TD`: gradient of the output. `ids_TK`: the routing.
    """

    x_TD: torch.Tensor
    gates_TK: torch.Tensor
    grad_TD: torch.Tensor
    ids_TK: torch.Tensor


@dataclass(frozen=True, kw_only=True)
class Expected:
    """Output and gradients of one rank in one call, and the gradient of all experts' weights; float64."""

    out_TD: torch.Tensor
    x_grad_TD: torch.Tensor
    gates_grad_TK: torch.Tensor
    weight_grad_ED: torch.Tensor


def call_data(ids_TK: torch.Tensor, rank: int, hidden_size: int, *, numbered: bool) -> CallData:
    """Make the input of one rank.

    Args:
        ids_TK: the routing, -1 for not sent.
        rank: of the ep group.
        hidden_size: D.
        numbered: put a number that is unique over all ranks into the first element of each token; needs more than
            the 8 bits of bfloat16.
    """
    num_tokens, top_k = ids_TK.shape
    t_T1 = torch.arange(num_tokens, dtype=torch.float64)[:, None]
    d_D = torch.arange(hidden_size, dtype=torch.float64)
    k_K = torch.arange(top_k, dtype=torch.float64)
    x_TD = (t_T1 * 3 + d_D * 2 + rank) % 5 - 2
    if numbered:
        x_TD[:, 0] = 1000 * (rank + 1) + t_T1[:, 0]
    return CallData(
        x_TD=x_TD,
        gates_TK=((t_T1 + k_K + rank) % 2 + 1) / 2,
        grad_TD=(t_T1 + d_D + rank) % 3 - 1,
        ids_TK=ids_TK,
    )


def expert_weights(num_experts: int, hidden_size: int) -> torch.Tensor:
    """Return w_ED (num_experts, hidden_size) float64: expert e computes ``gate * w_e * x``, elementwise."""
    e_E1 = torch.arange(num_experts, dtype=torch.float64)[:, None]
    return (e_E1 + torch.arange(hidden_size, dtype=torch.float64)) % 3 - 1


def expected_values(calls: list[CallData], rank: int, w_ED: torch.Tensor) -> Expected:
    """Return what `rank` must get from one call; the weights' gradient is the sum over the calls of all ranks."""
    weight_grad_ED = torch.zeros_like(w_ED)
    for call in calls:
        sent_TK = call.ids_TK >= 0
        tokens, choices = sent_TK.nonzero(as_tuple=True)
        experts = call.ids_TK[sent_TK]
        gates_N1 = call.gates_TK[tokens, choices][:, None]
        weight_grad_ED.index_add_(0, experts, gates_N1 * call.grad_TD[tokens] * call.x_TD[tokens])
    own = calls[rank]
    sent_TK1 = (own.ids_TK >= 0)[:, :, None]
    w_TKD = w_ED[own.ids_TK.clamp(min=0)] * sent_TK1
    gates_TK1 = own.gates_TK[:, :, None]
    return Expected(
        out_TD=(gates_TK1 * w_TKD * own.x_TD[:, None]).sum(1),
        x_grad_TD=(gates_TK1 * w_TKD * own.grad_TD[:, None]).sum(1),
        gates_grad_TK=(own.grad_TD[:, None] * w_TKD * own.x_TD[:, None]).sum(2),
        weight_grad_ED=weight_grad_ED,
    )


def expected_rows(calls: list[CallData], expert: int) -> list[tuple[float, ...]]:
    """Return the rows that must reach an expert from all ranks, sorted: each the gate, then the token's elements."""
    rows: list[tuple[float, ...]] = []
    for call in calls:
        tokens, choices = (call.ids_TK == expert).nonzero(as_tuple=True)
        gates_N1 = call.gates_TK[tokens, choices][:, None]
        rows += map(tuple, torch.cat([gates_N1, call.x_TD[tokens]], dim=1).tolist())
    return sorted(rows)
