"""What a job will run on, as far as that is known before it starts, and which backends it takes."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from moeframe.config.schema import Recipe
from moeframe.config.typed import UnknownValueError
from moeframe.hooks.catalog import unusable_reasons
from moeframe.hooks.offers import Offer
from moeframe.protocols.sharding import ShardingTraits

__all__ = ["Machine", "device_kinds"]


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The machine of a job.

    Attributes:
        device_kind: ``cpu`` or ``cuda``, what the job was started on; None before that.
        elsewhere: the job will run on another machine, so what this one lacks does not matter.
    """

    device_kind: str | None = None
    elsewhere: bool = False

    def device_of(self, recipe: Recipe) -> str | None:
        """Return what the job runs on; None where that shows only when it starts, or cannot be read."""
        if self.device_kind is not None:
            return self.device_kind
        with suppress(UnknownValueError):
            return None if recipe.launch.device == "auto" else recipe.launch.device
        return None

    def obstacles(self, offer: Offer, recipe: Recipe | None = None) -> tuple[str, ...]:
        """Return why this machine cannot use a backend, each with what to do.

        Where the recipe names the other kind of device, that is a reason too. Where this machine lacks the one that
        the recipe names, no backend is to blame that runs on others as well.
        """
        if self.elsewhere:
            return ()
        device = self.device_kind if recipe is None else self.device_of(recipe)
        other = device is not None and device not in offer.needs.device_kinds
        return unusable_reasons(offer, device_kind=device if other else self.device_kind)

    def takes(self, offer: Offer, traits: object, recipe: Recipe) -> bool:
        """Whether a backend with these traits can be named in a recipe."""
        device = self.device_of(recipe)
        return not self.obstacles(offer) and (device is None or device in device_kinds(offer, traits))


def device_kinds(offer: Offer, traits: object) -> tuple[str, ...]:
    """Return the kinds of devices that a backend with these traits runs on, sorted."""
    kinds = set(offer.needs.device_kinds)
    if isinstance(traits, ShardingTraits):
        kinds &= set(traits.device_kinds)
    return tuple(sorted(kinds))
