"""The first-party pipelines pass the published kit (C46, C48)."""

from __future__ import annotations

from typing import ClassVar

from moeframe_pipelining.plugin import moeframe_offer_schedules

from moeframe.testing.schedule_suite import ScheduleConformance

OFFERS = {offer.name: offer for offer in moeframe_offer_schedules()}


class TestGPipe(ScheduleConformance):
    offer = OFFERS["gpipe"]


class Test1F1B(ScheduleConformance):
    offer = OFFERS["1f1b"]


class TestInterleaved1F1B(ScheduleConformance):
    offer = OFFERS["interleaved_1f1b"]


class TestInterleaved1F1BOfThree(ScheduleConformance):
    offer = OFFERS["interleaved_1f1b"]
    options: ClassVar = {"stages_per_rank": 3}
    sizes = (2,)


class TestZeroBubble(ScheduleConformance):
    offer = OFFERS["zero_bubble"]


class TestZeroBubbleOfTwo(ScheduleConformance):
    offer = OFFERS["zero_bubble"]
    options: ClassVar = {"stages_per_rank": 2}
    sizes = (2,)


class TestZBV(ScheduleConformance):
    offer = OFFERS["zbv"]


class TestDualPipeV(ScheduleConformance):
    offer = OFFERS["dualpipev"]
