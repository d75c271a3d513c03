"""PL003, PL004: what the project file promises to installers: console scripts and entry points, and what they call."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from moeframe_compat.index.lookup import Found, Index
from moeframe_compat.index.public import below
from moeframe_compat.model.objects import Alias, Class, Function, Module
from moeframe_compat.model.surfaces import Project
from moeframe_compat.rules.context import Context, Place

_TARGET = re.compile(r"([\w.]+)\s*(?::\s*([\w.]+))?\s*(?:\[.*\])?")
"""`module:name` of an entry point, with the extras that it may need."""


@dataclass(frozen=True, kw_only=True)
class _Promise:
    """A kind of name in the project file, and what is said of one that no longer holds."""

    rule: str
    path: str
    thing: str
    word: str
    gone: str
    fails: str
    heir: str


_SCRIPT = _Promise(
    rule="PL004",
    path="script",
    thing="script",
    word="{name}",
    gone="the command {name} is gone",
    fails="the command {name} starts and fails at once",
    heir="the function that took its place",
)
_ENTRY_POINT = _Promise(
    rule="PL003",
    path="entry-point",
    thing="entry point",
    word="{name!r}",
    gone="recipes and tools that name {name!r} fail",
    fails="loading the entry point {name!r} raises",
    heir="what took its place",
)


def check_project(ctx: Context) -> None:
    """Both."""
    old, new = ctx.old.snapshot.surfaces.project, ctx.new.snapshot.surfaces.project
    if not old.file or not new.file:
        return
    _check(ctx, _SCRIPT, old.scripts, new.scripts)
    for group, names in old.entry_points.items():
        if group in new.entry_points:
            promise = replace(_ENTRY_POINT, path=f"entry-point:{group}")
            _check(ctx, promise, names, new.entry_points[group])
            continue
        ctx.emit(
            "PL003",
            f"entry-point-group:{group}",
            old=group,
            new=", ".join(sorted(new.entry_points)),
            at=(new.file, 1),
            was=(old.file, old.lines.get(group, 1)),
            why=f"what reads the group {group!r} finds nothing here",
            fix=f"keep advertising under {group!r}",
        )


def _check(ctx: Context, promise: _Promise, old: dict[str, str], new: dict[str, str]) -> None:
    """Find the names that are gone, and those whose targets are."""
    before, now = ctx.old.snapshot.surfaces.project, ctx.new.snapshot.surfaces.project
    for name, target in old.items():
        was, path = (before.file, before.lines.get(name, 1)), f"{promise.path}:{name}"
        if name not in new:
            ctx.emit(
                promise.rule,
                path,
                old=name,
                new="",
                at=(now.file, 1),
                was=was,
                why=promise.gone.format(name=name),
                fix=f"keep {promise.word.format(name=name)} as a second {promise.thing}",
            )
        elif lost := _lost(ctx, target, new[name]):
            heir = _heir(ctx, target) or promise.heir
            ctx.emit(
                promise.rule,
                path,
                old=target,
                new=new[name],
                at=_line(now, name),
                was=was,
                why=f"{promise.fails.format(name=name)}: {lost}",
                fix=f"point {promise.word.format(name=name)} at {heir}, or keep {target}",
            )


def _line(project: Project, name: str) -> Place:
    return project.file, project.lines.get(name, 1)


def _lost(ctx: Context, old: str, new: str) -> str:
    """What the new target lacks, in words; "" if it is there, if nobody can tell, or if the old one lacked it too."""
    return "" if _missing(ctx.old, old) else _missing(ctx.new, new)


def _heir(ctx: Context, target: str) -> str:
    """The one place where the new release defines something of this name, "" if there is none or several."""
    name = target.partition("[")[0].rpartition(":")[2].strip()
    homes = [p for p, m in ctx.new.modules.items() if isinstance(m.members.get(name), (Function, Class))]
    return f"{homes[0]}:{name}" if len(homes) == 1 else ""


def _missing(index: Index, target: str) -> str:
    parsed = _TARGET.fullmatch(target.strip())
    if parsed is None or not below(parsed[1], [index.package]):
        return ""
    module = index.modules.get(parsed[1])
    if module is None:
        there = index.find(parsed[1]) is not None or _dropped(index, parsed[1])
        return "" if there else f"there is no module {parsed[1]}"
    owner: Found | None = Found(module.path, module.path, module)
    for name in (parsed[2] or "").split(".") if parsed[2] else ():
        if owner is None or not _closed(index, owner):
            return ""
        found = index.member(owner, name)
        if found is None:
            return f"{owner.path} has no {name}"
        owner = found
    return ""


def _dropped(index: Index, path: str) -> bool:
    """Is there such a module among the sources, although it is no part of the API?"""
    file = path.replace(".", "/")
    return any(s.endswith((f"{file}.py", f"{file}/__init__.py")) for s in index.snapshot.sources or ())


def _closed(index: Index, owner: Found) -> bool:
    """Is everything known that an object gives by name?"""
    if isinstance(owner.obj, Module):
        stars = [m for m in owner.obj.members.values() if isinstance(m, Alias) and m.wildcard]
        known = all((found := index.find(s.target)) is not None and not found.external for s in stars)
        return known and set(owner.obj.dynamic) <= {"__all__"} and "__getattr__" not in owner.obj.members
    return isinstance(owner.obj, Class) and not index.open_bases(owner)
