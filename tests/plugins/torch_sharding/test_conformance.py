"""The first-party shardings pass the published kit (C08, C09, C10, C11, C35, C38, C39, C41)."""

from __future__ import annotations

from typing import ClassVar

from moeframe_torch_sharding.plugin import moeframe_offer_shardings

from moeframe.testing.sharding_suite import ShardingConformance

OFFERS = {offer.name: offer for offer in moeframe_offer_shardings()}


class TestReplicate(ShardingConformance):
    offer = OFFERS["replicate"]


class TestZero1(ShardingConformance):
    offer = OFFERS["zero1"]


class TestZero1InSmallBuckets(ShardingConformance):
    offer = OFFERS["zero1"]
    options: ClassVar = {"bucket_bytes": 300}
    layouts = tuple(layout for layout in ShardingConformance.layouts if layout.world == 4 and layout.ep == 2)


class TestFsdp2(ShardingConformance):
    offer = OFFERS["fsdp2"]


class TestFsdp2WithDenseParametersKept(ShardingConformance):
    offer = OFFERS["fsdp2"]
    options: ClassVar = {"reshard_after_forward": False, "reshard_experts_after_forward": True}
    layouts = tuple(layout for layout in ShardingConformance.layouts if layout.world == 4 and layout.ep == 2)


class TestHsdp(ShardingConformance):
    offer = OFFERS["hsdp"]


class TestHsdpWithAllKept(ShardingConformance):
    offer = OFFERS["hsdp"]
    options: ClassVar = {"reshard_after_forward": False}
    layouts = tuple(layout for layout in ShardingConformance.layouts if layout.world == 4 and layout.ep == 2)
