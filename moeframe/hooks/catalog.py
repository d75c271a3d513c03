"""From a name in a recipe to the offer behind it. Selection is by name, never by the order of plugins."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final

from moeframe.errors import DuplicateOfferError, UnknownOfferError
from moeframe.hooks.entry_points import Origin
from moeframe.hooks.kinds import KINDS
from moeframe.hooks.manager import PluginHost
from moeframe.hooks.needs import unusable_reasons
from moeframe.hooks.offers import Offer
from moeframe.hooks.records import Plugin, PluginFailure

__all__ = ["Catalog", "OfferRecord", "unusable_reasons"]

_ALIKE: Final = 0.5
"""Share of letters that two names have in common when one may stand for the other."""


@dataclass(frozen=True, kw_only=True)
class OfferRecord:
    """One name that one plugin offers: either the offer, or why its plugin could not be loaded."""

    kind: str
    name: str
    origin: Origin
    offer: Offer | None
    failure: PluginFailure | None


class Catalog:
    """What the plugins of a host offer. Loads a plugin when something of it is asked for."""

    def __init__(self, host: PluginHost) -> None:
        """Look at the plugins of `host`; imports nothing."""
        self._host = host

    @property
    def host(self) -> PluginHost:
        """The plugins behind the catalog."""
        return self._host

    def resolve(self, kind: str, name: str) -> Offer:
        """Return the offer of that kind and name, loading the plugin that offers it.

        Args:
            kind: the recipe section that names it: dispatcher, sharding, schedule, compute or data.
            name: the name.

        Raises:
            UnknownOfferError: no plugin offers it.
            DuplicateOfferError: more than one does.
            PluginLoadError: the plugin that offers it is broken; raised from the cause.
        """
        if kind not in KINDS:
            raise ValueError(f"{kind!r} is no kind of offer. Kinds: {', '.join(KINDS)}.")
        plugins = self._host.offering(kind, name)
        if not plugins:
            # What was read of a source is not the last word on what is missing: import everything, then look again.
            self._host.load_all()
            plugins = self._host.offering(kind, name)
        if len(plugins) > 1:
            raise _duplicate(kind, name, plugins)
        if not plugins:
            self._raise_broken(name)
            raise self._unknown(kind, name)
        self._host.load(plugins[0])
        return next(offer for offer in plugins[0].offers if (offer.kind, offer.name) == (kind, name))

    def offers(self, kind: str) -> list[OfferRecord]:
        """Return every offer of a kind, by name and then by plugin. Loads every plugin; a broken one stops nothing.

        Of a broken plugin there is a record for each name that its source says it offers.
        """
        self._host.load_all()
        records: list[OfferRecord] = []
        for plugin in self._host.plugins:
            if plugin.index is None:
                continue
            by_key = {(offer.kind, offer.name): offer for offer in plugin.offers}
            records += [
                OfferRecord(kind=kind, name=name, origin=plugin.origin, offer=by_key.get(key), failure=plugin.failure)
                for key in sorted(plugin.index.offers)
                for offered, name in [key]
                if offered == kind
            ]
        return sorted(records, key=lambda record: record.name)

    def names(self, kind: str) -> list[str]:
        """Return the names that are offered, sorted, as far as is known without loading anything more."""
        keys = {key for plugin in self._host.plugins if plugin.index for key in plugin.index.offers}
        return sorted(name for offered, name in keys if offered == kind)

    def duplicates(self) -> list[tuple[str, str, list[Plugin]]]:
        """Return the kinds and names that more than one plugin offers, with these plugins."""
        keys = {key for plugin in self._host.plugins if plugin.index for key in plugin.index.offers}
        found = [(kind, name, list(self._host.offering(kind, name))) for kind, name in sorted(keys)]
        return [entry for entry in found if len(entry[2]) > 1]

    def _raise_broken(self, name: str) -> None:
        """Raise the failure of a broken plugin that seems to have meant to offer `name`, if there is one."""
        for plugin in self._host.plugins:
            if plugin.failure is not None and name in {*plugin.mentions, plugin.origin.plugin}:
                raise plugin.failure.error() from plugin.failure.exception

    def _unknown(self, kind: str, name: str) -> UnknownOfferError:
        offered = self.names(kind)
        near = get_close_matches(name, offered, n=1, cutoff=_ALIKE)
        elsewhere = [other for other in KINDS if other != kind and name in self.names(other)]
        message = [
            f"{kind}.name = {name!r}: no installed plugin offers it.",
            f"Offered: {', '.join(offered) or 'nothing'}.",
        ]
        if elsewhere:
            others = " and ".join(f"{other}.name={name}" for other in elsewhere)
            message.append(f"There is one of that name of another kind: {others}.")
        elif near:
            message.append(f"Did you mean {near[0]!r}?")
        message += [
            f"{blocked.origin} offers it but is left out: {blocked.why}."
            for blocked in self._host.blocked
            if blocked.index is not None and (kind, name) in blocked.index.offers
        ]
        message += [f"{str(failure).rstrip('.')}." for failure in self._host.failures]
        return UnknownOfferError(kind=kind, name=name, message=" ".join(message), offered=tuple(offered))


def _duplicate(kind: str, name: str, plugins: tuple[Plugin, ...]) -> DuplicateOfferError:
    origins = [plugin.origin for plugin in plugins]
    shown = " and ".join(str(origin) for origin in origins)
    return DuplicateOfferError(
        kind=kind,
        name=name,
        message=f"{kind}.name = {name!r}: more than one plugin offers it: {shown}. Uninstall all but one, or block "
        f"the others, for example with MOEFRAME_BLOCKED_PLUGINS={origins[-1].plugin}.",
        distributions=tuple(origin.installed for origin in origins),
    )
