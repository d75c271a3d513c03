"""Scalar stages on gloo: numbers known by hand, and that torch runs the plan, no more and no less."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import pytest
import torch
from moeframe_pipelining.plugin import moeframe_offer_schedules
from moeframe_pipelining.running_stage import RunningStage
from torch import distributed as dist
from torch import nn

from moeframe import trace
from moeframe.errors import ContractError
from moeframe.protocols.data import IGNORED, MicroBatch
from moeframe.protocols.precision import Precision
from moeframe.protocols.schedule import Schedule, ScheduleContext, Stage, StepResult
from moeframe.schedule.actions import Action, Kind
from moeframe.schedule.placement import stages_of_rank
from moeframe.testing.ranks import RankError, RankPool

OFFERS = {offer.name: offer for offer in moeframe_offer_schedules()}
CPU = torch.device("cpu")
CASES = [(name, 2) for name in OFFERS] + [("zero_bubble", 4), ("interleaved_1f1b", 4), ("zbv", 4), ("1f1b", 4)]


class Scale(nn.Module):
    """One weight of 1, times the input."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones((), dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight


class ScaleStage(Stage):
    """Reads x from the token ids; the loss is the mean square, and counts a quarter: there are four micro-batches."""

    def __init__(self, index: int, num_stages: int) -> None:
        self.index, self.num_stages, self.module = index, num_stages, Scale()
        self.forwards = 0
        self.losses: list[float] = []

    def forward(self, hidden: torch.Tensor | None, micro_batch: MicroBatch) -> torch.Tensor:
        assert (hidden is None) is (self.index == 0)
        self.forwards += 1
        output = self.module(micro_batch.input_ids.double() if hidden is None else hidden)
        assert isinstance(output, torch.Tensor)
        return output

    def boundary(self, micro_batch: MicroBatch) -> torch.Tensor:
        return torch.empty(micro_batch.input_ids.shape, dtype=torch.float64, device="meta")

    def loss(self, output: torch.Tensor | tuple[torch.Tensor, ...], micro_batch: MicroBatch) -> torch.Tensor:
        assert isinstance(output, torch.Tensor)
        if micro_batch.targets.eq(IGNORED).all():
            return output.sum() * 0
        loss = output.square().mean()
        self.losses.append(loss.item())
        return loss / 4

    def result(self) -> StepResult:
        ce_sum = torch.tensor(sum(self.losses), dtype=torch.float64)
        self.losses = []
        return StepResult(ce_sum=ce_sum, mtp_sums=torch.zeros(1, dtype=torch.float64))


def batches(count: int) -> list[MicroBatch]:
    """x = 0, 1, 2, ...: two a micro-batch."""
    return [
        MicroBatch(input_ids=ids, targets=torch.zeros_like(ids)) for ids in torch.arange(2 * count).view(count, 2, 1)
    ]


def build(name: str, count: int) -> tuple[Schedule, list[ScaleStage]]:
    offer = OFFERS[name]
    options = offer.options()
    traits = offer.traits(options, Precision.of("float64"))
    ranks, rank = dist.get_world_size(), dist.get_rank()
    context = ScheduleContext(
        pp_size=ranks, pp_rank=rank, pp_group=dist.group.WORLD, num_micro_batches=count, device=CPU
    )
    schedule = offer.build(options, context)
    assert isinstance(schedule, Schedule)
    mine = stages_of_rank(rank, ranks, traits.stages_per_rank, traits.placement)
    return schedule, [ScaleStage(index, ranks * traits.stages_per_rank) for index in mine]


@dataclass
class Ran:
    """What a rank did and found; `actions` as torch ran them."""

    actions: list[Action]
    places: list[tuple[int, int]]
    gradients: list[float]
    forwards: list[int]
    losses: list[float]
    result: float
    planned: tuple[Action, ...]


class Recorder:
    """Notes each action where torch asks a stage for it, and the place that the trace names there."""

    def __init__(self) -> None:
        self.actions: list[Action] = []
        self.places: list[tuple[int, int]] = []

    def method(self, name: str) -> Any:
        original = getattr(RunningStage, name)

        def run(stage: RunningStage, chunk: int, *args: Any, **kwargs: Any) -> Any:
            kind: Kind = "forward" if name.startswith("forward") else "backward"
            if name == "backward_weight_one_chunk":
                kind = "backward_weight"
            elif kind == "backward" and not kwargs.get("full_backward", True):
                kind = "backward_input"
            self.actions.append(Action(kind, stage.stage_index, chunk))
            return original(stage, chunk, *args, **kwargs)

        return run


def step(name: str, count: int = 4, times: int = 1) -> Ran:
    schedule, stages = build(name, count)
    recorder = Recorder()
    methods = ("forward_one_chunk", "backward_one_chunk", "backward_weight_one_chunk")
    replaced = {method: recorder.method(method) for method in methods}
    losses: list[float] = []
    original = ScaleStage.loss

    def loss(stage: ScaleStage, output: torch.Tensor, micro_batch: MicroBatch) -> torch.Tensor:
        place = trace.current()
        recorder.places.append((place.stage, place.micro_batch))
        found = original(stage, output, micro_batch)
        losses.append(found.item() * 4)
        return found

    with patch.multiple(RunningStage, **replaced), patch.object(ScaleStage, "loss", loss):
        for _ in range(times):
            result = schedule.run_step(stages, batches(count))
    plan = schedule.plan(stages[0].num_stages, count)
    return Ran(
        actions=recorder.actions,
        places=recorder.places,
        gradients=[stage.module.weight.grad.item() for stage in stages],
        forwards=[stage.forwards for stage in stages],
        losses=losses,
        result=result.ce_sum.item(),
        planned=plan.ranks[dist.get_rank()],
    )


