"""A dispatcher under test on one rank, and what its calls must give."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
from torch import distributed

from moeframe.protocols.dispatcher import Dispatched, Dispatcher, DispatcherContext, DispatcherTraits
from moeframe.protocols.precision import DtypeName, Precision
from moeframe.testing.device import rank_device
from moeframe.testing.dispatcher_reference import CallData, call_data, expected_rows, expected_values, expert_weights
from moeframe.testing.workloads import Workload, build_steps

if TYPE_CHECKING:
    from moeframe.hooks.offers import DispatcherOffer

__all__ = ["Bench", "Subject", "released", "require", "require_equal", "require_rows", "require_values"]

Check = TypeVar("Check", bound=Callable[..., None])


@dataclass(frozen=True, kw_only=True)
class Subject:
    """The dispatcher under test, as it travels to the ranks."""

    offer: DispatcherOffer
    options: Mapping[str, Any]
    device: str
    dtype: DtypeName

    @property
    def traits(self) -> DispatcherTraits:
        """Traits of the offer for these options and this dtype."""
        return self.offer.traits(self.offer.options(**self.options), Precision.of(self.dtype))


_built: list[Dispatcher] = []
"""What the running check has built on this rank."""


def released(check: Check) -> Check:
    """Have a check release what it built, in order; after a failure nothing is, since that may wait for ranks."""

    @wraps(check)
    def run(*args: Any) -> None:
        _built.clear()
        check(*args)
        while _built:
            _built.pop(0).release()

    return cast("Check", run)


class Bench:
    """One built dispatcher on this rank, and its experts ``gate * w_e * x``."""

    def __init__(self, subject: Subject, workload: Workload, *, num_experts: int | None = None) -> None:
        self.rank, self.ep = distributed.get_rank(), distributed.get_world_size()
        traits = subject.traits
        self.device = rank_device(subject.device)
        self.dtype = Precision.of(subject.dtype).dtype("compute")
        self.high = Precision.of(subject.dtype).dtype("high")
        per_rank = traits.experts_multiple // math.gcd(traits.experts_multiple, self.ep)
        workload = replace(workload, num_local_experts=-(-workload.num_local_experts // per_rank) * per_rank)
        self.num_experts = num_experts or workload.num_local_experts * self.ep
        self.num_local = self.num_experts // self.ep
        self.top_k = min(workload.top_k, traits.max_topk or workload.top_k, self.num_experts)
        least = max(workload.hidden_size, traits.min_hidden)
        self.hidden = -(-least // traits.hidden_multiple) * traits.hidden_multiple
        self.steps = build_steps(workload, ep_size=self.ep, top_k=self.top_k, token_multiple=traits.token_multiple)
        self.dispatcher: Dispatcher = subject.offer.build(
            subject.offer.options(**subject.options),
            DispatcherContext(
                ep_axis="ep",
                ep_size=self.ep,
                ep_rank=self.rank,
                ep_group=distributed.group.WORLD,
                num_experts=self.num_experts,
                hidden_size=self.hidden,
                top_k=self.top_k,
                max_tokens=max(ids_TK.shape[0] for step in self.steps for ids_TK in step),
                dtype=self.dtype,
                device=self.device,
            ),
        )
        _built.append(self.dispatcher)
        first = self.rank * self.num_local
        self.experts = range(first, first + self.num_local)
        self.w_ED = expert_weights(self.num_experts, self.hidden)
        self.own_w_ED = self.w_ED[first : first + self.num_local].to(self.device, self.high).requires_grad_()

    def calls(self, step: int) -> list[CallData]:
        """Return every rank's input of a step."""
        numbered = self.dtype != torch.bfloat16
        return [call_data(ids_TK, rank, self.hidden, numbered=numbered) for rank, ids_TK in enumerate(self.steps[step])]

    def leaves(self, call: CallData) -> tuple[torch.Tensor, torch.Tensor]:
        """Return tokens and gates on the device, requiring gradients."""
        x_TD = call.x_TD.to(self.device, self.dtype, copy=True).requires_grad_()
        return x_TD, call.gates_TK.to(self.device, self.high, copy=True).requires_grad_()

    def run_experts(self, dispatched: Dispatched) -> torch.Tensor:
        """Compute ``gate * w_e * x`` in high precision; rows beyond the counts become NaN."""
        num_rows = int(dispatched.counts_E.sum())
        experts_R = torch.arange(self.num_local, device=self.device).repeat_interleave(dispatched.counts_E)
        rows_RD = dispatched.rows_RD[:num_rows].to(self.high) * self.own_w_ED[experts_R]
        rows_RD = (rows_RD * dispatched.gates_R[:num_rows, None]).to(self.dtype)
        padding = dispatched.rows_RD.shape[0] - num_rows
        return torch.cat([rows_RD, rows_RD.new_full((padding, self.hidden), torch.nan)])


