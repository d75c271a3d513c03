"""Offers the schedules. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from moeframe.hooks import ScheduleOffer, hookimpl
from moeframe.protocols.schedule import Schedule, ScheduleContext, ScheduleTraits

if TYPE_CHECKING:
    from moeframe.protocols.precision import Precision


def _build_accumulate(options: Any, context: ScheduleContext) -> Schedule:  # noqa: ARG001
    from moeframe_schedules.accumulate import Accumulate

    return Accumulate()


def _accumulate_traits(options: Any, precision: Precision) -> ScheduleTraits:  # noqa: ARG001
    return ScheduleTraits(splits_backward=False, pipelines=False)


def _any_number(options: Any, pp: int, n: int) -> str | None:  # noqa: ARG001
    return None


@hookimpl
def moeframe_offer_schedules() -> Sequence[ScheduleOffer]:
    """Offer the schedule without a pipeline."""
    return [
        ScheduleOffer(
            name="accumulate",
            summary="forward and backward of one micro-batch after the other; no pipeline",
            build=_build_accumulate,
            traits=_accumulate_traits,
            legal_micro_batches=_any_number,
        )
    ]
