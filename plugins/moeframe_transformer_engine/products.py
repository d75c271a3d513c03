"""Matrix products whose weight gradient is a node of its own in autograd's graph.

R rows grouped by expert, E experts (a linear layer is one expert), I and O widths of input and output. A product is
three nodes: `_InputSide` gives the input's gradient and keeps the weights, `_WeightSide` gives the weights' gradient
and keeps the input, `_Product` sends one gradient to both. Whoever asks for one of the two (``torch.autograd.grad``
with `inputs`) computes only that one, and may ask for the other later; whoever postpones weight gradients
(`moeframe.protocols.weight_gradients`) gets the second node's work.

Nothing cast is kept of the weights: they are cast again in the backward, so that a sharding may free what it gathered.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from moeframe.protocols.weight_gradients import postpone
from moeframe_transformer_engine.kernels import Kernels, Operand

__all__ = ["product"]


def product(
    kernels: Kernels, x_RI: torch.Tensor, weight_EOI: torch.Tensor, counts: tuple[int, ...] | None = None
) -> torch.Tensor:
    """Return x times the transposed weight of each row's expert, in the dtype of x; a tensor that is no view.

    Args:
        kernels: what multiplies.
        x_RI: (..., I), with all leading dimensions taken as rows; their number is a multiple of `kernels.row_multiple`.
        weight_EOI: (E, O, I), or (O, I) of one expert.
        counts: rows of each expert in order, multiples of `kernels.row_multiple` that sum to R; None: one expert.
    """
    shape = (*x_RI.shape[:-1], weight_EOI.shape[-2])
    splits = (x_RI.numel() // x_RI.shape[-1],) if counts is None else counts
    groups = _Groups(kernels, splits)
    grad = torch.is_grad_enabled()
    # Transformer Engine reads memory as if every factor were contiguous.
    x, weights = x_RI.detach().reshape(-1, x_RI.shape[-1]).contiguous(), weight_EOI.detach()
    out = x.new_empty(shape)
    with torch.no_grad():
        operands = kernels.activations(x, groups.splits, for_weights=grad and weight_EOI.requires_grad)
        kernels.forward(operands, groups.weights(weights), out.view(-1, shape[-1]), groups.splits)
    input_side = weight_side = None
    if grad and x_RI.requires_grad:
        input_side = _apply(_InputSide, x_RI, weights, groups, shape)
    if grad and weight_EOI.requires_grad:
        weight_side = _apply(_WeightSide, weight_EOI, operands, groups, x, shape)
    return _apply(_Product, input_side, weight_side, lambda: out)


def _apply(function: type[torch.autograd.Function], *arguments: Any) -> torch.Tensor:
    result: torch.Tensor = function.apply(*arguments)  # type: ignore[no-untyped-call]
    return result


@dataclass(frozen=True)
class _Groups:
    """Which rows belong to which expert; experts without rows take no part in a product."""

    kernels: Kernels
    counts: tuple[int, ...]

    @property
    def splits(self) -> list[int]:
        return [count for count in self.counts if count]

    def weights(self, weights: torch.Tensor) -> list[torch.Tensor]:
        """Return the matrices of the experts that have rows."""
        matrices = weights.unbind() if weights.dim() == 3 else (weights,)
        return [matrix for matrix, count in zip(matrices, self.counts, strict=True) if count]


def _token(x: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """Return a tensor of that shape without memory of its own: it stands for a product in the graph."""
    return torch.empty((), dtype=x.dtype, device=x.device).expand(shape)


class _InputSide(torch.autograd.Function):
    """Its backward multiplies the output's gradient by the weights."""

    @staticmethod
    def forward(
        ctx: Any, x_RI: torch.Tensor, weights: torch.Tensor, groups: _Groups, shape: tuple[int, ...]
    ) -> torch.Tensor:
        ctx.groups, ctx.shape = groups, x_RI.shape
        ctx.save_for_backward(weights)
        return _token(x_RI, shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (weights,) = ctx.saved_tensors
        groups: _Groups = ctx.groups
        out = grad.new_empty(ctx.shape)
        rows = grad.reshape(-1, grad.shape[-1])
        groups.kernels.input_gradient(rows, groups.weights(weights), out.view(-1, out.shape[-1]), groups.splits)
        return out, None, None, None


class _WeightSide(torch.autograd.Function):
    """Its backward multiplies the output's gradient by the input, for each expert."""

    @staticmethod
    def forward(
        ctx: Any,
        weight_EOI: torch.Tensor,
        operands: list[Operand],
        groups: _Groups,
        x: torch.Tensor,
        shape: tuple[int, ...],
    ) -> torch.Tensor:
        ctx.groups, ctx.weight = groups, weight_EOI
        tensors, ctx.rebuild = groups.kernels.to_save(operands, x)
        ctx.save_for_backward(*tensors)
        return _token(x, shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        groups: _Groups = ctx.groups
        weight: torch.Tensor = ctx.weight
        rebuild: Callable[..., list[Operand]] = ctx.rebuild
        operands = rebuild(ctx.saved_tensors, groups.splits)

        def gradient() -> torch.Tensor:
            out = (torch.empty_like if all(groups.counts) else torch.zeros_like)(weight)
            rows = grad.reshape(-1, grad.shape[-1])
            groups.kernels.weight_gradient(operands, rows, groups.weights(out), groups.splits)
            return out

        if weight.is_leaf and postpone(lambda: weight.backward(gradient())):  # type: ignore[no-untyped-call]
            return None, None, None, None, None
        return gradient(), None, None, None, None


class _Product(torch.autograd.Function):
    """The product itself; passes its gradient to both sides."""

    @staticmethod
    def forward(
        ctx: Any, input_side: torch.Tensor | None, weight_side: torch.Tensor | None, made: Callable[[], torch.Tensor]
    ) -> torch.Tensor:
        ctx.needed = [side is not None for side in (input_side, weight_side)]
        return made()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        grad = grad.contiguous()
        return (*(grad if needed else None for needed in ctx.needed), None)
