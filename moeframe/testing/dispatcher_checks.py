"""What each check of the dispatcher kit does on one rank. Failures are AssertionErrors that name what differs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final

import torch
from torch import distributed

from moeframe.errors import ContractError
from moeframe.testing.dispatcher_bench import (
    Bench,
    Subject,
    released,
    require,
    require_equal,
    require_rows,
    require_values,
)
from moeframe.testing.dispatcher_reference import (
    expected_values,
)
from moeframe.testing.host_syncs import HostSyncs
from moeframe.testing.workloads import WORKLOADS, Workload

__all__ = [
    "Subject",
    "check_accumulation",
    "check_determinism",
    "check_freed_inputs",
    "check_host_syncs",
    "check_in_flight",
    "check_invalid_ids",
    "check_no_grad",
    "check_poisoned_buffers",
    "check_reused_layout",
    "check_static_shapes",
    "check_workload",
]


@released
def check_workload(subject: Subject, workload: str) -> None:
    """Every row arrives once, grouped by expert; output and all gradients equal the formula with difference 0."""
    _check_workload(subject, workload)


def _check_workload(subject: Subject, workload: str) -> None:
    bench = Bench(subject, WORKLOADS[workload])
    for step in range(len(bench.steps)):
        place = f"{workload}, call {step}, rank {bench.rank}"
        calls = bench.calls(step)
        x_TD, gates_TK = bench.leaves(calls[bench.rank])
        ids_TK = calls[bench.rank].ids_TK.to(bench.device, copy=True)
        layout = bench.dispatcher.layout(ids_TK)
        require(layout.num_tokens == x_TD.shape[0], f"{place}: layout.num_tokens is {layout.num_tokens}")
        dispatched = bench.dispatcher.dispatch(x_TD, gates_TK, layout)
        require_rows(bench, calls, dispatched, place)
        out_TD = bench.dispatcher.combine(bench.run_experts(dispatched), dispatched)
        require(out_TD.requires_grad, f"{place}: the output has no gradient function")
        torch.autograd.backward(out_TD, calls[bench.rank].grad_TD.to(out_TD))
        require_values(bench, calls, (x_TD, gates_TK, out_TD), place)
        inputs = calls[bench.rank]
        require_equal(x_TD.detach(), inputs.x_TD.to(bench.dtype), f"{place}: x_TD after the call (changed in place)")
        require_equal(gates_TK.detach(), inputs.gates_TK.to(bench.high), f"{place}: gates_TK after the call")
        require_equal(ids_TK, inputs.ids_TK, f"{place}: expert ids after the call")


@released
def check_in_flight(subject: Subject) -> None:
    """Two dispatches before the first combine, and both backward passes after both: state lives in the handles."""
    bench = Bench(subject, WORKLOADS["rotating"])
    flights = []
    for step in (0, 1):
        call = bench.calls(step)[bench.rank]
        leaves = bench.leaves(call)
        layout = bench.dispatcher.layout(call.ids_TK.to(bench.device))
        flights.append((step, call, leaves, bench.dispatcher.dispatch(*leaves, layout)))
    outputs = []
    for step, call, leaves, dispatched in flights:
        out_TD = bench.dispatcher.combine(bench.run_experts(dispatched), dispatched)
        outputs.append((step, call, leaves, out_TD))
    for step, call, leaves, out_TD in reversed(outputs):
        bench.own_w_ED.grad = None
        torch.autograd.backward(out_TD, call.grad_TD.to(out_TD))
        require_values(bench, bench.calls(step), (*leaves, out_TD), f"dispatch {step} of two in flight")


@released
def check_reused_layout(subject: Subject) -> None:
    """A layout serves several dispatches, as recomputation needs: each gives the same rows and the same output."""
    bench = Bench(subject, WORKLOADS["balanced"])
    calls = bench.calls(0)
    layout = bench.dispatcher.layout(calls[bench.rank].ids_TK.to(bench.device))
    for turn in ("first", "second"):
        place = f"{turn} dispatch with one layout, rank {bench.rank}"
        bench.own_w_ED.grad = None
        x_TD, gates_TK = bench.leaves(calls[bench.rank])
        dispatched = bench.dispatcher.dispatch(x_TD, gates_TK, layout)
        require_rows(bench, calls, dispatched, place)
        out_TD = bench.dispatcher.combine(bench.run_experts(dispatched), dispatched)
        torch.autograd.backward(out_TD, calls[bench.rank].grad_TD.to(out_TD))
        require_values(bench, calls, (x_TD, gates_TK, out_TD), place)


@released
def check_accumulation(subject: Subject) -> None:
    """Expert outputs 256, 1, 1 ... of one token sum to what float32 gives; bfloat16 would stay at 256."""
    workload = Workload(name="sum", steps=WORKLOADS["balanced"].steps, num_local_experts=8, top_k=8)
    bench = Bench(subject, workload)
    ids_TK = torch.arange(bench.top_k, device=bench.device).repeat(bench.steps[0][bench.rank].shape[0], 1)
    x_TD = torch.ones(ids_TK.shape[0], bench.hidden, dtype=bench.dtype, device=bench.device)
    gates_TK = torch.ones(ids_TK.shape, dtype=bench.high, device=bench.device)
    dispatched = bench.dispatcher.dispatch(x_TD, gates_TK, bench.dispatcher.layout(ids_TK))
    rows_RD = dispatched.rows_RD.clone()
    if bench.rank == 0:
        rows_RD[: int(dispatched.counts_E[0])] = 256
    out_TD = bench.dispatcher.combine(rows_RD, dispatched)
    expected = torch.full_like(x_TD, 256 + bench.top_k - 1, dtype=torch.float64).to(bench.dtype)
    require_equal(out_TD, expected, f"sum of the expert outputs 256 and {bench.top_k - 1} times 1")


@released
def check_no_grad(subject: Subject) -> None:
    """Without gradients the output is the same and holds no graph."""
    bench = Bench(subject, WORKLOADS["hot_expert"])
    calls = bench.calls(0)
    with torch.no_grad():
        layout = bench.dispatcher.layout(calls[bench.rank].ids_TK.to(bench.device))
        dispatched = bench.dispatcher.dispatch(*bench.leaves(calls[bench.rank]), layout)
        out_TD = bench.dispatcher.combine(bench.run_experts(dispatched), dispatched)
    require(not out_TD.requires_grad, "the output requires a gradient under no_grad")
    require_equal(out_TD, expected_values(calls, bench.rank, bench.w_ED).out_TD.to(bench.dtype), "output")


_GIVEN_UP: Final[Mapping[str, str]] = {
    "keeps_dispatch_input": "the tensor that was given to dispatch",
    "keeps_expert_input": "the rows that dispatch returned",
    "keeps_combine_input": "the tensor that was given to combine",
}
"""What may be freed after the forward when the trait of that name is false."""


@released
def check_freed_inputs(subject: Subject) -> None:
    """Where a trait says that a tensor is not kept, nobody reads it again: filled with NaN, and then really freed."""
    released = [trait for trait in _GIVEN_UP if not getattr(subject.traits, trait)]
    for trait in released:
        place = f"{trait} is false, yet {_GIVEN_UP[trait]} is read after its storage was given up"
        _require_gradients_without(subject, {trait}, place, lambda tensor: tensor.data.fill_(torch.nan))
    place = f"after the storages were freed for which {', '.join(released)} is false"
    _require_gradients_without(subject, set(released), place, lambda tensor: tensor.untyped_storage().resize_(0))


def _require_gradients_without(
    subject: Subject, released: Collection[str], place: str, give_up: Callable[[torch.Tensor], object]
) -> None:
    """Run a call forward, give up tensors as early as the traits allow, and check all gradients."""
    bench = Bench(subject, WORKLOADS["balanced"])
    call = bench.calls(0)[bench.rank]
    leaf_TD, gates_TK = bench.leaves(call)
    x_TD = leaf_TD * 1
    dispatched = bench.dispatcher.dispatch(x_TD, gates_TK, bench.dispatcher.layout(call.ids_TK.to(bench.device)))
    if "keeps_dispatch_input" in released:
        give_up(x_TD)
    # Experts that keep nothing themselves.
    rows_RD = dispatched.rows_RD * 2 + dispatched.gates_R.to(bench.dtype)[:, None]
    if "keeps_expert_input" in released:
        give_up(dispatched.rows_RD)
    out_TD = bench.dispatcher.combine(rows_RD, dispatched)
    if "keeps_combine_input" in released:
        give_up(rows_RD)
    torch.autograd.backward(out_TD, torch.ones_like(out_TD))
    assert leaf_TD.grad is not None, f"{place}: gradient of x is None"
    assert gates_TK.grad is not None, f"{place}: gradient of the gates is None"
    require_equal(leaf_TD.grad, torch.full_like(leaf_TD, 2 * bench.top_k), f"{place}: gradient of x")
    require_equal(gates_TK.grad, torch.full_like(gates_TK, bench.hidden), f"{place}: gradient of the gates")


@released
def check_determinism(subject: Subject) -> None:
    """Equal input gives bit-equal output and gradients, with numbers whose sums depend on their order."""
    bench = Bench(subject, WORKLOADS["hot_expert"])
    ids_TK = bench.steps[0][bench.rank].to(bench.device)
    results = []
    generator = torch.Generator().manual_seed(bench.rank)
    x_TD = torch.randn(ids_TK.shape[0], bench.hidden, generator=generator).to(bench.device, bench.dtype)
    gates_TK = torch.rand(ids_TK.shape, generator=generator).to(bench.device, bench.high).requires_grad_()
    for _ in range(3):
        leaf_TD = x_TD.clone().requires_grad_()
        dispatched = bench.dispatcher.dispatch(leaf_TD, gates_TK, bench.dispatcher.layout(ids_TK))
        out_TD = bench.dispatcher.combine(bench.run_experts(dispatched), dispatched)
        torch.autograd.backward(out_TD, torch.ones_like(out_TD) / 3)
        assert leaf_TD.grad is not None, "gradient of x is None in a repeated call"
        results.append((out_TD.detach(), leaf_TD.grad))
    for out_TD, grad_TD in results[1:]:
        require_equal(out_TD, results[0][0], "output of a repeated call")
        require_equal(grad_TD, results[0][1], "gradient of a repeated call")


@released
def check_static_shapes(subject: Subject) -> None:
    """The trait `static_shapes`: calls of equal size give equal numbers of rows, whatever the routing."""
    seen = []
    for workload in ("rotating", "hot_rank"):
        bench = Bench(subject, WORKLOADS[workload])
        call = bench.calls(0)[bench.rank]
        layout = bench.dispatcher.layout(call.ids_TK.to(bench.device))
        seen.append(bench.dispatcher.dispatch(*bench.leaves(call), layout).rows_RD.shape[0])
    require(seen[0] == seen[1], f"static_shapes is stated, yet two routings of equal size gave {seen} rows")


@released
def check_host_syncs(subject: Subject) -> None:
    """The trait `host_syncs_per_layer`: all in `layout`, none in the backward, and not more for more experts.

    The number itself is checked on a GPU only: on a CPU a dispatcher may look at values freely, to check them.
    """
    counted = []
    for factor in (1, 8):
        experts = factor * 4 * distributed.get_world_size()
        bench = Bench(subject, WORKLOADS["balanced"], num_experts=experts)
        call = bench.calls(0)[bench.rank]
        leaves, ids_TK = bench.leaves(call), call.ids_TK.to(bench.device)
        with HostSyncs() as in_layout:
            layout = bench.dispatcher.layout(ids_TK)
        with HostSyncs() as elsewhere:
            dispatched = bench.dispatcher.dispatch(*leaves, layout)
            out_TD = bench.dispatcher.combine(dispatched.rows_RD * 2, dispatched)
            torch.autograd.backward(out_TD, torch.ones_like(out_TD))
        require(not elsewhere.calls, f"{experts} experts: host syncs outside of layout: {elsewhere.calls}")
        allowed = subject.traits.host_syncs_per_layer
        require(
            subject.device == "cpu" or len(in_layout) <= allowed,
            f"{experts} experts: host_syncs_per_layer = {allowed}, layout had {len(in_layout)}: {in_layout.calls}",
        )
        counted.append(in_layout.calls)
    require(len(counted[0]) == len(counted[1]), f"host syncs grow with the number of experts: {counted}")


@released
def check_poisoned_buffers(subject: Subject) -> None:
    """With every uninitialised buffer full of NaN, results stay the same: nothing unwritten is ever read."""
    mode = torch.is_deterministic_algorithms_warn_only_enabled(), torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        for name in ("ragged", "burst") if not subject.traits.needs_equal_tokens else ("burst",):
            _check_workload(subject, name)
    finally:
        torch.use_deterministic_algorithms(mode[1], warn_only=mode[0])


@released
def check_invalid_ids(subject: Subject) -> None:
    """Ids out of range and an expert named twice by a token raise ContractError that names token and expert."""
    bench = Bench(subject, WORKLOADS["balanced"])
    good_TK = bench.steps[0][bench.rank]
    beyond_TK, twice_TK = good_TK.clone(), good_TK.clone()
    beyond_TK[2, 0] = bench.num_experts
    _require_refusal(bench, beyond_TK, (2, bench.num_experts))
    beyond_TK[2, 0] = -2
    _require_refusal(bench, beyond_TK, (2, -2))
    if bench.top_k > 1:
        twice_TK[0, :2] = 1
        _require_refusal(bench, twice_TK, (0, 1))


def _require_refusal(bench: Bench, ids_TK: torch.Tensor, named: tuple[int, int]) -> None:
    try:
        bench.dispatcher.layout(ids_TK.to(bench.device))
    except ContractError as error:
        words = str(error).replace(",", " ").replace(":", " ").split()
        missing = [number for number in named if str(number) not in words]
        require(not missing, f"the error names neither token nor expert {missing}: {error}")
        return
    require(False, f"layout accepted expert {named[1]} of token {named[0]} in {ids_TK.tolist()}")
