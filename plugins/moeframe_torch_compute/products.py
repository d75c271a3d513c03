"""Products of grouped rows with a weight for each group, whose weight gradient can run apart from the input's.

R rows in E groups, I input width, O output width. What lies beyond the last group is undefined in what `Grouped`
returns, and zero in what `Looped` returns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

from moeframe.protocols.weight_gradients import postpone

__all__ = ["Grouped", "Groups", "Looped", "product"]


class Groups(Protocol):
    """Which rows belong to which weight."""

    def forward(self, rows_RI: torch.Tensor, weight_EOI: torch.Tensor) -> torch.Tensor:
        """Return (R, O)."""

    def input_gradient(self, grad_RO: torch.Tensor, weight_EOI: torch.Tensor) -> torch.Tensor:
        """Return (R, I)."""

    def weight_gradient(self, grad_RO: torch.Tensor, rows_RI: torch.Tensor) -> torch.Tensor:
        """Return (E, O, I)."""


class Grouped(Groups):
    """One kernel for all groups. `ends_E`: int32, the end of each group."""

    def __init__(self, ends_E: torch.Tensor) -> None:
        self._ends_E = ends_E

    def forward(self, rows_RI: torch.Tensor, weight_EOI: torch.Tensor) -> torch.Tensor:
        """Return (R, O)."""
        return F.grouped_mm(rows_RI, weight_EOI.transpose(1, 2), offs=self._ends_E)

    def input_gradient(self, grad_RO: torch.Tensor, weight_EOI: torch.Tensor) -> torch.Tensor:
        """Return (R, I)."""
        return F.grouped_mm(grad_RO, weight_EOI, offs=self._ends_E)

    def weight_gradient(self, grad_RO: torch.Tensor, rows_RI: torch.Tensor) -> torch.Tensor:
        """Return (E, O, I)."""
        return F.grouped_mm(grad_RO.t(), rows_RI, offs=self._ends_E)


class Looped(Groups):
    """One product a group. `counts`: rows of each group."""

    def __init__(self, counts: Sequence[int]) -> None:
        self._counts = list(counts)
        self._rows = sum(counts)

    def _parts(self, tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.split(tensor[: self._rows], self._counts)

    def _joined(self, parts: list[torch.Tensor], num_rows: int) -> torch.Tensor:
        spare = num_rows - self._rows
        return torch.cat([*parts, parts[0].new_zeros(spare, parts[0].shape[1])] if spare else parts)

    def forward(self, rows_RI: torch.Tensor, weight_EOI: torch.Tensor) -> torch.Tensor:
        """Return (R, O)."""
        pairs = zip(self._parts(rows_RI), weight_EOI.unbind(), strict=True)
        return self._joined([rows @ weight_OI.t() for rows, weight_OI in pairs], rows_RI.shape[0])

    def input_gradient(self, grad_RO: torch.Tensor, weight_EOI: torch.Tensor) -> torch.Tensor:
        """Return (R, I)."""
        pairs = zip(self._parts(grad_RO), weight_EOI.unbind(), strict=True)
        return self._joined([grad @ weight_OI for grad, weight_OI in pairs], grad_RO.shape[0])

    def weight_gradient(self, grad_RO: torch.Tensor, rows_RI: torch.Tensor) -> torch.Tensor:
        """Return (E, O, I)."""
        pairs = zip(self._parts(grad_RO), self._parts(rows_RI), strict=True)
        return torch.stack([grad.t() @ rows for grad, rows in pairs])


def product(rows_RI: torch.Tensor, weight_EOI: torch.Tensor, groups: Groups) -> torch.Tensor:
    """Return (R, O) in the dtype of the rows, whatever that of the weight."""
    out: torch.Tensor = _Product.apply(rows_RI, weight_EOI, groups)  # type: ignore[no-untyped-call]  # torch's stub
    return out


@torch.no_grad()
def _add_weight_gradient(
    weight_EOI: torch.Tensor, groups: Groups, grad_RO: torch.Tensor, rows_RI: torch.Tensor
) -> None:
    """Add to what is there in one kernel, which converts on its way: with float32 weights half the traffic."""
    gradient_EOI = groups.weight_gradient(grad_RO, rows_RI)
    if weight_EOI.grad is None:
        weight_EOI.grad = gradient_EOI.to(weight_EOI.dtype)
    else:
        weight_EOI.grad.add_(gradient_EOI)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows_RI: torch.Tensor, weight_EOI: torch.Tensor, groups: Groups) -> torch.Tensor:
        cast_EOI = weight_EOI.to(rows_RI.dtype)
        ctx.save_for_backward(rows_RI, cast_EOI)
        ctx.weight, ctx.groups = weight_EOI, groups
        return groups.forward(rows_RI, cast_EOI)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None, None]:
        rows_RI, cast_EOI = ctx.saved_tensors
        weight: torch.Tensor = ctx.weight
        groups: Groups = ctx.groups
        grad_RO = grad.contiguous()  # grouped_mm refuses the expanded gradients that a sum over rows sends
        wants_rows, wants_weight, _ = ctx.needs_input_grad
        rows_grad = groups.input_gradient(grad_RO, cast_EOI) if wants_rows else None
        if not wants_weight:
            return rows_grad, None, None

        if weight.is_leaf and postpone(lambda: _add_weight_gradient(weight, groups, grad_RO, rows_RI)):
            return rows_grad, None, None
        return rows_grad, groups.weight_gradient(grad_RO, rows_RI).to(weight.dtype), None
