"""The schedule: the first forward alone, pairs of a forward and the backward before it, the last backward alone."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from moeframe import trace
from moeframe.errors import ContractError
from moeframe.protocols.data import MicroBatch
from moeframe.protocols.schedule import Schedule, ScheduleContext, Stage, StepResult
from moeframe.schedule.actions import Plan
from moeframe_overlap.flight import Flight
from moeframe_overlap.lanes import Lanes
from moeframe_overlap.options import OverlapOptions
from moeframe_overlap.order import backward_alone, forward_alone, paired
from moeframe_overlap.plan import plan

__all__ = ["Overlap1F1B"]


class Overlap1F1B(Schedule):
    """Runs two micro-batches at a time, phase by phase: one forward, one backward."""

    def __init__(self, options: OverlapOptions, context: ScheduleContext) -> None:
        self._options = options
        self._lanes = Lanes(context.device)
        self._freeing = context.freeing

    def run_step(self, stages: Sequence[Stage], micro_batches: Sequence[MicroBatch]) -> StepResult:
        """Run forward and backward of every micro-batch; gradients accumulate.

        Raises:
            ContractError: there is not exactly one stage.
        """
        stage = _only(stages)
        stage.hold_gradients()
        self._lanes.join("communication")
        before: Flight | None = None
        for number, micro_batch in enumerate(micro_batches):
            nodes = stage.nodes(micro_batch)
            flight = Flight(nodes, number=number, stage=stage.index, lanes=self._lanes, freeing=self._freeing)
            turns = [*(forward_alone(nodes) if before is None else paired(nodes))]
            last = [*backward_alone(nodes)]
            del nodes
            for direction, place in turns:
                if direction == "forward":
                    flight.forward(place)
                else:
                    assert before is not None
                    before.backward(place, split=self._options.split_backward)
            before = flight
        if before is not None:
            for _, place in last:
                before.backward(place, split=self._options.split_backward)
        self._lanes.join("compute")
        return stage.result()

    def run_evaluation(self, stages: Sequence[Stage], micro_batches: Sequence[MicroBatch]) -> StepResult:
        """Run the forward of every micro-batch, without gradients."""
        stage = _only(stages)
        with torch.no_grad():
            for number, micro_batch in enumerate(micro_batches):
                with trace.at(micro_batch=number, stage=stage.index):
                    stage.loss(stage.forward(None, micro_batch), micro_batch)
        return stage.result()

    def plan(self, num_stages: int, num_micro_batches: int) -> Plan:
        """Return F0, then F1 B0 F2 B1 ..., then the last backward.

        Raises:
            ContractError: there is more than one stage.
        """
        return plan(num_stages, num_micro_batches)


def _only(stages: Sequence[Stage]) -> Stage:
    if len(stages) != 1 or stages[0].num_stages != 1:
        raise ContractError(f"overlap_1f1b runs one stage that is the whole model, not {len(stages)}.")
    return stages[0]
