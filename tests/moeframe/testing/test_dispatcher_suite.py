"""The conformance kit: each fault that a dispatcher can have is found, and its message names what differs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch
from moeframe_collectives.local import LocalDispatcher
from moeframe_collectives.options import LocalOptions

from moeframe.hooks import DispatcherOffer
from moeframe.protocols.dispatcher import Dispatched, DispatcherContext, DispatcherTraits, Layout
from moeframe.protocols.precision import Precision
from moeframe.testing import dispatcher_checks as checks
from moeframe.testing.ranks import RankError, RankPool
from moeframe.testing.workloads import WORKLOADS, build_steps


@dataclass(frozen=True, kw_only=True)
class FaultOptions:
    """Which fault the dispatcher has."""

    fault: str = ""


class Faulty(LocalDispatcher):
    """`local` with one fault."""

    def __init__(self, fault: str, context: DispatcherContext) -> None:
        super().__init__(LocalOptions(), context)
        self.fault = fault
        self.last: Dispatched | None = None
        self._validate = fault != "accepts anything"

    def layout(self, expert_ids_TK: torch.Tensor) -> Any:
        if self.fault == "syncs by expert":
            for expert in range(self._context.num_experts):
                (expert_ids_TK == expert).sum().item()
        layout = super().layout(expert_ids_TK)
        if self.fault == "counts in int32":
            return replace(layout, counts_E=layout.counts_E.int())
        if self.fault == "counts shifted":
            return replace(layout, counts_E=layout.counts_E.roll(1))
        return layout

    def dispatch(self, x_TD: torch.Tensor, gates_TK: torch.Tensor, layout: Layout) -> Dispatched:
        if self.fault == "changes its input":
            with torch.no_grad():
                x_TD.mul_(2)
        if self.fault == "syncs in dispatch":
            gates_TK.sum().item()
        if self.fault == "cuts gate gradients":
            gates_TK = gates_TK.detach().requires_grad_()
        dispatched = super().dispatch(x_TD, gates_TK, layout)
        if self.fault == "swaps rows of experts":
            dispatched = replace(dispatched, rows_RD=dispatched.rows_RD.flip(0))
        if self.fault == "swaps gates":
            dispatched = replace(dispatched, gates_R=dispatched.gates_R.flip(0))
        if self.fault == "gates in bfloat16":
            dispatched = replace(dispatched, gates_R=dispatched.gates_R.bfloat16())
        if self.fault == "keeps its input":
            dispatched = replace(dispatched, rows_RD=dispatched.rows_RD + (x_TD * x_TD).mean() * 0)
        if self.fault == "keeps its rows":
            rows_RD = dispatched.rows_RD.clone()
            dispatched = replace(dispatched, rows_RD=rows_RD, gates_R=dispatched.gates_R + (rows_RD**2).sum(-1) * 0)
        self.last = dispatched
        return dispatched

    def combine(self, rows_RD: torch.Tensor, dispatched: Dispatched) -> torch.Tensor:  # noqa: PLR0911  # a fault each
        if self.fault == "state in the object":
            assert self.last is not None
            dispatched = replace(dispatched, handle=self.last.handle)
        if self.fault == "sums in bfloat16":
            return _sum_in_row_dtype(rows_RD, dispatched)
        if self.fault == "reads padding":
            return super().combine(rows_RD, dispatched) + rows_RD.sum() * 0
        out_TD = super().combine(rows_RD, dispatched)
        if self.fault == "keeps what it combines":
            return out_TD + (rows_RD * rows_RD).mean() * 0
        if self.fault == "doubles gradients":
            return out_TD * 2 - out_TD.detach()
        if self.fault == "reads uninitialised memory":
            return out_TD + torch.empty_like(out_TD) * 0
        if self.fault == "random":
            return out_TD + torch.rand(())
        return out_TD


def _sum_in_row_dtype(rows_RD: torch.Tensor, dispatched: Dispatched) -> torch.Tensor:
    layout = dispatched.handle
    out_TD = rows_RD.new_zeros(layout.num_tokens, rows_RD.shape[1])
    for choice in range(layout.places_TK.shape[1]):
        out_TD = out_TD + rows_RD[layout.places_TK[:, choice]]
    return out_TD


def build(options: FaultOptions, context: DispatcherContext) -> Faulty:
    return Faulty(options.fault, context)


def traits(options: FaultOptions, precision: Precision) -> DispatcherTraits:
    return DispatcherTraits(
        fused=False,
        host_syncs_per_layer=0,
        keeps_dispatch_input=False,
        keeps_expert_input=False,
        deterministic=True,
        max_group=1,
    )


OFFER = DispatcherOffer(name="faulty", summary="For tests.", build=build, options=FaultOptions, traits=traits)


def subject(fault: str, dtype: Any = "float64") -> checks.Subject:
    return checks.Subject(offer=OFFER, options={"fault": fault}, device="cpu", dtype=dtype)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("counts in int32", "counts have dtype torch.int32, expected int64"),
        ("counts shifted", r"counts of experts range\(0, 4\) are .*, expected"),
        ("changes its input", "rows of expert 0 differ"),
        ("swaps rows of experts", r"rows of expert 0 differ as multisets of \(gate, token\)"),
        ("swaps gates", r"rows of expert \d differ"),
        ("gates in bfloat16", "gates have dtype torch.bfloat16, expected torch.float64"),
        ("cuts gate gradients", "gradient of the gates is None"),
        ("doubles gradients", r"gradient of x: \d+ of 72 elements differ, the first at \(0, 0\)"),
    ],
)
def test_wrong_rows_and_values_are_found(ranks: RankPool, fault: str, message: str) -> None:
    with pytest.raises(RankError, match=f"AssertionError: hot_expert, call 0, rank 0: {message}"):
        ranks.run(checks.check_workload, subject(fault), "hot_expert", world_size=1)


def test_reading_padding_is_found(ranks: RankPool) -> None:
    with pytest.raises(RankError, match=r"dropped, call 0, rank 0: output: 64 of 64 elements differ.* nan"):
        ranks.run(checks.check_workload, subject("reads padding"), "dropped", world_size=1)


def test_reading_uninitialised_memory_is_found(ranks: RankPool) -> None:
    with pytest.raises(RankError, match=r"ragged, call 0, rank 0: output: .* nan, expected"):
        ranks.run(checks.check_poisoned_buffers, subject("reads uninitialised memory"), world_size=1)


def test_state_in_the_object_is_found(ranks: RankPool) -> None:
    with pytest.raises(RankError, match=r"dispatch [01] of two in flight: "):
        ranks.run(checks.check_in_flight, subject("state in the object"), world_size=1)


def test_a_sum_in_bfloat16_is_found(ranks: RankPool) -> None:
    message = r"sum of the expert outputs 256 and 7 times 1: .*: 256\.0, expected 264\.0"
    with pytest.raises(RankError, match=message):
        ranks.run(checks.check_accumulation, subject("sums in bfloat16", "bfloat16"), world_size=1)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("keeps its input", "keeps_dispatch_input is false, yet the tensor that was given to dispatch is read after"),
        ("keeps its rows", "keeps_expert_input is false, yet the rows that dispatch returned is read after"),
        ("keeps what it combines", "keeps_combine_input is false, yet the tensor that was given to combine is read"),
    ],
)
def test_a_trait_that_gives_up_what_the_backward_reads_is_named(ranks: RankPool, fault: str, message: str) -> None:
    with pytest.raises(RankError, match=f"AssertionError: {message}"):
        ranks.run(checks.check_freed_inputs, subject(fault), world_size=1)


def test_random_results_are_found(ranks: RankPool) -> None:
    with pytest.raises(RankError, match="output of a repeated call"):
        ranks.run(checks.check_determinism, subject("random"), world_size=1)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("syncs by expert", "host syncs grow with the number of experts"),
        ("syncs in dispatch", "host syncs outside of layout"),
    ],
)
def test_host_syncs_are_found(ranks: RankPool, fault: str, message: str) -> None:
    with pytest.raises(RankError, match=message):
        ranks.run(checks.check_host_syncs, subject(fault), world_size=1)


def test_missing_validation_is_found(ranks: RankPool) -> None:
    with pytest.raises(RankError, match="layout accepted expert 4 of token 2"):
        ranks.run(checks.check_invalid_ids, subject("accepts anything"), world_size=1)


def test_a_dispatcher_without_a_fault_passes(ranks: RankPool) -> None:
    ranks.run(checks.check_workload, subject(""), "hot_expert", world_size=1)


def test_workloads_name_distinct_experts_in_range_on_every_group_size() -> None:
    for workload in WORKLOADS.values():
        for ep in (1, 2, 4):
            num_experts = workload.num_local_experts * ep
            top_k = min(workload.top_k, num_experts)
            for step in build_steps(workload, ep_size=ep, top_k=top_k, token_multiple=2):
                assert len(step) == ep
                for ids_TK in step:
                    assert ids_TK.shape[0] % 2 == 0
                    assert ids_TK.shape[1] == top_k
                    assert int(ids_TK.max()) < num_experts if ids_TK.numel() else True
                    for row in ids_TK.tolist():
                        sent = [expert for expert in row if expert >= 0]
                        assert len(set(sent)) == len(sent)
                assert workload.ragged or len({ids_TK.shape[0] for ids_TK in step}) == 1
                assert workload.drops or all(int(ids_TK.min()) >= 0 for ids_TK in step if ids_TK.numel())


SUITE = """
from moeframe.testing.dispatcher_suite import DispatcherConformance
from moeframe_collectives.plugin import moeframe_offer_dispatchers
import pytest
from moeframe.testing.ranks import RankPool

