"""Offers the schedule. Imports no torch; building it does."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from moeframe.errors import Problem
from moeframe.hooks import ScheduleOffer, hookimpl
from moeframe.protocols.schedule import Schedule, ScheduleContext, ScheduleTraits
from moeframe_overlap.options import OverlapOptions

if TYPE_CHECKING:
    from moeframe.config.schema import Recipe
    from moeframe.protocols.precision import Precision

__all__ = ["moeframe_check_recipe", "moeframe_offer_schedules"]

_NAME: Final = "overlap_1f1b"
_QUEUES: Final = "CUDA_DEVICE_MAX_CONNECTIONS"


def _build(options: OverlapOptions, context: ScheduleContext) -> Schedule:
    from moeframe_overlap.overlap import Overlap1F1B

    return Overlap1F1B(options, context)


def _traits(options: OverlapOptions, precision: Precision) -> ScheduleTraits:  # noqa: ARG001 - the same for all
    return ScheduleTraits(splits_backward=True, pipelines=False, runs_phases=True)


def _any_number(options: Any, pp: int, n: int) -> str | None:  # noqa: ARG001 - no rule
    return None


@hookimpl
def moeframe_check_recipe(recipe: Recipe) -> Sequence[Problem]:
    """Refuse an environment in which the two streams would wait for each other."""
    if recipe.schedule.name != _NAME or recipe.launch.device == "cpu" or os.environ.get(_QUEUES) != "1":
        return []
    message = f"given {_NAME!r} with {_QUEUES}=1 in the environment: one queue for two streams, so nothing overlaps."
    return [Problem(path="schedule.name", message=message, fix=f"Unset {_QUEUES}, or set it to 8.")]


@hookimpl
def moeframe_offer_schedules() -> Sequence[ScheduleOffer]:
    """Offer `overlap_1f1b`."""
    return [
        ScheduleOffer(
            name=_NAME,
            summary="dispatch and combine of one micro-batch run beside the compute of the next, layer by layer",
            build=_build,
            options=OverlapOptions,
            traits=_traits,
            legal_micro_batches=_any_number,
        )
    ]
