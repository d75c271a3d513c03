"""What is known of each plugin that was found: whence it comes, what it registers, why it is left out or broken."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from moeframe.errors import MoeframeError, PluginLoadError
from moeframe.hooks.entry_points import FoundEntryPoint, Origin
from moeframe.hooks.offers import Offer
from moeframe.hooks.static_scan import Index

__all__ = [
    "BlockedPlugin",
    "HookResult",
    "Plugin",
    "PluginFailure",
    "blocked_in_environment",
    "modules_in_environment",
]


@dataclass(frozen=True, kw_only=True)
class PluginFailure:
    """A plugin that could not be loaded or registered, and the exception that it failed with."""

    origin: Origin
    exception: BaseException

    @property
    def cause(self) -> str:
        """The first line of the cause, with the exception's type unless the text is moeframe's own."""
        text = next(iter(str(self.exception).splitlines()), "")
        if isinstance(self.exception, MoeframeError):
            return text
        return f"{type(self.exception).__name__}: {text}" if text else type(self.exception).__name__

    def __str__(self) -> str:
        """Return one line: plugin, distribution, version, entry point, cause."""
        return f"{self.origin} could not be loaded: {self.cause}"

    def error(self) -> PluginLoadError:
        """Return the error to raise from `exception`."""
        return PluginLoadError(
            f"{self}. Repair or uninstall it, or block it with MOEFRAME_BLOCKED_PLUGINS={self.origin.plugin}.",
            plugin=self.origin.plugin,
            distribution=self.origin.distribution,
            version=self.origin.version,
        )


@dataclass(frozen=True, kw_only=True)
class BlockedPlugin:
    """A plugin that is left out because somebody asked for it; `index` is None where its source does not tell."""

    origin: Origin
    why: str
    index: Index | None


@dataclass(frozen=True, kw_only=True)
class HookResult:
    """What one plugin returned from a hook."""

    plugin: str
    value: Any


@dataclass(kw_only=True)
class Plugin:
    """A plugin that was found. `index` says what it registers; `indexed_by` how that is known.

    `module` is None until it is loaded. `mentions` are names that a broken plugin seems to have meant to offer.
    """

    origin: Origin
    found: FoundEntryPoint | None = None
    module: object | None = None
    index: Index | None = None
    indexed_by: str = "import"
    why_imported: str = ""
    mentions: frozenset[str] = frozenset()
    offers: tuple[Offer, ...] = ()
    failure: PluginFailure | None = None

    @property
    def loaded(self) -> bool:
        """Whether it is imported and registered."""
        return self.index is not None and self.module is not None and self.failure is None


def modules_in_environment(environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Return the plugin modules that MOEFRAME_PLUGINS names, separated by commas."""
    return _listed(environment.get("MOEFRAME_PLUGINS", ""))


def blocked_in_environment(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the plugins that MOEFRAME_BLOCKED_PLUGINS names, separated by commas, each with that as its reason."""
    return dict.fromkeys(_listed(environment.get("MOEFRAME_BLOCKED_PLUGINS", "")), "named in MOEFRAME_BLOCKED_PLUGINS")


def _listed(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
