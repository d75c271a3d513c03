"""PY306-PY309: named tuples, typed dicts, enums."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Callable
from typing import Any

from moeframe_compat.index.annotations import alternatives, covers, show
from moeframe_compat.index.classes import enum_values, plain_fields, required_keys
from moeframe_compat.index.lookup import Found, Index, parse
from moeframe_compat.index.values import Symbol, evaluate, known, same
from moeframe_compat.model.objects import Class
from moeframe_compat.rules.context import Context


def check_enum(ctx: Context, path: str, old: Found, new: Found) -> None:
    """Members by name, and their values."""
    if not isinstance(new.obj, Class):
        return
    before, now = enum_values(ctx.old, old), enum_values(ctx.new, new)
    if ctx.old.member(old, "_missing_") is not None and ctx.new.member(new, "_missing_") is None:
        ctx.emit(
            "PY309",
            f"{path}._missing_",
            old="_missing_",
            new="",
            at=ctx.new_place(new),
            was=ctx.old_place(old),
            why=f"`{path.rpartition('.')[2]}(value)` raises ValueError for the values that it answered",
            fix="keep _missing_",
            severity="error",
            kind="hard",
        )
    changed = []
    for name, text in before.items():
        if name not in now:
            if ctx.new.member(new, name) is not None:
                continue
            fresh = [n for n in now if n not in before]
            near = difflib.get_close_matches(name, fresh, 1, 0.5) or [n for n in fresh if now[n] == text]
            ctx.emit(
                "PY308",
                f"{path}.{name}",
                old=f"{name} = {text}",
                new=near[0] if near else "",
                at=ctx.new_place(new),
                was=ctx.old_place(old),
                why=f"`{path.rpartition('.')[2]}.{name}` raises AttributeError; recipes that name it fail",
                fix=f"keep {name} as an alias of {near[0]}" if near else f"keep {name} until its announced removal",
            )
            continue
        a, b = (_plain(evaluate(i, c.path, t)) for i, c, t in ((ctx.old, old, text), (ctx.new, new, now[name])))
        if not same(a, b) and known(a) and known(b):
            changed.append((name, text, now[name]))
    for name, text, other in changed[:1]:
        names = ", ".join(n for n, _, _ in changed)
        ctx.emit(
            "PY309",
            f"{path}.{name}",
            old=f"{name} = {text}",
            new=f"{name} = {other}",
            at=ctx.new_place(new),
            was=ctx.old_place(old),
            why=f"saved values of {names} now mean another member or none",
            fix="give members explicit values, and keep them",
        )


def _plain(value: Any) -> Any:
    """The value of an alias (`A = B` in an enum's body) is that of the member."""
    return value.args[0] if isinstance(value, Symbol) and value.kind == "enum" and value.args else value


def check_named_tuple(ctx: Context, path: str, old: Found, new: Found) -> None:
    """Length, order and names."""
    if not ctx.new.inherits(new, "typing.NamedTuple"):
        return
    before = [f.name for f in plain_fields(ctx.old, old)]
    now = [f.name for f in plain_fields(ctx.new, new)]
    if before == now:
        required = {f.name for f in plain_fields(ctx.new, new) if f.required}
        for f in plain_fields(ctx.old, old):
            if not f.required and f.name in required:
                ctx.emit(
                    "PY104",
                    f"{path}.__init__({f.name})",
                    old=f"{f.name} = {f.default}",
                    new="",
                    at=ctx.new_place(new),
                    was=ctx.old_place(old),
                    why=f"calls without {f.name} raise TypeError",
                    fix="keep the default",
                )
        return
    effect = "unpacking raises ValueError" if len(before) != len(now) else "positions and names mean other fields"
    ctx.emit(
        "PY306",
        path,
        old=f"({', '.join(before)})",
        new=f"({', '.join(now)})",
        at=ctx.new_place(new),
        was=ctx.old_place(old),
        why=effect,
        fix="keep length and order; offer the new shape as another class",
    )


def check_plain_named_tuple(ctx: Context, path: str, old: Found, new: Found) -> bool:
    """A variable made by collections.namedtuple; True if it was one."""
    before, now = _named_fields(ctx.old, old), _named_fields(ctx.new, new)
    if before is None:
        return False
    if now is not None and before != now:
        ctx.emit(
            "PY306",
            path,
            old=f"({', '.join(before)})",
            new=f"({', '.join(now)})",
            at=ctx.new_place(new),
            was=ctx.old_place(old),
            why="unpacking raises ValueError" if len(before) != len(now) else "positions and names mean other fields",
            fix="keep length and order; offer the new shape under another name",
        )
    return True


def _named_fields(index: Index, found: Found) -> list[str] | None:
    """Fields of a named tuple, however it is made; None if it is none."""
    if isinstance(found.obj, Class):
        return [f.name for f in plain_fields(index, found)] if index.inherits(found, "typing.NamedTuple") else None
    text = getattr(found.obj, "value", None)
    node = parse(text) if isinstance(text, str) else None
    if not isinstance(node, ast.Call) or not ast.unparse(node.func).endswith(("namedtuple", "NamedTuple")):
        return None
    given = evaluate(index, found.module, ast.unparse(node.args[1])) if len(node.args) > 1 else None
    if isinstance(given, str):
        return given.replace(",", " ").split()
    if isinstance(given, (list, tuple)):
        return [str(g[0]) if isinstance(g, tuple) else str(g) for g in given]
    return None


def _key_types(ctx: Context, old: Found, new: Found, report: Callable[[str, str, str, str, str], None]) -> None:
    """Keys whose values must be of another type."""
    fresh = {f.name: f for f in plain_fields(ctx.new, new)}
    for f in plain_fields(ctx.old, old):
        g = fresh.get(f.name)
        before = alternatives(ctx.old, f.module, f.annotation)
        now = alternatives(ctx.new, g.module, g.annotation) if g is not None else None
        if before is None or now is None or covers(ctx.new, now, before) is not False:
            continue
        a, b = show(before), show(now)
        report(f.name, a, b, f"type checkers refuse {f.name!r} with {a}", f"keep accepting {a}")


def check_typed_dict(ctx: Context, path: str, old: Found, new: Found) -> None:
    """Keys, and which must be given."""
    if not ctx.new.inherits(new, "typing.TypedDict"):
        return
    before, now = required_keys(ctx.old, old), required_keys(ctx.new, new)

    def report(key: str, was: str, is_: str, why: str, fix: str) -> None:
        ctx.emit(
            "PY307", f"{path}.{key}", old=was, new=is_, at=ctx.new_place(new), was=ctx.old_place(old), why=why, fix=fix
        )

    for key, required in now.items():
        if required and not before.get(key):
            report(
                key,
                "optional" if key in before else "",
                "required",
                f"type checkers refuse dicts without {key!r}",
                f"make it NotRequired: `{key}: NotRequired[...]`",
            )
    _key_types(ctx, old, new, report)
    for key, required in before.items():
        if key not in now:
            report(key, "key", "", f"type checkers refuse {key!r}", f"keep {key!r} until its announced removal")
        elif required and not now[key]:
            report(
                key, "required", "optional", f"type checkers refuse reading {key!r} unchecked", f"keep {key!r} required"
            )
