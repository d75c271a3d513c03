"""Both dispatchers pass the published kit, on a double of the library."""

from __future__ import annotations

from moeframe_deepep.plugin import moeframe_offer_dispatchers

from moeframe.testing.dispatcher_suite import DispatcherConformance

OFFERS = {offer.name: offer for offer in moeframe_offer_dispatchers()}


class TestDeepEP(DispatcherConformance):
    offer = OFFERS["deepep"]
    options = {"api": "buffer"}
    exact_dtype = "bfloat16"


class TestDeepEPElastic(DispatcherConformance):
    offer = OFFERS["deepep"]
    options = {"api": "elastic"}
    exact_dtype = "bfloat16"
    group_sizes = (2,)


class TestHybridEP(DispatcherConformance):
    offer = OFFERS["hybridep"]
    exact_dtype = "bfloat16"
