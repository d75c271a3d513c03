"""What is known of each plugin that was found: whence it comes, what it registers, why it is left out or broken."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moeframe.errors import MoeframeError, PluginLoadError
from moeframe.hooks.entry_points import FoundEntryPoint, Origin
from moeframe.hooks.offers import Offer
from moeframe.hooks.static_scan import Index

__all__ = ["BlockedPlugin", "HookResult", "Plugin", "PluginFailure"]


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

    @property
    def fix(self) -> str:
        """What the user can do."""
        if self.origin.distribution:
            return f"Repair or uninstall it, or block it with MOEFRAME_BLOCKED_PLUGINS={self.origin.plugin}."
        if isinstance(self.exception, ModuleNotFoundError) and _holds(self.exception.name, self.origin.target):
            file = _in_working_directory(self.origin.target)
            if file is not None:
                return f"{file} lies in the working directory, which is not searched: set PYTHONPATH=. for the command."
            return "Correct the name; a module in the working directory is found when PYTHONPATH=. is set."
        return "Repair it, or leave it out of --plugin and MOEFRAME_PLUGINS."

    def __str__(self) -> str:
        """Return one line: plugin, distribution, version, entry point, cause."""
        return f"{self.origin} could not be loaded: {self.cause}"

    @property
    def sentence(self) -> str:
        """The line of `str`, and what the user can do."""
        return f"{str(self).rstrip('.')}. {self.fix}"

    def error(self) -> PluginLoadError:
        """Return the error to raise from `exception`."""
        return PluginLoadError(
            self.sentence,
            plugin=self.origin.plugin,
            distribution=self.origin.distribution,
            version=self.origin.version,
        )


def _holds(missing: str | None, target: str) -> bool:
    """Whether a missing module is the wanted one, or a package that it lies in."""
    return missing is not None and f"{target}.".startswith(f"{missing}.")


def _in_working_directory(target: str) -> Path | None:
    """Return the file of a module below the working directory, None where there is none."""
    path = Path(*target.split("."))
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)


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