@pytest.mark.parametrize(("name", "world"), [case for case in CASES if case[0] != "dualpipev" or case[1] == 2])
def test_gradients_and_losses_are_those_of_one_process_and_torch_runs_the_plan_c46(
    ranks: RankPool, name: str, world: int
) -> None:
    found = ranks.run(step, name, world_size=world)
    for ran in found:
        assert ran.gradients == [35.0] * len(ran.gradients)
        assert ran.forwards == [4] * len(ran.forwards)
        assert ran.actions == list(ran.planned)
    home = 0 if name in ("zbv", "dualpipev") else world - 1
    for rank, ran in enumerate(found):
        assert ran.losses == ([0.5, 6.5, 20.5, 42.5] if rank == home else [])
        assert ran.result == (4 * 17.5 if rank == home else 0.0)
    last = max(action.stage for ran in found for action in ran.actions)
    assert found[home].places == [(last, number) for number in range(4)]
    assert sum(ran.result for ran in found) / 4 == 17.5


@pytest.mark.parametrize("name", list(OFFERS))
def test_a_second_step_adds_to_the_gradients_and_discovers_nothing_anew(ranks: RankPool, name: str) -> None:
    for ran in ranks.run(step, name, 4, 2, world_size=2):
        assert ran.gradients == [70.0] * len(ran.gradients)
        assert ran.forwards == [8] * len(ran.forwards)


@pytest.mark.parametrize(
    ("name", "count"), [("gpipe", 1), ("zbv", 1), ("zbv", 2), ("interleaved_1f1b", 1), ("gpipe", 5)]
)
def test_small_and_odd_numbers_of_micro_batches_run_as_planned(ranks: RankPool, name: str, count: int) -> None:
    wanted = sum(loss.input_ids.double().square().mean().item() / 2 for loss in batches(count))
    for ran in ranks.run(step, name, count, world_size=2):
        assert ran.gradients == [wanted] * len(ran.gradients)
        assert ran.actions == list(ran.planned)


def evaluate(name: str, count: int) -> tuple[list[int], list[float | None], float, list[float]]:
    """Validation in the middle of training: returns forwards, gradients and sums of it, then gradients of a step."""
    schedule, stages = build(name, 4)
    schedule.run_step(stages, batches(4))
    for stage in stages:
        stage.module.weight.grad, stage.forwards = None, 0
    result = schedule.run_evaluation(stages, batches(count))
    forwards = [stage.forwards for stage in stages]
    gradients = [stage.module.weight.grad for stage in stages]
    schedule.run_step(stages, batches(4))
    return forwards, gradients, result.ce_sum.item(), [stage.module.weight.grad.item() for stage in stages]


@pytest.mark.parametrize(
    ("name", "count", "run"),
    [
        ("gpipe", 1, 1),
        ("1f1b", 1, 2),
        ("interleaved_1f1b", 5, 6),
        ("zero_bubble", 3, 3),
        ("zbv", 3, 3),
        ("dualpipev", 1, 4),
    ],
)
def test_evaluation_fills_up_to_a_legal_number_and_counts_only_what_was_given(
    ranks: RankPool, name: str, count: int, run: int
) -> None:
    found = ranks.run(evaluate, name, count, world_size=2)
    for forwards, gradients, _, after in found:
        assert forwards == [run] * len(forwards)
        assert gradients == [None] * len(gradients)
        assert after == [35.0] * len(after)
    wanted = sum(one.input_ids.double().square().mean().item() for one in batches(count))
    assert sum(ce_sum for _, _, ce_sum, _ in found) == wanted


def fail_on_rank_1() -> None:
    schedule, stages = build("zbv", 4)

    def bad(*_: object) -> torch.Tensor:
        raise ValueError("bad batch")

    if dist.get_rank() == 1:
        stages[0].forward = bad  # type: ignore[method-assign]
    schedule.run_step(stages, batches(4))


def test_an_error_of_a_stage_is_raised_as_it_is(ranks: RankPool) -> None:
    with pytest.raises(RankError) as caught:
        ranks.run(fail_on_rank_1, world_size=2, timeout=30)
    failure = caught.value.failures[1]
    assert (failure.kind, failure.message) == ("ValueError", "bad batch")


def wrong_uses() -> list[str]:
    schedule, stages = build("1f1b", 4)
    alone = OFFERS["1f1b"].build(
        OFFERS["1f1b"].options(),
        ScheduleContext(pp_size=1, pp_rank=0, pp_group=None, num_micro_batches=4, device=CPU),
    )
    calls = [
        lambda: schedule.run_step([*stages, *stages], batches(4)),
        lambda: alone.run_step(stages, batches(4)),
        lambda: schedule.plan(2, 1),
        lambda: build("zbv", 4)[0].plan(5, 8),
        lambda: schedule.run_step(
            stages, [*batches(3), MicroBatch(input_ids=torch.ones(1, 1), targets=torch.ones(1, 1))]
        ),
    ]
    messages = []
    for call in calls:
        with pytest.raises(ContractError) as caught:
            call()
        messages.append(str(caught.value))
    return messages


def test_wrong_uses_are_refused(ranks: RankPool) -> None:
    found = ranks.run(wrong_uses, world_size=2)[0]
    assert found[0] == "The schedule runs 1 stage(s) a rank of a process group, not 2."
    assert found[1] == "The schedule runs 1 stage(s) a rank of a process group, not 1 without a group."
    assert found[2].startswith("1 micro-batches on 2 pipeline ranks: it needs as many")
    assert found[3] == "5 stages cannot be shared by ranks with 2 stage(s) each."
    assert "(2, 1)" in found[4]
    assert "(1, 1)" in found[4]
