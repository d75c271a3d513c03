"""PY110-PY112: choices, parameter types, return types. Says nothing when it cannot be sure."""

from __future__ import annotations

from moeframe_compat.index.annotations import CONCRETE, Type, alternatives, covers, show
from moeframe_compat.index.lookup import Found
from moeframe_compat.model.objects import Attribute, Function
from moeframe_compat.rules.context import Context, Place

Types = frozenset[Type]


def check_annotations(ctx: Context, path: str, old: Found, new: Found) -> None:
    """Annotations of one function in two releases."""
    a, b = old.obj, new.obj
    assert isinstance(a, Function)
    assert isinstance(b, Function)
    at, was = ctx.new_place(new), ctx.old_place(old)
    names = {p.name: p for p in b.params}
    for p in a.params:
        q = names.get(p.name)
        if q is not None and (p.annotation != q.annotation or _named_type(ctx, old, p.annotation)):
            check_accepted(
                ctx,
                f"{path}({p.name})",
                p.name,
                alternatives(ctx.old, old.module, p.annotation),
                alternatives(ctx.new, new.module, q.annotation),
                at,
                was,
            )
    if a.is_async == b.is_async and (a.returns != b.returns or _named_type(ctx, old, a.returns)):
        _returned(
            ctx,
            path,
            alternatives(ctx.old, old.module, a.returns),
            alternatives(ctx.new, new.module, b.returns),
            at,
            was,
        )


def _named_type(ctx: Context, found: Found, text: str | None) -> bool:
    """Is the annotation the package's own name for a type, which may have changed behind the name?"""
    if text is None or not text.replace(".", "").isidentifier():
        return False
    named = ctx.old.name(found.module, text)
    return named is not None and isinstance(named.obj, Attribute)


def check_accepted(
    ctx: Context, symbol: str, name: str, old: Types | None, new: Types | None, at: Place, was: Place
) -> None:
    """PY110 and PY111: values that were accepted and are not any more."""
    if old is None or new is None:
        return
    choices = {t.literal for t in old if t.literal} - {t.literal for t in new if t.literal}
    if choices and not any(t.path in ("str", "int", "bool") for t in new):
        if any(t.literal for t in new):
            lost = ", ".join(sorted(c for c in choices if c))
            ctx.emit(
                "PY110",
                symbol,
                old=show(old),
                new=show(new),
                at=at,
                was=was,
                why=f"{name}={lost} is no longer accepted",
                fix=f"keep accepting {lost} until its announced removal",
            )
        return
    if covers(ctx.new, new, old) is False:
        ctx.emit(
            "PY111",
            symbol,
            old=show(old),
            new=show(new),
            at=at,
            was=was,
            why=f"type checkers refuse values of {name} they accepted",
            fix=f"keep accepting {show(old)}",
            cause=f"type:{show(old)}->{show(new)}",
        )


def _returned(ctx: Context, path: str, old: Types | None, new: Types | None, at: Place, was: Place) -> None:
    if old is None or new is None or covers(ctx.new, old, new) is not False:
        return
    shape = _disjoint(old, new) and covers(ctx.new, new, old) is not True
    ctx.emit(
        "PY112",
        path,
        old=f"-> {show(old)}",
        new=f"-> {show(new)}",
        at=at,
        was=was,
        why="callers get a value of another type" if shape else "callers get values the old type excluded",
        fix=f"keep returning {show(old)}; offer the other under a new name",
        severity="" if shape else "warning",
        kind="" if shape else "typing",
        cause=f"type:{show(old)}->{show(new)}",
    )


def _disjoint(old: Types, new: Types) -> bool:
    """No old alternative is left, or a tuple has another length: this fails at run time, not only in type checkers."""
    if {t.path for t in old} & {t.path for t in new} - {"tuple"}:
        return False
    return all(t.path in CONCRETE or t.literal for t in old) or any(t.path not in CONCRETE for t in old)
