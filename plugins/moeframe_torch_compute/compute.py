"""The compute backend `torch`. T tokens, D width, B sequences, S positions, H heads."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from moeframe.protocols.compute import Compute, ComputeContext
from moeframe_torch_compute.experts import GroupedMMExperts, LoopExperts, takes_grouped_mm
from moeframe_torch_compute.options import TorchComputeOptions

__all__ = ["Linear", "RMSNorm", "TorchCompute", "attention"]


class Linear(nn.Module):
    """``x @ weight.T`` in the dtype of x, whatever the dtype of the weight."""

    def __init__(self, in_features: int, out_features: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out_features, in_features, dtype=dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (..., in) to (..., out)."""
        return F.linear(x, self.weight.to(x.dtype))


class RMSNorm(nn.Module):
    """``x / sqrt(mean(x^2) + eps) * weight`` over the last dimension; torch keeps the statistics in float32."""

    def __init__(self, size: int, eps: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(size, dtype=dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the shape and dtype of x."""
        return F.rms_norm(x, self.weight.shape, self.weight.to(x.dtype), self.eps)


def attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, scale: float, mask: torch.Tensor | None
) -> torch.Tensor:
    """Causal attention through SDPA, whose softmax runs in at least float32 on every path.

    The CPU's flash kernel wants one head size, so narrower values are filled up with zeros there (forward and backward
    of B = 8, H = 4, S = 256, sizes 48 and 32, on one core: 28 ms in place of 35). A GPU's cuDNN kernel takes both
    sizes, and filling up would slow it down (H200, B = 1, H = 32, S = 4096, sizes 192 and 128: 2.25 ms, not 1.5).
    """
    size = v.shape[-1]
    if q.device.type == "cpu" and size < q.shape[-1]:
        v = F.pad(v, (0, q.shape[-1] - size))
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, scale=scale)
    return out[..., :size]


class TorchCompute(Compute):
    """Builds modules of plain torch."""

    def __init__(self, options: TorchComputeOptions, context: ComputeContext) -> None:
        self._options = options
        self._parameters = context.precision.dtype("parameters")
        self._compute = context.precision.dtype("compute")

    def linear(self, in_features: int, out_features: int) -> nn.Module:
        """Return a `Linear`."""
        return Linear(in_features, out_features, self._parameters)

    def rms_norm(self, size: int, eps: float) -> nn.Module:
        """Return an `RMSNorm`."""
        return RMSNorm(size, eps, self._parameters)

    def grouped_experts(self, num_local_experts: int, hidden_size: int, intermediate_size: int) -> nn.Module:
        """Return the experts with the products that the options ask for.

        Raises:
            ContractError: the options demand grouped_mm for sizes that it cannot take.
        """
        grouped = takes_grouped_mm(
            self._options.grouped_mm, self._compute, hidden_size=hidden_size, intermediate_size=intermediate_size
        )
        kind = GroupedMMExperts if grouped else LoopExperts
        return kind(num_local_experts, hidden_size, intermediate_size, self._parameters)

    def attention(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, scale: float, mask: torch.Tensor | None
    ) -> torch.Tensor:
        """See `Compute.attention`."""
        return attention(q, k, v, scale=scale, mask=mask)
