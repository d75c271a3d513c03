"""The schedule protocol: in which order the micro-batches of a step run through the stages of the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

from moeframe.errors import ContractError

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.distributed import ProcessGroup

    from moeframe.protocols.data import MicroBatch
    from moeframe.schedule.actions import Plan
    from moeframe.trace import Phase

__all__ = ["PhaseNode", "Schedule", "ScheduleContext", "ScheduleTraits", "Stage", "StepResult"]


@dataclass(frozen=True, kw_only=True)
class ScheduleTraits:
    """What the rest of a job may rely on."""

    splits_backward: bool
    """Weight gradients run apart from input gradients; needs a sharding whose parameters stay whole."""
    pipelines: bool
    """Runs more than one pipeline stage."""
    stages_per_rank: int = 1
    placement: Literal["loop", "v"] = "loop"
    """loop: stage s on rank s % pp. v: rank r holds stages r and 2 pp - 1 - r."""
    min_ranks: int = 1
    """Fewest pipeline ranks it runs on."""
    runs_phases: bool = False
    """Runs the phases of a layer one by one (`Stage.nodes`), each with a backward of its own."""


@dataclass(frozen=True, kw_only=True)
class ScheduleContext:
    """What a schedule is built for. `pp_group` is None when the job has no process group at all."""

    pp_size: int
    pp_rank: int
    pp_group: ProcessGroup | None
    num_micro_batches: int
    device: torch.device
    freeing: Literal["release", "poison", "keep"] = "release"
    """What becomes of tensors between phases that nobody reads any more (`PhaseNode.frees`): their storage is freed,
    or filled with NaN, so that whoever still reads it is found, or nothing, to see what freeing saves."""


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """Sums over this rank's micro-batches; zeros on a rank without the last stage. float32 or float64 scalars.

    `ce_sum` () and `mtp_sums` (MTP depths,) are sums of cross-entropies over tokens, not divided by anything. The token
    counts that they belong to are agreed by all ranks before the first backward, so they are not repeated here.
    """

    ce_sum: torch.Tensor
    mtp_sums: torch.Tensor


class PhaseNode(Protocol):
    """One phase of one layer for one micro-batch, to be run once.

    Tensors pass between nodes by name. A node is called with those that it `takes`, cut from the graph of the nodes
    before, and returns those that it `gives`; the caller runs its backward once all their gradients are there, and adds
    up the gradients of a tensor that several nodes take. Nodes are listed in an order in which they can run.

    `layer` is -1 outside of layers. `stream` says what the node mostly does: on a device with streams, communication
    can run beside computation. The caller sees to it that tensors are ready on the stream it calls the node on.
    """

    phase: Phase
    layer: int
    stream: Literal["compute", "communication"]
    takes: tuple[str, ...]
    gives: tuple[str, ...]
    frees: tuple[str, ...]
    """Which of the tensors given so far no later node takes and no backward reads: their storage may be freed once this
    node's forward has run, unless it is shared with another tensor."""

    def __call__(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Run the forward."""
        ...


@runtime_checkable
class Stage(Protocol):
    """A consecutive part of the model with what a schedule needs to run it.

    `module` is what a sharding strategy wrapped as a whole: its parameters are the stage's.
    """

    index: int
    num_stages: int
    module: nn.Module

    def forward(self, hidden: torch.Tensor | None, micro_batch: MicroBatch) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """Run the part. `hidden` is None for the first stage, which reads the tokens of the micro-batch.

        All stages but the last one return one tensor, which is no view, for the next stage.
        """
        ...

    def boundary(self, micro_batch: MicroBatch) -> torch.Tensor:
        """Return a tensor on the meta device with the shape and dtype of what any stage hands to the next one.

        Declared, so that a pipeline needs no forward to find out: that would count loads twice.
        """
        ...

    def loss(self, output: torch.Tensor | tuple[torch.Tensor, ...], micro_batch: MicroBatch) -> torch.Tensor:
        """Return the scalar to call backward on (already divided by the global token count); last stage only.

        Also adds the micro-batch to the sums that `result` returns.
        """
        ...

    def result(self) -> StepResult:
        """Return the sums since the last call and reset them."""
        ...

    def nodes(self, micro_batch: MicroBatch) -> Sequence[PhaseNode]:  # noqa: ARG002 - for those that can
        """Return the phases of a micro-batch's forward and loss; the last node gives the loss alone.

        Running them all is `forward` and `loss`. Schedules with the trait `runs_phases` call it.
        """
        raise ContractError(f"Stage {self.index} of {self.num_stages} cannot be run phase by phase.")

    def hold_gradients(self) -> None:
        """Prepare for backwards that come in pieces; called at the start of a step (`ShardedModel.hold_gradients`)."""
        return


@runtime_checkable
class Schedule(Protocol):
    """Runs one step. Subclass this class: later versions may add members with bodies."""

    def run_step(self, stages: Sequence[Stage], micro_batches: Sequence[MicroBatch]) -> StepResult:
        """Run forward and backward of every micro-batch through this rank's stages; gradients accumulate."""
        ...

    def run_evaluation(self, stages: Sequence[Stage], micro_batches: Sequence[MicroBatch]) -> StepResult:
        """Run only the forward of every micro-batch, without gradients."""
        ...

    def plan(self, num_stages: int, num_micro_batches: int) -> Plan:
        """Return what each rank does, in order, as pure data."""
        ...
