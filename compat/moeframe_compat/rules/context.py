"""What every rule gets: both releases, the settings, and a way to report."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from moeframe_compat.index.lookup import Found, Index
from moeframe_compat.index.public import UNSTABLE, Entry, surface, unstable
from moeframe_compat.index.values import evaluate
from moeframe_compat.model.objects import Attribute, Function, Module
from moeframe_compat.model.snapshot import Snapshot
from moeframe_compat.rules.base import Finding, catalogue

Place = tuple[str, int]


@dataclass(slots=True)
class Options:
    """What a run may tell the rules.

    Attributes:
        off: Codes that report nothing.
        severities: Code to another severity.
        config_classes: Classes (paths, or last names) whose fields are recipe keys.
        constants: Constants (paths) whose value is watched although their name does not say so.
        declared: Names of parameters whose renaming or removal the ledger declares.
        markers: Last names of decorators that mark unstable objects, read from the old release.
        new_markers: The same for the new release, where they change nothing yet.
        nominal: Prefixes of Protocols that implementers inherit from, as the old release says.
    """

    off: frozenset[str] = frozenset()
    severities: dict[str, str] = field(default_factory=dict)
    config_classes: tuple[str, ...] = ()
    constants: tuple[str, ...] = ()
    markers: frozenset[str] = UNSTABLE
    new_markers: frozenset[str] = UNSTABLE
    declared: frozenset[str] = frozenset()
    nominal: tuple[str, ...] = ()


class Context:
    """The comparison of two releases."""

    def __init__(self, old: Snapshot, new: Snapshot, options: Options | None = None) -> None:
        self.old, self.new = Index(old), Index(new)
        self.options = options or Options()
        self.findings: list[Finding] = []
        self.skipped: set[str] = set()
        self.old_surface = surface(self.old)
        self.new_surface = surface(self.new)
        self._seen: set[tuple[str, str]] = set()
        self._tier = ""
        self._shims: Any = None
        self.shim_verdicts: dict[str, str] = {}
        self.scratch: dict[str, Any] = {}

    @property
    def old_version(self) -> str:
        """Version of the old release, "" if unknown."""
        return self.old.snapshot.version

    @property
    def new_version(self) -> str:
        """Version of the new release, "" if unknown."""
        return self.new.snapshot.version

    def emit(  # noqa: PLR0913 - the parts of a finding, by keyword
        self,
        rule: str,
        symbol: str,
        *,
        why: str,
        fix: str,
        at: Place,
        was: Place | None = None,
        old: str = "",
        new: str = "",
        severity: str = "",
        kind: str = "",
        audience: tuple[str, ...] = (),
        cause: str = "",
        policy: str = "",
    ) -> None:
        """Report a finding, unless its rule is off or the same was reported."""
        if rule in self.options.off or (rule, symbol) in self._seen:
            return
        self._seen.add((rule, symbol))
        known = catalogue()[rule]
        level = severity or self.options.severities.get(rule, known.severity)
        if self._tier and level != "info":
            level, policy = "info", f"the old release marks it @{self._tier}"
        place = at if at[0] else (was or at)
        self.findings.append(
            Finding(
                rule,
                level,
                kind or known.kind,
                audience or known.audience,
                symbol,
                old,
                new,
                place[0],
                max(place[1], 1),
                was or place,
                why,
                fix,
                cause or f"{rule}:{symbol}",
                policy,
            )
        )

    def within(self, found: Found) -> None:
        """What is reported next is about this old object: its tier decides."""
        self._tier = unstable(self.old, found, self.options.markers)

    def outside(self) -> None:
        """What is reported next belongs to no object."""
        self._tier = ""

    @property
    def tier(self) -> str:
        """The marker of the object at hand."""
        return self._tier

    def old_place(self, found: Found) -> Place:
        """File and line of an object of the old release."""
        return _place(self.old, found)

    def new_place(self, found: Found) -> Place:
        """File and line of an object of the new release."""
        return _place(self.new, found)

    def survivor(self, path: str) -> Place:
        """File and line in the new release of the nearest parent of a path that is still there."""
        while path:
            found = self.new.find(path)
            if found is not None and found.obj is not None:
                return _place(self.new, found)
            path = path.rpartition(".")[0]
        first = min(self.new.modules.values(), key=lambda m: m.path, default=None)
        return (first.file, 1) if first else ("", 1)

    def is_config(self, path: str) -> bool:
        """Are the fields of this old class recipe keys?"""
        return path in self.config_paths

    @property
    def config_paths(self) -> set[str]:
        """Old classes whose fields are recipe keys."""
        if "configs" not in self.scratch:
            from moeframe_compat.rules.config import config_classes

            self.scratch["configs"] = config_classes(self)
        return set(self.scratch["configs"])

    def old_value(self, scope: str, text: str) -> Any:
        """Value of an expression of the old release."""
        return evaluate(self.old, scope, text)

    def new_value(self, scope: str, text: str) -> Any:
        """Value of an expression of the new release."""
        return evaluate(self.new, scope, text)

    def entry(self, path: str) -> Entry | None:
        """The public object defined at an old path."""
        return self.old_surface.get(path)


def _place(index: Index, found: Found) -> Place:
    module = index.modules.get(found.module)
    if module is None:
        return ("", 1)
    if isinstance(found.obj, Module):
        return (found.obj.file, 1)
    line = found.obj.line if found.obj is not None else 1
    if isinstance(found.obj, Attribute) and line == 1 and found.obj.value is None:
        getter = module.members.get("__getattr__")
        line = getter.line if isinstance(getter, Function) else 1
    return (module.file, line)
