"""The overlap schedule passes the published kit."""

from __future__ import annotations

from typing import ClassVar

from moeframe_overlap.plugin import moeframe_offer_schedules

from moeframe.testing.schedule_suite import ScheduleConformance


class TestOverlap1F1B(ScheduleConformance):
    (offer,) = moeframe_offer_schedules()


class TestOverlap1F1BWithoutSplitting(ScheduleConformance):
    (offer,) = moeframe_offer_schedules()
    options: ClassVar = {"split_backward": False}
