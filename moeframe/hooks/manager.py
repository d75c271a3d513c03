"""Plugins, found and loaded one by one.

No plugin is imported before something of it is needed: what a plugin offers is read from its source (`static_scan`),
and only where that is undecided is it imported at once. A broken plugin never stops the others; it is kept with its
distribution, version and cause. There is no global instance: `build_plugin_manager` builds a `PluginHost`.
"""

from __future__ import annotations

import importlib
import inspect
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from types import ModuleType
from typing import Any, Final

import pluggy

from moeframe.errors import JobFailedError, PluginError, PluginLoadError
from moeframe.hooks import API_VERSION, PROJECT, hookspecs
from moeframe.hooks.entry_points import FoundEntryPoint, Origin, find_entry_points
from moeframe.hooks.kinds import KINDS
from moeframe.hooks.records import BlockedPlugin, HookResult, Plugin, PluginFailure
from moeframe.hooks.registration import nearest, read_offers, require_api_version, require_hooks
from moeframe.hooks.static_scan import Index, scan_module

__all__ = ["PluginHost", "build_plugin_manager"]

_BLOCKED: Final = "MOEFRAME_BLOCKED_PLUGINS"
_LOG: Final = logging.getLogger(__name__)
_OBSERVES: Final = "moeframe_on_"
_LOGGED_ONLY: Final = frozenset({"moeframe_on_failure", "moeframe_on_stall"})
_RETURNS_SEQUENCE: Final = frozenset({"moeframe_check_recipe"})


def build_plugin_manager(
    extra: Sequence[str | object] = (),
    *,
    entry_points: bool = True,
    blocked: Sequence[str] | Mapping[str, str] = (),
    wanted: Mapping[str, str] | None = None,
    strict: bool = False,
    listing: bool = False,
    environment: Mapping[str, str] | None = None,
) -> PluginHost:
    """Find the installed plugins and return their host.

    Args:
        extra: plugins that no distribution installed: module names, imported at once, or objects.
        entry_points: whether to look at the entry points of the group ``moeframe``.
        blocked: plugins to leave out, by entry point, module or distribution name, perhaps with the reason.
        wanted: kind to name of the offers that a job uses: their plugins, and all that check or observe, are loaded
            at once. What fails is kept, and asking the catalog for the name raises it.
        strict: load every plugin at once, and raise on the first that is broken.
        listing: for a command that lists: a broken one of `extra` is kept as any other plugin, and nothing is logged.
        environment: where MOEFRAME_PLUGINS adds to `extra`, and MOEFRAME_BLOCKED_PLUGINS to `blocked`, each a list
            separated by commas; None for that of the process.

    Raises:
        PluginLoadError: one of `extra` is broken, or `strict` and any is.
    """
    environment = os.environ if environment is None else environment
    reasons = _reasons(blocked) | dict.fromkeys(_listed(environment, _BLOCKED), f"named in {_BLOCKED}")
    host = PluginHost(blocked=reasons, warn=not listing)
    if entry_points:
        for found in find_entry_points():
            host.add_entry_point(found)
    for one in (*_listed(environment, "MOEFRAME_PLUGINS"), *extra):
        plugin = host.add(one)
        if plugin is not None and plugin.failure is not None and not listing:
            raise plugin.failure.error() from plugin.failure.exception
    host.finish_blocking()
    if strict:
        for plugin in host.plugins:
            host.load(plugin)
    if wanted is not None:
        for kind, name in wanted.items():
            host.try_load(host.offering(kind, name), warn=False)
        host.load_hooks()
    return host


def _listed(environment: Mapping[str, str], variable: str) -> tuple[str, ...]:
    """Return the parts of a variable that is a list separated by commas."""
    return tuple(part.strip() for part in environment.get(variable, "").split(",") if part.strip())


