"""The kinds of offers, in the order in which they are listed. A kind's name is its section in a recipe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from moeframe.hooks.offers import ComputeOffer, DatasetOffer, DispatcherOffer, Offer, ScheduleOffer, ShardingOffer

__all__ = ["KINDS", "Kind"]


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind: the recipe section that names such an offer, the hook that offers it, and the class of the offer."""

    name: str
    hook: str
    offer_class: type[Offer]


KINDS: Final = {
    offer_class.kind: Kind(name=offer_class.kind, hook=hook, offer_class=offer_class)
    for hook, offer_class in (
        ("moeframe_offer_dispatchers", DispatcherOffer),
        ("moeframe_offer_shardings", ShardingOffer),
        ("moeframe_offer_schedules", ScheduleOffer),
        ("moeframe_offer_computes", ComputeOffer),
        ("moeframe_offer_datasets", DatasetOffer),
    )
}
