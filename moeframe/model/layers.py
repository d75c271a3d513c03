"""The small parts: embedding, head, SwiGLU."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from moeframe.protocols.compute import Compute

__all__ = ["Embedding", "Head", "SwiGLU"]


class Embedding(nn.Module):
    """Token embedding; hands on the dtype that the model computes in."""

    def __init__(self, vocab_size: int, hidden_size: int, *, dtype: torch.dtype, compute_dtype: torch.dtype) -> None:
        super().__init__()
        self._compute_dtype = compute_dtype
        self.weight = nn.Parameter(torch.empty(vocab_size, hidden_size, dtype=dtype))

    def forward(self, ids_BS: torch.Tensor) -> torch.Tensor:
        """Return (B, S, D) in the compute dtype."""
        return F.embedding(ids_BS, self.weight).to(self._compute_dtype)


class Head(nn.Module):
    """The untied output matrix, shared by the model and its MTP modules; never quantised, so not from `Compute`."""

    def __init__(self, hidden_size: int, vocab_size: int, *, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab_size, hidden_size, dtype=dtype))

    def forward(self, *hidden_BSD: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return logits (B, S, V) of each input; one call, so the weights are gathered once."""
        weight = self.weight.to(hidden_BSD[0].dtype)
        return tuple(F.linear(hidden, weight) for hidden in hidden_BSD)


class SwiGLU(nn.Module):
    """``down(silu(gate(x)) * up(x))``: the dense MLP and the shared experts."""

    def __init__(self, compute: Compute, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.gate_proj = compute.linear(hidden_size, intermediate_size)
        self.up_proj = compute.linear(hidden_size, intermediate_size)
        self.down_proj = compute.linear(intermediate_size, hidden_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (..., D) to (..., D)."""
        out: torch.Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out
