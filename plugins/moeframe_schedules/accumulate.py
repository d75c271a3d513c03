"""Gradient accumulation: the schedule that every other one is compared with."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from moeframe import trace
from moeframe.errors import ContractError
from moeframe.protocols.data import MicroBatch
from moeframe.protocols.schedule import Schedule, Stage, StepResult
from moeframe.schedule.actions import Action, Kind, Plan


def _only(stages: Sequence[Stage]) -> Stage:
    if len(stages) != 1 or stages[0].num_stages != 1:
        raise ContractError(f"accumulate runs one stage that is the whole model, not {len(stages)}.")
    return stages[0]


class Accumulate(Schedule):
    """Runs the whole model on one micro-batch after the other."""

    def run_step(self, stages: Sequence[Stage], micro_batches: Sequence[MicroBatch]) -> StepResult:
        """Run forward and backward of every micro-batch; gradients accumulate.

        Raises:
            ContractError: there is not exactly one stage.
        """
        stage = _only(stages)
        for number, micro_batch in enumerate(micro_batches):
            with trace.at(micro_batch=number, stage=0):
                output = stage.forward(None, micro_batch)
                stage.loss(output, micro_batch).backward()  # type: ignore[no-untyped-call]
        return stage.result()

    def run_evaluation(self, stages: Sequence[Stage], micro_batches: Sequence[MicroBatch]) -> StepResult:
        """Run the forward of every micro-batch, without gradients."""
        stage = _only(stages)
        with torch.no_grad():
            for number, micro_batch in enumerate(micro_batches):
                with trace.at(micro_batch=number, stage=0):
                    stage.loss(stage.forward(None, micro_batch), micro_batch)
        return stage.result()

    def plan(self, num_stages: int, num_micro_batches: int) -> Plan:
        """Return F0 B0 F1 B1 ... of the one rank."""
        if num_stages != 1:
            raise ContractError(f"accumulate has one stage, not {num_stages}.")
        kinds: tuple[Kind, ...] = ("forward", "backward")
        actions = tuple(Action(kind, 0, number) for number in range(num_micro_batches) for kind in kinds)
        return Plan(num_stages=1, num_micro_batches=num_micro_batches, ranks=(actions,))
