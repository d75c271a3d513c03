"""Moving rows inside one device: sums over a token's rows, and packing gates beside rows."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from moeframe import trace
from moeframe.errors import ContractError

__all__ = [
    "Packing",
    "grad_anchor",
    "high_dtype",
    "require_expert_rows",
    "sum_bags",
    "sum_rows",
    "sum_rows_rounded",
]

ALIGNMENT_BYTES = 16
"""Rows in a packed buffer start at a multiple of this, so that copies can use the widest loads."""


def high_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype to accumulate `dtype` in: float64 for float64, else float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def sum_rows(rows_RD: torch.Tensor, places_TK: torch.Tensor, *, complete: bool) -> torch.Tensor:
    """Sum the rows of each token, in order of its choices: the same order, so the same bits, in every layout.

    Gathers rather than adds at indices: no atomics, so deterministic on a GPU.

    Args:
        rows_RD: (R, D) any floating dtype.
        places_TK: (T, K) row of each choice; R for none.
        complete: no place is R.

    Returns:
        (T, D) in `high_dtype` of the rows.
    """
    if not complete:
        rows_RD = torch.cat([rows_RD, rows_RD.new_zeros(1, rows_RD.shape[1])])
    total_TD = rows_RD.index_select(0, places_TK[:, 0]).to(high_dtype(rows_RD.dtype))
    for choice in range(1, places_TK.shape[1]):
        total_TD += rows_RD.index_select(0, places_TK[:, choice])
    return total_TD


def sum_rows_rounded(rows_RD: torch.Tensor, places_TK: torch.Tensor, *, complete: bool) -> torch.Tensor:
    """Return `sum_rows` in the dtype of the rows: the same bits, on a GPU in one kernel.

    Choice by choice, a GPU moves each token's sum K times (H200, T = 4096, K = 8, D = 7168 in bfloat16: 1.6 ms).
    """
    if rows_RD.is_cuda:
        return sum_bags(rows_RD, places_TK, complete=complete)
    return sum_rows(rows_RD, places_TK, complete=complete).to(rows_RD.dtype)


def sum_bags(rows_RD: torch.Tensor, places_TK: torch.Tensor, *, complete: bool) -> torch.Tensor:
    """Return `sum_rows` in the dtype of the rows, as bags of an embedding: summed in order, by a GPU in float32."""
    if not places_TK.shape[0]:
        return rows_RD.new_empty(0, rows_RD.shape[1])
    if not complete:
        rows_RD = torch.cat([rows_RD, rows_RD.new_zeros(1, rows_RD.shape[1])])
    return F.embedding_bag(places_TK, rows_RD, mode="sum")


class Packing:
    """One buffer for rows and the gates beside them, so that both travel in one collective.

    A packed row is `num_gates` gates, then the row, each starting at a multiple of 16 bytes; dtype of the rows. Gates
    keep their bits: wider ones lie in several elements, and narrower ones (float32 beside float64) are widened.
    """

    def __init__(self, row_dtype: torch.dtype, hidden_size: int, gate_dtype: torch.dtype, num_gates: int) -> None:
        """Lay out a packed row."""
        self.row_dtype = row_dtype
        self.hidden_size = hidden_size
        self.gate_dtype = gate_dtype
        self._wire_dtype = gate_dtype if gate_dtype.itemsize >= row_dtype.itemsize else row_dtype
        per_line = ALIGNMENT_BYTES // row_dtype.itemsize
        self._gate_width = num_gates * self._wire_dtype.itemsize // row_dtype.itemsize
        self._row_start = -(-self._gate_width // per_line) * per_line
        self.width = self._row_start + -(-hidden_size // per_line) * per_line

    def empty(self, num_rows: int, device: torch.device) -> torch.Tensor:
        """Return an uninitialised buffer (num_rows, width)."""
        return torch.empty(num_rows, self.width, dtype=self.row_dtype, device=device)

    def rows(self, packed: torch.Tensor) -> torch.Tensor:
        """Return the rows of a buffer, a view (num_rows, hidden_size)."""
        return packed[:, self._row_start : self._row_start + self.hidden_size]

    def put_gates(self, packed: torch.Tensor, gates: torch.Tensor) -> None:
        """Write (num_rows, num_gates) gates."""
        packed[:, : self._gate_width] = gates.to(self._wire_dtype).contiguous().view(self.row_dtype)

    def gates(self, packed: torch.Tensor) -> torch.Tensor:
        """Return a copy of the gates, (num_rows, num_gates)."""
        return packed[:, : self._gate_width].contiguous().view(self._wire_dtype).to(self.gate_dtype)


def grad_anchor() -> torch.Tensor:
    """Return an input that makes an autograd function take part in every backward.

    A collective in a backward must run on all ranks or on none, whatever requires a gradient on this one. Where
    gradients are off the anchor has none either.
    """
    return torch.empty(0, requires_grad=torch.is_grad_enabled())


def require_expert_rows(rows_RD: torch.Tensor, given_RD: torch.Tensor) -> None:
    """Raise unless the experts' output fits what they were given and, with gradients on, hangs in the graph.

    Raises:
        ContractError: names both shapes, or says that the backward would not run on this rank.
    """
    if rows_RD.shape != given_RD.shape:
        raise ContractError(
            f"the experts returned rows of shape {tuple(rows_RD.shape)} and were given {tuple(given_RD.shape)} "
            f"({trace.current()}): combine takes one row for each that dispatch gave, in the same order"
        )
    if torch.is_grad_enabled() and given_RD.requires_grad and not rows_RD.requires_grad:
        raise ContractError(
            f"the experts' output of shape {tuple(rows_RD.shape)} has no gradient ({trace.current()}): this rank would "
            "take no part in the backward, and the other ranks of its group would wait for it. Compute on zero rows "
            "too, instead of returning a new empty tensor"
        )
