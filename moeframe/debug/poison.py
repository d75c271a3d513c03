"""Poison mode: memory that nobody has written holds NaN, and a phase that lets one through is named.

Filled, by torch itself: what torch.empty, empty_like, empty_strided, empty_permuted, new_empty and resize_ return, from
Python and from C++ (at::empty and its kin in kernels and extensions), floats with NaN and integers with their largest
value. Not filled: storages that are resized without a tensor (gathered parameters of fully_shard), symmetric memory and
what a library allocates by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils import deterministic

from moeframe import trace
from moeframe.errors import ContractError
from moeframe.model.block import Received
from moeframe.model.phases import InspectGradients, inspecting
from moeframe.protocols.dispatcher import Dispatched

__all__ = [
    "BY_ROW",
    "INPUTS",
    "OUTPUTS",
    "num_rows",
    "poisoned",
    "require_written_gradients",
    "tensor_name",
]

INPUTS: Final[Mapping[trace.Phase, tuple[str, ...]]] = {
    "attend": ("x_BSD",),
    "dispatch": ("x_BSD", "gates_TK"),
    "experts": ("x_BSD", "rows_RD", "gates_R"),
    "combine": ("rows_RD",),
}
OUTPUTS: Final[Mapping[trace.Phase, tuple[str, ...]]] = {
    "attend": ("residual_BSD", "x_BSD", "gates_TK"),
    "dispatch": ("rows_RD", "gates_R"),
    "experts": ("rows_RD", "own_BSD"),
    "combine": ("out_TD",),
}
BY_ROW: Final = ("rows_RD", "gates_R")
"""Tensors whose rows beyond the counts of the experts hold no meaning: NaN is legal there."""


@contextmanager
def poisoned() -> Iterator[None]:
    """Fill unwritten memory inside the block, in this process, and look at what every phase returns and passes back.

    torch fills only while it prefers deterministic algorithms, so it does; operators that have none warn. On a CPU the
    numbers stay the same bits; on a GPU sums may run in another order than without.
    """
    was_on = torch.are_deterministic_algorithms_enabled()
    warned_only = torch.is_deterministic_algorithms_warn_only_enabled()
    filled = deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    torch.use_deterministic_algorithms(True, warn_only=True)
    deterministic.fill_uninitialized_memory = True  # type: ignore[attr-defined]
    try:
        with inspecting(_inspect):
            yield
    finally:
        torch.use_deterministic_algorithms(was_on, warn_only=warned_only)
        deterministic.fill_uninitialized_memory = filled  # type: ignore[attr-defined]


def require_written_gradients(model: nn.Module) -> None:
    """Require that no gradient of a parameter holds NaN, before they are clipped: clipping would spread it.

    Raises:
        ContractError: names the parameters.
    """
    wrong = [name for name, parameter in model.named_parameters() if _holds_nan(parameter.grad)]
    if wrong:
        raise ContractError(
            f"Poison: the gradients of {', '.join(wrong)} hold NaN ({trace.current()}), but no phase of a layer passed "
            "one on. Memory that nobody wrote entered at a product with these parameters, or in the sum over ranks."
        )


def _holds_nan(tensor: torch.Tensor | None) -> bool:
    if tensor is None:
        return False
    piece = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return bool(piece.isnan().any())


def _inspect(phase: trace.Phase, inputs: tuple[Any, ...], outputs: tuple[Any, ...]) -> InspectGradients:
    """Look at what a phase returned; the function that is returned looks at the gradients it gives its inputs."""
    rows = num_rows(phase, inputs, outputs)
    for place, value in enumerate(outputs):
        if isinstance(value, torch.Tensor):
            _require_written(tensor_name(OUTPUTS, phase, place), value, rows)

    def inspect_gradients(grads: Mapping[int, torch.Tensor]) -> None:
        for place, grad in grads.items():
            _require_written(tensor_name(INPUTS, phase, place), grad, rows, kind="the gradient of ")

    return inspect_gradients


def num_rows(phase: trace.Phase, inputs: tuple[Any, ...], outputs: tuple[Any, ...]) -> int | None:
    """Return how many rows of this rank's experts hold meaning; None where there are no rows."""
    if phase == "dispatch":
        dispatched = outputs[2]
        assert isinstance(dispatched, Dispatched)
        return int(dispatched.counts_E.sum())
    if phase == "experts" and len(inputs) > 1:
        return int(inputs[3].sum())
    if phase == "combine" and isinstance(inputs[1], Received):
        return int(inputs[1].dispatched.counts_E.sum())
    return None


def tensor_name(names: Mapping[trace.Phase, tuple[str, ...]], phase: trace.Phase, place: int) -> str:
    """Return what an input or output of a phase is called."""
    known = names.get(phase, ())
    return known[place] if place < len(known) else f"tensor {place}"


def _require_written(name: str, tensor: torch.Tensor, rows: int | None, kind: str = "") -> None:
    if not tensor.is_floating_point():
        return
    by_row = rows is not None and name in BY_ROW
    nans = tensor.detach()[:rows].isnan() if by_row else tensor.detach().isnan()
    if not bool(nans.any()):
        return
    first = tuple(nans.nonzero()[0].tolist())
    of_rows = f", of which {rows} rows are real" if by_row else ""
    raise ContractError(
        f"Poison: {kind}{name} holds {int(nans.sum())} NaN, the first at {list(first)} ({trace.current()}; shape "
        f"{list(tensor.shape)}{of_rows}). This phase read memory that nobody had written, or made NaN from numbers. "
        "Write every element of a new buffer before it is read, or fill it with zeros."
    )
