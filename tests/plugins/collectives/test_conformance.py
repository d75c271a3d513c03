"""The first-party dispatchers pass the published kit (C06, C26, C29, C58, C129)."""

from __future__ import annotations

from moeframe_collectives.plugin import moeframe_offer_dispatchers

from moeframe.testing.dispatcher_suite import DispatcherConformance

OFFERS = {offer.name: offer for offer in moeframe_offer_dispatchers()}


class TestLocal(DispatcherConformance):
    offer = OFFERS["local"]


class TestAllToAll(DispatcherConformance):
    offer = OFFERS["alltoall"]


class TestAllGather(DispatcherConformance):
    offer = OFFERS["allgather"]
