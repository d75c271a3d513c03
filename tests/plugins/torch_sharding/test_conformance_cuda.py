"""The first-party shardings pass the published kit on GPUs, with NCCL, in the layouts that they suffice for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from moeframe_torch_sharding.plugin import moeframe_offer_shardings

from moeframe.testing.ranks import RankPool
from moeframe.testing.sharding_suite import LAYOUTS, ShardingConformance

NUM_DEVICES = torch.cuda.device_count()
OFFERS = {offer.name: offer for offer in moeframe_offer_shardings()}

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(NUM_DEVICES == 0, reason="needs a CUDA device")]


@pytest.fixture(scope="module")
def ranks() -> Iterator[RankPool]:
    """Return a pool of one rank a GPU, up to four."""
    with RankPool(min(NUM_DEVICES, 4), device="cuda") as pool:
        yield pool


class OnCuda(ShardingConformance):
    __test__ = False
    device = "cuda"
    layouts = tuple(layout for layout in LAYOUTS if layout.world <= max(1, NUM_DEVICES))


class TestReplicate(OnCuda):
    __test__ = True
    offer = OFFERS["replicate"]


class TestZero1(OnCuda):
    __test__ = True
    offer = OFFERS["zero1"]


class TestFsdp2(OnCuda):
    __test__ = True
    offer = OFFERS["fsdp2"]


class TestHsdp(OnCuda):
    __test__ = True
    offer = OFFERS["hsdp"]
