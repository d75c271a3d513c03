"""Offers the reference parts, all named `verify_reference`. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from moeframe.hooks import (
    ComputeOffer,
    DatasetOffer,
    DispatcherOffer,
    NoOptions,
    ScheduleOffer,
    ShardingOffer,
    hookimpl,
)
from moeframe.protocols.compute import Compute, ComputeContext, ComputeTraits
from moeframe.protocols.data import Dataset, DatasetContext, DatasetTraits
from moeframe.protocols.dispatcher import Dispatcher, DispatcherContext, DispatcherTraits
from moeframe.protocols.schedule import Schedule, ScheduleContext, ScheduleTraits
from moeframe.protocols.sharding import Sharding, ShardingTraits

if TYPE_CHECKING:
    from moeframe.protocols.precision import Precision

__all__ = ["MODULE", "REFERENCE", "ReferenceDataOptions"]

MODULE: Final = "moeframe.verify.reference.plugin"
"""What names this plugin to the plugin manager."""
REFERENCE: Final = "verify_reference"
"""Name of every offer."""


@dataclass(frozen=True, kw_only=True)
class ReferenceDataOptions:
    """What the sequences carry."""

    num_sequences: int = 16
    """Sequences in an epoch."""
    padding: bool = True
    """Sequences have different numbers of tokens."""
    forced_routing: bool = False
    """Sequences carry expert ids in place of the routers' choices."""


def _dispatcher(options: NoOptions, context: DispatcherContext) -> Dispatcher:  # noqa: ARG001  has none
    from moeframe.verify.reference.dispatcher import ReferenceDispatcher

    return ReferenceDispatcher(context)


def _dispatcher_traits(options: NoOptions, precision: Precision) -> DispatcherTraits:  # noqa: ARG001  always the same
    return DispatcherTraits(
        fused=False,
        host_syncs_per_layer=1,
        keeps_dispatch_input=True,
        keeps_expert_input=True,
        deterministic=True,
        max_group=1,
    )


def _compute(options: NoOptions, context: ComputeContext) -> Compute:  # noqa: ARG001  has none
    from moeframe.verify.reference.compute import ReferenceCompute

    return ReferenceCompute(context)


def _compute_traits(options: NoOptions, precision: Precision) -> ComputeTraits:  # noqa: ARG001  always the same
    return ComputeTraits(saves_expert_input=True, splits_expert_backward=False)


def _sharding(options: NoOptions) -> Sharding:  # noqa: ARG001  has none
    from moeframe.verify.reference.sharding import ReferenceSharding

    return ReferenceSharding()


def _sharding_traits(options: NoOptions, precision: Precision) -> ShardingTraits:  # noqa: ARG001  always the same
    return ShardingTraits(parameters_stay_whole=True, supports_dp_replicate=False)


def _schedule(options: NoOptions, context: ScheduleContext) -> Schedule:  # noqa: ARG001  one process
    from moeframe.verify.reference.schedule import ReferenceSchedule

    return ReferenceSchedule()


def _schedule_traits(options: NoOptions, precision: Precision) -> ScheduleTraits:  # noqa: ARG001  always the same
    return ScheduleTraits(splits_backward=False, pipelines=False)


def _any_number(options: Any, pp: int, n: int) -> str | None:  # noqa: ARG001
    return None


def _data(options: ReferenceDataOptions, context: DatasetContext) -> Dataset:
    from moeframe.verify.reference.data import ReferenceData

    return ReferenceData(options, context)


def _data_traits(options: ReferenceDataOptions, precision: Precision) -> DatasetTraits:  # noqa: ARG001
    return DatasetTraits(vocabulary=None, forces_routing=options.forced_routing)


@hookimpl
def moeframe_offer_dispatchers() -> list[DispatcherOffer]:
    """Offer the dispatcher."""
    return [
        DispatcherOffer(
            name=REFERENCE,
            summary="one process: the tokens of each expert, one expert after the other",
            build=_dispatcher,
            traits=_dispatcher_traits,
        )
    ]


@hookimpl
def moeframe_offer_computes() -> list[ComputeOffer]:
    """Offer the compute backend."""
    return [ComputeOffer(name=REFERENCE, summary="formulas, written out", build=_compute, traits=_compute_traits)]


@hookimpl
def moeframe_offer_shardings() -> list[ShardingOffer]:
    """Offer the sharding."""
    return [
        ShardingOffer(name=REFERENCE, summary="one process holds everything", build=_sharding, traits=_sharding_traits)
    ]


@hookimpl
def moeframe_offer_schedules() -> list[ScheduleOffer]:
    """Offer the schedule."""
    return [
        ScheduleOffer(
            name=REFERENCE,
            summary="one micro-batch after the other",
            build=_schedule,
            traits=_schedule_traits,
            legal_micro_batches=_any_number,
        )
    ]


@hookimpl
def moeframe_offer_datasets() -> list[DatasetOffer]:
    """Offer the data set, which the layouts under proof read too."""
    return [
        DatasetOffer(
            name=REFERENCE,
            summary="random tokens with padding and several documents in a sequence",
            build=_data,
            options=ReferenceDataOptions,
            traits=_data_traits,
        )
    ]
