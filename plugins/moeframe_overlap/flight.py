"""One micro-batch on its way through the nodes: forward, then backward, a node at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Literal

import torch

from moeframe import trace
from moeframe.protocols.schedule import PhaseNode
from moeframe.protocols.weight_gradients import Postponed, postponing
from moeframe_overlap.lanes import Lanes, Stamp

__all__ = ["Flight"]


@dataclass(frozen=True, slots=True)
class _Ready:
    """A tensor, and when it is."""

    tensor: torch.Tensor
    stamp: Stamp


@dataclass(frozen=True, slots=True)
class _Ran:
    """What the backward of a node needs: its graph lies between these."""

    leaves: tuple[torch.Tensor, ...]
    outputs: tuple[torch.Tensor, ...]


class Flight:
    """Runs the nodes of one micro-batch. Every node has a graph of its own, cut off at its inputs.

    Tensors are held until the last node that takes them has run, gradients until they have been used, and a node with
    its inputs and outputs until its backward has run.

    Args:
        nodes: of the micro-batch; taken over.
        number: of the micro-batch in the step.
        stage: index of the stage.
        lanes: where to run.
        freeing: what to do with tensors that nodes free, as `ScheduleContext.freeing`.
    """

    def __init__(
        self,
        nodes: Sequence[PhaseNode],
        *,
        number: int,
        stage: int,
        lanes: Lanes,
        freeing: Literal["release", "poison", "keep"],
    ) -> None:
        self._nodes: list[PhaseNode | None] = [*nodes]
        self._number, self._stage = number, stage
        self._lanes = lanes
        self._freeing = freeing
        self._left = Counter(name for node in nodes for name in node.takes)
        self._values: dict[str, _Ready] = {}
        self._ran: dict[int, _Ran] = {}
        self._grads: dict[str, list[_Ready]] = {}

    def forward(self, place: int) -> None:
        """Run the forward of a node."""
        node = self._node(place)
        lanes, lane = self._lanes, node.stream
        taken = [self._values[name] for name in node.takes]
        with trace.at(micro_batch=self._number, stage=self._stage), lanes.on(lane):
            lanes.wait(lane, [ready.stamp for ready in taken])
            for ready in taken:
                lanes.lend(ready.tensor, lane, ready.stamp.lane)
            leaves = tuple(_leaf(ready.tensor) for ready in taken)
            outputs = node(*leaves)
            stamp = lanes.stamp(lane)
        self._ran[place] = _Ran(leaves, outputs)
        for name, output in zip(node.gives, outputs, strict=True):
            if self._left[name]:
                self._values[name] = _Ready(output, stamp)
        freed = [self._values[name] for name in node.frees]
        for name in node.takes:
            self._left[name] -= 1
            if not self._left[name]:
                del self._values[name]
        self._free(node, freed, outputs)

    def backward(self, place: int, *, split: bool) -> None:
        """Run the backward of a node, and forget the node.

        Args:
            place: of the node.
            split: run gradients of weights last, when those of the inputs are on their way.
        """
        node = self._node(place)
        lanes, lane = self._lanes, node.stream
        ran = self._ran.pop(place)
        with trace.at(micro_batch=self._number, stage=self._stage), lanes.on(lane):
            outputs, grads = self._gradients(place, ran.outputs)
            with postponing() if split else nullcontext(Postponed()) as weights:
                torch.autograd.backward(outputs, grads)
            stamp = lanes.stamp(lane)
            for name, leaf in zip(node.takes, ran.leaves, strict=True):
                if leaf.grad is not None:
                    self._grads.setdefault(name, []).append(_Ready(leaf.grad, stamp))
                    leaf.grad = None
            if len(weights):
                with trace.span(layer=node.layer, phase=node.phase, direction="backward"):
                    weights.run()
        self._nodes[place] = None

    def _node(self, place: int) -> PhaseNode:
        node = self._nodes[place]
        assert node is not None, f"node {place} has run its backward"
        return node

    def _gradients(
        self, place: int, outputs: tuple[torch.Tensor, ...]
    ) -> tuple[list[torch.Tensor], list[torch.Tensor | None]]:
        """Return the outputs to start from, with the sums of their gradients, ready on the node's lane."""
        if place == len(self._nodes) - 1:
            return [*outputs], [None]  # the loss
        node = self._node(place)
        found: list[torch.Tensor] = []
        sums: list[torch.Tensor | None] = []
        for name, output in zip(node.gives, outputs, strict=True):
            parts = self._grads.pop(name, [])
            if not parts or not output.requires_grad:
                continue
            self._lanes.wait(node.stream, [part.stamp for part in parts])
            for part in parts:
                self._lanes.lend(part.tensor, node.stream, part.stamp.lane)
            total = parts[0].tensor
            for part in parts[1:]:
                total = total + part.tensor
            found.append(output)
            sums.append(total)
        return found, sums

    def _free(self, node: PhaseNode, freed: list[_Ready], outputs: tuple[torch.Tensor, ...]) -> None:
        if self._freeing == "keep":
            return
        shared = {output.untyped_storage().data_ptr() for output in outputs}
        for ready in freed:
            storage = ready.tensor.untyped_storage()
            # Part of a buffer, or handed on: not this tensor's alone.
            whole = storage.nbytes() == ready.tensor.numel() * ready.tensor.element_size()
            if not whole or storage.data_ptr() in shared:
                continue
            if self._freeing == "poison":
                with self._lanes.on(node.stream):
                    self._lanes.join(node.stream)
                    # Behind autograd's back, as freeing is: it would notice a change, not that nothing is left.
                    ready.tensor.data.fill_(torch.nan)
            else:
                storage.resize_(0)


def _leaf(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor with the same storage at which a graph begins."""
    return tensor.detach().requires_grad_(tensor.requires_grad)
