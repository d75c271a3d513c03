"""PY121, PY122, PL003, CK004: variables of a module or class."""

from __future__ import annotations

import re
from typing import Any

from moeframe_compat.index.lookup import Found
from moeframe_compat.index.values import Symbol, known, same, show
from moeframe_compat.model.objects import Attribute
from moeframe_compat.rules.context import Context

_RELEASE_MODULES = ("version", "_version", "package_info", "about", "__about__", "__version__")
_RELEASE_NAMES = frozenset(
    {"VERSION", "MAJOR", "MINOR", "PATCH", "PRE_RELEASE", "BUILD", "RELEASE", "COMMIT", "DEV", "REVISION"}
)
_GROUP = re.compile(r"(^|_)(GROUP|GROUPS|ENTRY_?POINTS?|NAMESPACE)(_|$)")
_FORMAT = re.compile(r"(CKPT|CHECKPOINT|STATE|SAVE|FORMAT|SCHEMA|MAGIC|PROTOCOL|LAYOUT)")


def check_constant(ctx: Context, path: str, old: Found, new: Found) -> None:
    """Compare two values of one variable, when both can be told."""
    a, b = old.obj, new.obj
    assert isinstance(a, Attribute)
    assert isinstance(b, Attribute)
    if a.value is None or b.value is None or a.value == b.value:
        return
    module, name = path.rpartition(".")[0].rpartition(".")[2], a.name
    if module in _RELEASE_MODULES or name in _RELEASE_NAMES or name.startswith("__"):
        return
    before = ctx.old_value(old.path.rpartition(".")[0], a.value)
    after = ctx.new_value(new.path.rpartition(".")[0], b.value)
    after = plain(ctx, before, after)
    if not known(before) or not known(after) or same(before, after):
        return
    at, was = ctx.new_place(new), ctx.old_place(old)
    shown: dict[str, Any] = {"old": show(before), "new": show(after), "at": at, "was": was}
    if _other_type(before, after):
        ctx.emit(
            "PY121",
            path,
            why=f"it was {type(before).__name__}, it is {type(after).__name__}",
            fix="keep the type; give the new value another name",
            **shown,
        )
    elif isinstance(before, str) and _GROUP.search(name.upper()) and isinstance(after, str):
        ctx.emit(
            "PL003",
            path,
            why=f"plugins that advertise under {before!r} are no longer found",
            fix=f"read both groups until the announced end of {before!r}",
            **shown,
        )
    elif _watched(ctx, path, name):
        lost = _lost(before, after)
        if lost == "":
            return
        rule = "CK004" if _FORMAT.search(name) and isinstance(after, (int, str, float)) else "PY122"
        saved = (
            "files written by the old release carry the old value"
            if rule == "CK004"
            else "code that relies on the value gets another"
        )
        ctx.emit(
            rule,
            path,
            why=f"{lost}; {saved}" if lost else saved,
            fix="read both" if rule == "CK004" else "keep the value, or declare the change in the ledger",
            **shown,
        )


def plain(ctx: Context, before: Any, after: Any) -> Any:
    """The text or number that a new value is too, where the old one was plain: a member of a `StrEnum`, say."""
    if isinstance(after, Symbol) and not isinstance(before, Symbol) and _is_value(ctx, after):
        return after.args[0]
    return after


def _is_value(ctx: Context, member: Symbol) -> bool:
    """Is a member of an enum a text or number itself?"""
    cls = ctx.new.find(member.path.rpartition(".")[0]) if member.kind == "enum" and member.args else None
    return cls is not None and ctx.new.inherits(cls, "enum.StrEnum", "enum.IntEnum", "builtins.str", "builtins.int")


def _other_type(before: Any, after: Any) -> bool:
    if before is None or after is None or isinstance(before, Symbol) or isinstance(after, Symbol):
        return False
    if isinstance(before, (int, float)) and isinstance(after, (int, float)):
        return False
    groups = ((list, tuple), (set, frozenset))
    if any(isinstance(before, g) and isinstance(after, g) for g in groups):
        return False
    return type(before) is not type(after)


def _watched(ctx: Context, path: str, name: str) -> bool:
    return name.isupper() or path in ctx.options.constants


def _lost(before: Any, after: Any) -> str | None:
    """For collections, the elements that are gone ("" if none are: additions break nobody); None for other values."""
    if isinstance(before, (list, tuple)) and isinstance(after, (list, tuple)):
        gone = [show(v) for v in before if v not in after]
        return f"gone: {', '.join(gone)}" if gone else ""
    if isinstance(before, (set, frozenset)) and isinstance(after, (set, frozenset)):
        gone = sorted(show(v) for v in before - after)
        return f"gone: {', '.join(gone)}" if gone else ""
    if isinstance(before, dict) and isinstance(after, dict):
        gone = [show(k) for k, v in before.items() if k not in after or not same(v, after[k])]
        return f"gone or changed: {', '.join(gone)}" if gone else ""
    return None
