"""PY202-PY211: what a class is: its ancestors, metaclass, slots, constructor."""

from __future__ import annotations

import re

from moeframe_compat.index.builtin_types import is_exception
from moeframe_compat.index.classes import constructor, dataclass_flags, is_dataclass, metaclass
from moeframe_compat.index.lookup import Found, Index, parse
from moeframe_compat.index.public import is_private
from moeframe_compat.interpret.shims import Shims
from moeframe_compat.model.objects import Class, Function
from moeframe_compat.rules.context import Context
from moeframe_compat.rules.contracts import check_ordering
from moeframe_compat.rules.dataclasses import check_dataclass
from moeframe_compat.rules.enums import check_enum, check_named_tuple, check_typed_dict
from moeframe_compat.rules.members import check_members
from moeframe_compat.rules.params import Call, ParamCheck
from moeframe_compat.rules.protocols import check_implementers, is_protocol

_NO_CONTRACT = ("builtins.object", "typing.Generic", "typing.Protocol", "abc.ABC", "enum.ReprEnum")


def check_class(ctx: Context, path: str, old: Found, new: Found, shims: Shims) -> None:
    """Everything about one class."""
    if ctx.old.inherits(old, "typing.TypedDict"):
        check_typed_dict(ctx, path, old, new)
        return
    _bases(ctx, path, old, new)
    _metaclass(ctx, path, old, new)
    _instances(ctx, path, old, new)
    _final(ctx, path, old, new)
    check_ordering(ctx, path, old, new)
    _slots(ctx, path, old, new)
    _subclassing(ctx, path, old, new)
    if ctx.old.inherits(old, "enum.Enum"):
        check_enum(ctx, path, old, new)
    elif ctx.old.inherits(old, "typing.NamedTuple", "collections.namedtuple"):
        check_named_tuple(ctx, path, old, new)
    elif is_dataclass(ctx.old, old) and is_dataclass(ctx.new, new):
        check_dataclass(ctx, path, old, new, shims)
    elif not is_protocol(ctx.old, old) and not _constructor(ctx, path, old, new, shims):
        return
    check_members(ctx, path, old, new, shims)
    check_implementers(ctx, path, old, new)


def _bases(ctx: Context, path: str, old: Found, new: Found) -> None:  # noqa: C901 - reasons for saying nothing
    before, now = _arity(ctx.old, old), _arity(ctx.new, new)
    at, was = ctx.new_place(new), ctx.old_place(old)
    if before and before != now and not (now is None or ctx.new.member(new, "__class_getitem__")):
        ctx.emit(
            "PY210",
            path,
            old=f"{before} type parameters",
            new=f"{now} type parameters",
            at=at,
            was=was,
            why=f"`{path.rpartition('.')[2]}[...]` raises TypeError"
            if not now
            else "subscripts with the old number raise TypeError",
            fix="keep the number of type parameters (new ones need defaults, PEP 696)",
        )
    if ctx.old.member(old, "__class_getitem__") and not ctx.new.member(new, "__class_getitem__") and now == 0:
        ctx.emit(
            "PY210",
            path,
            old="can be subscripted",
            new="",
            at=at,
            was=was,
            why=f"`{path.rpartition('.')[2]}[...]` raises TypeError",
            fix="keep __class_getitem__",
        )
    if is_protocol(ctx.old, old) and not is_protocol(ctx.new, new):
        return  # PA008
    now_paths = {c.path for c in ctx.new.mro(new)}
    now_names = {p.rpartition(".")[2] for p in now_paths}
    unknown = [c for c in ctx.new.open_bases(new) if c not in {x.path for x in ctx.old.mro(old)}]
    for c in ctx.old.mro(old)[1:]:
        name = c.path.rpartition(".")[2]
        if c.path in _NO_CONTRACT or c.path.startswith("?") or is_private(name) or c.path in now_paths or unknown:
            continue
        if not c.external:
            same = ctx.new.find(c.path)
            if same is not None and same.path in now_paths:
                continue
            if same is None and name in now_names:
                continue  # the base itself moved
        elif name in now_names and not c.path.startswith("builtins."):
            continue
        if any(
            c.path in {m.path for m in ctx.old.mro(b)[1:]} and b.path not in now_paths and b is not c
            for b in ctx.old.mro(old)[1:]
            if not is_private(b.path.rpartition(".")[2])
        ):
            continue  # a nearer base that got lost says it
        if any(
            b.path in now_paths and c.path in {m.path for m in ctx.old.mro(b)[1:]} and b.path in ctx.old_surface
            for b in ctx.old.mro(old)[1:]
            if b is not c
        ):
            continue  # the base that lost it says it
        caught = is_exception(c.path) or (not c.external and any(is_exception(m.path) for m in ctx.old.mro(c)))
        effect = (
            f"`except {name}` no longer catches it"
            if caught
            else f"isinstance(x, {name}) is false now; what it gave is gone"
        )
        ctx.emit(
            "PY203" if caught else "PY202",
            path,
            old=f"is a {name}",
            new=f"bases {', '.join(new.obj.bases) or 'none'}",  # type: ignore[union-attr]
            at=at,
            was=was,
            why=effect,
            fix=f"keep {name} among its bases",
            cause=f"base:{path}",
        )


