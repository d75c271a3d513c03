"""The first-party dispatchers pass the published kit on GPUs, with NCCL, on as many as there are."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from moeframe_collectives.plugin import moeframe_offer_dispatchers

from moeframe.testing.dispatcher_suite import DispatcherConformance
from moeframe.testing.ranks import RankPool

NUM_DEVICES = torch.cuda.device_count()
OFFERS = {offer.name: offer for offer in moeframe_offer_dispatchers()}

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(NUM_DEVICES == 0, reason="needs a CUDA device")]


@pytest.fixture(scope="module")
def ranks() -> Iterator[RankPool]:
    """Return a pool of one rank a GPU."""
    with RankPool(NUM_DEVICES, device="cuda") as pool:
        yield pool


class OnCuda(DispatcherConformance):
    __test__ = False
    device = "cuda"
    group_sizes = tuple(size for size in (1, 2, 4, 8) if size <= max(1, NUM_DEVICES))


class TestLocal(OnCuda):
    __test__ = True
    offer = OFFERS["local"]


class TestAllToAll(OnCuda):
    __test__ = True
    offer = OFFERS["alltoall"]


class TestAllGather(OnCuda):
    __test__ = True
    offer = OFFERS["allgather"]
