"""Runs a phase of a layer where `moeframe.trace` can see it, in both directions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeAlias, TypeVarTuple

import torch

from moeframe import trace

__all__ = ["InspectGradients", "InspectPhase", "inspecting", "run_phase"]

Outputs = TypeVarTuple("Outputs")

InspectGradients: TypeAlias = Callable[[Mapping[int, torch.Tensor]], None]
"""Looks at the gradients that a phase gives its inputs, by position; those of other users of an input are not in it."""
InspectPhase: TypeAlias = Callable[[trace.Phase, tuple[Any, ...], tuple[Any, ...]], InspectGradients]
"""Looks at inputs and outputs of a phase that has run forward; returns who shall look at its backward."""

_Report: TypeAlias = Callable[[tuple[torch.Tensor | None, ...]], None]

_inspector: InspectPhase | None = None


@contextmanager
def inspecting(inspector: InspectPhase) -> Iterator[None]:
    """Have `inspector` look at every phase that runs inside the block, in this process; one at a time."""
    global _inspector
    before, _inspector = _inspector, inspector
    try:
        yield
    finally:
        _inspector = before


class _Mark(torch.autograd.Function):
    """The identity on several tensors; its backward runs once all their gradients are there, and reports them."""

    @staticmethod
    def forward(ctx: Any, report: _Report, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.report = report
        return tuple(tensor.view_as(tensor) for tensor in tensors)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        ctx.report(grads)
        return (None, *grads)


class _BackwardSpan:
    """A span that opens when gradients reach a phase's outputs and closes when they leave its inputs.

    Gradients are looked at before it closes: `places` says which inputs they belong to.
    """

    def __init__(self, phase: trace.Phase, layer: int, places: list[int]) -> None:
        self._phase, self._layer, self._places = phase, layer, places
        self._open: AbstractContextManager[None] | None = None
        self.inspect: InspectGradients | None = None

    def enter(self, _: tuple[torch.Tensor | None, ...]) -> None:
        self._open = trace.span(layer=self._layer, phase=self._phase, direction="backward")
        self._open.__enter__()

    def leave(self, grads: tuple[torch.Tensor | None, ...]) -> None:
        if self.inspect is not None:
            found = zip(self._places, grads, strict=True)
            self.inspect({place: grad for place, grad in found if grad is not None})
        if self._open is not None:
            self._open.__exit__(None, None, None)
            self._open = None


def _needs_gradient(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def _places(values: tuple[Any, ...]) -> list[int]:
    return [place for place, value in enumerate(values) if _needs_gradient(value)]


def _marked(values: tuple[Any, ...], report: _Report) -> tuple[Any, ...]:
    places = _places(values)
    if not places:
        return values
    marked = list(values)
    for place, tensor in zip(places, _Mark.apply(report, *(values[place] for place in places)), strict=True):  # type: ignore[no-untyped-call]
        marked[place] = tensor
    return tuple(marked)


def _report_beginning(phase: trace.Phase, layer: int, outputs: tuple[Any, ...]) -> None:
    """Have the trace hear of it when the backward comes to the phase; touches neither graph nor numbers.

    autograd runs what is ready latest made first: the phase begins where the gradient of its last-made output is there.
    """
    last: torch.Tensor | None = None
    newest = -1
    for output in outputs:
        if not _needs_gradient(output):
            continue
        made = -1 if output.grad_fn is None else output.grad_fn._sequence_nr()  # noqa: SLF001
        if last is None or made > newest:
            last, newest = output, made
    if last is not None:
        # A backward in two halves passes here twice.
        last.register_hook(lambda _: trace.begin(layer=layer, phase=phase))  # type: ignore[no-untyped-call]


def run_phase(
    phase: trace.Phase, layer: int, function: Callable[..., tuple[*Outputs]], *inputs: Any
) -> tuple[*Outputs]:
    """Run ``function(*inputs)`` inside a span and return its outputs.

    When someone inspects, or wants exact spans, and an input needs a gradient, identity marks on inputs and outputs
    report the backward too. Tensors that need gradients must be inputs and outputs themselves, not parts of other
    objects. Who only follows hears of the backward's beginning through a hook on an output.
    """
    with trace.span(layer=layer, phase=phase):
        inspector = _inspector
        watched = trace.listening() or inspector is not None
        if not (watched and torch.is_grad_enabled() and any(map(_needs_gradient, inputs))):
            outputs = function(*inputs)
            if inspector is not None:
                inspector(phase, inputs, outputs)
            elif trace.followed() and not watched and torch.is_grad_enabled():
                _report_beginning(phase, layer, outputs)
            return outputs
        span = _BackwardSpan(phase, layer, _places(inputs))
        marked: Any = function(*_marked(inputs, span.leave))
        if inspector is not None:
            span.inspect = inspector(phase, inputs, marked)
        return _marked(marked, span.enter)
