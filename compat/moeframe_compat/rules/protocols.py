"""PA001-PA011: what others implement. Here an addition breaks, because implementers do not have it."""

from __future__ import annotations

from moeframe_compat.index.annotations import Type, accepts, alternatives, covers, show
from moeframe_compat.index.lookup import Found, Index
from moeframe_compat.index.public import below, is_private
from moeframe_compat.index.signatures import bound
from moeframe_compat.model.objects import Attribute, CallShape, Class, Function
from moeframe_compat.rules.context import Context, Place

_PROTOCOL = ("typing.Protocol", "typing_extensions.Protocol")


def is_protocol(index: Index, cls: Found) -> bool:
    """Is the class itself a Protocol (and not merely an implementation of one)?"""
    if not isinstance(cls.obj, Class):
        return False
    for text in cls.obj.bases:
        base = index.base(cls.module, text)
        if base is not None and base.path in _PROTOCOL:
            return True
    return False


def is_abstract(index: Index, cls: Found) -> bool:
    """Does Python refuse instances while abstract methods are missing?"""
    for c in index.mro(cls):
        if c.path in ("abc.ABC", *_PROTOCOL):
            return True
        if isinstance(c.obj, Class) and c.obj.keywords.get("metaclass", "").rpartition(".")[2] == "ABCMeta":
            return True
    return False


def implemented_by_others(ctx: Context, owner: Found, method: Found) -> bool:
    """Is this old method one that users of the package write themselves?"""
    assert isinstance(method.obj, Function)
    return is_protocol(ctx.old, owner) or (method.obj.abstract and is_abstract(ctx.old, owner))


def check_implementers(ctx: Context, path: str, old: Found, new: Found) -> None:
    """Rules for a class that users implement or subclass."""
    if is_protocol(ctx.old, old):
        _protocol(ctx, path, old, new)
    if is_abstract(ctx.new, new) and not is_protocol(ctx.new, new):
        _abstract(ctx, path, old, new)
    if is_protocol(ctx.old, old):
        _attributes(ctx, path, old, new)
    for name, m in _methods(old).items():
        found = ctx.new.member(new, name)
        member = Found(f"{old.path}.{name}", old.module, m)
        if found is not None and isinstance(found.obj, Function) and implemented_by_others(ctx, old, member):
            _implemented_method(ctx, f"{path}.{name}", member, found)


def _attributes(ctx: Context, path: str, old: Found, new: Found) -> None:
    """PA006 for attributes: implementations hold what the old annotation allowed."""
    assert isinstance(old.obj, Class)
    for name, m in old.obj.members.items():
        found = ctx.new.member(new, name)
        if isinstance(m, Function) and found is not None and isinstance(found.obj, Attribute):
            _settable(ctx, f"{path}.{name}", Found(f"{old.path}.{name}", old.module, m), found)
        if not isinstance(m, Attribute) or m.instance or found is None or not isinstance(found.obj, Attribute):
            continue
        before = alternatives(ctx.old, old.module, m.annotation)
        now = alternatives(ctx.new, found.module, found.obj.annotation)
        if before is None or now is None:
            continue
        if covers(ctx.new, now, before) and _asks_more(ctx, before, now) and not _read_only(found.obj):
            ctx.emit(
                "PA011",
                f"{path}.{name}",
                old=show(before),
                new=show(now),
                at=ctx.new_place(found),
                was=ctx.old_place(old),
                why=f"implementations whose {name} is {show(before)} only are refused: it may be assigned {show(now)}",
                fix=f"keep {show(before)}, or declare {name} as a read-only property",
            )
        if covers(ctx.new, now, before) is False:
            ctx.emit(
                "PA006",
                f"{path}.{name}",
                old=show(before),
                new=show(now),
                at=ctx.new_place(found),
                was=ctx.old_place(old),
                why=f"implementations whose {name} is {show(before)} are refused by type checkers",
                fix=f"keep {show(before)}",
            )


