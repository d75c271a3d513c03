"""The clock of plans: what comes out by hand."""

from __future__ import annotations

import subprocess
import sys

import pytest

from moeframe.errors import ContractError
from moeframe.schedule.actions import Action, Plan
from moeframe.schedule.simulate import Costs, plan_problems, simulate

KINDS = {"F": "forward", "B": "backward", "I": "backward_input", "W": "backward_weight"}


def plan(*ranks: str, stages: int = 2, micro_batches: int = 1) -> Plan:
    """A plan from the short form of its actions: stage, letter, micro-batch."""
    return Plan(
        num_stages=stages,
        num_micro_batches=micro_batches,
        ranks=tuple(tuple(Action(KINDS[one[1]], int(one[0]), int(one[2])) for one in rank.split()) for rank in ranks),
    )


def test_one_micro_batch_on_two_ranks_keeps_one_of_them_waiting_at_any_time() -> None:
    found = simulate(plan("0F0 0B0", "1F0 1B0"))
    assert [(timed.start, timed.end) for timed in found.ranks[0]] == [(0, 1), (4, 6)]
    assert [(timed.start, timed.end) for timed in found.ranks[1]] == [(1, 2), (2, 4)]
    assert found.length == 6
    assert found.bubble == pytest.approx(0.5)
    assert found.peak_live == (1, 1)


def test_a_neighbour_gets_the_input_gradient_before_weight_gradients_have_run() -> None:
    found = simulate(plan("0F0 0B0", "1F0 1I0 1W0"))
    assert found.ranks[0][1].start == 3
    assert found.length == 5


def test_costs_are_those_given() -> None:
    found = simulate(plan("0F0 0B0", "1F0 1B0"), Costs(forward=3, backward_input=4, backward_weight=5))
    assert found.length == 2 * (3 + 9)
    assert "a forward costs 3" in str(found)
    assert "input 4 and that of its weights 5" in str(found)


def test_activations_live_until_the_weight_gradients() -> None:
    text = "0F0 0I0 0F1 0I1 0W0 0W1"
    assert simulate(plan(text, stages=1, micro_batches=2)).peak_live == (2,)
    assert simulate(plan("0F0 0B0 0F1 0B1", stages=1, micro_batches=2)).peak_live == (1,)


def test_a_deadlock_names_every_rank_that_waits_and_for_what() -> None:
    crossed = plan("0F0 0B0 0F1 0B1", "1F1 1F0 1B0 1B1", micro_batches=2)
    with pytest.raises(ContractError, match="standstill") as caught:
        simulate(crossed)
    assert "rank 0 at 0B0 waits for the backward of micro-batch 0 in stage 1" in str(caught.value)
    assert "rank 1 at 1F1 waits for the forward of micro-batch 1 in stage 0" in str(caught.value)


@pytest.mark.parametrize(
    ("ranks", "message"),
    [
        (("0F0 0B0", "1F0"), "stage 1 runs forward of micro-batch 0"),
        (("0F0 0B0", ""), "stage 1 runs nothing of micro-batch 0"),
        (("0F0 0B0 0B0", "1F0 1B0"), "stage 0 runs forward, then backward, then backward"),
        (("0F0 0B0", "1B0 1F0"), "stage 1 runs backward, then forward"),
        (("0F0 0B0", "1F0 1W0 1I0"), "stage 1 runs forward, then backward_weight, then backward_input"),
        (("0F0 0B0 1F0", "1B0"), "rank 1 runs 1B0, but stage 1 is on rank 0"),
        (("0F0 0B0", "1F0 1B0 2F0"), "rank 1 runs 2F0, but there are 2 stages and 1 micro-batches"),
    ],
)
def test_a_plan_that_loses_doubles_or_reverses_an_action_is_refused(ranks, message) -> None:
    assert any(message in problem for problem in plan_problems(plan(*ranks)))
    with pytest.raises(ContractError, match="The plan is wrong"):
        simulate(plan(*ranks))


def test_a_plan_of_nothing_takes_no_time() -> None:
    found = simulate(Plan(num_stages=0, num_micro_batches=0, ranks=((), ())))
    assert (found.length, found.bubble, found.peak_live) == (0, 0.0, (0, 0))


def test_a_plan_prints_its_actions() -> None:
    assert str(plan("0F0 0B0", "1F0 1I0 1W0")) == "rank 0: 0F0 0B0\nrank 1: 1F0 1I0 1W0"


def test_plans_and_their_simulation_need_no_torch() -> None:
    program = (
        "import sys\n"
        "import moeframe.schedule.placement, moeframe.schedule.simulate, moeframe.schedule.timeline\n"
        "import moeframe_pipelining.plugin, moeframe_pipelining.orders\n"
        "sys.exit(bool({'torch', 'matplotlib'} & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
