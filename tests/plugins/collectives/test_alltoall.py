"""The `alltoall` dispatcher: uneven exchanges, empty ranks, disagreeing splits, host syncs."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from moeframe_collectives.alltoall import AllToAllDispatcher
from moeframe_collectives.options import AllToAllOptions
from torch import distributed

from moeframe import trace
from moeframe.errors import ContractError
from moeframe.protocols.dispatcher import DispatcherContext
from moeframe.testing.host_syncs import HostSyncs
from moeframe.testing.ranks import RankError, RankPool


def build(num_experts: int, top_k: int = 1, **options: bool) -> AllToAllDispatcher:
    """Return a dispatcher over the default group; hidden size 1, float64."""
    return AllToAllDispatcher(
        AllToAllOptions(**options),
        DispatcherContext(
            ep_axis="ep",
            ep_size=distributed.get_world_size(),
            ep_rank=distributed.get_rank(),
            ep_group=distributed.group.WORLD,
            num_experts=num_experts,
            hidden_size=1,
            top_k=top_k,
            max_tokens=16,
            dtype=torch.float64,
            device=torch.device("cpu"),
        ),
    )


def tokens(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)[:, None]


def ids(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64)[:, None]


def gates(num_tokens: int) -> torch.Tensor:
    return torch.ones(num_tokens, 1, dtype=torch.float64)


def uneven_round_trip() -> dict[str, Any]:
    routing = [ids(0, 2, 0, 3), ids(1, 3, 1, 1)][distributed.get_rank()]
    x_TD = tokens(10, 11, 12, 13) + 100 * distributed.get_rank()
    dispatcher = build(4)
    layout = dispatcher.layout(routing)
    dispatched = dispatcher.dispatch(x_TD, gates(4), layout)
    return {
        "send": layout.send_splits,
        "receive": layout.receive_splits,
        "counts": dispatched.counts_E.tolist(),
        "host": dispatched.counts_host,
        "rows": dispatched.rows_RD[:, 0].tolist(),
        "out": dispatcher.combine(dispatched.rows_RD, dispatched)[:, 0].tolist(),
        "x": x_TD[:, 0].tolist(),
    }


def test_c01_uneven_counts_go_out_and_come_back_in_the_original_order(ranks: RankPool) -> None:
    first, second = ranks.run(uneven_round_trip, world_size=2)

    assert (first["send"], second["send"]) == ((2, 2), (3, 1))
    assert (first["receive"], second["receive"]) == ((2, 3), (2, 1))
    assert (first["counts"], second["counts"]) == ([2, 3], [1, 2])
    assert (first["host"], second["host"]) == ((2, 3), (1, 2))
    assert first["rows"] == [10, 12, 110, 112, 113]
    assert second["rows"] == [11, 13, 111]
    assert first["out"] == first["x"]
    assert second["out"] == second["x"]


def train_with_one_idle_rank(*, expert_returns_new_tensor: bool = False) -> tuple[list[float], list[float]]:
    w = torch.nn.Parameter(torch.full((1,), 2.0, dtype=torch.float64))
    x_TD = tokens(1, 1).requires_grad_()
    dispatcher = build(2)
    dispatched = dispatcher.dispatch(x_TD, gates(2), dispatcher.layout(ids(1, 1)))
    rows_RD = dispatched.rows_RD * w
    if expert_returns_new_tensor and rows_RD.shape[0] == 0:
        rows_RD = torch.empty(0, 1, dtype=torch.float64)
    dispatcher.combine(rows_RD, dispatched).sum().backward()
    assert x_TD.grad is not None
    assert w.grad is not None, "the expert that got no token has no gradient"
    return x_TD.grad[:, 0].tolist(), w.grad.tolist()


def train_with_a_cut_graph() -> None:
    train_with_one_idle_rank(expert_returns_new_tensor=True)


def test_c02_a_rank_whose_experts_get_no_token_takes_part_in_the_backward(ranks: RankPool) -> None:
    assert ranks.run(train_with_one_idle_rank, world_size=2) == [([2.0, 2.0], [0.0]), ([2.0, 2.0], [4.0])]


def test_an_expert_that_cuts_the_graph_is_named_where_it_happens(ranks: RankPool) -> None:
    with pytest.raises(RankError, match=r"rank 0: .*output of shape \(0, 1\) has no gradient") as caught:
        ranks.run(train_with_a_cut_graph, world_size=2)

    assert isinstance(caught.value.error, ContractError)


def train_where_only_rank_0_needs_input_gradients() -> list[float] | None:
    """Rank 1's tokens come from a frozen layer: its backward must still run the exchange."""
    x_TD = tokens(1, 2)
    x_TD.requires_grad_(distributed.get_rank() == 0)
    w = torch.nn.Parameter(torch.full((1,), 3.0, dtype=torch.float64))
    dispatcher = build(2)
    dispatched = dispatcher.dispatch(x_TD, gates(2), dispatcher.layout(ids(0, 1)))
    dispatcher.combine(dispatched.rows_RD * w, dispatched).sum().backward()
    return None if x_TD.grad is None else x_TD.grad[:, 0].tolist()


def test_ranks_may_differ_in_what_needs_a_gradient(ranks: RankPool) -> None:
    assert ranks.run(train_where_only_rank_0_needs_input_gradients, world_size=2) == [[3.0, 3.0], None]


