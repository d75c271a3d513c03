from __future__ import annotations

import pytest
import torch
from moeframe_schedules.accumulate import Accumulate
from torch import nn

from moeframe import trace
from moeframe.errors import ContractError
from moeframe.protocols.data import MicroBatch
from moeframe.protocols.schedule import StepResult


class Square:
    """A stage with one weight: the loss of a micro-batch is w x, summed, over 4 tokens."""

    index, num_stages = 0, 1

    def __init__(self) -> None:
        self.module: nn.Module = nn.Linear(1, 1, bias=False)
        with torch.no_grad():
            self.module.weight.fill_(1.0)  # type: ignore[union-attr, operator]
        self.total = torch.zeros(())
        self.seen: list[int] = []

    def forward(self, hidden: torch.Tensor | None, micro_batch: MicroBatch) -> torch.Tensor:
        self.seen.append(trace.current().micro_batch)
        output = self.module(micro_batch.input_ids.float().reshape(-1, 1))
        assert isinstance(output, torch.Tensor)
        return output

    def loss(self, output: torch.Tensor, micro_batch: MicroBatch) -> torch.Tensor:
        self.total = self.total + output.detach().sum()
        return output.sum() / 4

    def result(self) -> StepResult:
        total, self.total = self.total, torch.zeros(())
        return StepResult(ce_sum=total, mtp_sums=torch.zeros(0))


BATCHES = [MicroBatch(input_ids=torch.tensor([[a, b]]), targets=torch.zeros(1, 2)) for a, b in ((1, 2), (3, 4))]


def test_micro_batches_add_up_to_the_gradient_of_the_whole_batch() -> None:
    stage = Square()
    result = Accumulate().run_step([stage], BATCHES)
    assert stage.module.weight.grad.item() == 2.5  # type: ignore[union-attr]
    assert result.ce_sum.item() == 10.0
    assert stage.seen == [0, 1]


def test_evaluation_leaves_no_gradient() -> None:
    stage = Square()
    assert Accumulate().run_evaluation([stage], BATCHES).ce_sum.item() == 10.0
    assert stage.module.weight.grad is None


def test_the_plan_says_forward_then_backward_of_each_micro_batch() -> None:
    plan = Accumulate().plan(1, 2)
    assert [str(action) for action in plan.ranks[0]] == ["0F0", "0B0", "0F1", "0B1"]


def test_more_than_one_stage_is_refused() -> None:
    with pytest.raises(ContractError, match="one stage"):
        Accumulate().run_step([Square(), Square()], BATCHES)
    with pytest.raises(ContractError, match="not 2"):
        Accumulate().plan(2, 4)
