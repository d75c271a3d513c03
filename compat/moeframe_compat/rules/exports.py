"""PY001-PY007: what can no longer be imported."""

from __future__ import annotations

from collections.abc import Iterator

from moeframe_compat.index.lookup import Found
from moeframe_compat.index.public import Entry, below, furniture, module_is_public, public_names
from moeframe_compat.interpret.shims import Shims
from moeframe_compat.model.objects import Attribute, Class, Function
from moeframe_compat.rules.context import Context
from moeframe_compat.rules.deprecated import removal_allowed
from moeframe_compat.rules.renames import likely_new_name, moved_module


def check_modules(ctx: Context) -> set[str]:
    """PY002. Returns the old modules that are gone, whose contents need no finding of their own."""
    gone: set[str] = set()
    for path, module in sorted(ctx.old.modules.items()):
        if not module_is_public(path) or not below(path, [ctx.old.package]):
            continue
        if path in ctx.new.modules or ctx.new.replaces(path):
            continue
        gone.add(path)
        if any(path.startswith(f"{g}.") for g in gone if g != path) or not module.members:
            continue
        new_home = moved_module(ctx, path)
        ctx.emit(
            "PY002",
            path,
            old=path,
            new=new_home,
            at=ctx.survivor(path),
            was=(module.file, 1),
            cause=f"module:{path}",
            why=f"`import {path}` raises ModuleNotFoundError"
            + (f"; its contents are in {new_home}" if new_home else ""),
            fix=f"keep {module.file}"
            + (
                f" with `from {new_home} import *` and a DeprecationWarning"
                if new_home
                else ", or announce its removal one release ahead"
            ),
        )
    return gone


def counterpart(ctx: Context, entry: Entry, gone: set[str], shims: Shims) -> Found | None:
    """The new object for an old public one; reports every public path that got lost on the way (PY001, PY003, ...)."""
    lost: list[tuple[str, str]] = []
    new: Found | None = None
    for path in entry.paths:
        home = path.rpartition(".")[0]
        found = shims.answered(path, ctx.new.find(path))
        problem = _problem(ctx, entry, path, found, home)
        if not problem:
            new = new or found
        elif home not in gone and shims.offered(path, ctx.old.find(path)):
            lost.append((path, problem))
    if lost and not all(removal_allowed(ctx, entry.found) for _ in lost):
        _report_lost(ctx, entry, lost, still=new is not None)
    return new


def further_counterparts(ctx: Context, entry: Entry, new: Found, shims: Shims) -> Iterator[tuple[str, Found]]:
    """Public paths of an old object that now give something else than what stands in its place, and what they give."""
    for path in entry.paths:
        found = shims.answered(path, ctx.new.find(path))
        if found is None or found.path == new.path or found.typing_only:
            continue
        if isinstance(found.obj, (Function, Class)):
            yield path, found


def _problem(ctx: Context, entry: Entry, path: str, found: Found | None, home: str) -> str:
    """The code of the rule a path breaks, "" if it still works."""
    if found is None:
        lazy = ctx.old.modules.get(home)
        return "PY005" if lazy is not None and path.rpartition(".")[2] in lazy.lazy else "PY001"
    if found.typing_only and not entry.found.typing_only:
        return "PY006"
    old = ctx.old.find(path)
    if found.branch and old is not None and not old.branch and _optional(found.branch):
        return "PY007"
    return ""


def _optional(branch: str) -> bool:
    return "import " in branch or branch.count("if ") == 1


def _report_lost(ctx: Context, entry: Entry, lost: list[tuple[str, str]], *, still: bool) -> None:
    main = entry.path
    renamed = "" if still else likely_new_name(ctx, entry)
    for path, problem in lost:
        code = "PY003" if problem == "PY001" and path in entry.reexports and (still or path != main) else problem
        name = path.rpartition(".")[2]
        target = renamed or next((p for p in entry.paths if p not in dict(lost)), "")
        module = path.rpartition(".")[0]
        whys = {
            "PY006": f"`from {module} import {name}` fails at run time: the import stands under TYPE_CHECKING",
            "PY007": f"without an optional dependency `from {module} import {name}` fails: it is defined conditionally",
        }
        why = whys.get(
            code, f"`from {module} import {name}` raises ImportError" + (f"; it is now {target}" if target else "")
        )
        alias = f"`{name} = {target.rpartition('.')[2]}`" if target else "it"
        fix = f"keep {alias} in {module}" + (
            " with a DeprecationWarning" if target else ", or announce its removal first"
        )
        ctx.emit(
            code,
            path,
            old=path,
            new=target,
            at=ctx.survivor(module),
            was=ctx.old_place(entry.found),
            why=why,
            fix="import it unconditionally, or define a fallback" if code in ("PY006", "PY007") else fix,
            cause=f"removed:{entry.found.path}",
        )


def check_exports(ctx: Context, gone: set[str]) -> None:
    """PY004: names that `from module import *` no longer gives, although they are still there."""
    for path, module in sorted(ctx.old.modules.items()):
        new = ctx.new.modules.get(path)
        if path in gone or new is None or module.exports is None or not module_is_public(path):
            continue
        if not below(path, [ctx.old.package]):
            continue
        offered = (
            new.exports if new.exports is not None else [n for n, _ in public_names(ctx.new, new)] + list(new.members)
        )
        for name in module.exports:
            made = module.members.get(name)
            if name in offered or "__all__" in new.dynamic or (made is not None and furniture(ctx.old, path, made)):
                continue
            old = ctx.old.find(f"{path}.{name}")
            there = ctx.new.find(f"{path}.{name}") is not None
            if old is None or (not there and not old.external) or removal_allowed(ctx, old):
                continue  # PY001 says it
            ctx.within(old)
            ctx.emit(
                "PY004",
                f"{path}.{name}",
                old="in __all__",
                new="",
                at=(new.file, 1),
                was=ctx.old_place(old),
                why=f"`from {path} import {'*' if there else name}` no longer gives {name}",
                fix=f"put {name!r} back into __all__ of {path}, or announce its removal first",
            )


def additions(ctx: Context) -> list[str]:
    """Public paths that are new, for the changelog."""
    old = {p for e in ctx.old_surface.values() for p in e.paths}
    return sorted(
        entry.path
        for entry in ctx.new_surface.values()
        if not any(p in old for p in entry.paths) and isinstance(entry.found.obj, (Function, Class, Attribute))
    )