def _instances(ctx: Context, path: str, old: Found, new: Found) -> None:
    """Classes that can no longer be instantiated, hashed, or compared by value."""
    assert isinstance(old.obj, Class)
    assert isinstance(new.obj, Class)
    at, was = ctx.new_place(new), ctx.old_place(old)
    if not is_protocol(ctx.old, old) and is_protocol(ctx.new, new):
        ctx.emit(
            "PY008",
            path,
            old="class",
            new="Protocol",
            at=at,
            was=was,
            why="instantiating it raises TypeError",
            fix="keep the class, and put the Protocol beside it",
        )
    own = new.obj.members
    if "__eq__" in own and "__hash__" not in own and not (ctx.old.member(old, "__eq__") or is_dataclass(ctx.old, old)):
        ctx.emit(
            "PY201",
            f"{path}.__hash__",
            old="hashable",
            new="",
            at=at,
            was=was,
            why="a class with its own __eq__ and no __hash__ cannot be a dict key or set element",
            fix="define __hash__ too",
        )
    flags = dataclass_flags(ctx.old, old)
    lost = flags is not None and flags["eq"] and not is_dataclass(ctx.new, new) and not ctx.new.open_bases(new)
    if lost and ctx.new.member(new, "__eq__") is None and not ctx.new.inherits(new, "builtins.tuple", "enum.Enum"):
        ctx.emit(
            "PY303",
            path,
            old="dataclass",
            new="ordinary class",
            at=at,
            was=was,
            severity="warning",
            kind="silent",
            why="`==` now compares identity; fields(), asdict() and replace() raise TypeError",
            fix="keep it a dataclass",
        )


def _arity(index: Index, cls: Found) -> int | None:
    """Number of type parameters of a generic class; None if a base makes it unknown; 0 if it is not generic."""
    assert isinstance(cls.obj, Class)
    if cls.obj.type_params:
        return len(cls.obj.type_params)
    loose: set[str] = set()
    for text in cls.obj.bases:
        head, bracket, rest = text.partition("[")
        if not bracket:
            continue
        if head.rpartition(".")[2] in ("Generic", "Protocol"):
            return rest.rstrip("]").count(",") + 1
        loose |= {n for n in rest.rstrip("]").replace("[", ",").split(",") if _is_typevar(index, cls, n.strip())}
    return len(loose)


def _is_typevar(index: Index, cls: Found, name: str) -> bool:
    found = index.name(cls.module, name) if name.isidentifier() else None
    value = getattr(found.obj, "value", None) if found is not None else None
    return isinstance(value, str) and "TypeVar(" in value


def _metaclass(ctx: Context, path: str, old: Found, new: Found) -> None:
    before, now = metaclass(ctx.old, old), metaclass(ctx.new, new)
    if now is None or (before is not None and before.path.rpartition(".")[2] == now.path.rpartition(".")[2]):
        return
    if before is not None and before.path in {c.path for c in ctx.new.mro(now)}:
        return
    changed = before is not None
    ctx.emit(
        "PY204",
        path,
        old=before.path if before else "type",
        new=now.path,
        at=ctx.new_place(new),
        was=ctx.old_place(old),
        why="classes that also inherit from a class with another metaclass can no longer be defined",
        fix="use __init_subclass__ or a class decorator instead of a metaclass",
        severity="" if changed else "info",
    )


def _final(ctx: Context, path: str, old: Found, new: Found) -> None:
    assert isinstance(old.obj, Class)
    assert isinstance(new.obj, Class)
    if new.obj.decorated("final") and not old.obj.decorated("final"):
        ctx.emit(
            "PY205",
            path,
            old="may be subclassed",
            new="@final",
            at=ctx.new_place(new),
            was=ctx.old_place(old),
            why="type checkers refuse existing subclasses",
            fix="announce it one release ahead",
        )


def _slotted(index: Index, cls: Found) -> list[str] | None:
    """All slots, None if instances take any attribute."""
    out: list[str] = []
    for c in index.mro(cls):
        if isinstance(c.obj, Class):
            generated = "slots=True" in (d.text if (d := c.obj.decorated("dataclass")) else "")
            if c.obj.slots is None and not generated:
                return None
            out += c.obj.slots or []
        elif c.path not in _NO_CONTRACT:
            return None
    return None if "__dict__" in out else out


