"""The schedule without a pipeline passes the published kit."""

from __future__ import annotations

from moeframe_schedules.plugin import moeframe_offer_schedules

from moeframe.testing.schedule_suite import ScheduleConformance


class TestAccumulate(ScheduleConformance):
    (offer,) = moeframe_offer_schedules()