def dispatch_with_different_layouts(phase: str) -> None:
    """Rank 1 expects 3 rows from rank 0, which sends 2: the layouts are of two different calls."""
    dispatcher = build(2, check_splits=True)
    routings = [ids(0, 1, 1), ids(1, 1, 1)]
    layouts = [dispatcher.layout(routing if distributed.get_rank() == 0 else ids(0)) for routing in routings]
    own = layouts[distributed.get_rank()]
    x_TD = tokens(1, 2, 3) if distributed.get_rank() == 0 else tokens(4)
    with trace.span(step=7, layer=3, phase="dispatch"):
        if phase == "dispatch":
            dispatcher.dispatch(x_TD, gates(x_TD.shape[0]), own)
        else:
            both = [dispatcher.dispatch(x_TD, gates(x_TD.shape[0]), layout) for layout in layouts]
            mine = both[distributed.get_rank()]
            dispatcher.combine(mine.rows_RD, mine)


@pytest.mark.parametrize(
    ("phase", "sentence"),
    [
        ("dispatch", "rank 0 sends 2 rows to rank 1, rank 1 expects 3"),
        ("combine", "rank 1 sends 3 rows to rank 0, rank 0 expects 2"),
    ],
)
def test_c04_splits_that_disagree_are_an_error_on_both_ranks_before_data_moves(
    ranks: RankPool, phase: str, sentence: str
) -> None:
    with pytest.raises(RankError) as caught:
        ranks.run(dispatch_with_different_layouts, phase, world_size=2)

    assert set(caught.value.failures) == {0, 1}
    for failure in caught.value.failures.values():
        assert isinstance(failure.error, ContractError)
        assert sentence in failure.message
        assert "step 7, layer 3" in failure.message


def round_trip_with_checks() -> list[float]:
    dispatcher = build(4, top_k=2, check_splits=True, validate=True)
    x_TD = tokens(1, 2).requires_grad_()
    routing = torch.tensor([[0, 3], [-1, 2]])
    dispatched = dispatcher.dispatch(x_TD, torch.ones(2, 2, dtype=torch.float64), dispatcher.layout(routing))
    out_TD = dispatcher.combine(dispatched.rows_RD, dispatched)
    out_TD.sum().backward()
    assert x_TD.grad is not None
    return [*out_TD[:, 0].tolist(), *x_TD.grad[:, 0].tolist()]


def test_agreeing_splits_pass_the_check(ranks: RankPool) -> None:
    assert ranks.run(round_trip_with_checks, world_size=2) == [[2, 2, 2, 1], [2, 2, 2, 1]]


def count_host_syncs(num_experts: int) -> tuple[list[str], list[str]]:
    dispatcher = build(num_experts, top_k=2)
    dispatcher._validate = False  # as on a GPU, where looking at the ids costs a sync
    routing = torch.arange(16).view(8, 2) % num_experts
    x_TD = torch.ones(8, 1, dtype=torch.float64, requires_grad=True)
    with HostSyncs() as forward:
        layout = dispatcher.layout(routing)
        dispatched = dispatcher.dispatch(x_TD, torch.ones(8, 2, dtype=torch.float64), layout)
        out_TD = dispatcher.combine(dispatched.rows_RD * 2, dispatched)
    with HostSyncs() as recompute:
        again = dispatcher.dispatch(x_TD, torch.ones(8, 2, dtype=torch.float64), layout)
        dispatcher.combine(again.rows_RD * 2, again)
        out_TD.sum().backward()
    return forward.calls, recompute.calls


@pytest.mark.parametrize("num_experts", [4, 64])
def test_c129_one_host_sync_in_the_forward_none_in_recompute_and_backward(ranks: RankPool, num_experts: int) -> None:
    assert ranks.run(count_host_syncs, num_experts, world_size=2) == [(["tolist"], [])] * 2


def use_wrong_shapes(kind: str) -> None:
    dispatcher = build(2)
    layout = dispatcher.layout(ids(0, 1))
    if kind == "tokens":
        dispatcher.dispatch(tokens(1, 2, 3), gates(3), layout)
    if kind == "gates":
        dispatcher.dispatch(tokens(1, 2), gates(2).bfloat16(), layout)
    if kind == "rows":
        dispatched = dispatcher.dispatch(tokens(1, 2), gates(2), layout)
        dispatcher.combine(dispatched.rows_RD[1:], dispatched)
    if kind == "ids":
        dispatcher.layout(ids(0, 1).int())


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("tokens", r"x_TD \(3, 1\) .* made for expert ids of shape \(2, 1\)"),
        ("gates", "gates_TK has dtype torch.bfloat16"),
        ("rows", r"returned rows of shape \(1, 1\) and were given \(2, 1\)"),
        ("ids", r"dtype torch.int32 .* must be int64 of shape \(T, 1\)"),
    ],
)
def test_tensors_that_do_not_belong_to_the_call_are_refused(ranks: RankPool, kind: str, message: str) -> None:
    with pytest.raises(RankError, match=message) as caught:
        ranks.run(use_wrong_shapes, kind, world_size=1)

    assert isinstance(caught.value.error, ContractError)


def train_without_warnings() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train_with_one_idle_rank()
        round_trip_with_checks()


def test_no_deprecated_collective_is_called(ranks: RankPool) -> None:
    ranks.run(train_without_warnings, world_size=2)
