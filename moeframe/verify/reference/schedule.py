"""One micro-batch after the other through the whole model."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from moeframe.errors import ContractError
from moeframe.protocols.data import MicroBatch
from moeframe.protocols.schedule import Schedule, Stage, StepResult
from moeframe.schedule.actions import Action, Kind, Plan

__all__ = ["ReferenceSchedule", "Seen"]

Seen = tuple[MicroBatch, tuple[torch.Tensor, ...], float]
"""A micro-batch, the logits of the model and of each MTP depth, and the loss whose backward ran."""


class ReferenceSchedule(Schedule):
    """Runs the one stage. `seen` holds what happened in the last step, for comparison with the formulas."""

    def __init__(self) -> None:
        self.seen: list[Seen] = []

    def run_step(self, stages: Sequence[Stage], micro_batches: Sequence[MicroBatch]) -> StepResult:
        """Run forward and backward of every micro-batch.

        Raises:
            ContractError: there is not exactly one stage.
        """
        stage = _only(stages)
        self.seen = []
        for micro_batch in micro_batches:
            output = stage.forward(None, micro_batch)
            loss = stage.loss(output, micro_batch)
            loss.backward()  # type: ignore[no-untyped-call]  # torch's stub
            logits = output if isinstance(output, tuple) else (output,)
            self.seen.append((micro_batch, tuple(part.detach() for part in logits), float(loss)))
        return stage.result()

    def run_evaluation(self, stages: Sequence[Stage], micro_batches: Sequence[MicroBatch]) -> StepResult:
        """Run the forward of every micro-batch."""
        stage = _only(stages)
        with torch.no_grad():
            for micro_batch in micro_batches:
                stage.loss(stage.forward(None, micro_batch), micro_batch)
        return stage.result()

    def plan(self, num_stages: int, num_micro_batches: int) -> Plan:
        """Return F0 B0 F1 B1 ... of the one rank."""
        if num_stages != 1:
            raise ContractError(f"the reference schedule has one stage, not {num_stages}.")
        kinds: tuple[Kind, ...] = ("forward", "backward")
        actions = tuple(Action(kind, 0, number) for number in range(num_micro_batches) for kind in kinds)
        return Plan(num_stages=1, num_micro_batches=num_micro_batches, ranks=(actions,))


def _only(stages: Sequence[Stage]) -> Stage:
    if len(stages) != 1 or stages[0].num_stages != 1:
        raise ContractError(f"the reference schedule runs one stage that is the whole model, not {len(stages)}.")
    return stages[0]
