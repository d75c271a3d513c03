"""Rows of every expert filled up to a multiple, and taken back. R rows, P rows with the filling, E experts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.function import once_differentiable

__all__ = ["Padding", "round_up"]


def round_up(number: int, multiple: int) -> int:
    """Return the smallest multiple that is not below the number."""
    return -(-number // multiple) * multiple


@dataclass(frozen=True)
class Padding:
    """Where rows go when every expert gets whole multiples of rows; zeros fill the rest."""

    counts: tuple[int, ...]
    """Rows of each expert with the filling."""
    places_R: torch.Tensor
    """Place of each row among the P rows, int64."""

    @classmethod
    def of(cls, counts_E: torch.Tensor, counts: tuple[int, ...], multiple: int) -> Padding:
        """Work it out on the device of `counts_E`, without a host sync.

        Args:
            counts_E: rows of each expert.
            counts: the same numbers on the host.
            multiple: of rows an expert gets.
        """
        counts_E = counts_E.to(torch.int64)
        filling_E = (counts_E + (multiple - 1)).div(multiple, rounding_mode="floor") * multiple - counts_E
        before_E = filling_E.cumsum(0) - filling_E
        rows = sum(counts)
        shift_R = before_E.repeat_interleave(counts_E, output_size=rows)
        places_R = torch.arange(rows, device=counts_E.device) + shift_R
        return cls(tuple(round_up(count, multiple) for count in counts), places_R)

    def fill(self, rows: torch.Tensor) -> torch.Tensor:
        """Return (P, ...) of rows (R, ...)."""
        filled: torch.Tensor = _Fill.apply(rows, self.places_R, sum(self.counts))  # type: ignore[no-untyped-call]
        return filled

    def take(self, filled: torch.Tensor) -> torch.Tensor:
        """Return the rows (R, ...) among (P, ...)."""
        taken: torch.Tensor = _Take.apply(filled, self.places_R)  # type: ignore[no-untyped-call]
        return taken


def _filled(rows: torch.Tensor, places_R: torch.Tensor, size: int) -> torch.Tensor:
    return rows.new_zeros(size, *rows.shape[1:]).index_copy_(0, places_R, rows)


class _Fill(torch.autograd.Function):
    """Rows into zeros; backward takes them out."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, places_R: torch.Tensor, size: int) -> torch.Tensor:
        ctx.save_for_backward(places_R)
        return _filled(rows, places_R, size)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return grad.index_select(0, *ctx.saved_tensors), None, None


class _Take(torch.autograd.Function):
    """Rows out of many; backward puts them into zeros."""

    @staticmethod
    def forward(ctx: Any, filled: torch.Tensor, places_R: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(places_R)
        ctx.size = filled.shape[0]
        return filled.index_select(0, places_R)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (places_R,) = ctx.saved_tensors
        return _filled(grad, places_R, ctx.size), None
