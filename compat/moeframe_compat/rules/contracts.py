"""PY116: what a decorator gives beside the function or class itself: `with`, `.register`, a cache, comparisons."""

from __future__ import annotations

import ast

from moeframe_compat.index.builtin_types import defines
from moeframe_compat.index.classes import dataclass_flags
from moeframe_compat.index.lookup import Found, Index, parse
from moeframe_compat.model.objects import Attribute, Class, Function
from moeframe_compat.rules.context import Context

_CONTRACTS = {"contextmanager": "with", "asynccontextmanager": "async with", "singledispatch": ".register"}
_CACHES = ("functools.lru_cache", "functools.cache")
_ORDERING = "functools.total_ordering"


def check_contracts(ctx: Context, path: str, old: Found, new: Found) -> None:
    """What the decorators of a function gave."""
    a, b = old.obj, new.obj
    assert isinstance(a, Function)
    assert isinstance(b, Function)
    for name, gives in _CONTRACTS.items():
        if a.decorated(name) is None or b.decorated(name) is not None:
            continue
        if "context" in name and _gives_context(ctx.new, new):
            continue
        ctx.emit(
            "PY116",
            path,
            old=f"@{name}",
            new="",
            at=ctx.new_place(new),
            was=ctx.old_place(old),
            why=f"`{gives}` on it no longer works",
            fix=f"keep @{name}, or return an object that supports `{gives}`",
        )
    check_cache(ctx, path, old, new)


def check_cache(ctx: Context, path: str, old: Found, new: Found) -> None:
    """A function, or what a call made of one, that no longer keeps its results."""
    cache = _cache(ctx.old, old)
    if not cache or _cache(ctx.new, new) or not isinstance(new.obj, Function) or _may_keep(ctx, old, new):
        return
    ctx.emit(
        "PY116",
        path,
        old=f"@{cache}",
        new="",
        at=ctx.new_place(new),
        was=ctx.old_place(old),
        why="`.cache_clear()` and `.cache_info()` on it raise AttributeError, and equal calls give several objects",
        fix=f"keep @{cache}, or set cache_clear and cache_info on what replaces it",
    )


def _cache(index: Index, found: Found) -> str:
    """The decorator of functools that keeps results, as `@lru_cache` or in `lru_cache(8)(function)`; "" if none."""
    names = [d.path for d in found.obj.decorators] if isinstance(found.obj, Function) else []
    if isinstance(found.obj, Attribute) and found.obj.value:
        call = parse(found.obj.value)
        while isinstance(call, ast.Call):
            call = call.func
            names.append(ast.unparse(call))
    paths = [index.decorator_path(found.module, name) for name in names]
    return next((path.rpartition(".")[2] for path in paths if path in _CACHES), "")


def _may_keep(ctx: Context, old: Found, new: Found) -> bool:
    """May something else give `.cache_clear`: a further decorator, or an assignment?"""
    assert isinstance(new.obj, Function)
    had = {d.name for d in old.obj.decorators} if isinstance(old.obj, Function) else set()
    homes = {new.module}
    for d in new.obj.decorators:
        made = ctx.new.name(new.module, d.path.removeprefix(f"{new.module}."))
        if d.name not in had and (made is None or made.external) and d.name != "deprecated":
            return True
        homes |= {made.module} if made is not None else set()
    sources = ctx.new.snapshot.sources
    files = [m.file for path, m in ctx.new.modules.items() if path in homes]
    return sources is not None and any("cache_clear" in (sources.text(file) or "") for file in files)


def check_ordering(ctx: Context, path: str, old: Found, new: Found) -> None:
    """A class that lost `total_ordering`, and has not all comparisons without it; `a < b` asks `b > a` too."""
    if _ORDERING not in _decorators(ctx.old, old) or ctx.new.open_bases(new):
        return
    gone = [
        sign
        for sign, names in (("<", ("__lt__", "__gt__")), ("<=", ("__le__", "__ge__")))
        if not any(_compares(ctx.new, new, name) for name in names)
    ]
    if gone:
        signs = " and ".join(f"`{sign}`" for less in gone for sign in (less, less.replace("<", ">")))
        ctx.emit(
            "PY116",
            path,
            old="@total_ordering",
            new="",
            at=ctx.new_place(new),
            was=ctx.old_place(old),
            why=f"{signs} between two of them raise TypeError",
            fix="keep @total_ordering, or define __lt__, __le__, __gt__ and __ge__",
        )


def _decorators(index: Index, cls: Found) -> list[str]:
    return [index.decorator_path(cls.module, d.path) for d in cls.obj.decorators] if isinstance(cls.obj, Class) else []


def _compares(index: Index, cls: Found, name: str) -> bool:
    """Has a class a comparison, through whatever means?"""
    for c in index.mro(cls):
        if isinstance(c.obj, Class):
            flags = dataclass_flags(index, c)
            if name in c.obj.members or (flags is not None and flags["order"]) or _ORDERING in _decorators(index, c):
                return True
        elif defines(c.path, name):
            return True
    return False


def _gives_context(index: Index, found: Found) -> bool:
    """Does a function return a context manager of its own?"""
    assert isinstance(found.obj, Function)
    head = (found.obj.returns or "").split("[", 1)[0].rsplit(".", 1)[-1].strip("'\"")
    if "ContextManager" in head or head in ("Self", "Iterator"):
        return "ContextManager" in head
    for shape in found.obj.body.returns:
        target = index.name(found.module, shape.removeprefix("call:")) if shape.startswith("call:") else None
        made = target.obj if target is not None else None
        if target is not None and (
            target.external or (isinstance(made, Function) and made.decorated("contextmanager"))
        ):
            return True
        if isinstance(made, Class) and target is not None and index.member(target, "__enter__") is not None:
            return True
    return False