@pytest.fixture(scope="session")
def ranks():
    with RankPool(1) as pool:
        yield pool

class TestMine(DispatcherConformance):
    offer = moeframe_offer_dispatchers()[0]
    group_sizes = (1, 2)
"""


def test_a_third_party_needs_a_few_lines(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(SUITE)

    result = pytester.runpytest_subprocess("-q", "-p", "no:cacheprovider")

    result.assert_outcomes(passed=len(WORKLOADS) + 15)


class Counting(LocalDispatcher):
    """`local`, which notes what is built for which number of experts, and what is released."""

    built: ClassVar[list[int]] = []
    released: ClassVar[list[int]] = []

    def __init__(self, options: LocalOptions, context: DispatcherContext) -> None:
        super().__init__(options, context)
        self.built.append(context.num_experts)

    def release(self) -> None:
        self.released.append(self._context.num_experts)


def _traits_of_three(options: LocalOptions, precision: Precision) -> DispatcherTraits:
    return replace(traits(FaultOptions(), precision), experts_multiple=3)


def _counted() -> tuple[list[int], list[int]]:
    offer = DispatcherOffer(
        name="counting", summary="For tests.", build=Counting, options=LocalOptions, traits=_traits_of_three
    )
    checks.check_workload(checks.Subject(offer=offer, options={}, device="cpu", dtype="float64"), "balanced")
    return Counting.built, Counting.released


def test_a_check_keeps_to_the_multiple_of_experts_and_releases_what_it_built(ranks: RankPool) -> None:
    assert ranks.run(_counted, world_size=1) == [([6], [6])]  # the workload has 4 experts on a rank
