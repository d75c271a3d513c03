"""Linear, RMSNorm, SwiGLU experts and attention by their formulas. R rows, D width, F expert width, H heads."""

from __future__ import annotations

import torch
from torch import nn

from moeframe.protocols.compute import Compute, ComputeContext

__all__ = ["ReferenceCompute", "ReferenceExperts", "ReferenceLinear", "ReferenceNorm", "attend"]


class ReferenceLinear(nn.Module):
    """``x W^T``."""

    def __init__(self, in_features: int, out_features: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out_features, in_features, dtype=dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (..., in) to (..., out)."""
        return x @ self.weight.to(x.dtype).T


class ReferenceNorm(nn.Module):
    """``x / sqrt(mean(x^2) + eps) * w``."""

    def __init__(self, size: int, eps: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(size, dtype=dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the shape and dtype of x."""
        high = x.to(torch.promote_types(x.dtype, torch.float32))
        scale = (high.square().mean(-1, keepdim=True) + self.eps).rsqrt()
        return (high * scale * self.weight.to(high.dtype)).to(x.dtype)


class ReferenceExperts(nn.Module):
    """One expert after the other: ``down(silu(gate(x)) * up(x) * gates)``."""

    def __init__(self, num_local_experts: int, hidden_size: int, intermediate_size: int, dtype: torch.dtype) -> None:
        super().__init__()
        shape = (num_local_experts, 2 * intermediate_size, hidden_size)
        self.gate_up_proj = nn.Parameter(torch.empty(shape, dtype=dtype))
        self.down_proj = nn.Parameter(torch.empty(num_local_experts, hidden_size, intermediate_size, dtype=dtype))

    def forward(
        self,
        rows_RD: torch.Tensor,
        gates_R: torch.Tensor,
        counts_E: torch.Tensor,
        counts_host: tuple[int, ...] | None,
    ) -> torch.Tensor:
        """Return (R, D); zeros beyond the counts."""
        counts = counts_E.tolist() if counts_host is None else counts_host
        out, start = [], 0
        for expert, count in enumerate(counts):
            rows, gates = rows_RD[start : start + count], gates_R[start : start + count, None]
            gate_F, up_F = (rows @ self.gate_up_proj[expert].T).chunk(2, dim=-1)
            out.append((gate_F * torch.sigmoid(gate_F) * up_F * gates) @ self.down_proj[expert].T)
            start += count
        out.append(torch.zeros_like(rows_RD[start:]))
        return torch.cat(out)


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, scale: float, mask: torch.Tensor | None
) -> torch.Tensor:
    """Return causal softmax attention; shapes as in `Compute.attention`."""
    length = q.shape[-2]
    may_look = torch.ones(length, length, dtype=torch.bool, device=q.device).tril() if mask is None else mask
    scores = (q @ k.transpose(-1, -2) * scale).masked_fill(~may_look, -torch.inf)
    return torch.softmax(scores, -1) @ v


class ReferenceCompute(Compute):
    """Builds the modules above."""

    def __init__(self, context: ComputeContext) -> None:
        self._dtype = context.precision.dtype("parameters")

    def linear(self, in_features: int, out_features: int) -> nn.Module:
        """Return a `ReferenceLinear`."""
        return ReferenceLinear(in_features, out_features, self._dtype)

    def rms_norm(self, size: int, eps: float) -> nn.Module:
        """Return a `ReferenceNorm`."""
        return ReferenceNorm(size, eps, self._dtype)

    def grouped_experts(self, num_local_experts: int, hidden_size: int, intermediate_size: int) -> nn.Module:
        """Return `ReferenceExperts`."""
        return ReferenceExperts(num_local_experts, hidden_size, intermediate_size, self._dtype)

    def attention(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, scale: float, mask: torch.Tensor | None
    ) -> torch.Tensor:
        """See `attend`."""
        return attend(q, k, v, scale=scale, mask=mask)
