"""Routed experts: R rows grouped by expert, E local experts, D width, F expert width.

grouped_mm knows no float64 and wants the last dimension of every operand to be a multiple of 16 bytes. Its rows beyond
the last group are undefined, in the output and in the input gradient (zeros in torch 2.13, garbage in 2.11).
"""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.function import once_differentiable

from moeframe.errors import ContractError
from moeframe_torch_compute.products import Grouped, Looped, product

__all__ = ["GroupedMMExperts", "LoopExperts", "takes_grouped_mm"]

_ALIGNMENT_BYTES = 16


def takes_grouped_mm(
    wish: Literal["auto", "always", "never"], dtype: torch.dtype, *, hidden_size: int, intermediate_size: int
) -> bool:
    """Say whether experts of these sizes run on grouped_mm when computing in `dtype`.

    Raises:
        ContractError: `wish` is always, and a size is not a multiple of 16 bytes.
    """
    if wish == "never" or dtype == torch.float64:
        return False
    multiple = _ALIGNMENT_BYTES // dtype.itemsize
    odd = [size for size in (hidden_size, intermediate_size) if size % multiple]
    if odd and wish == "always":
        raise ContractError(
            f"compute.options.grouped_mm = always: hidden_size = {hidden_size} and moe_intermediate_size = "
            f"{intermediate_size} must be multiples of {multiple} ({_ALIGNMENT_BYTES} bytes of {dtype}); "
            f"{odd[0]} is not. Change the size, or use grouped_mm = auto."
        )
    return not odd


class _Experts(nn.Module):
    def __init__(self, num_local_experts: int, hidden_size: int, intermediate_size: int, dtype: torch.dtype) -> None:
        super().__init__()
        shape = (num_local_experts, 2 * intermediate_size, hidden_size)
        self.gate_up_proj = nn.Parameter(torch.empty(shape, dtype=dtype))
        self.down_proj = nn.Parameter(torch.empty(num_local_experts, hidden_size, intermediate_size, dtype=dtype))


def _gated(gate_up_RF: torch.Tensor, gates_R: torch.Tensor) -> torch.Tensor:
    """Return silu(gate) * up * gates, multiplied in the dtype of the gates, in the dtype of the input."""
    gate_RF, up_RF = gate_up_RF.chunk(2, dim=-1)
    high = gates_R.dtype
    return (F.silu(gate_RF.to(high)) * up_RF.to(high) * gates_R.unsqueeze(-1)).to(gate_up_RF.dtype)


class LoopExperts(_Experts):
    """One product an expert. Reads the counts on the host unless they are given there."""

    def forward(
        self,
        rows_RD: torch.Tensor,
        gates_R: torch.Tensor,
        counts_E: torch.Tensor,
        counts_host: tuple[int, ...] | None,
    ) -> torch.Tensor:
        """Return (R, D): each row through its expert, times its gate; zeros beyond the counts."""
        groups = Looped(counts_E.tolist() if counts_host is None else counts_host)
        return product(_gated(product(rows_RD, self.gate_up_proj, groups), gates_R), self.down_proj, groups)


class _MaskGradient(torch.autograd.Function):
    """The identity; in backward, rows that are not inside get zeros."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, inside_R1: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(inside_R1)
        return rows.view_as(rows)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        (inside_R1,) = ctx.saved_tensors
        return torch.where(inside_R1, grad, 0), None


def _mask_gradient(rows: torch.Tensor, inside_R1: torch.Tensor) -> torch.Tensor:
    masked: torch.Tensor = _MaskGradient.apply(rows, inside_R1)  # type: ignore[no-untyped-call]
    return masked


class GroupedMMExperts(_Experts):
    """All experts in one kernel; no host sync. Needs float32 or bfloat16 rows."""

    def forward(
        self,
        rows_RD: torch.Tensor,
        gates_R: torch.Tensor,
        counts_E: torch.Tensor,
        counts_host: tuple[int, ...] | None,
    ) -> torch.Tensor:
        """Return (R, D): each row through its expert, times its gate; zeros beyond the counts."""
        offsets_E = counts_E.cumsum(0, dtype=torch.int32)
        num_rows = rows_RD.shape[0]
        if counts_host is None or sum(counts_host) < num_rows:
            inside_R1 = (torch.arange(num_rows, device=rows_RD.device) < offsets_E[-1]).unsqueeze(-1)
            return self._masked(rows_RD, gates_R, offsets_E, inside_R1)
        return self._down(_gated(self._up(rows_RD, offsets_E), gates_R), offsets_E)

    def _masked(
        self, rows_RD: torch.Tensor, gates_R: torch.Tensor, offsets_E: torch.Tensor, inside_R1: torch.Tensor
    ) -> torch.Tensor:
        """Keep what lies beyond the last group out of every value and every gradient."""
        gate_up_RF = torch.where(inside_R1, self._up(_mask_gradient(rows_RD, inside_R1), offsets_E), 0)
        hidden_RF = _gated(gate_up_RF, torch.where(inside_R1.squeeze(-1), gates_R, 0))
        return torch.where(inside_R1, self._down(_mask_gradient(hidden_RF, inside_R1), offsets_E), 0)

    def _up(self, rows_RD: torch.Tensor, offsets_E: torch.Tensor) -> torch.Tensor:
        return _product(rows_RD, self.gate_up_proj, offsets_E)

    def _down(self, hidden_RF: torch.Tensor, offsets_E: torch.Tensor) -> torch.Tensor:
        return _product(hidden_RF, self.down_proj, offsets_E)


def _product(rows_RI: torch.Tensor, weight_EOI: torch.Tensor, offsets_E: torch.Tensor) -> torch.Tensor:
    if not torch.compiler.is_compiling():
        return product(rows_RI, weight_EOI, Grouped(offsets_E))
    # A compiled backward runs in one piece, and hands on dense gradients. No hook on them: torch 2.11 fails to trace
    # one where the number of rows is open.
    return F.grouped_mm(rows_RI, weight_EOI.to(rows_RI.dtype).transpose(1, 2), offs=offsets_E)
