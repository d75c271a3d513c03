"""The compute backend `te`. T tokens, B sequences, S positions, H heads."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.function import once_differentiable

from moeframe.protocols.compute import Compute, ComputeContext
from moeframe_transformer_engine.experts import TransformerEngineExperts
from moeframe_transformer_engine.kernels import BFloat16Kernels, BlockwiseKernels, Kernels
from moeframe_transformer_engine.loading import TransformerEngine
from moeframe_transformer_engine.options import TransformerEngineOptions
from moeframe_transformer_engine.padding import round_up
from moeframe_transformer_engine.products import product

__all__ = ["Linear", "RMSNorm", "TransformerEngineCompute"]


class Linear(nn.Module):
    """``x @ weight.T`` in the dtype of x, or in FP8 with a result of that dtype."""

    def __init__(self, in_features: int, out_features: int, dtype: torch.dtype, kernels: Kernels) -> None:
        super().__init__()
        self._kernels = kernels
        self.weight = nn.Parameter(torch.empty(out_features, in_features, dtype=dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (..., in) to (..., out); rows are filled up where the kernels want a multiple of them."""
        rows = x.numel() // x.shape[-1]
        filled = round_up(rows, self._kernels.row_multiple)
        if filled == rows:
            return product(self._kernels, x, self.weight)
        x_TI = F.pad(x.reshape(rows, x.shape[-1]), (0, 0, 0, filled - rows))
        out = product(self._kernels, x_TI, self.weight)[:rows]
        return out.view(*x.shape[:-1], out.shape[-1]).clone()


class RMSNorm(nn.Module):
    """``x / sqrt(mean(x^2) + eps) * weight`` over the last dimension; statistics in float32."""

    def __init__(self, size: int, eps: float, dtype: torch.dtype, engine: TransformerEngine) -> None:
        super().__init__()
        self.eps = eps
        self._engine = engine
        self.weight = nn.Parameter(torch.empty(size, dtype=dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the shape and dtype of x."""
        out: torch.Tensor = _RMSNorm.apply(x.contiguous(), self.weight.to(x.dtype), self.eps, self._engine)  # type: ignore[no-untyped-call]
        return out


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, eps: float, engine: TransformerEngine) -> torch.Tensor:
        out, inverse_T = engine.rms_norm(x, weight, eps)
        ctx.engine = engine
        ctx.save_for_backward(x, weight, inverse_T)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        engine: TransformerEngine = ctx.engine
        return (*engine.rms_norm_gradients(grad.contiguous(), *ctx.saved_tensors), None, None)


class TransformerEngineCompute(Compute):
    """Builds modules on Transformer Engine's kernels; attention is torch's SDPA, which FP8 leaves alone."""

    def __init__(self, options: TransformerEngineOptions, context: ComputeContext, engine: TransformerEngine) -> None:
        self._parameters = context.precision.dtype("parameters")
        self._engine = engine
        self._kernels: Kernels = BFloat16Kernels(engine)
        if options.precision == "fp8_blockwise":
            engine.require_blockwise_fp8()
            self._kernels = BlockwiseKernels(engine)

    def linear(self, in_features: int, out_features: int) -> nn.Module:
        """Return a `Linear`."""
        return Linear(in_features, out_features, self._parameters, self._kernels)

    def rms_norm(self, size: int, eps: float) -> nn.Module:
        """Return an `RMSNorm`."""
        return RMSNorm(size, eps, self._parameters, self._engine)

    def grouped_experts(self, num_local_experts: int, hidden_size: int, intermediate_size: int) -> nn.Module:
        """Return `TransformerEngineExperts`."""
        return TransformerEngineExperts(
            num_local_experts, hidden_size, intermediate_size, self._parameters, self._kernels
        )

    def attention(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, scale: float, mask: torch.Tensor | None
    ) -> torch.Tensor:
        """Return what `Compute.attention` says, from SDPA: its kernels keep the softmax in float32."""
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, scale=scale)