def _slots(ctx: Context, path: str, old: Found, new: Found) -> None:
    if _slotted(ctx.old, old) is None and _slotted(ctx.new, new) is not None:
        ctx.emit(
            "PY206",
            path,
            old="takes any attribute",
            new="slots",
            at=ctx.new_place(new),
            was=ctx.old_place(old),
            why="setting an attribute of one's own, weak references and multiple inheritance raise",
            fix="add '__dict__' and '__weakref__' to its slots",
        )


def _subclassing(ctx: Context, path: str, old: Found, new: Found) -> None:
    hook = ctx.new.member(new, "__init_subclass__")
    if hook is None or not isinstance(hook.obj, Function):
        return
    before = ctx.old.member(old, "__init_subclass__")
    had = (
        {p.name for p in before.obj.params if p.required}
        if before is not None and isinstance(before.obj, Function)
        else set()
    )
    _refusals(ctx, path, old, hook, before)
    for p in hook.obj.params[1:]:
        if p.required and p.name not in had:
            ctx.emit(
                "PY207",
                f"{path}.__init_subclass__({p.name})",
                old="",
                new=p.name,
                at=ctx.new_place(hook),
                was=ctx.old_place(old),
                why=f"`class X({path.rpartition('.')[2]})` without {p.name}= raises TypeError",
                fix=f"give {p.name} a default",
            )


def _refusals(ctx: Context, path: str, old: Found, hook: Found, before: Found | None) -> None:
    """Conditions on the subclass itself under which `__init_subclass__` raises now."""
    assert isinstance(hook.obj, Function)
    known = before.obj.body.raises if before is not None and isinstance(before.obj, Function) else []
    cls = hook.obj.params[0].name if hook.obj.params else "cls"
    for r in hook.obj.body.raises:
        if r not in known and re.search(rf"\b{re.escape(cls)}\b", r.guard):
            ctx.emit(
                "PY207",
                path,
                old="",
                new=f"refused if {r.guard}",
                at=ctx.new_place(hook),
                was=ctx.old_place(old),
                why=f"subclasses for which `{r.guard}` raise {r.error} where they are defined",
                fix="warn for one release before refusing",
            )


def _constructor(ctx: Context, path: str, old: Found, new: Found, shims: Shims) -> bool:
    """Compare how the class is called. Returns False if it can no longer be constructed at all."""
    before, now = constructor(ctx.old, old), constructor(ctx.new, new)
    if not before.known or not now.known:
        return True
    owner = ctx.old.find(before.owner) if before.owner != old.path else None
    if owner is not None and owner.path in ctx.old_surface:
        heir = ctx.new.find(owner.path)
        if heir is not None and now.owner == heir.path:
            return True  # the base says it
    inherited = before.owner != old.path or now.owner != new.path
    made = ctx.new.find(now.owner)
    init = made.obj.members.get("__init__") if made is not None and isinstance(made.obj, Class) else None
    body = init.body if isinstance(init, Function) else None
    if body is not None and body.stub and isinstance(init, Function):
        old_init = ctx.old.member(old, "__init__")
        abstract = old_init is not None and isinstance(old_init.obj, Function) and old_init.obj.body.stub
        if not abstract and now.owner == new.path and before.how != "stub":
            ctx.emit(
                "PY009",
                path,
                old="works",
                new="raises",
                at=ctx.new_place(new),
                was=ctx.old_place(old),
                why="every construction raises",
                fix="keep it working until its announced removal",
            )
            return False
    place = (ctx.new_place(made)[0], now.line) if made is not None and now.line else ctx.new_place(new)
    code = "PY211" if inherited and before.how != now.how else ""
    call = Call(
        f"{path}.__init__",
        before.params,
        now.params,
        place,
        ctx.old_place(old),
        _scope(before.owner, old),
        _scope(now.owner, new),
        target=new,
        new_body=body,
        audience=_audience(ctx, old),
        codes={"PY105": code} if code else {"PY105": "PY204"} if now.how == "metaclass" else {},
        keyword_only=ctx.is_config(old.path),
    )
    ParamCheck(ctx, call, shims).run()
    return True


def _audience(ctx: Context, cls: Found) -> tuple[str, ...]:
    """Recipes build registered classes by keyword."""
    name = cls.path.rpartition(".")[2]
    registered = any(r.target.rpartition(":")[2] == name for r in ctx.old.snapshot.surfaces.registrations)
    return ("caller", "subclasser", *(["recipe"] if registered else []))


def _scope(owner: str, cls: Found) -> str:
    return owner if owner.startswith(cls.module.partition(".")[0]) else cls.path


def class_text(index: Index, cls: Found, name: str) -> str:
    """The text a member of a class is bound to, "" if none."""
    found = index.member(cls, name)
    value = getattr(found.obj, "value", None) if found is not None else None
    return value if isinstance(value, str) and parse(value) is not None else ""
