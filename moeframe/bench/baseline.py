"""What a schedule is compared with. Importable without torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from moeframe.errors import PluginError
from moeframe.hooks.catalog import Catalog
from moeframe.hooks.offers import ScheduleOffer
from moeframe.protocols.precision import Precision
from moeframe.protocols.schedule import ScheduleTraits

__all__ = ["plain_schedule", "schedules_with_phases"]


def plain_schedule(catalog: Catalog, precision: Precision) -> ScheduleOffer:
    """Return the offer of a schedule that runs one micro-batch after the other, found by its traits.

    Raises:
        PluginError: nobody offers one.
    """
    for offer, traits in _schedules(catalog, precision):
        if not (traits.pipelines or traits.splits_backward or traits.runs_phases):
            return offer
    raise PluginError("No plugin offers a schedule without pipeline, split backward and phases to compare with.")


def schedules_with_phases(catalog: Catalog, precision: Precision) -> list[str]:
    """Return the names of the schedules that run phases beside each other."""
    return [offer.name for offer, traits in _schedules(catalog, precision) if traits.runs_phases]


def _schedules(catalog: Catalog, precision: Precision) -> Iterator[tuple[ScheduleOffer, ScheduleTraits]]:
    """Yield every schedule that can be loaded, with its traits for default options."""
    for name in catalog.names("schedule"):
        with suppress(PluginError):
            offer = catalog.resolve("schedule", name)
            assert isinstance(offer, ScheduleOffer)
            yield offer, offer.traits(offer.options(), precision)
