"""PL001-PL003, PL005: registries, groups of entry points that are read, the number of the plugin contract."""

from __future__ import annotations

import difflib
import re

from moeframe_compat.index.classes import constructor, fields, is_dataclass
from moeframe_compat.index.lookup import Found, Index
from moeframe_compat.index.signatures import effective
from moeframe_compat.index.values import evaluate, known, same, show
from moeframe_compat.interpret.shims import Shims
from moeframe_compat.model.objects import Attribute, Class, Function, Param
from moeframe_compat.model.surfaces import Registration
from moeframe_compat.rules.context import Context, Place
from moeframe_compat.rules.dataclasses import check_dataclass
from moeframe_compat.rules.params import Call, ParamCheck

_NAMED_BY = ("name", "key", "alias", "registry_name", "type_name", "register_as")


def check_plugins(ctx: Context, shims: Shims) -> None:
    """All of them."""
    _registered(ctx, shims)
    _groups(ctx)


def _registered(ctx: Context, shims: Shims) -> None:
    old = ctx.old.snapshot.surfaces.registrations + _by_subclassing(ctx.old)
    new = ctx.new.snapshot.surfaces.registrations + _by_subclassing(ctx.new)
    now: dict[tuple[str, str], Registration] = {(_last(r.registry), r.name): r for r in new}
    names = {r.name for r in new}
    for r in old:
        found = now.get((_last(r.registry), r.name))
        if found is None and r.name in names:
            continue  # registered elsewhere
        if found is None:
            fresh = [n.name for n in new if n.name not in {o.name for o in old}]
            heir = next((n.name for n in new if n.target.rpartition(":")[2] == r.target.rpartition(":")[2]), "")
            near = heir or next(iter(difflib.get_close_matches(r.name, fresh, 1, 0.5)), "")
            ctx.emit(
                "PL001",
                f"plugin-name:{r.name}",
                old=r.name,
                new=near,
                at=_place(ctx, r),
                was=(r.file, r.line),
                why=f"recipes and calls that name {r.name!r} fail",
                fix=f"register it under {r.name!r} too, with a warning",
            )
            continue
        _factory(ctx, r, found, shims)
        _options(ctx, r, found, shims)


def _options(ctx: Context, old: Registration, new: Registration, shims: Shims) -> None:
    """The options that recipes give by name, whatever their class is called and wherever it is."""
    a, b = _class(ctx.old, old.options), _class(ctx.new, new.options)
    if a is None or not is_dataclass(ctx.old, a) or not ctx.old.inside(a.path):
        return
    if b is None or not is_dataclass(ctx.new, b):
        for f in fields(ctx.old, a):
            ctx.emit(
                "CF001",
                f"{a.path}.{f.name}",
                old=f"{f.name}: {f.annotation}",
                at=(new.file, new.line),
                was=(old.file, old.line),
                why=f"{old.name} takes no options any more: recipes that set {f.name} fail",
                fix=f"keep {f.name} until its announced removal",
                cause=f"options:{old.name}",
            )
        return
    check_dataclass(ctx, a.path, a, b, shims)


def _class(index: Index, text: str) -> Found | None:
    module, _, name = text.partition(":")
    found = index.name(module, name) if name else None
    return found if found is not None and isinstance(found.obj, Class) else None


def _by_subclassing(index: Index) -> list[Registration]:
    """Classes that an ancestor's `__init_subclass__` registers, by a class keyword or a class attribute."""
    out = []
    for path, module in index.modules.items():
        for name, m in module.members.items():
            if not isinstance(m, Class):
                continue
            cls = Found(f"{path}.{name}", path, m)
            if not any(isinstance(c.obj, Class) and "__init_subclass__" in c.obj.members for c in index.mro(cls)[1:]):
                continue
            values = [m.keywords.get(k) for k in _NAMED_BY]
            values += [getattr(m.members.get(k), "value", None) for k in _NAMED_BY]
            text = next((v for v in values if isinstance(v, str) and v[:1] in "'\"" and len(v) > 2), None)
            if text is not None:
                out.append(Registration("__init_subclass__", text[1:-1], f"{path}:{name}", module.file, m.line))
    return out


def _last(registry: str) -> str:
    return registry.rpartition(".")[2]


