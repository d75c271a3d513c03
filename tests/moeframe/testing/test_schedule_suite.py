"""The conformance kit: each fault that a schedule can have is found, and its message names what differs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
import torch

from moeframe.errors import ContractError
from moeframe.hooks import ScheduleOffer
from moeframe.protocols.data import MicroBatch
from moeframe.protocols.precision import Precision
from moeframe.protocols.schedule import Schedule, ScheduleContext, ScheduleTraits, Stage, StepResult
from moeframe.schedule.actions import Action, Plan
from moeframe.testing import schedule_checks as checks
from moeframe.testing.ranks import RankError, RankPool


@dataclass(frozen=True, kw_only=True)
class FaultOptions:
    """Which fault the schedule has."""

    fault: str = ""


class Faulty(Schedule):
    """One stage, micro-batch by micro-batch, with one fault."""

    def __init__(self, fault: str) -> None:
        self.fault = fault

    def run_step(self, stages: Sequence[Stage], micro_batches: Sequence[MicroBatch]) -> StepResult:
        (stage,) = stages
        if self.fault == "discovers shapes":
            with torch.no_grad():
                stage.forward(None, micro_batches[0])
        if self.fault == "drops the last":
            micro_batches = micro_batches[:-1]
        if self.fault == "another order":
            micro_batches = micro_batches[::-1]
        if self.fault == "forgets earlier gradients":
            for parameter in stage.module.parameters():
                parameter.grad = None
        for batch in micro_batches:
            loss = stage.loss(stage.forward(None, batch), batch)
            (loss / len(micro_batches) if self.fault == "averages" else loss).backward()
        result = stage.result()
        if self.fault == "mean of losses":
            return replace(result, ce_sum=result.ce_sum / len(micro_batches))
        if self.fault == "loses the loss":
            return replace(result, ce_sum=torch.tensor(-1.0))
        return result

    def run_evaluation(self, stages: Sequence[Stage], micro_batches: Sequence[MicroBatch]) -> StepResult:
        (stage,) = stages
        if self.fault == "trains in evaluations":
            return self.run_step(stages, micro_batches)
        with torch.set_grad_enabled(self.fault == "keeps graphs in evaluations"):
            for batch in micro_batches:
                stage.loss(stage.forward(None, batch), batch)
        return stage.result()

    def plan(self, num_stages: int, num_micro_batches: int) -> Plan:
        ranks = []
        for stage in range(num_stages):
            actions = [Action("forward", stage, n) for n in range(num_micro_batches)]
            actions += [Action("backward", stage, n) for n in range(num_micro_batches)]
            ranks.append(actions)
        if self.fault == "a plan with a hole":
            ranks[0].pop()
        if self.fault == "a plan that stands still":
            ranks[-1].reverse()
            ranks[0].sort(key=lambda action: action.micro_batch)
        if self.fault == "another placement":
            ranks.reverse()
        if self.fault == "an unstated split":
            ranks[-1] = [
                part
                for action in ranks[-1]
                for part in (
                    [action]
                    if action.kind == "forward"
                    else [
                        replace(action, kind="backward_input"),
                        replace(action, kind="backward_weight"),
                    ]
                )
            ]
        if self.fault == "a plan of another size":
            num_stages += 1
        return Plan(num_stages=num_stages, num_micro_batches=num_micro_batches, ranks=tuple(map(tuple, ranks)))


def build(options: FaultOptions, context: ScheduleContext) -> Faulty:
    return Faulty(options.fault)


def traits(options: FaultOptions, precision: Precision) -> ScheduleTraits:
    return ScheduleTraits(splits_backward=False, pipelines=options.fault in PLANS)


def legal(options: FaultOptions, pp: int, n: int) -> str | None:
    if options.fault == "refuses everything":
        return "Legal: none."
    if options.fault == "refuses without a number" and n % 2:
        return "It must be even."
    return None


OFFER = ScheduleOffer(
    name="faulty", summary="For tests.", build=build, options=FaultOptions, traits=traits, legal_micro_batches=legal
)
PLANS = {
    "a plan with a hole": "The plan is wrong: stage 0 runs forward of micro-batch 0",
    "another placement": r"rank 0 runs stages \[1\]; stages_per_rank 1 and placement 'loop' say \[0\]",
    "an unstated split": r"rank 0 runs weight gradients apart \(0W0\), but splits_backward is false",
    "a plan of another size": r"the plan is of \(2, 1, 1\), not \(1, 1, 1\)",
    "a plan that stands still": "The plan is wrong: stage 0 runs backward, then forward|comes to a standstill",
}


def subject(fault: str) -> checks.Subject:
    return checks.Subject(offer=OFFER, options={"fault": fault}, device="cpu")


@pytest.mark.parametrize("fault", list(PLANS))
def test_a_wrong_plan_is_found_without_a_rank(fault: str) -> None:
    with pytest.raises((AssertionError, ContractError), match=PLANS[fault]):
        checks.check_plans(subject(fault))


def test_a_plan_of_several_ranks_without_a_fault_passes() -> None:
    PLANS["right"] = ""
    try:
        checks.check_plans(subject("right"))
    finally:
        del PLANS["right"]


def test_a_refusal_must_list_legal_numbers_and_leave_some() -> None:
    with pytest.raises(AssertionError, match="refuses every number of micro-batches"):
        checks.check_plans(subject("refuses everything"))
    with pytest.raises(AssertionError, match=r"'It must be even.'\), and no number in that sentence is legal"):
        checks.check_counts(subject("refuses without a number"))
    checks.check_counts(subject(""))


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("discovers shapes", r"ran the forward of micro-batch 0 2 time\(s\), not 1: loads are counted"),
        ("drops the last", r"ce_sum is .*, not .*: this rank has the last stage"),
        ("averages", r"the gradient of stage 0: embedding is x0\.333333 of that of one process"),
        ("forgets earlier gradients", r"two steps, gradients kept: .* is x0\.5 of that of one process"),
        ("mean of losses", "ce_sum is "),
        ("loses the loss", r"ce_sum is -1\.0, not"),
    ],
)
def test_wrong_steps_are_found(ranks: RankPool, fault: str, message: str) -> None:
    with pytest.raises(RankError, match=f"AssertionError: .*{message}"):
        ranks.run(checks.check_steps, subject(fault), world_size=1)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("trains in evaluations", "an evaluation ran with gradients enabled"),
        ("keeps graphs in evaluations", "an evaluation ran with gradients enabled"),
    ],
)
def test_wrong_evaluations_are_found(ranks: RankPool, fault: str, message: str) -> None:
    with pytest.raises(RankError, match=message):
        ranks.run(checks.check_evaluation, subject(fault), world_size=1)


def test_another_order_than_the_plan_is_found(ranks: RankPool) -> None:
    with pytest.raises(RankError, match="forwards ran as 0F2 0F1 0F0, planned is 0F0 0F1 0F2"):
        ranks.run(checks.check_order, subject("another order"), world_size=1)


SUITE = """
from moeframe.testing.schedule_suite import ScheduleConformance
from moeframe_schedules.plugin import moeframe_offer_schedules
import pytest
from moeframe.testing.ranks import RankPool

@pytest.fixture(scope="session")
def ranks():
    with RankPool(1) as pool:
        yield pool

class TestMine(ScheduleConformance):
    offer = moeframe_offer_schedules()[0]
    sizes = (1, 2)
"""


def test_a_third_party_needs_a_few_lines(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(SUITE)

    result = pytester.runpytest_subprocess("-q", "-p", "no:cacheprovider")

    result.assert_outcomes(passed=5)
