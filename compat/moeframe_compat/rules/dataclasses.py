"""PY301-PY305 and the field rules of config classes (CF001-CF007)."""

from __future__ import annotations

import difflib

from moeframe_compat.index.classes import Field, dataclass_flags, fields
from moeframe_compat.index.lookup import Found
from moeframe_compat.index.values import MISSING, known, same, show
from moeframe_compat.interpret.shims import Shims
from moeframe_compat.model.objects import Function, Param
from moeframe_compat.rules.config import key_removed, schema_version, type_changed
from moeframe_compat.rules.constants import plain
from moeframe_compat.rules.context import Context
from moeframe_compat.rules.params import Call, ParamCheck


def check_dataclass(ctx: Context, path: str, old: Found, new: Found, shims: Shims) -> None:
    """One dataclass in two releases."""
    before, now = fields(ctx.old, old), {f.name: f for f in fields(ctx.new, new)}
    config = ctx.is_config(old.path)
    for f in before:
        if f.owner != old.path and f.owner in ctx.old_surface:
            continue  # its own class says it
        g = now.get(f.name)
        if g is None:
            _removed(ctx, path, old, new, f, list(now.values()), shims)
        else:
            _kept(ctx, path, f, g, config=config)
    _flags(ctx, path, old, new)
    _constructor(ctx, path, old, new, shims, config=config)
    _subclass_order(ctx, path, old, new, before, list(now.values()))


def _removed(ctx: Context, path: str, old: Found, new: Found, f: Field, now: list[Field], shims: Shims) -> None:
    successor = _successor(f, now, {g.name for g in fields(ctx.old, old)})
    if ctx.is_config(old.path):
        key_removed(ctx, path, new, f, successor, shims)
        return
    made = ctx.new.member(new, "__init__")
    custom = made is not None and isinstance(made.obj, Function)
    if custom:
        return  # the constructor's own rules see it
    ctx.emit(
        "PY301",
        f"{path}.{f.name}",
        old=f"{f.name}: {f.annotation}",
        new=successor,
        at=ctx.new_place(new),
        was=(ctx.old.modules[f.module].file, f.line),
        why=f"`{f.name}=...` raises TypeError and `.{f.name}` AttributeError"
        + (f"; it is now {successor}" if successor else ""),
        fix=f"keep {f.name} as a deprecated field that fills {successor} in __post_init__"
        if successor
        else f"keep {f.name} until its announced removal",
        cause=f"rename:{f.name}->{successor}" if successor else f"field:{f.owner}.{f.name}",
    )


def _successor(f: Field, now: list[Field], old_names: set[str]) -> str:
    """The new field that stands in the place of one that is gone."""
    best, score = "", 0.55
    for g in now:
        if g.name in old_names:
            continue
        alike = 0.35 * (f.annotation == g.annotation) + 0.25 * (f.default == g.default)
        alike += 0.4 * difflib.SequenceMatcher(None, f.name, g.name).ratio()
        if alike > score:
            best, score = g.name, alike
    return best


def _kept(ctx: Context, path: str, f: Field, g: Field, *, config: bool) -> None:
    at, was = (ctx.new.modules[g.module].file, g.line), (ctx.old.modules[f.module].file, f.line)
    if f.init and not g.init:
        ctx.emit(
            "PY305",
            f"{path}.__init__({f.name})",
            old=f"{f.name} in the constructor",
            new="init=False",
            at=at,
            was=was,
            why=f"`{f.name}=...` raises TypeError",
            fix=f"keep {f.name} in the constructor",
        )
    type_changed(ctx, path, f, g, at, was, config=config)
    if f.default is None:
        return
    before = ctx.old_value(f.owner, f.default)
    after = plain(ctx, before, ctx.new_value(g.owner, g.default)) if g.default is not None else None
    if config and g.default is not None and same(after, MISSING) and not same(before, MISSING):
        ctx.emit(
            "CF006",
            f"{path}.{f.name}",
            old=f"{f.name} = {show(before)}",
            new=f"{f.name} = MISSING",
            at=at,
            was=was,
            why=f"recipes without {f.name} fail",
            fix=f"keep the default {show(before)}",
        )
        return
    if g.default is None or same(before, after) or not known(before) or not known(after):
        return
    if config and schema_version(ctx, path, f.name, before, after, at, was):
        return
    ctx.emit(
        "CF007" if config else "PY109",
        f"{path}.{f.name}",
        old=f"{f.name} = {show(before)}",
        new=f"{f.name} = {show(after)}",
        at=at,
        was=was,
        why=f"{'recipes' if config else 'calls'} that leave {f.name} out now get {show(after)}",
        fix=f'keep {show(before)}, or declare it: [[default]] old = "{f.name}"',
        cause=f"default:{f.name}:{show(before)}->{show(after)}",
        audience=("recipe", "caller") if config else ("caller", "recipe"),
    )