def _place(ctx: Context, r: Registration) -> tuple[str, int]:
    return (r.file, 1) if any(m.file == r.file for m in ctx.new.modules.values()) else ctx.survivor(ctx.old.package)


def _factory(ctx: Context, old: Registration, new: Registration, shims: Shims) -> None:
    """PL002: what is registered is built by keyword, also when its own name is private."""
    a, b = _target(ctx.old, old), _target(ctx.new, new)
    if a is None or b is None or a.path in ctx.old_surface:
        return  # public objects are compared by the Python rules
    before, now = _params(ctx.old, a), _params(ctx.new, b)
    if before is None or now is None:
        return
    codes = dict.fromkeys(("PY101", "PY102", "PY104", "PY105", "PY106", "PY107", "PY108", "PY109"), "PL002") | {
        "PY103": ""
    }
    call = Call(
        f"{a.path}.__init__" if isinstance(a.obj, Class) else a.path,
        before,
        now,
        (new.file, new.line),
        (old.file, old.line),
        a.path.rpartition(".")[0],
        b.path.rpartition(".")[0],
        target=b,
        codes=codes,
        keyword_only=True,
    )
    ParamCheck(ctx, call, shims).run()


def _target(index: Index, r: Registration) -> Found | None:
    module, _, name = r.target.partition(":")
    found = index.name(module, name)
    return found if found is not None and isinstance(found.obj, (Class, Function)) else None


def _params(index: Index, found: Found) -> list[Param] | None:
    if isinstance(found.obj, Function):
        return effective(index, found)
    made = constructor(index, found)
    return made.params if made.known else None


def _groups(ctx: Context) -> None:
    """PL003: entry-point groups that the package reads."""
    old, unknown_before = _groups_read(ctx.old)
    new, unknown = _groups_read(ctx.new)
    place = min(new.values(), default=ctx.survivor(ctx.old.package))
    for name, was in sorted(old.items()):
        if name in new:
            continue
        if unknown - unknown_before:
            ctx.skipped.add(f"PL003 for the group {name!r}: the group is computed, as {min(unknown - unknown_before)}")
            continue
        ctx.emit(
            "PL003",
            f"entry-point-group:{name}",
            old=name,
            new=", ".join(sorted(new)),
            at=place,
            was=was,
            why=f"plugins that advertise under {name!r} are no longer found",
            fix=f"read {name!r} too",
        )


def _groups_read(index: Index) -> tuple[dict[str, Place], set[str]]:
    """Groups that a release reads and where it does first, and texts of groups that nobody can tell."""
    groups: dict[str, Place] = {}
    unknown: set[str] = set()
    modules = {m.file: path for path, m in index.modules.items()}
    for g in index.snapshot.surfaces.groups:
        name = evaluate(index, modules.get(g.file, index.package), g.name) if g.kind == "computed group" else g.name
        if isinstance(name, str) and g.kind != "hooks":
            groups.setdefault(name, (g.file, g.line))
        elif g.kind != "hooks":
            unknown.add(g.name)
    return groups, unknown


_API_VERSION = re.compile(r"(^|_)(API|ABI|PROTOCOL|INTERFACE|CONTRACT|HOOKS?)_(VERSION|LEVEL|REVISION)$")
_CONTRACT = ("HK", "PA")


def check_api_version(ctx: Context) -> None:
    """PL005: a number that tells plugins which contract holds, and a contract that changed without it."""
    broken = next((f for f in ctx.findings if f.breaking and (f.rule[:2] in _CONTRACT or f.rule == "PL003")), None)
    for path, entry in sorted(ctx.old_surface.items()):
        obj = entry.found.obj
        new = ctx.new.find(path)
        if broken is None or not isinstance(obj, Attribute) or not _API_VERSION.search(obj.name):
            continue
        if new is None or not isinstance(new.obj, Attribute) or obj.value is None or new.obj.value is None:
            continue
        scope = path.rpartition(".")[0]
        before, now = ctx.old_value(scope, obj.value), ctx.new_value(new.module, new.obj.value)
        if known(before) and same(before, now):
            ctx.emit(
                "PL005",
                path,
                old=show(before),
                new=show(now),
                at=ctx.new_place(new),
                was=ctx.old_place(entry.found),
                why=f"plugins that ask for {show(before)} are loaded and fail: {broken.symbol}",
                fix=f"raise {obj.name}, and refuse plugins made for another number",
            )