def _settable(ctx: Context, path: str, old: Found, new: Found) -> None:
    """PA011: implementations of a read-only property are asked for an attribute that can be assigned."""
    assert isinstance(old.obj, Function)
    assert isinstance(new.obj, Attribute)
    if old.obj.role == "property" and not old.obj.writable and not new.obj.instance and not _read_only(new.obj):
        ctx.emit(
            "PA011",
            path,
            old="read-only property",
            new="attribute",
            at=ctx.new_place(new),
            was=ctx.old_place(old),
            why="implementations with a read-only property are refused by type checkers: it may be assigned",
            fix="keep it a property",
        )


def _read_only(attribute: Attribute) -> bool:
    return any(word in (attribute.annotation or "") for word in ("Final", "ReadOnly"))


def _methods(cls: Found) -> dict[str, Function]:
    assert isinstance(cls.obj, Class)
    return {n: m for n, m in cls.obj.members.items() if isinstance(m, Function) and not is_private(n)}


def _protocol(ctx: Context, path: str, old: Found, new: Found) -> None:
    assert isinstance(old.obj, Class)
    assert isinstance(new.obj, Class)
    at, was = ctx.new_place(new), ctx.old_place(old)
    if not is_protocol(ctx.new, new):
        ctx.emit(
            "PA008",
            path,
            old="Protocol",
            new="class",
            at=at,
            was=was,
            why="classes that have the methods but do not inherit are no longer accepted",
            fix="keep it a Protocol; put shared code into a class beside it",
        )
        return
    if old.obj.decorated("runtime_checkable") and not new.obj.decorated("runtime_checkable"):
        ctx.emit(
            "PA007",
            path,
            old="@runtime_checkable",
            new="",
            at=at,
            was=was,
            why="isinstance() with it raises TypeError",
            fix="keep @runtime_checkable",
        )
    had = _protocol_members(ctx.old, old)
    for name, place in _protocol_members(ctx.new, new).items():
        if name not in had:
            _added(ctx, path, name, new, place, was)


def _added(ctx: Context, path: str, name: str, new: Found, place: Place, was: Place) -> None:
    """PA001: a body helps those who inherit; whether all do is for the old release to say."""
    assert isinstance(new.obj, Class)
    owner = path.rpartition(".")[2]
    effects = f"isinstance(x, {owner}) is false, " if new.obj.decorated("runtime_checkable") else ""
    why = (
        f"{owner} did not ask for {name}, now it does. Classes written for the old {owner} have none: {effects}"
        f"type checkers refuse them, and reading .{name} raises AttributeError"
    )
    fix = f"leave {owner} as it was, and ask for {name} in a second Protocol: class X({owner}, Protocol)"
    severity, kind, policy = "", "", ""
    if has_body(ctx.new.member(new, name)):
        why = (
            f"{owner} had no {name}, now it has one with a body. Classes that inherit from {owner} get it; those that "
            f"merely have its members do not: {effects}type checkers refuse them"
        )
        fix += f"; or have implementers inherit from {owner}, and say so in the setting `nominal`"
        severity, kind = ("", "") if effects else ("warning", "typing")
        if below(path, ctx.options.nominal):
            severity, policy = "info", "the old release says that implementations inherit from it: they get the body"
    ctx.emit(
        "PA001",
        f"{path}.{name}",
        old="",
        new=name,
        at=place,
        was=was,
        why=why,
        fix=fix,
        severity=severity,
        kind=kind,
        policy=policy,
    )


def has_body(member: Found | None) -> bool:
    """Does a member work, or refuse in its own words, for those who inherit it?"""
    obj = member.obj if member is not None else None
    if isinstance(obj, Attribute):
        return obj.value is not None
    return isinstance(obj, Function) and not (obj.abstract or obj.body.trivial or _unimplemented(obj))


