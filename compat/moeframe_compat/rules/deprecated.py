"""What a release announced about its own future: DP001, DP002, DP003, DP009, DP010."""

from __future__ import annotations

import ast
import re

from moeframe_compat.index.lookup import Found, parse
from moeframe_compat.model.objects import Class, Function
from moeframe_compat.policy.versions import at_least
from moeframe_compat.rules.context import Context

_VERSION = r"v?(\d+(?:\.\d+)*)"
_REMOVAL = re.compile(
    r"(?:remov\w*|dropp?\w*|delet\w*|gone|unsupported|disappear\w*)\s+(?:\w+\s+){0,5}?"
    r"(?:in|from|with|by|at|as of|since)\s+"
    rf"(?:\w+\s+){{0,3}}?{_VERSION}|until\s+(?:\w+\s+)?{_VERSION}",
    re.IGNORECASE,
)
_KEYWORDS = ("remove_in", "removed_in", "removal_version", "removal", "remove_version", "removed", "until")
_DECORATORS = ("deprecated", "deprecate", "deprecation", "deprecated_api", "warn_deprecated", "deprecated_function")


def announced_removal(found: Found) -> str:
    """The version in which an object says it will be removed, "" if it does not say."""
    obj = found.obj
    if not isinstance(obj, (Function, Class)):
        return ""
    for d in obj.decorators:
        if d.name.lower() in _DECORATORS:
            node = parse(d.text)
            for k in node.keywords if isinstance(node, ast.Call) else ():
                if k.arg in _KEYWORDS and isinstance(k.value, ast.Constant):
                    return str(k.value.value).lstrip("v")
            stated = _version_in(d.text)
            if stated:
                return stated
    init = obj.members.get("__init__") if isinstance(obj, Class) else obj
    return _version_in(init.body.warns if isinstance(init, Function) else "") or (
        _version_in(obj.doc) if "deprecat" in obj.doc.lower() else ""
    )


def is_deprecated(found: Found) -> bool:
    """Does it say that it will go?"""
    obj = found.obj
    if not isinstance(obj, (Function, Class)):
        return False
    init = obj.members.get("__init__") if isinstance(obj, Class) else obj
    return obj.decorated(*_DECORATORS) is not None or bool(isinstance(init, Function) and init.body.warns)


def _version_in(text: str) -> str:
    found = _REMOVAL.search(text)
    return next((g for g in found.groups() if g), "") if found else ""


def removal_allowed(ctx: Context, found: Found) -> bool:
    """Did the old release announce the removal for a version that is reached? DP001 reports an early one."""
    stated = announced_removal(found)
    if not stated:
        return False
    if ctx.new_version and at_least(ctx.new_version, stated):
        return True
    if ctx.new_version:
        ctx.emit(
            "DP001",
            found.path,
            old=f"announced for {stated}",
            new=f"gone in {ctx.new_version}",
            at=ctx.survivor(found.path),
            was=ctx.old_place(found),
            cause=f"removed:{found.path}",
            why=f"users were told it stays until {stated}; this is {ctx.new_version}",
            fix=f"keep it until {stated}",
        )
    return False


def check_window(ctx: Context, path: str, old: Found, new: Found) -> None:
    """DP002 and DP003: an object that is still there, and when it says it will go."""
    was, now = announced_removal(old), announced_removal(new)
    place = ctx.new_place(new)
    if now and ctx.new_version and at_least(ctx.new_version, now):
        ctx.emit(
            "DP002",
            path,
            old=f"removal in {now}",
            new=f"still there in {ctx.new_version}",
            at=place,
            why="the announced version is reached",
            fix="remove it, or announce another version",
        )
    if was and now and was != now and not at_least(now, was):
        ctx.emit(
            "DP003",
            path,
            old=f"removal in {was}",
            new=f"removal in {now}",
            at=place,
            was=ctx.old_place(old),
            why=f"users planned for {was}",
            fix=f"keep it until {was}",
        )


def check_tier(ctx: Context, path: str, old: Found, new: Found) -> None:
    """DP010: the new release marks as unstable what was stable."""
    if ctx.tier or not isinstance(new.obj, (Function, Class)):
        return
    marker = next((d.name for d in new.obj.decorators if d.name in ctx.options.new_markers), "")
    if marker:
        ctx.emit(
            "DP010",
            path,
            old="stable",
            new=f"@{marker}",
            at=ctx.new_place(new),
            was=ctx.old_place(old),
            why="the mark counts from the next release on: this release is checked by the old one's",
            fix="mark it one release before changing it",
        )
