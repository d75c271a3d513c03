"""What a schedule is compared with. Importable without torch."""

from __future__ import annotations

from moeframe.errors import PluginError
from moeframe.hooks.catalog import Catalog
from moeframe.hooks.offers import ScheduleOffer
from moeframe.protocols.precision import Precision

__all__ = ["plain_schedule"]


def plain_schedule(catalog: Catalog, precision: Precision) -> ScheduleOffer:
    """Return the offer of a schedule that runs one micro-batch after the other, found by its traits.

    Raises:
        PluginError: nobody offers one.
    """
    for name in catalog.names("schedule"):
        try:
            offer = catalog.resolve("schedule", name)
        except PluginError:
            continue
        assert isinstance(offer, ScheduleOffer)
        traits = offer.traits(offer.options(), precision)
        if not (traits.pipelines or traits.splits_backward or traits.runs_phases):
            return offer
    raise PluginError("No plugin offers a schedule without pipeline, split backward and phases to compare with.")
