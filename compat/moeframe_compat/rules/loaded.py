"""PY010: `import pkg` made `pkg.sub` reachable, because something imported `pkg.sub`, and does so no more."""

from __future__ import annotations

from collections.abc import Iterator

from moeframe_compat.index.lookup import Index
from moeframe_compat.index.public import below, module_is_public
from moeframe_compat.model.objects import ANY, MAYBE, Function, Module
from moeframe_compat.rules.context import Context


def check_loaded(ctx: Context, gone: set[str]) -> None:
    """Compare what importing each public package imports along.

    An error where the package itself names the module (`import pkg.sub`, `from . import sub`), which says that it is
    meant to be reachable; a note where it was imported for its contents only.
    """
    for path, package in sorted(ctx.old.modules.items()):
        now = ctx.new.modules.get(path)
        if not package.is_package or now is None or path in gone or not module_is_public(path):
            continue
        if not below(path, [ctx.old.package]) or _answers(now):
            continue
        before, after = _loaded(ctx.old, path, sure=True), _loaded(ctx.new, path, sure=False)
        if ANY in after:
            continue
        for sub in sorted(before - after):
            home, _, name = sub.rpartition(".")
            if home == path and sub in ctx.new.modules and module_is_public(sub) and not _bound(now, name):
                _report(ctx, package, now, sub)


def _bound(module: Module, name: str) -> bool:
    """Does the module have the name at run time?"""
    made = module.members.get(name)
    return made is not None and not made.type_checking


def _answers(module: Module) -> bool:
    """Does the module answer names in a way that may import what it is asked for?"""
    return isinstance(module.members.get("__getattr__"), Function) or "__getattr__" in module.dynamic


def _report(ctx: Context, package: Module, now: Module, sub: str) -> None:
    around = [ctx.old.modules[p] for p in (package.path, *_around(package.path)) if p in ctx.old.modules]
    meant = any(sub in m.loads and not any(name.startswith(f"{sub}.") for name in m.loads) for m in around)
    own = package.members.get(sub.rpartition(".")[2])
    ctx.emit(
        "PY010",
        sub,
        old=f"imported with {package.path}",
        new="",
        at=(now.file, 1),
        was=(package.file, own.line if own is not None else 1),
        why=f"after `import {package.path}` alone, {sub} raises AttributeError until somebody imports it",
        fix=f"keep `from {package.path} import {sub.rpartition('.')[2]}` in {now.file}",
        severity="" if meant else "info",
        policy="" if meant else "it was imported for its contents; nothing said that it is reachable so",
    )


def _loaded(index: Index, start: str, *, sure: bool) -> set[str]:
    """Modules in `sys.modules` after the import of one: at least these, or (not `sure`) at most these."""
    found: set[str] = set()
    todo = [start]
    while todo:
        path = todo.pop()
        if path in found:
            continue
        found.add(path)
        module = index.modules.get(path)
        if module is None:
            continue
        todo += [outer for outer in _around(path) if outer in index.modules]
        for name in module.loads:
            plain = name.removesuffix(MAYBE)
            if plain == ANY or (plain in index.modules and not (sure and name.endswith(MAYBE))):
                todo.append(plain)
    return found


def _around(path: str) -> Iterator[str]:
    """The packages around a module, which are imported before it."""
    while "." in path:
        path = path.rpartition(".")[0]
        yield path