def _flags(ctx: Context, path: str, old: Found, new: Found) -> None:
    a, b = dataclass_flags(ctx.old, old), dataclass_flags(ctx.new, new)
    assert a is not None
    assert b is not None

    def report(what: str, why: str, fix: str, severity: str = "", kind: str = "") -> None:
        ctx.emit(
            "PY303",
            path,
            old=what,
            new="",
            at=ctx.new_place(new),
            was=ctx.old_place(old),
            why=why,
            fix=fix,
            severity=severity,
            kind=kind,
            cause=f"flags:{path}",
        )

    if b["frozen"] and not a["frozen"]:
        report(
            "mutable",
            "assigning to a field raises FrozenInstanceError; subclasses that are not frozen cannot be defined",
            "keep it mutable",
        )
    if a["frozen"] and not b["frozen"]:
        hashable = a["eq"] and not (b["unsafe_hash"] or ctx.new.member(new, "__hash__"))
        if hashable and b["eq"]:
            report(
                "hashable",
                "hash() raises TypeError: it cannot be a dict key or set element; frozen subclasses cannot be defined",
                "keep frozen=True, or add unsafe_hash=True",
            )
    elif a["unsafe_hash"] and not b["unsafe_hash"] and b["eq"] and not b["frozen"]:
        report("hashable", "hash() raises TypeError", "keep unsafe_hash=True")
    if a["order"] and not b["order"] and not ctx.new.member(new, "__lt__"):
        report("ordered", "`<` and sorted() raise TypeError", "keep order=True")
    if a["eq"] and not b["eq"] and not ctx.new.member(new, "__eq__"):
        report("compared by value", "`==` now compares identity", "keep eq=True", "warning", "silent")


def _constructor(ctx: Context, path: str, old: Found, new: Found, shims: Shims, *, config: bool) -> None:
    made = ctx.new.member(new, "__init__")
    custom = made is not None and isinstance(made.obj, Function)
    fields_old, fields_new = fields(ctx.old, old), fields(ctx.new, new)
    if custom or isinstance(getattr(ctx.old.member(old, "__init__"), "obj", None), Function):
        from moeframe_compat.index.classes import constructor

        before, now = constructor(ctx.old, old).params, constructor(ctx.new, new).params
    else:
        before, now = _params(fields_old), _params(fields_new)
    inherited = {f.name for f in fields_old if f.owner != old.path and f.owner in ctx.old_surface}
    before = [p for p in before if p.name not in inherited]
    now = [p for p in now if p.name not in inherited]
    added_by_base = {f.name for f in fields_new if f.owner != new.path and f.owner in ctx.new_surface}
    body = made.obj.body if made is not None and isinstance(made.obj, Function) else None
    codes = {"PY103": "PY302", "PY106": "PY305", "PY109": ""} | (
        {} if custom else {"PY101": "", "PY102": "", "PY108": ""}
    )
    if config:
        codes |= {"PY104": "CF006", "PY105": "CF006"}
    call = Call(
        f"{path}.__init__",
        before,
        [p for p in now if p.name not in added_by_base],
        ctx.new_place(new),
        ctx.old_place(old),
        old.path,
        new.path,
        target=new,
        new_body=body,
        codes=codes,
        keyword_only=config,
        defaults=False,
        audience=("caller", "recipe"),
    )
    ParamCheck(ctx, call, shims).run()


def _params(all_fields: list[Field]) -> list[Param]:
    return [Param(f.name, "ko" if f.kw_only else "pk", f.default, f.annotation) for f in all_fields if f.init]


def _subclass_order(ctx: Context, path: str, old: Found, new: Found, before: list[Field], now: list[Field]) -> None:
    """PY304: with its first default field, a dataclass no longer takes required fields in subclasses."""
    had = any(f.default is not None and f.init and not f.kw_only for f in before)
    gains = [f for f in now if f.default is not None and f.init and not f.kw_only]
    if had or not gains or not any(f.init and not f.kw_only for f in before):
        return
    names = ", ".join(f.name for f in gains)
    ctx.emit(
        "PY304",
        path,
        old="no defaults",
        new=f"{names} with a default",
        at=ctx.new_place(new),
        was=ctx.old_place(old),
        why="a subclass that adds a required field raises TypeError: non-default argument follows default argument",
        fix=f"make {names} keyword-only: field(default=..., kw_only=True)",
    )