def _unimplemented(function: Function) -> bool:
    return function.body.stub and any(r.error.endswith("NotImplementedError") for r in function.body.raises)


def _protocol_members(index: Index, cls: Found) -> dict[str, tuple[str, int]]:
    out: dict[str, tuple[str, int]] = {}
    for c in index.mro(cls):
        if isinstance(c.obj, Class) and is_protocol(index, c):
            for name, m in c.obj.members.items():
                if name in ("__init__", "__slots__", "__init_subclass__", "__class_getitem__"):
                    continue
                if isinstance(m, Function) or (isinstance(m, Attribute) and not m.instance):
                    out.setdefault(name, (index.modules[c.module].file, m.line))
    return out


def _abstract(ctx: Context, path: str, old: Found, new: Found) -> None:
    had = _abstract_names(ctx.old, old) if is_abstract(ctx.old, old) else {}
    for name, owner in _abstract_names(ctx.new, new).items():
        if name in had or (
            owner.path != new.path
            and ctx.old.find(owner.path) is not None
            and owner.path in ctx.old_surface
            and owner.path in {c.path for c in ctx.old.mro(old)}
        ):
            continue
        existed = ctx.old.member(old, name) is not None
        assert isinstance(owner.obj, Class)
        place = (ctx.new.modules[owner.module].file, owner.obj.members[name].line)
        ctx.emit(
            "PA002",
            f"{path}.{name}",
            old="concrete" if existed else "",
            new="abstract",
            at=place,
            was=ctx.old_place(old),
            why=f"{name} {'had a body' if existed else 'was not there'}, and is abstract now: "
            f"subclasses that do not define it raise TypeError when they are made",
            fix=f"give {name} a body that keeps old subclasses working, or add it in a new base class",
        )


def _abstract_names(index: Index, cls: Found) -> dict[str, Found]:
    """Names still abstract in a class, and the class that makes each so."""
    out: dict[str, Found] = {}
    seen: set[str] = set()
    for c in index.mro(cls):
        if isinstance(c.obj, Class):
            for name, m in c.obj.members.items():
                if name not in seen:
                    seen.add(name)
                    if isinstance(m, Function) and m.abstract:
                        out[name] = c
    return out


def _implemented_method(ctx: Context, path: str, old: Found, new: Found) -> None:
    a, b = old.obj, new.obj
    assert isinstance(a, Function)
    assert isinstance(b, Function)
    at, was = ctx.new_place(new), ctx.old_place(old)
    passed = _passed(ctx, b.name)
    names = {p.name for p in bound(a)}
    open_ended = any(p.kind == "vk" for p in a.params)
    renamed = len(names - {p.name for p in bound(b)})
    for p in bound(b):
        if p.name in names or p.variadic or open_ended or p.required or renamed:
            continue
        used = p.name in passed
        ctx.emit(
            "PA003",
            f"{path}({p.name})",
            old="",
            new=f"{p.name}={p.default}",
            at=at,
            was=was,
            why=f"implementations do not take {p.name}"
            + (": the package passes it, they raise TypeError" if used else ""),
            fix=f"pass {p.name} only to implementations that accept it, or add a second Protocol",
            severity="error" if used else "",
            kind="hard" if used else "",
        )
    _asked(ctx, path, old, new)
    before = alternatives(ctx.old, old.module, a.returns)
    now = alternatives(ctx.new, new.module, b.returns)
    if (
        before is not None
        and now is not None
        and covers(ctx.new, now, before) is False
        and covers(ctx.new, before, now)
    ):
        ctx.emit(
            "PA006",
            path,
            old=f"-> {show(before)}",
            new=f"-> {show(now)}",
            at=at,
            was=was,
            why="implementations that return what was allowed are refused by type checkers",
            fix=f"keep -> {show(before)}",
        )


