"""Runs a phase of a layer where `moeframe.trace` can see it, in both directions."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVarTuple

import torch

from moeframe import trace

__all__ = ["run_phase"]

Outputs = TypeVarTuple("Outputs")


class _Mark(torch.autograd.Function):
    """The identity on several tensors; its backward runs once all their gradients are there, and reports that."""

    @staticmethod
    def forward(ctx: Any, report: Callable[[], None], *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.report = report
        return tuple(tensor.view_as(tensor) for tensor in tensors)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        ctx.report()
        return (None, *grads)


class _BackwardSpan:
    """A span that opens when gradients reach a phase's outputs and closes when they leave its inputs."""

    def __init__(self, phase: trace.Phase, layer: int) -> None:
        self._phase, self._layer = phase, layer
        self._open: AbstractContextManager[None] | None = None

    def enter(self) -> None:
        self._open = trace.span(layer=self._layer, phase=self._phase, direction="backward")
        self._open.__enter__()

    def leave(self) -> None:
        if self._open is not None:
            self._open.__exit__(None, None, None)
            self._open = None


def _needs_gradient(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def _marked(values: tuple[Any, ...], report: Callable[[], None]) -> tuple[Any, ...]:
    places = [place for place, value in enumerate(values) if _needs_gradient(value)]
    if not places:
        return values
    marked = list(values)
    for place, tensor in zip(places, _Mark.apply(report, *(values[place] for place in places)), strict=True):  # type: ignore[no-untyped-call]
        marked[place] = tensor
    return tuple(marked)


def run_phase(
    phase: trace.Phase, layer: int, function: Callable[..., tuple[*Outputs]], *inputs: Any
) -> tuple[*Outputs]:
    """Run ``function(*inputs)`` inside a span and return its outputs.

    When someone listens and an input needs a gradient, identity marks on inputs and outputs report the backward too.
    Tensors that need gradients must be inputs and outputs themselves, not parts of other objects.
    """
    with trace.span(layer=layer, phase=phase):
        traced = trace.listening() and torch.is_grad_enabled() and any(map(_needs_gradient, inputs))
        if not traced:
            return function(*inputs)
        span = _BackwardSpan(phase, layer)
        outputs: Any = _marked(function(*_marked(inputs, span.leave)), span.enter)
        return outputs  # type: ignore[no-any-return]