def require_rows(bench: Bench, calls: list[CallData], dispatched: Dispatched, place: str) -> None:
    """Check types, counts and, for each local expert, the multiset of (gate, token)."""
    rows_RD, gates_R, counts_E = dispatched.rows_RD.detach(), dispatched.gates_R.detach(), dispatched.counts_E
    require(rows_RD.dtype == bench.dtype, f"{place}: rows have dtype {rows_RD.dtype}, tokens {bench.dtype}")
    require(gates_R.dtype == bench.high, f"{place}: gates have dtype {gates_R.dtype}, expected {bench.high}")
    require(counts_E.dtype == torch.int64, f"{place}: counts have dtype {counts_E.dtype}, expected int64")
    require(counts_E.device == rows_RD.device, f"{place}: counts lie on {counts_E.device}, rows on {rows_RD.device}")
    require(rows_RD.shape[0] == gates_R.shape[0], f"{place}: {rows_RD.shape[0]} rows, {gates_R.shape[0]} gates")
    counts = counts_E.tolist()
    by_expert = [expected_rows(calls, expert) for expert in bench.experts]
    expected = [len(rows) for rows in by_expert]
    require(counts == expected, f"{place}: counts of experts {bench.experts} are {counts}, expected {expected}")
    host = dispatched.counts_host
    require(host is None or list(host) == counts, f"{place}: counts_host {host} differs from counts {counts}")
    start = 0
    for expert, wanted, count in zip(bench.experts, by_expert, counts, strict=True):
        part = torch.cat([gates_R[start : start + count, None].double(), rows_RD[start : start + count].double()], 1)
        start += count
        got = Counter(tuple(row) for row in part.tolist())
        want = Counter(wanted)
        require(
            got == want,
            f"{place}: rows of expert {expert} differ as multisets of (gate, token). "
            f"Missing: {list((want - got).elements())[:3]}; too many: {list((got - want).elements())[:3]}",
        )


def require_values(
    bench: Bench, calls: list[CallData], results: tuple[torch.Tensor, torch.Tensor, torch.Tensor], place: str
) -> None:
    """Check output and gradients against the formula, then clear the weights' gradient."""
    x_TD, gates_TK, out_TD = results
    expected = expected_values(calls, bench.rank, bench.w_ED)
    own = slice(bench.experts.start, bench.experts.stop)
    pairs = (
        ("output", out_TD.detach(), expected.out_TD, bench.dtype),
        ("gradient of x", x_TD.grad, expected.x_grad_TD, bench.dtype),
        ("gradient of the gates", gates_TK.grad, expected.gates_grad_TK, bench.high),
        (f"gradient of experts {bench.experts}", bench.own_w_ED.grad, expected.weight_grad_ED[own], bench.high),
    )
    for what, got, want, dtype in pairs:
        assert got is not None, f"{place}: {what} is None"
        require_equal(got, want.to(dtype), f"{place}: {what}")
    bench.own_w_ED.grad = None


def require(condition: bool, message: str) -> None:  # noqa: FBT001  # an assertion that survives -O
    """Fail with a message where a condition does not hold."""
    if not condition:
        raise AssertionError(message)


def require_equal(got: torch.Tensor, want: torch.Tensor, what: str) -> None:
    """Difference 0, same shape, same dtype; else name the first element that differs."""
    got, want = got.cpu(), want.cpu()
    require(got.shape == want.shape, f"{what}: shape {tuple(got.shape)}, expected {tuple(want.shape)}")
    require(got.dtype == want.dtype, f"{what}: dtype {got.dtype}, expected {want.dtype}")
    wrong = got != want
    if bool(wrong.any()):
        first = tuple(wrong.nonzero()[0].tolist())
        raise AssertionError(
            f"{what}: {int(wrong.sum())} of {wrong.numel()} elements differ, the first at {first}: "
            f"{got[first].item()}, expected {want[first].item()}"
        )
