"""Finding the entry points of installed plugins, and the modules behind them, without importing anything."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import Distribution, EntryPoint, distributions
from typing import Final

__all__ = ["GROUP", "FoundEntryPoint", "Origin", "find_entry_points", "locate_module"]

GROUP: Final = "moeframe"


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Where a plugin comes from.

    `plugin` is its entry point's name, the module that the user named, or the type of an object. `target` is
    ``module`` or ``module:attribute``, empty for an object. A plugin that no distribution installed has neither
    distribution nor version.
    """

    plugin: str
    target: str = ""
    distribution: str = ""
    version: str = ""

    @property
    def installed(self) -> str:
        """Distribution and version, or how the plugin came in."""
        if self.distribution:
            return f"{self.distribution} {self.version}"
        return f"module {self.target}" if self.target else "object"

    @property
    def entry_point(self) -> str:
        """The line of the entry point, empty for a plugin that no distribution installed."""
        return f"{self.plugin} = {self.target}" if self.distribution else ""

    def __str__(self) -> str:
        """Return the plugin's name and where it comes from."""
        line = f", entry point {self.entry_point}" if self.distribution else ""
        return f"plugin {self.plugin!r} ({self.installed}{line})"


@dataclass(frozen=True, kw_only=True)
class FoundEntryPoint:
    """An entry point, or, when a distribution's metadata cannot be read, the `error` in place of its entry points."""

    origin: Origin
    entry_point: EntryPoint | None = None
    error: Exception | None = None


def find_entry_points() -> list[FoundEntryPoint]:
    """Return the entry points of the group, sorted by distribution and name. Nothing is imported.

    A distribution that an earlier one of the same name shadows on `sys.path` does not count, and one whose folder
    stands there twice counts once.
    """
    found: list[FoundEntryPoint] = []
    seen: set[tuple[str, str]] = set()
    for distribution in distributions():
        text = ""
        name, version = "unknown", "unknown"
        try:
            text = distribution.read_text("entry_points.txt") or ""
            if f"[{GROUP}]" not in text:
                continue
            name, version = distribution.metadata["Name"], distribution.version
            place = (name, str(distribution.locate_file("")))
            if place in seen or _shadowed(name, distribution):
                continue
            seen.add(place)
            found += [
                FoundEntryPoint(
                    origin=Origin(plugin=entry.name, target=entry.value, distribution=name, version=version),
                    entry_point=entry,
                )
                for entry in distribution.entry_points
                if entry.group == GROUP
            ]
        except Exception as error:  # noqa: BLE001  one broken distribution must not hide the others
            if f"[{GROUP}]" in text:
                origin = Origin(plugin=name, target="unreadable metadata", distribution=name, version=version)
                found.append(FoundEntryPoint(origin=origin, error=error))
    return sorted(found, key=lambda one: (one.origin.distribution.lower(), one.origin.plugin))


def _shadowed(name: str, distribution: Distribution) -> bool:
    """Whether importing would find another distribution of this name first."""
    first = Distribution.from_name(name)
    return (first.version, str(first.locate_file(""))) != (distribution.version, str(distribution.locate_file("")))


def locate_module(name: str) -> ModuleSpec | None:
    """Return the spec of a module by its dotted name, or None when there is none. Executes no code of its packages.

    The top level is asked of every finder (editable installs bring their own); below it the path finder searches the
    package's locations, which is what importing does unless a package changes its own `__path__`.
    """
    top, *rest = name.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except ValueError:  # the module is loaded and has no spec, as `__main__`
        return None
    full = top
    for part in rest:
        if spec is None or spec.submodule_search_locations is None:
            return None
        full = f"{full}.{part}"
        spec = PathFinder.find_spec(full, list(spec.submodule_search_locations))
    return spec
