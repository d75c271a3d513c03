"""Runs the steps of a job through one of torch's pipeline schedules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed import pipelining

from moeframe.errors import ContractError
from moeframe.protocols.data import IGNORED, MicroBatch
from moeframe.protocols.schedule import Schedule, ScheduleContext, Stage, StepResult
from moeframe.schedule.actions import Plan
from moeframe_pipelining.counts import next_legal, refusal
from moeframe_pipelining.running_stage import RunningStage, own_loss

if TYPE_CHECKING:
    from moeframe_pipelining.kinds import PipelineKind

__all__ = ["Pipeline"]


class Pipeline(Schedule):
    """A schedule of torch.distributed.pipelining.

    Gradients are plain sums over micro-batches. Fully sharded stages keep their gradients unreduced until torch reduces
    them once, after the last micro-batch.

    Args:
        kind: which of torch's schedules.
        per_rank: stages of each rank.
        context: what it is built for.
    """

    def __init__(self, kind: PipelineKind, per_rank: int, context: ScheduleContext) -> None:
        self._kind = kind
        self._per_rank = per_rank
        self._context = context
        self._training: _Run | None = None

    def plan(self, num_stages: int, num_micro_batches: int) -> Plan:
        """Return the actions that torch runs.

        Raises:
            ContractError: the numbers are not legal.
        """
        ranks, rest = divmod(num_stages, self._per_rank)
        if rest or ranks < 1:
            raise ContractError(f"{num_stages} stages cannot be shared by ranks with {self._per_rank} stage(s) each.")
        if why := refusal(self._kind.legal, ranks, num_micro_batches):
            raise ContractError(f"{num_micro_batches} micro-batches on {ranks} pipeline ranks: {why}")
        return self._kind.order(ranks, self._per_rank, num_micro_batches)

    def run_step(self, stages: Sequence[Stage], micro_batches: Sequence[MicroBatch]) -> StepResult:
        """Run forward and backward of every micro-batch through this rank's stages; gradients accumulate.

        Raises:
            ContractError: the micro-batches of the step do not have one shape, or the stages are not those of a rank.
        """
        shape = _one_shape(stages, micro_batches)
        if self._training is None or not self._training.fits(stages, len(micro_batches), shape):
            self._training = self._prepare(stages, micro_batches)
        self._training.step(micro_batches)
        return _result(stages)

    def run_evaluation(self, stages: Sequence[Stage], micro_batches: Sequence[MicroBatch]) -> StepResult:
        """Run only the forward of every micro-batch, without gradients.

        Where the schedule runs no such number, padding micro-batches without targets fill up to the next legal one.
        """
        wanted = next_legal(self._kind.legal, self._context.pp_size, len(micro_batches))
        padding = [_padding(micro_batches[-1])] * (wanted - len(micro_batches))
        padded = [*micro_batches, *padding]
        _one_shape(stages, padded)
        with torch.no_grad():
            self._prepare(stages, padded).evaluate(padded)
        return _result(stages)

    def _prepare(self, stages: Sequence[Stage], micro_batches: Sequence[MicroBatch]) -> _Run:
        group = self._context.pp_group
        if group is None or len(stages) != self._per_rank:
            raise ContractError(
                f"The schedule runs {self._per_rank} stage(s) a rank of a process group, not {len(stages)}"
                f"{' without a group' if group is None else ''}."
            )
        boundary = stages[0].boundary(micro_batches[0])
        running = [RunningStage(stage, boundary, group=group, device=self._context.device) for stage in stages]
        torch_class = getattr(pipelining.schedules, self._kind.torch_class)
        single = issubclass(torch_class, pipelining.schedules.PipelineScheduleSingle)
        return _Run(
            stages=running,
            schedule=torch_class(
                running[0] if single else running, len(micro_batches), loss_fn=own_loss, scale_grads=False
            ),
            shape=boundary.shape,
            count=len(micro_batches),
        )


@dataclass(frozen=True, kw_only=True)
class _Run:
    """One of torch's schedules over this rank's stages, for `count` micro-batches with boundaries of one shape."""

    stages: Sequence[RunningStage]
    schedule: Any
    shape: torch.Size
    count: int

    def fits(self, stages: Sequence[Stage], count: int, shape: torch.Size) -> bool:
        """Say whether it was made for these stages, and this number and shape of micro-batches."""
        same = [running.stage for running in self.stages] == list(stages)
        return same and (self.count, self.shape) == (count, shape)

    def step(self, micro_batches: Sequence[MicroBatch]) -> None:
        """Run forwards and backwards."""
        self._run(self.schedule.step, micro_batches)

    def evaluate(self, micro_batches: Sequence[MicroBatch]) -> None:
        """Run forwards."""
        self._run(self.schedule.eval, micro_batches)

    def _run(self, run: Any, micro_batches: Sequence[MicroBatch]) -> None:
        for stage in self.stages:
            stage.micro_batches = micro_batches
        # Targets are there already; torch only wants one for each micro-batch.
        run(target=torch.zeros(self.count), return_outputs=False)
        for stage in self.stages:
            stage.micro_batches = ()


def _one_shape(stages: Sequence[Stage], micro_batches: Sequence[MicroBatch]) -> torch.Size:
    """Return the shape that stages hand on, which must be the same for all micro-batches: buffers are made for it."""
    shapes = {stages[0].boundary(micro_batch).shape for micro_batch in micro_batches}
    if len(shapes) != 1:
        raise ContractError(
            "A pipeline runs micro-batches of one shape; stages would hand on tensors of the shapes "
            f"{', '.join(str(tuple(shape)) for shape in shapes)}."
        )
    return shapes.pop()


def _padding(like: MicroBatch) -> MicroBatch:
    """Return a micro-batch that counts nowhere."""
    return replace(
        like,
        targets=torch.full_like(like.targets, IGNORED),
        mtp_targets=tuple(torch.full_like(targets, IGNORED) for targets in like.mtp_targets),
        valid=torch.zeros_like(like.input_ids, dtype=torch.bool),
    )


def _result(stages: Sequence[Stage]) -> StepResult:
    """Add up the sums of this rank's stages; zeros unless it holds the last one."""
    results = [stage.result() for stage in stages]
    ce_sum, mtp_sums = results[0].ce_sum, results[0].mtp_sums
    for result in results[1:]:
        ce_sum, mtp_sums = ce_sum + result.ce_sum, mtp_sums + result.mtp_sums
    return StepResult(ce_sum=ce_sum, mtp_sums=mtp_sums)
