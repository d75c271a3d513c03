"""The counter of host syncs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from moeframe.testing.host_syncs import HostSyncs

X = torch.tensor([1, 0, 2])


@pytest.mark.parametrize(
    "read",
    [
        X[0].item,
        X.tolist,
        X.cpu,
        X.numpy,
        lambda: bool(X[0]),
        lambda: int(X[0]),
        X.nonzero,
        lambda: X[X > 0],
        lambda: X.clone().__setitem__(X > 0, X[:2]),
        lambda: torch.repeat_interleave(X, X),
        lambda: torch.bincount(X),
        X.unique,
        lambda: X.masked_select(X > 0),
        lambda: torch.equal(X, X),
    ],
)
def test_a_call_that_reads_values_counts_once(read: Callable[[], object]) -> None:
    with HostSyncs() as syncs:
        read()

    assert len(syncs) == 1


@pytest.mark.parametrize(
    "compute",
    [
        lambda: X + X,
        lambda: X[X],
        lambda: X.clone().__setitem__(X, X),
        lambda: torch.repeat_interleave(X, X, output_size=3),
        lambda: X.masked_fill(X > 0, 0),
        X.sort,
        lambda: X.to(torch.float64),
        lambda: X.shape[0],
    ],
)
def test_a_call_that_only_computes_does_not_count(compute: Callable[[], object]) -> None:
    with HostSyncs() as syncs:
        compute()

    assert syncs.calls == []


def test_a_read_in_a_backward_counts() -> None:
    class Reads(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            return grad * grad.sum().item()

    x = torch.ones(2, requires_grad=True)
    with HostSyncs() as syncs:
        Reads.apply(x).sum().backward()

    assert len(syncs) == 1


def test_nothing_counts_outside_of_the_block() -> None:
    with HostSyncs() as syncs:
        pass
    X.tolist()

    assert syncs.calls == []
