"""Offers the schedule. Imports no torch; building it does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from moeframe.hooks import ScheduleOffer, hookimpl
from moeframe.protocols.schedule import Schedule, ScheduleContext, ScheduleTraits
from moeframe_overlap.options import OverlapOptions

if TYPE_CHECKING:
    from moeframe.protocols.precision import Precision

__all__ = ["moeframe_offer_schedules"]


def _build(options: OverlapOptions, context: ScheduleContext) -> Schedule:
    from moeframe_overlap.overlap import Overlap1F1B

    return Overlap1F1B(options, context)


def _traits(options: OverlapOptions, precision: Precision) -> ScheduleTraits:  # noqa: ARG001 - the same for all
    return ScheduleTraits(splits_backward=True, pipelines=False, runs_phases=True)


def _any_number(options: Any, pp: int, n: int) -> str | None:  # noqa: ARG001 - no rule
    return None


@hookimpl
def moeframe_offer_schedules() -> Sequence[ScheduleOffer]:
    """Offer `overlap_1f1b`."""
    return [
        ScheduleOffer(
            name="overlap_1f1b",
            summary="dispatch and combine of one micro-batch run beside the compute of the next, layer by layer",
            build=_build,
            options=OverlapOptions,
            traits=_traits,
            legal_micro_batches=_any_number,
        )
    ]
