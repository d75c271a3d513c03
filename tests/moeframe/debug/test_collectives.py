"""The collective operators of torch that the ledger reads, as every entry point of torch.distributed issues them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional
from torch.utils._python_dispatch import TorchDispatchMode

from moeframe.debug.collectives import read_collective


class Seen(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.collectives = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = read_collective(func, args, kwargs or {})
        if found is not None:
            self.collectives.append(found)
        return func(*args, **(kwargs or {}))


@pytest.fixture(scope="module", autouse=True)
def group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def all_gather():
    out, x = torch.empty(3), torch.ones(3)
    (getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor)(out, x)


def reduce_scatter():
    out, x = torch.empty(3), torch.ones(3)
    (getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor)(out, x)


CALLS = {
    "all_reduce": (lambda: dist.all_reduce(torch.ones(3)), ("all_reduce", ("float32 x 3",))),
    "broadcast": (lambda: dist.broadcast(torch.ones(3), 0), ("broadcast with root 0", ("float32 x 3",))),
    "reduce": (lambda: dist.reduce(torch.ones(3), 0), ("reduce with root 0", ("float32 x 3",))),
    "all_gather": (all_gather, ("all_gather", ("float32 x 3",))),
    "all_gather list": (
        lambda: dist.all_gather([torch.empty(3)], torch.ones(3)),
        ("all_gather", ("float32 x 3",)),
    ),
    "reduce_scatter": (reduce_scatter, ("reduce_scatter", ("float32 x 3",))),
    "gather": (lambda: dist.gather(torch.ones(3), [torch.empty(3)]), ("gather with root 0", ("float32 x 3",))),
    "scatter": (lambda: dist.scatter(torch.empty(3), [torch.ones(3)]), ("scatter with root 0", ("float32 x 3",))),
    "all_to_all": (
        lambda: dist.all_to_all_single(torch.empty(2, 4), torch.ones(2, 4)),
        ("all_to_all", ("float32 x 4 a row",)),
    ),
    "barrier": (dist.barrier, ("barrier", ())),
    "functional all_reduce": (
        lambda: functional.all_reduce(torch.ones(3), "sum", dist.group.WORLD).add(0),
        ("all_reduce", ("float32 x 3",)),
    ),
}


@pytest.mark.parametrize("name", list(CALLS))
def test_every_entry_point_is_read(name) -> None:
    call, wanted = CALLS[name]
    with Seen() as seen:
        call()
    (found,) = seen.collectives
    assert (found.op, found.operands) == wanted
    assert dist.get_process_group_ranks(found.group) == [0]
    assert found.group.group_name == dist.group.WORLD.group_name


def test_splits_are_read_in_rows_also_where_torch_has_none() -> None:
    with Seen() as seen:
        dist.all_to_all_single(torch.empty(2, 4), torch.ones(2, 4))
        dist.all_to_all_single(torch.empty(2, 4), torch.ones(2, 4), [2], [2])
        dist.all_to_all([torch.empty(5)], [torch.ones(5)])
    assert [(one.send, one.receive) for one in seen.collectives] == [((2,), (2,)), ((2,), (2,)), ((5,), (5,))]


def test_objects_travel_in_collectives_that_are_seen() -> None:
    with Seen() as seen:
        dist.broadcast_object_list([1], 0)
    assert {one.op for one in seen.collectives} <= {"broadcast with root 0"}


def test_operators_of_computation_are_none() -> None:
    with Seen() as seen:
        torch.ones(3).sum().sqrt()
    assert not seen.collectives
