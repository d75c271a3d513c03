"""PY118 and PY123: properties that can no longer be assigned, or give something else."""

from __future__ import annotations

from moeframe_compat.index.classes import DATACLASS, fields
from moeframe_compat.index.lookup import Found, Index
from moeframe_compat.model.objects import Attribute, Class, Function
from moeframe_compat.rules.context import Context


def check_property(ctx: Context, path: str, old: Found, new: Found) -> None:
    """A property that is one in both releases."""
    a, b = old.obj, new.obj
    assert isinstance(a, Function)
    assert isinstance(b, Function)
    for had, has, word in ((a.writable, b.writable, "setter"), (a.deletable, b.deletable, "deleter")):
        if had and not has and not a.decorated("cached_property"):
            ctx.emit(
                "PY118",
                path,
                old=f"has a {word}",
                new=f"no {word}",
                at=ctx.new_place(new),
                was=ctx.old_place(old),
                why=f"{'assigning to' if word == 'setter' else 'deleting'} it raises AttributeError",
                fix=f"keep the {word}",
            )
    _given(ctx, path, old, new)


def _given(ctx: Context, path: str, old: Found, new: Found) -> None:
    """PY123, where both attributes are what the constructor was given, in both releases: then they are two things."""
    assert isinstance(old.obj, Function)
    assert isinstance(new.obj, Function)
    was, now = old.obj.body.gives, new.obj.body.gives
    if not was or not now or was == now:
        return
    before, after = _inputs(ctx.old, old), _inputs(ctx.new, new)
    if not {was, now} <= before.keys() & after.keys() or len({before[was], before[now]}) == 1:
        return
    if (before[was], before[now]) == (after[was], after[now]):
        name = path.rpartition(".")[2]
        ctx.emit(
            "PY123",
            path,
            old=f"gives {was}",
            new=f"gives {now}",
            at=ctx.new_place(new),
            was=ctx.old_place(old),
            why=f"code that reads .{name} gets what was given as {before[now]}; it was what was given as {before[was]}",
            fix=f"keep {name} as it is, and give {now} a property of another name",
        )


def _inputs(index: Index, member: Found) -> dict[str, str]:
    """Attributes of a member's class that are, and stay, what its constructor was given: the parameter of each."""
    cls = index.find(member.path.rpartition(".")[0])
    if cls is None or not isinstance(cls.obj, Class) or "__setattr__" in cls.obj.members:
        return {}
    init = cls.obj.members.get("__init__")
    if isinstance(init, Function):
        params = {p.name for p in init.params[1:] if not p.variadic}
        attributes = [m for m in cls.obj.members.values() if isinstance(m, Attribute) and m.instance]
        return {
            a.name: a.value
            for a in attributes
            if a.setter == "__init__" and a.value in params and a.name not in cls.obj.changing and a.value is not None
        }
    plain = any(index.decorator_path(cls.module, d.path) == DATACLASS[0] for d in cls.obj.decorators)
    if not plain or index.member(cls, "__post_init__") is not None:
        return {}
    return {f.name: f.name for f in fields(index, cls) if f.init and f.name not in cls.obj.changing}
