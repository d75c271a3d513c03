"""What the plugin relies on in torch's PipelineStage, and the buffers that it takes over."""

from __future__ import annotations

import inspect
from typing import Any
from unittest.mock import patch

import pytest
import torch
from moeframe_pipelining.kinds import GPIPE, ONE_F_ONE_B, ZBV
from moeframe_pipelining.running_stage import RunningStage
from torch import distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, schedules

from moeframe.hooks import NoOptions
from moeframe.protocols.data import MicroBatch
from moeframe.protocols.schedule import ScheduleContext, Stage, StepResult
from moeframe.schedule.placement import stages_of_rank
from moeframe.schedule.simulate import simulate
from moeframe.testing.ranks import RankPool

READ_WITH = ("2.11", "2.13")
"""The versions of torch whose source was read for running_stage.py."""

RELIED_ON = {
    "forward_one_chunk": ["fwd_chunk_id", "args", "kwargs"],
    "forward_maybe_with_nosync": ["args", "kwargs"],
    "backward_one_chunk": ["bwd_chunk_id", "loss", "full_backward", "last_backward"],
    "backward_weight_one_chunk": ["bwd_chunk_id", "last_backward"],
    "get_local_bwd_output": ["mb_index"],
    "set_local_bwd_input": ["next_stage_bwd_outputs", "mb_index"],
    "get_fwd_recv_ops": ["fwd_chunk_id"],
    "get_bwd_recv_ops": ["bwd_chunk_id"],
    "perform_reduce_grad": ["grad_scale_factor"],
    "_get_init_p2p_neighbors_ops": [],
    "_prepare_forward_infra": ["num_microbatches", "args", "kwargs"],
    "_prepare_backward_infra": ["num_microbatches"],
}


@pytest.mark.parametrize("method", list(RELIED_ON))
def test_torch_still_has_the_methods_that_are_replaced_or_counted_on(method: str) -> None:
    known = inspect.signature(getattr(PipelineStage, method)).parameters
    wanted = ["self", *RELIED_ON[method]]
    assert list(known)[: len(wanted)] == wanted, f"torch {torch.__version__}; read with {', '.join(READ_WITH)}"


def test_torchs_runtime_still_lets_stages_on_one_rank_hand_over_without_messages() -> None:
    source = inspect.getsource(schedules._PipelineScheduleRuntime)
    for name in ("set_local_fwd_input", "set_local_bwd_input", "get_local_bwd_output", "perform_reduce_grad"):
        assert f".{name}(" in source, f"torch {torch.__version__}; read with {', '.join(READ_WITH)}"


class Line(Stage):
    """y = x w, four numbers a micro-batch."""

    def __init__(self, index: int, num_stages: int) -> None:
        self.index, self.num_stages, self.module = index, num_stages, nn.Linear(4, 4, bias=False)

    def forward(self, hidden: torch.Tensor | None, micro_batch: MicroBatch) -> torch.Tensor:
        output = self.module(micro_batch.input_ids.float() if hidden is None else hidden)
        assert isinstance(output, torch.Tensor)
        return output

    def boundary(self, micro_batch: MicroBatch) -> torch.Tensor:
        return torch.empty(micro_batch.input_ids.shape, dtype=torch.float32, device="meta")

    def loss(self, output: torch.Tensor | tuple[torch.Tensor, ...], micro_batch: MicroBatch) -> torch.Tensor:
        assert isinstance(output, torch.Tensor)
        return output.square().sum()

    def result(self) -> StepResult:
        return StepResult(ce_sum=torch.zeros(()), mtp_sums=torch.zeros(0))


KINDS = {"gpipe": GPIPE, "1f1b": ONE_F_ONE_B, "zbv": ZBV}


def buffers(stage: RunningStage) -> int:
    """How many receive buffers of the forward hold numbers."""
    return sum(bool(info.buffer.numel()) for infos in stage.args_recv_info.values() for info in infos)


def most_buffers(name: str, count: int) -> tuple[list[int], int, int]:
    """Train two steps; return the most buffers that each stage held at a time, how many are left, the plan's peak."""
    kind, ranks, rank, options = KINDS[name], dist.get_world_size(), dist.get_rank(), NoOptions()
    context = ScheduleContext(
        pp_size=ranks, pp_rank=rank, pp_group=dist.group.WORLD, num_micro_batches=count, device=torch.device("cpu")
    )
    schedule = kind.build(options, context)
    num_stages = ranks * kind.per_rank(options)
    stages = [Line(index, num_stages) for index in stages_of_rank(rank, ranks, kind.per_rank(options), kind.placement)]
    held: dict[int, int] = {}
    made: set[RunningStage] = set()
    original = RunningStage.forward_one_chunk

    def noting(stage: RunningStage, chunk: int, *args: Any, **kwargs: Any) -> Any:
        made.add(stage)
        held[stage.stage_index] = max(held.get(stage.stage_index, 0), buffers(stage))
        return original(stage, chunk, *args, **kwargs)

    ones = torch.ones(2, 4, dtype=torch.int64)
    with patch.object(RunningStage, "forward_one_chunk", noting):
        for _ in range(2):
            schedule.run_step(stages, [MicroBatch(input_ids=ones, targets=ones)] * count)
    left = sum(buffers(stage) for stage in made)
    return [held[index] for index in sorted(held)], left, simulate(schedule.plan(num_stages, count)).peak_live[rank]


@pytest.mark.parametrize(("name", "world"), [("gpipe", 2), ("1f1b", 2), ("1f1b", 4), ("zbv", 2)])
def test_a_rank_holds_as_many_inputs_as_its_plan_says_and_none_after_a_step(
    ranks: RankPool, name: str, world: int
) -> None:
    found = ranks.run(most_buffers, name, 8, world_size=world)
    assert found[0][0][0] == 0, "the first stage receives nothing"
    for held, left, planned in found:
        assert sum(held) <= planned + len(held), "torch posts a receive early"
        assert left == 0
    if name == "1f1b":
        assert [held[0] for held, _, _ in found[1:]] == [world - rank for rank in range(1, world)]
