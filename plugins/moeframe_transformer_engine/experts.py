"""Routed experts on grouped products: R rows grouped by expert, E local experts, D width, F expert width."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.function import once_differentiable

from moeframe_transformer_engine.kernels import Kernels
from moeframe_transformer_engine.padding import Padding
from moeframe_transformer_engine.products import product

__all__ = ["TransformerEngineExperts"]


class TransformerEngineExperts(nn.Module):
    """All experts in one grouped product. Reads the counts on the host unless they are given there."""

    def __init__(
        self, num_local_experts: int, hidden_size: int, intermediate_size: int, dtype: torch.dtype, kernels: Kernels
    ) -> None:
        super().__init__()
        self._kernels = kernels
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
        """Return (R, D): each row through its expert, times its gate; zeros beyond the counts.

        Where the kernels want whole multiples of rows, each expert's rows are filled up with zeros, whose gates are
        zeros, and taken back: no dispatcher needs to know.
        """
        counts = tuple(counts_E.tolist()) if counts_host is None else counts_host
        num_rows, used = rows_RD.shape[0], sum(counts)
        if used < num_rows:
            rows_RD, gates_R = rows_RD[:used], gates_R[:used]
        if any(count % self._kernels.row_multiple for count in counts):
            padding = Padding.of(counts_E, counts, self._kernels.row_multiple)
            filled = self._swiglu(padding.fill(rows_RD), padding.fill(gates_R), padding.counts)
            out_RD = padding.take(filled)
        else:
            out_RD = self._swiglu(rows_RD, gates_R, counts)
        return F.pad(out_RD, (0, 0, 0, num_rows - used)) if used < num_rows else out_RD

    def _swiglu(self, rows: torch.Tensor, gates: torch.Tensor, counts: tuple[int, ...]) -> torch.Tensor:
        gate_up = product(self._kernels, rows, self.gate_up_proj, counts)
        hidden: torch.Tensor = _Gated.apply(gate_up, gates)  # type: ignore[no-untyped-call]
        return product(self._kernels, hidden, self.down_proj, counts)


class _Gated(torch.autograd.Function):
    """``silu(gate) * up * gates`` in the dtype of the gates; keeps its inputs only, and works the rest out again."""

    @staticmethod
    def forward(ctx: Any, gate_up_RF: torch.Tensor, gates_R: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(gate_up_RF, gates_R)
        gate_RF, up_RF = gate_up_RF.to(gates_R.dtype).chunk(2, dim=-1)
        return F.silu(gate_RF).mul_(up_RF).mul_(gates_R.unsqueeze(-1)).to(gate_up_RF.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_RF: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        gate_up_RF, gates_R = ctx.saved_tensors
        # Casts of whole tensors are several times faster than of halves; the results take the place of the inputs.
        both_RF = gate_up_RF.to(gates_R.dtype, copy=True)
        gate_RF, up_RF = both_RF.chunk(2, dim=-1)
        grad_RF = grad_RF.to(gates_R.dtype)
        sigmoid_RF = gate_RF.sigmoid()
        silu_RF = gate_RF * sigmoid_RF
        grad_gates_R = torch.linalg.vecdot(grad_RF * silu_RF, up_RF)
        grad_RF = grad_RF * gates_R.unsqueeze(-1)
        # The slope of silu is sigmoid + silu - silu x sigmoid.
        slope_RF = torch.addcmul(silu_RF, silu_RF, sigmoid_RF, value=-1).add_(sigmoid_RF)
        torch.mul(slope_RF.mul_(up_RF), grad_RF, out=gate_RF)
        torch.mul(silu_RF, grad_RF, out=up_RF)
        return both_RF.to(gate_up_RF.dtype), grad_gates_R
