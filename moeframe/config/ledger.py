"""The ledger of changes: which public names are called otherwise now, and until when the old ones work.

Its only source is `moeframe/changes.toml`. Whoever meets an old name asks here what became of it, and tells the user
through `tell` or `tell_caller`: once in a process, on rank 0.
"""

from __future__ import annotations

import sys
import tomllib
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from typing import Any, Final, Literal

from moeframe.errors import Location, MoeframeDeprecationWarning, TopologyError
from moeframe.launch.environment import detect

__all__ = ["Change", "changes", "find_change", "forget_what_was_told", "tell", "tell_caller"]

Kind = Literal["rename", "move", "remove", "default"]
_KINDS: Final[tuple[Kind, ...]] = ("rename", "move", "remove", "default")
_told: Final[set[object]] = set()


@dataclass(frozen=True, kw_only=True)
class Change:
    """One entry. `old` and `new` are dotted; a parameter stands in parentheses behind its callable."""

    kind: Kind
    surface: str
    old: str
    since: str
    remove_in: str
    reason: str
    new: str = ""
    value_map: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """New values by the YAML text of the old ones (``true``, ``null``); a value that is not there stays as it is."""

    @property
    def is_over(self) -> bool:
        """Whether this version refuses the old name."""
        from packaging.version import Version

        return Version(version("moeframe")).release >= Version(self.remove_in).release

    @property
    def story(self) -> str:
        """What the user has to know of an old name that still works."""
        if not self.new:
            return f"{self.old} is deprecated since {self.since}, and {self.remove_in} refuses it. {self.reason}"
        return (
            f"{self.old} is called {self.new} since {self.since}; the old name works until {self.remove_in}, which "
            f"refuses it."
        )

    @property
    def refusal(self) -> str:
        """What the user has to know of an old name that works no longer."""
        successor = f"; since {self.since} it is {self.new}" if self.new else f". {self.reason.rstrip('.')}"
        return f"{self.remove_in} removed {self.old}{successor}."

    def renamed(self, value: Any) -> Any:
        """Return what a Python value is called now."""
        if isinstance(value, bool) or value is None:
            return self.value_map.get({None: "null", True: "true", False: "false"}[value], value)
        return self.value_map.get(str(value), value) if isinstance(value, str | int | float) else value


@cache
def changes(surface: str) -> tuple[Change, ...]:
    """Return the entries of a surface (``config``, ``python`` ...), in the order of the file."""
    tables = tomllib.loads(files("moeframe").joinpath("changes.toml").read_text(encoding="utf-8"))
    return tuple(
        Change(kind=kind, **entry) for kind in _KINDS for entry in tables.get(kind, ()) if entry["surface"] == surface
    )


def find_change(surface: str, old: str) -> Change:
    """Return the entry of an old name.

    Raises:
        LookupError: the ledger has none; a shim without an entry is a bug.
    """
    for change in changes(surface):
        if change.old == old:
            return change
    raise LookupError(f"moeframe/changes.toml has no {surface} entry with old = {old!r}")


def tell(change: Change, places: Sequence[Location], advice: str) -> None:
    """Warn of an old name in recipes: one warning for all places, shown at the first of them.

    Args:
        change: the entry.
        places: of the old name, in files and overrides.
        advice: how to get rid of it.
    """
    spoken = ", ".join(dict.fromkeys(str(place) for place in places))
    text = f"{spoken}: {change.story} {advice}"
    if _is_news((change.surface, change.old, spoken)):
        first = places[0]
        warnings.warn_explicit(text, MoeframeDeprecationWarning, first.file, first.line or 1, module="moeframe.recipe")


def tell_caller(change: Change, advice: str, *, stacklevel: int) -> None:
    """Warn of an old name in Python code, at the line that `stacklevel` leads to, seen from the caller of this one."""
    if _is_news((change.surface, change.old)):
        warnings.warn(f"{change.story} {advice}", MoeframeDeprecationWarning, stacklevel=stacklevel + 1)


def forget_what_was_told() -> None:
    """Start again, as a new process would."""
    _told.clear()


def _is_news(subject: object) -> bool:
    """Return whether nobody was told yet and this is the rank that tells."""
    if subject in _told or not _is_rank_0():
        return False
    _told.add(subject)
    return True


def _is_rank_0() -> bool:
    """Return whether this is rank 0, or the only process."""
    dist = sys.modules.get("torch.distributed")
    if dist is not None and dist.is_available() is True and dist.is_initialized() is True:
        return bool(dist.get_rank() == 0)
    try:
        return detect().rank == 0
    except TopologyError:  # whoever needs the ranks says so
        return True
