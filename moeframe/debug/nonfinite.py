"""Where NaN or infinity arose: a step is run again, and every phase looked at in both directions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from moeframe import trace
from moeframe.debug.poison import BY_ROW, INPUTS, OUTPUTS, num_rows, tensor_name
from moeframe.model.phases import InspectGradients, inspecting
from moeframe.trace import Place

__all__ = ["Arisen", "locate"]

_ORDER: Final[tuple[trace.Phase, ...]] = ("embed", "attend", "dispatch", "experts", "combine", "head")


@dataclass(frozen=True, kw_only=True)
class Arisen:
    """What one rank saw first. `what` is the tensor in words; `values`: parameters that hold NaN or infinity already.

    `gradients`: parameters of which the gradient does, in the order of the model; of a sharded one this rank's part.
    """

    rank: int
    place: Place | None
    what: str
    values: tuple[str, ...]
    gradients: tuple[str, ...]

    @property
    def order(self) -> tuple[int, ...]:
        """When it was in the step, comparable between ranks: what goes around the ranks is seen later elsewhere."""
        if self.place is None:
            return (1,)
        place = self.place
        layer = {"embed": -1, "head": 1 << 30}.get(place.phase, place.layer)
        phase = _ORDER.index(place.phase) if place.phase in _ORDER else len(_ORDER)
        backward = place.direction == "backward"
        sign = -1 if backward else 1
        return (0, place.micro_batch, backward, sign * layer, sign * phase)


def locate(model: nn.Module, run_again: Callable[[], None]) -> str:
    """Run a step again and say where its numbers first stop being finite. Collective.

    Args:
        model: whose parameters have the values that the step began with.
        run_again: computes the gradients of the step, unclipped, into `grad`.
    """
    first: list[tuple[Place, str]] = []
    values = _nonfinite(model, lambda parameter: parameter)
    with inspecting(lambda phase, inputs, outputs: _inspect(first, phase, inputs, outputs)):
        run_again()
    own = Arisen(
        rank=dist.get_rank() if dist.is_initialized() else 0,
        place=first[0][0] if first else None,
        what=first[0][1] if first else "",
        values=values,
        gradients=_nonfinite(model, lambda parameter: parameter.grad),
    )
    every: list[Arisen] = [own]
    if dist.is_initialized():
        every = [own] * dist.get_world_size()
        dist.all_gather_object(every, own)
    return _told(every)


def _nonfinite(model: nn.Module, of: Callable[[nn.Parameter], torch.Tensor | None]) -> tuple[str, ...]:
    return tuple(name for name, parameter in model.named_parameters() if not _is_finite(of(parameter)))


def _is_finite(tensor: torch.Tensor | None) -> bool:
    if tensor is None:
        return True
    piece = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return bool(piece.isfinite().all())


def _inspect(
    first: list[tuple[Place, str]], phase: trace.Phase, inputs: tuple[Any, ...], outputs: tuple[Any, ...]
) -> InspectGradients:
    rows = num_rows(phase, inputs, outputs)

    def look(name: str, tensor: torch.Tensor, kind: str = "") -> None:
        if first or not tensor.is_floating_point():
            return
        real = tensor.detach()[:rows] if rows is not None and name in BY_ROW else tensor.detach()
        if not bool(real.isfinite().all()):
            first.append((trace.current(), f"{kind}{name}"))

    for number, value in enumerate(outputs):
        if isinstance(value, torch.Tensor):
            look(tensor_name(OUTPUTS, phase, number), value)

    def look_at_gradients(grads: Mapping[int, torch.Tensor]) -> None:
        for number, grad in grads.items():
            look(tensor_name(INPUTS, phase, number), grad, "the gradient of ")

    return look_at_gradients


def _told(every: Sequence[Arisen]) -> str:
    """Say in words what the ranks saw, the first ones first."""
    held = [(one.rank, name) for one in every for name in one.values]
    if held:
        return f"The parameter {held[0][1]} held NaN or infinity before the step already (rank {held[0][0]})."
    earliest = min(one.order for one in every)
    those = [one for one in every if one.order == earliest]
    first = those[0]
    names = [(one.rank, name) for one in those for name in one.gradients] or [
        (one.rank, name) for one in every for name in one.gradients
    ]
    layer = first.place.layer if first.place is not None else -1
    own = [(rank, name) for rank, name in names if f"blocks.{layer}." in name]
    rank, name = (own or names or [(0, "")])[0]
    parameter = f" First parameter with such a gradient: {name} (rank {rank})." if name else ""
    if first.place is not None:
        ranks = f"rank {first.rank}" if len(those) == 1 else f"ranks {', '.join(str(one.rank) for one in those)}"
        return f"It arose on {ranks} {trace.told('at', first.place)}, in {first.what}.{parameter}"
    if names:
        return f"No phase passed it on: it arose in a product with a parameter, or in the sum over ranks.{parameter}"
    return (
        "The step, run again, had finite gradients: the norm of large gradients overflowed, or a device or kernel does "
        "not give the same numbers twice."
    )
