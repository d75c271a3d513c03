"""`moeframe plugins`: every offer, where it comes from, and whether it can be used here."""

from __future__ import annotations

import json
import shutil
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import typer

from moeframe import __version__
from moeframe.hooks import API_VERSION
from moeframe.hooks.catalog import Catalog, OfferRecord, unusable_reasons
from moeframe.hooks.entry_points import Origin
from moeframe.hooks.kinds import KINDS
from moeframe.hooks.manager import PluginHost, build_plugin_manager

__all__ = ["Listing", "plugins"]

_NARROWEST: Final = 60


def plugins(modules: Sequence[str] = (), *, as_json: bool = False) -> None:
    """Print what is offered, by whom, and whether it can be used here; `modules` are plugins that nobody installed."""
    listing = Listing.of(build_plugin_manager(modules, listing=True))
    if as_json:
        typer.echo(json.dumps(listing.data(), indent=2))
        return
    for line in listing.lines(width=max(shutil.get_terminal_size().columns, _NARROWEST)):
        typer.echo(line)


@dataclass(frozen=True, kw_only=True)
class _Row:
    """One offer as it is shown."""

    kind: str
    name: str
    summary: str
    origin: Origin
    reasons: tuple[str, ...]

    @property
    def usable(self) -> bool:
        return not self.reasons


@dataclass(frozen=True, kw_only=True)
class Listing:
    """What `moeframe plugins` shows."""

    host: PluginHost
    rows: tuple[_Row, ...]

    @classmethod
    def of(cls, host: PluginHost) -> Listing:
        """Load every plugin of the host and look at every offer."""
        catalog = Catalog(host)
        rows = [_row(record, catalog) for kind in KINDS for record in catalog.offers(kind)]
        return cls(host=host, rows=tuple(rows))

    def lines(self, width: int) -> Iterator[str]:
        """Yield the lines of the table, none longer than `width` where words allow."""
        yield f"moeframe {__version__}, plugin API {API_VERSION}"
        names = max((len(row.name) for row in self.rows), default=0)
        for kind in KINDS:
            rows = [row for row in self.rows if row.kind == kind]
            yield ""
            yield kind if rows else f"{kind}: nothing is offered"
            for row in rows:
                head = f"  {row.name:<{names}}  {'usable' if row.usable else 'NOT USABLE'}  {row.origin.installed}"
                yield head.rstrip()
                yield from _wrapped(row.summary, width, indent=names + 4)
                for reason in row.reasons:
                    yield from _wrapped(f"why: {reason}", width, indent=names + 4)
        yield from self._observer_lines(width)
        yield from _section("broken plugins", [one.sentence for one in self.host.failures], width)
        yield from _section("blocked", [f"{one.origin}: {one.why}" for one in self.host.blocked], width)

    def data(self) -> dict[str, Any]:
        """Return the same as plain data."""
        return {
            "moeframe": __version__,
            "api_version": API_VERSION,
            "offers": [
                {
                    "kind": row.kind,
                    "name": row.name,
                    "summary": row.summary,
                    "usable": row.usable,
                    "reasons": list(row.reasons),
                    **_origin_data(row.origin),
                }
                for row in self.rows
            ],
            "plugins": [
                {
                    **_origin_data(one.origin),
                    "hooks": sorted(one.index.hooks) if one.index else [],
                    "indexed_by": one.indexed_by,
                    "why_imported": one.why_imported,
                }
                for one in self.host.plugins
            ],
            "duplicates": [
                {"kind": kind, "name": name, "origins": [_origin_data(one.origin) for one in plugins]}
                for kind, name, plugins in Catalog(self.host).duplicates()
            ],
            "broken": [{**_origin_data(one.origin), "cause": one.cause, "fix": one.fix} for one in self.host.failures],
            "blocked": [{**_origin_data(one.origin), "why": one.why} for one in self.host.blocked],
        }

    def _observer_lines(self, width: int) -> Iterator[str]:
        """Yield a line for each plugin that checks or observes, and for each that was imported to know what it has."""
        observing = []
        for one in self.host.plugins:
            offer_hooks = {kind.hook for kind in KINDS.values()}
            hooks = sorted(one.index.hooks - offer_hooks) if one.index and one.failure is None else []
            if hooks:
                observing.append(f"{one.origin}: {', '.join(hooks)}")
        yield from _section("check and observe", observing, width)
        imported = [
            f"{one.origin}: {one.why_imported}"
            for one in self.host.plugins
            if one.origin.distribution and one.indexed_by == "import" and one.failure is None
        ]
        yield from _section("imported at every start, as their source does not tell what they offer", imported, width)


def _row(record: OfferRecord, catalog: Catalog) -> _Row:
    reasons: list[str] = []
    for kind, name, plugins in catalog.duplicates():
        if (kind, name) == (record.kind, record.name):
            others = [one.origin for one in plugins if one.origin != record.origin]
            reasons.append(
                f"{' and '.join(map(str, others))} offers this name too. Uninstall all but one, or block the others "
                "with MOEFRAME_BLOCKED_PLUGINS=PLUGIN.",
            )
    if record.failure is not None:
        reasons.append(f"its plugin is broken: {record.failure.cause}")
    if record.offer is not None:
        reasons += unusable_reasons(record.offer)
    summary = record.offer.summary if record.offer is not None else ""
    return _Row(kind=record.kind, name=record.name, summary=summary, origin=record.origin, reasons=tuple(reasons))


def _origin_data(origin: Origin) -> dict[str, str]:
    return {
        "plugin": origin.plugin,
        "distribution": origin.distribution,
        "version": origin.version,
        "entry_point": origin.entry_point,
        "target": origin.target,
    }


def _section(title: str, entries: Sequence[str], width: int) -> Iterator[str]:
    if entries:
        yield ""
        yield from _wrapped(title, width, indent=0)
    for entry in entries:
        yield from _wrapped(entry, width, indent=2, hanging=2)


def _wrapped(text: str, width: int, *, indent: int, hanging: int = 0) -> list[str]:
    return textwrap.wrap(
        text,
        width=width,
        initial_indent=" " * indent,
        subsequent_indent=" " * (indent + hanging),
        break_long_words=False,
        break_on_hyphens=False,
    )
