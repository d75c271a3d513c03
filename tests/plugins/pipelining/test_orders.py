"""The plans of the schedules: published bubbles, and exactly what torch has in its own lists."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from moeframe_pipelining import kinds
from moeframe_pipelining.kinds import PipelineKind
from moeframe_pipelining.orders import gpipe, interleaved_1f1b, one_f_one_b, zbv, zero_bubble
from torch import nn
from torch.distributed.pipelining import schedules

from moeframe.schedule.actions import Action
from moeframe.schedule.placement import stages_of_rank
from moeframe.schedule.simulate import simulate

ALL = {
    "gpipe": (kinds.GPIPE, (1,)),
    "1f1b": (kinds.ONE_F_ONE_B, (1,)),
    "interleaved_1f1b": (kinds.INTERLEAVED_1F1B, (1, 2, 3)),
    "zero_bubble": (kinds.ZERO_BUBBLE, (1, 2, 3)),
    "zbv": (kinds.ZBV, (2,)),
    "dualpipev": (kinds.DUALPIPEV, (2,)),
}
NUMBERS = [(ranks, n) for ranks in range(2, 6) for n in range(1, 18)]

TORCH_KINDS = {
    "FORWARD": "forward",
    "FULL_BACKWARD": "backward",
    "BACKWARD_INPUT": "backward_input",
    "BACKWARD_WEIGHT": "backward_weight",
}


def flat(actions: Any) -> Iterator[Action]:
    """Torch's list without idle time and reductions, overlapped pairs one after the other."""
    for action in actions:
        if action is not None and action.sub_actions:
            yield from flat(action.sub_actions)
        elif action is not None and action.computation_type.name in TORCH_KINDS:
            kind = TORCH_KINDS[action.computation_type.name]
            yield Action(kind, action.stage_index, action.microbatch_index)


def torch_order(kind: PipelineKind, ranks: int, per_rank: int, n: int) -> tuple[tuple[Action, ...], ...]:
    """What torch's class would run, from stand-ins for the stages of rank 0; no process group is needed."""
    count = ranks * per_rank
    stages = [
        SimpleNamespace(
            stage_index=stage,
            num_stages=count,
            group_size=ranks,
            group_rank=0,
            submod=nn.Module(),
            is_first=stage == 0,
            is_last=stage == count - 1,
        )
        for stage in stages_of_rank(0, ranks, per_rank, kind.placement)
    ]
    torch_class = getattr(schedules, kind.torch_class)
    first = stages[0] if issubclass(torch_class, schedules.PipelineScheduleSingle) else stages
    built = torch_class(first, n, loss_fn=lambda *_: None)
    return tuple(tuple(flat(built.pipeline_order[rank])) for rank in range(ranks))


@pytest.mark.parametrize("name", [name for name in ALL if name != "1f1b"])
def test_a_plan_is_torchs_own_list_and_legal_counts_are_those_torch_takes(name: str) -> None:
    kind, stages_per_rank = ALL[name]
    compared = 0
    for per_rank in stages_per_rank:
        for ranks, n in NUMBERS:
            if kind.legal(ranks, n) is not None:
                with pytest.raises(ValueError, match="micro"):
                    torch_order(kind, ranks, per_rank, n)
                continue
            assert kind.order(ranks, per_rank, n).ranks == torch_order(kind, ranks, per_rank, n)
            compared += 1
    assert compared > 30


def test_the_list_that_torch_keeps_of_1f1b_is_not_what_it_runs() -> None:
    """Its last rank lists F1 to Fn; what runs is in test_pipeline.py. When this fails, 1f1b can join the test above."""
    *listed, last = torch_order(kinds.ONE_F_ONE_B, 2, 1, 3)
    *planned, planned_last = one_f_one_b(2, 1, 3).ranks
    assert listed == planned
    assert [action.micro_batch for action in last if action.kind == "forward"] == [1, 2, 3]
    assert [action.micro_batch for action in planned_last if action.kind == "forward"] == [0, 1, 2]


@pytest.mark.parametrize("name", list(ALL))
def test_every_legal_plan_is_whole_and_ends(name: str) -> None:
    kind, stages_per_rank = ALL[name]
    for per_rank in stages_per_rank:
        for ranks, n in NUMBERS:
            if kind.legal(ranks, n) is None:
                plan = kind.order(ranks, per_rank, n)
                assert simulate(plan).length >= 3 * n * per_rank
                for rank, actions in enumerate(plan.ranks):
                    assert {action.stage for action in actions} == set(
                        stages_of_rank(rank, ranks, per_rank, kind.placement)
                    )


@pytest.mark.parametrize(
    ("p", "m", "v"), [(4, 4, 1), (4, 8, 1), (4, 4, 2), (8, 16, 1), (4, 8, 2), (2, 6, 3), (8, 32, 4)]
)
def test_bubbles_are_the_published_ones_c56(p: int, m: int, v: int) -> None:
    published = (p - 1) / (m * v + p - 1)
    assert round(published, 4) == {(4, 4, 1): 0.4286, (4, 8, 1): 0.2727, (4, 4, 2): 0.2727, (8, 16, 1): 0.3043}.get(
        (p, m, v), round(published, 4)
    )
    orders = [gpipe, one_f_one_b, interleaved_1f1b] if v == 1 else [interleaved_1f1b]
    for order in orders:
        if order is not interleaved_1f1b or m % p == 0:
            assert simulate(order(p, v, m)).bubble == pytest.approx(published)


@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 8), (5, 9)])
def test_activations_held_are_the_published_ones(p: int, m: int) -> None:
    assert simulate(gpipe(p, 1, m)).peak_live == (m,) * p
    assert simulate(one_f_one_b(p, 1, m)).peak_live == tuple(p - rank for rank in range(p))


@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 8), (8, 16)])
def test_splitting_the_backward_leaves_a_third_of_the_bubble(p: int, m: int) -> None:
    """ZB-H1 (arXiv 2401.10241, table 1) waits (P - 1)(F + I - W), 1F1B (P - 1)(F + I + W)."""
    assert simulate(zero_bubble(p, 1, m)).length == 3 * m + (p - 1)
    assert simulate(one_f_one_b(p, 1, m)).length == 3 * m + 3 * (p - 1)
    assert max(simulate(zero_bubble(p, 1, m)).peak_live) <= p


def test_zbv_waits_for_nothing_but_its_first_input() -> None:
    """Section 6: no bubble when forward, input and weight gradients cost the same, but for filling the V once."""
    p, m = 4, 8
    found = simulate(zbv(p, 2, m))
    assert found.length == 3 * m * 2 + (p - 1)
    assert found.peak_live == (2 * p,) * p