def _asked(ctx: Context, path: str, old: Found, new: Found) -> None:
    """PA011: implementations take what the old annotation allowed, and are asked to take more."""
    assert isinstance(old.obj, Function)
    assert isinstance(new.obj, Function)
    before = {p.name: p.annotation for p in bound(old.obj)}
    for p in bound(new.obj):
        wanted = _OBJECT if p.annotation == "object" else alternatives(ctx.new, new.module, p.annotation)
        had = alternatives(ctx.old, old.module, before.get(p.name))
        if wanted is None or had is None or (wanted is not _OBJECT and not covers(ctx.new, wanted, had)):
            continue
        if not _asks_more(ctx, had, wanted):
            continue
        ctx.emit(
            "PA011",
            f"{path}({p.name})",
            old=show(had),
            new=show(wanted),
            at=ctx.new_place(new),
            was=ctx.old_place(old),
            why=f"implementations whose {p.name} takes {show(had)} only are refused by type checkers",
            fix=f"keep {show(had)}, and ask for more in a second Protocol",
            cause=f"type:{show(had)}->{show(wanted)}",
        )


_OBJECT = frozenset({Type("object")})


def _asks_more(ctx: Context, had: frozenset[Type], wanted: frozenset[Type]) -> bool:
    """Is some wanted type surely none of those that were asked for? Classes of the package only fit their bases."""
    return any(all(_unlike(ctx.new, old, new) for old in had) for new in wanted)


def _unlike(index: Index, old: Type, new: Type) -> bool:
    fits = False if new.path == "object" else accepts(index, old, new)
    if fits is not None:
        return not fits
    a, b = index.find(old.path), index.find(new.path)
    if a is None or b is None or not isinstance(a.obj, Class) or index.open_bases(b):
        return False
    return not is_protocol(index, a) and b.obj is not None and a.path not in {c.path for c in index.mro(b)}


def _passed(ctx: Context, method: str) -> set[str]:
    """Keywords that the new release passes to methods of this name."""
    if "passed" not in ctx.scratch:
        table: dict[str, set[str]] = {}
        for module in ctx.new.modules.values():
            for f in functions_of(list(module.members.values())):
                for name, keywords in f.body.keyword_calls.items():
                    table.setdefault(name, set()).update(keywords)
        ctx.scratch["passed"] = table
    found: dict[str, set[str]] = ctx.scratch["passed"]
    return found.get(method, set())


def functions_of(members: list[object]) -> list[Function]:
    """All functions among members, those of classes included."""
    out: list[Function] = []
    for m in members:
        if isinstance(m, Function):
            out.append(m)
        elif isinstance(m, Class):
            out += functions_of(list(m.members.values()))
    return out


def check_callbacks(ctx: Context, path: str, old: Found, new: Found) -> None:
    """PA010: a function calls a callable it was given in another way."""
    assert isinstance(old.obj, Function)
    assert isinstance(new.obj, Function)
    for name, shapes in old.obj.body.param_calls.items():
        now = new.obj.body.param_calls.get(name)
        if now is None or any(s.open for s in (*shapes, *now)):
            continue
        fresh = [s for s in now if not any(_fits(s, t) for t in shapes)]
        if not fresh or any(_fits(s, t) for s in now for t in shapes):
            continue
        ctx.emit(
            "PA010",
            f"{path}({name})",
            old=_spell(name, shapes[0]),
            new=_spell(name, fresh[0]),
            at=ctx.new_place(new),
            was=ctx.old_place(old),
            why=f"callables passed as {name} get other arguments and raise TypeError",
            fix=f"call {name} as before when it does not take the new arguments (inspect.signature)",
        )


def _fits(new: CallShape, old: CallShape) -> bool:
    """Would a callable made for the old call take the new one?"""
    return new.npos == old.npos and set(new.names) == set(old.names)


def _spell(name: str, shape: CallShape) -> str:
    return f"{name}({', '.join(['…'] * shape.npos + [f'{n}=…' for n in shape.names])})"
