"""Offers the dispatcher `ring`. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from moeframe.hooks import DispatcherOffer, hookimpl
from moeframe.protocols.dispatcher import Dispatcher, DispatcherContext, DispatcherTraits
from moeframe.protocols.precision import Precision

moeframe_api = ">=1"


@dataclass(frozen=True, kw_only=True)
class RingOptions:
    """Options of `ring`."""

    reverse: bool = False
    """Send downwards in rank instead of upwards."""


def _build(options: RingOptions, context: DispatcherContext) -> Dispatcher:
    from moeframe_ring.ring import RingDispatcher

    return RingDispatcher(options, context)


def _traits(options: RingOptions, precision: Precision) -> DispatcherTraits:
    return DispatcherTraits(
        fused=False,
        host_syncs_per_layer=1,
        keeps_dispatch_input=False,
        keeps_expert_input=False,
        deterministic=True,
    )


@hookimpl
def moeframe_offer_dispatchers() -> Sequence[DispatcherOffer]:
    """Offer `ring`."""
    return [
        DispatcherOffer(
            name="ring",
            summary="Rows travel point to point, one neighbour further in each round.",
            build=_build,
            options=RingOptions,
            traits=_traits,
        ),
    ]