def _reasons(blocked: Sequence[str] | Mapping[str, str]) -> dict[str, str]:
    """Return each name to block with its reason."""
    return dict(blocked) if isinstance(blocked, Mapping) else dict.fromkeys(blocked, "blocked by the caller")


class PluginHost:
    """The plugins of one process, around one pluggy manager. Build it with `build_plugin_manager`."""

    def __init__(
        self,
        *,
        blocked: Sequence[str] | Mapping[str, str] = (),
        warn: bool = True,
        specs: ModuleType | type = hookspecs,
        api_version: int = API_VERSION,
    ) -> None:
        """Start without plugins.

        Args:
            blocked: as in `build_plugin_manager`.
            warn: log each plugin that turns out broken while nobody asked for it.
            specs: the hooks; other than this version's only to see how older plugins fare.
            api_version: the same for the version of the plugin contract.
        """
        self._manager = pluggy.PluginManager(PROJECT)
        self._manager.add_hookspecs(specs)
        self._api_version = api_version
        self._specs = {
            name: caller.spec.argnames
            for name, caller in vars(self._manager.hook).items()
            if isinstance(caller, pluggy.HookCaller) and caller.spec is not None
        }
        self._hooks = frozenset(self._specs)
        self._warn = warn
        self._reasons = _reasons(blocked)
        self._used_reasons: set[str] = set()
        self._plugins: list[Plugin] = []
        self._blocked: list[BlockedPlugin] = []

    @property
    def plugins(self) -> tuple[Plugin, ...]:
        """Every plugin that is not blocked: by distribution and entry point, then those the user named, in order."""
        return tuple(self._plugins)

    @property
    def blocked(self) -> tuple[BlockedPlugin, ...]:
        """The plugins that are left out, and why."""
        return tuple(self._blocked)

    @property
    def failures(self) -> tuple[PluginFailure, ...]:
        """The plugins known to be broken. A plugin that nobody needed yet may be broken without standing here."""
        return tuple(plugin.failure for plugin in self._plugins if plugin.failure is not None)

    def add_entry_point(self, found: FoundEntryPoint) -> Plugin | None:
        """Add a plugin by its entry point; None when it is blocked. Imports it only if its source does not tell."""
        plugin = Plugin(origin=found.origin, found=found)
        if found.error is not None:
            plugin.failure = PluginFailure(origin=found.origin, exception=found.error)
            self._plugins.append(plugin)
            self._log(plugin.failure)
            return plugin
        assert found.entry_point is not None
        if found.entry_point.attr:
            plugin.why_imported = "the entry point names an attribute"
        else:
            scan = scan_module(found.entry_point.module, self._hooks)
            plugin.index, plugin.mentions, plugin.why_imported = scan.index, scan.mentions, scan.why
            plugin.indexed_by = "import" if scan.index is None else "reading"
        if self._is_blocked(plugin):
            return None
        self._plugins.append(plugin)
        if plugin.index is None:
            self.try_load([plugin])
        return plugin

    def add(self, plugin: str | object) -> Plugin | None:
        """Import and register a module by name, or register an object; None when it is blocked. Failures are kept.

        A module that an entry point names too is the same plugin, not a second one.
        """
        if isinstance(plugin, str):
            for known in self._plugins:
                if known.origin.target == plugin:
                    self.try_load([known], warn=False)
                    return known
            origin = Origin(plugin=plugin, target=plugin)
        else:
            name = getattr(plugin, "__name__", type(plugin).__name__)
            origin = Origin(plugin=name, target=name if isinstance(plugin, ModuleType) else "")
        added = Plugin(origin=origin, module=None if isinstance(plugin, str) else plugin)
        if self._is_blocked(added):
            return None
        self._plugins.append(added)
        self.try_load([added], warn=False)
        return added

    def finish_blocking(self) -> None:
        """Note the names to block that belong to no plugin, so that a misspelt one is seen. Call after adding."""
        for name, reason in self._reasons.items():
            if name in self._used_reasons:
                continue
            why = f"{reason}, but no plugin or distribution of that name was found"
            self._blocked.append(BlockedPlugin(origin=Origin(plugin=name), why=why, index=None))
            if self._warn:
                _LOG.warning("plugin %r is to be left out (%s)", name, why)

    def offering(self, kind: str, name: str) -> tuple[Plugin, ...]:
        """Return the plugins that offer a name, without loading them."""
        return tuple(plugin for plugin in self._plugins if plugin.index and (kind, name) in plugin.index.offers)

    def load(self, plugin: Plugin) -> None:
        """Import and register a plugin, unless it is.

        Raises:
            PluginLoadError: now or at an earlier attempt it could not be loaded; raised from the cause.
        """
        if plugin.failure is None and not plugin.loaded:
            try:
                self._import_and_register(plugin)
            except (Exception, SystemExit) as error:  # noqa: BLE001  whatever a plugin raises is kept with its name
                plugin.failure = PluginFailure(origin=plugin.origin, exception=error)
        if plugin.failure is not None:
            raise plugin.failure.error() from plugin.failure.exception

    def try_load(self, plugins: Iterable[Plugin], *, warn: bool = True) -> None:
        """Load plugins; a broken one is kept in `failures`, and logged with `warn` when it is found out only now."""
        for plugin in plugins:
            known = plugin.failure is not None
            try:
                self.load(plugin)
            except PluginLoadError:
                if warn and not known and plugin.failure is not None:
                    self._log(plugin.failure)

    def load_all(self) -> None:
        """Load every plugin, as a command that lists them must. What is broken is in `failures`."""
        self.try_load(self._plugins, warn=False)

    def load_hooks(self, *prefixes: str) -> None:
        """Load the plugins that implement a hook that starts with one of `prefixes`: by default, check or observe."""
        starts = prefixes or ("moeframe_check_", _OBSERVES)
        self.try_load(
            plugin
            for plugin in self._plugins
            if plugin.index and not plugin.loaded and any(hook.startswith(starts) for hook in plugin.index.hooks)
        )

    def call_each(self, hook: str, **arguments: Any) -> tuple[HookResult, ...]:
        """Call a hook of every plugin that implements it, one by one in the order of `plugins`.

        Plugins that were not needed before are loaded first: for an observing hook all that observe, so that a failure
        is no time for an import. Every implementation runs, whatever another one raises.

        Args:
            hook: name of the hook.
            arguments: exactly the arguments of its specification.

        Raises:
            TypeError: the arguments are not those of the specification (a bug of the caller).
            PluginError: an implementation raised, or returned no sequence where one is due. From the first cause.
            JobFailedError: the same, of an observing hook. `moeframe_on_failure` and `moeframe_on_stall` only log.
        """
        self._require_call(hook, arguments)
        self.load_hooks(_OBSERVES if hook.startswith(_OBSERVES) else hook)
        results: list[HookResult] = []
        errors: list[tuple[str, Exception]] = []
        for plugin, implementation in self._implementations(hook):
            names = inspect.signature(implementation.function).parameters
            try:
                value = implementation.function(**{name: arguments[name] for name in names})
                if hook in _RETURNS_SEQUENCE and not isinstance(value, list | tuple):
                    raise TypeError(f"it returned {value!r}, not a list or tuple")  # noqa: TRY301
            except Exception as error:  # noqa: BLE001  named below, and no reason to silence the other plugins
                errors.append((f"{plugin.origin} failed in {hook}: {type(error).__name__}: {error}", error))
            else:
                results.append(HookResult(plugin=plugin.origin.plugin, value=value))
        if errors:
            self._report(hook, errors)
        return tuple(results)

    def _log(self, failure: PluginFailure) -> None:
        if self._warn:
            _LOG.warning("%s", failure)

    def _require_call(self, hook: str, arguments: Mapping[str, object]) -> None:
        if hook not in self._specs:
            raise TypeError(f"{hook!r} is no hook. Did you mean {nearest(hook, sorted(self._specs))!r}?")
        spec = self._specs[hook]
        if set(spec) != set(arguments):
            missing = ", ".join(name for name in spec if name not in arguments)
            unknown = ", ".join(name for name in arguments if name not in spec)
            raise TypeError(
                f"{hook} is called with all its arguments ({', '.join(spec)}). "
                f"Missing: {missing or 'none'}. Unknown: {unknown or 'none'}.",
            )

    def _implementations(self, hook: str) -> list[tuple[Plugin, pluggy.HookImpl]]:
        """Return a hook's implementations in the order of `plugins`, whatever the order of loading."""
        found = {id(one.plugin): one for one in getattr(self._manager.hook, hook).get_hookimpls()}
        return [(plugin, found[id(plugin.module)]) for plugin in self._plugins if id(plugin.module) in found]

    def _report(self, hook: str, errors: Sequence[tuple[str, Exception]]) -> None:
        if hook in _LOGGED_ONLY:
            for message, error in errors:
                _LOG.error("%s", message, exc_info=error)
            return
        message, first = errors[0]
        kind = JobFailedError if hook.startswith(_OBSERVES) else PluginError
        failed = kind("\n".join([message, *(other for other, _ in errors[1:])]))
        raise failed from first

    def _is_blocked(self, plugin: Plugin) -> bool:
        """Whether a plugin is to be left out; if so, note it."""
        origin = plugin.origin
        names = [name for name in (origin.plugin, origin.target, origin.distribution) if name in self._reasons]
        if not names:
            return False
        self._used_reasons.update(names)
        self._blocked.append(BlockedPlugin(origin=origin, why=self._reasons[names[0]], index=plugin.index))
        return True

    def _import_and_register(self, plugin: Plugin) -> None:
        """Import, check and register a plugin, gather its offers, and compare both with what its source said."""
        module = plugin.module
        if module is None:
            entry_point = plugin.found.entry_point if plugin.found is not None else None
            if entry_point is None:
                _require_module_name(plugin.origin.target)
            module = entry_point.load() if entry_point is not None else importlib.import_module(plugin.origin.target)
        twin = next((other for other in self._plugins if other is not plugin and other.module is module), None)
        if twin is not None:
            raise PluginError(f"it is the same object as {twin.origin}. Keep one of the two entry points.")
        require_api_version(module, self._api_version)
        hooks = require_hooks(self._manager, module, self._specs)
        offers = [
            offer
            for kind in KINDS.values()
            if kind.hook in hooks
            for offer in read_offers(kind.hook, getattr(module, kind.hook)())
        ]
        index = Index(offers=frozenset((offer.kind, offer.name) for offer in offers), hooks=frozenset(hooks))
        if plugin.index is not None and plugin.index != index:
            raise PluginError(_difference(plugin.index, index))
        self._manager.register(module, name=f"{plugin.origin} {id(plugin):x}")
        try:
            self._manager.check_pending()
        except pluggy.PluginValidationError:
            self._manager.unregister(module)
            raise
        plugin.module, plugin.index, plugin.offers = module, index, tuple(offers)


def _require_module_name(name: str) -> None:
    """Refuse what no import statement could name, such as a path or nothing."""
    if not all(part.isidentifier() for part in name.split(".")):
        raise PluginError(
            f"{name!r} is no name of a module. Write it as an import statement does, such as my_plugin or "
            f"package.my_plugin; the folder that holds it goes on PYTHONPATH."
        )


def _difference(read: Index, registered: Index) -> str:
    """Say how what a source says differs from what was registered."""

    def listed(index: Index) -> str:
        return ", ".join([*(f"{kind} {name}" for kind, name in sorted(index.offers)), *sorted(index.hooks)])

    return (
        f"its source says that it registers ({listed(read)}), but once imported it registers ({listed(registered)}). "
        "Write its offers as literals in the functions that return them, or build the whole list at run time."
    )
