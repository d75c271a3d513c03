"""The gradient of every sequence and every part of the loss by itself.

What a layout computed is a sum of these with weights; the weights say what it did to means.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy
import torch

from moeframe.config.schema import Recipe
from moeframe.model.step_state import StepState
from moeframe.protocols.data import MicroBatch
from moeframe.protocols.schedule import Stage, StepResult
from moeframe.train.trainer import Trainer
from moeframe.verify.records import Array
from moeframe.verify.reference.schedule import ReferenceSchedule
from moeframe.verify.rehearsal import Jobs, provoke
from moeframe.verify.weights import PROBE, Basis

__all__ = ["gradient_basis"]


class _TakeApart(ReferenceSchedule):
    """Runs every micro-batch once for each part of the loss, and keeps the gradients."""

    def __init__(self, state: StepState, depths: int) -> None:
        super().__init__()
        self._state = state
        self._depths = depths
        self.rows: dict[str, list[Array]] = {}

    def run_step(self, stages: Sequence[Stage], micro_batches: Sequence[MicroBatch]) -> StepResult:
        """Leave no gradient behind."""
        none = (0,) * self._depths
        counts = {"ce": (1, none, 0), "balance": (0, none, 1)}
        for depth in range(self._depths):
            counts[f"mtp {depth + 1}"] = (0, tuple(int(other == depth) for other in range(self._depths)), 0)
        (stage,) = stages
        parameter = stage.module.get_parameter(PROBE)
        for micro_batch in micro_batches:
            for name, (loss_tokens, mtp_tokens, valid_tokens) in counts.items():
                self._state.begin(loss_tokens=loss_tokens, mtp_tokens=mtp_tokens, valid_tokens=valid_tokens)
                stage.module.zero_grad(set_to_none=True)
                stage.loss(stage.forward(None, micro_batch), micro_batch).backward()  # type: ignore[no-untyped-call]
                gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                self.rows.setdefault(name, []).append(gradient.flatten().numpy().copy())
        stage.module.zero_grad(set_to_none=True)
        return stage.result()


def gradient_basis(recipe: Recipe, plugins: Sequence[str]) -> Basis:
    """Return the basis of a reference recipe's first step; its micro-batches hold one sequence each."""
    with Jobs().open(recipe, plugins) as job:
        provoke(job)
        schedule = _TakeApart(job.model.step_state, recipe.model.num_nextn_predict_layers)
        job.schedule = schedule
        Trainer(job, progress=False).compute_gradients(0)
        return Basis(gradients={name: numpy.stack(rows) for name, rows in schedule.rows.items()})
