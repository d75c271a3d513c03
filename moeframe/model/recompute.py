"""Recompute of activations: a region keeps its inputs, and runs once more when its backward first needs what it saved.

What autograd would have saved in a region is made again and then lives exactly as long as autograd keeps it: a backward
in two halves (input gradients, then weight gradients) recomputes once, however many calls it takes.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import torch

from moeframe.errors import ContractError

__all__ = ["NOTHING", "Decisions", "Recompute", "recomputed"]

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Recompute:
    """What of a decoder layer runs again in the backward.

    `block`: all up to the experts' output as one region, of which only the layer's input is kept: routing is replayed,
    the layout reused, and tokens are dispatched once more. Combine saves nothing and is not repeated. `phases`: these
    as a region each, of which the inputs are kept; nothing is sent again.
    """

    block: bool = False
    phases: frozenset[Literal["attend", "experts"]] = frozenset()


NOTHING = Recompute()


class Decisions:
    """What the forward of a region decided and its recomputation must repeat: routing, and the layout made for it.

    Scores that differ in their last bits, as those of another kernel or another batch may, choose other experts.
    """

    def __init__(self) -> None:
        self._made: dict[str, Any] = {}

    def once(self, name: str, decide: Callable[[], T]) -> T:
        """Return what was decided under this name, now or in the forward. Nobody may change it."""
        if name not in self._made:
            self._made[name] = decide()
        made: T = self._made[name]
        return made


def recomputed(name: str, function: Callable[..., T], *inputs: Any) -> T:
    """Run ``function(*inputs)``; of all that autograd saves inside, keep nothing but the inputs.

    The function runs a second time during the backward, and must do the same then: no random numbers, and decisions
    that hang on last bits through a `Decisions`. Tensors that need gradients are inputs or parameters. Runs plainly
    where gradients are off.

    Args:
        name: of the region, for errors.
        function: what to run.
        inputs: tensors and others; the tensors are not to be changed in place before the backward.

    Raises:
        ContractError: in the backward: the second run saved other tensors than the first, or an input was changed.
    """
    if not torch.is_grad_enabled():
        return function(*inputs)
    region = _Region(name, function, inputs)
    with torch.autograd.graph.saved_tensors_hooks(region.promise, _kept):
        return function(*inputs)


class _Promise:
    """Stands in the graph for a saved tensor. Gone when the graph lets go of it, and the tensor with it."""

    __slots__ = ("__weakref__", "dtype", "region", "shape", "tensor")

    def __init__(self, region: _Region, tensor: torch.Tensor) -> None:
        self.region = region
        self.shape, self.dtype = tensor.shape, tensor.dtype
        self.tensor: torch.Tensor | None = None


def _kept(promise: _Promise) -> torch.Tensor:
    if promise.tensor is None:
        promise.region.run_again()
    assert promise.tensor is not None
    return promise.tensor


class _Region:
    """One run of a function. The graph's promises hold it; it holds no part of the graph."""

    def __init__(self, name: str, function: Callable[..., Any], inputs: tuple[Any, ...]) -> None:
        self._name = name
        self._function: Callable[..., Any] | None = function
        self._inputs = [_apart(value) for value in inputs]
        self._versions = [_version(value) for value in inputs]
        self._promises: list[weakref.ref[_Promise]] = []

    def promise(self, tensor: torch.Tensor) -> _Promise:
        promise = _Promise(self, tensor)
        self._promises.append(weakref.ref(promise))
        return promise

    def run_again(self) -> None:
        """Fill every promise that somebody still holds."""
        assert self._function is not None
        for place, (value, version) in enumerate(zip(self._inputs, self._versions, strict=True)):
            if _version(value) != version:
                raise ContractError(
                    f"{self._name}: input {place} was changed in place after the forward, and recomputing would start "
                    "from the new values. Work on a copy, or use train.recompute=none."
                )
        place = 0

        def fill(tensor: torch.Tensor) -> None:
            nonlocal place
            if place < len(self._promises):
                self._fill(place, tensor)
            place += 1

        with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(fill, _never_read):
            self._function(*self._inputs)
        if place != len(self._promises):
            raise ContractError(
                f"{self._name}: the forward saved {len(self._promises)} tensors for the backward, and recomputing it "
                f"{place}. It must do the same both times; use train.recompute=none where it cannot."
            )
        self._function = None
        self._inputs = []

    def _fill(self, place: int, tensor: torch.Tensor) -> None:
        promise = self._promises[place]()
        if promise is None:
            return
        if (tensor.shape, tensor.dtype) != (promise.shape, promise.dtype):
            raise ContractError(
                f"{self._name}: saved tensor {place} of the forward was {promise.dtype} {tuple(promise.shape)}, and "
                f"recomputing it gave {tensor.dtype} {tuple(tensor.shape)}. It must do the same both times; use "
                "train.recompute=none where it cannot."
            )
        promise.tensor = tensor.detach()


def _never_read(_: None) -> torch.Tensor:
    raise AssertionError("the graph of a recomputation has no backward")


def _apart(value: Any) -> Any:
    """Return a tensor without the graph behind it, with the same need for gradients."""
    return value.detach().requires_grad_(value.requires_grad) if isinstance(value, torch.Tensor) else value


def _version(value: Any) -> int:
    """Return how often a tensor was changed in place."""
    return value._version if isinstance(value, torch.Tensor) else 0  # noqa: SLF001  # torch has no public name for it
