"""PY201, PY117-PY119, PY208, PY209 and the comparison of each method with its counterpart."""

from __future__ import annotations

from collections.abc import Iterator

from moeframe_compat.index.builtin_types import OBJECT, has_member
from moeframe_compat.index.classes import is_dataclass, is_torch_module
from moeframe_compat.index.lookup import Found
from moeframe_compat.index.public import is_private
from moeframe_compat.index.signatures import bound, effective
from moeframe_compat.interpret.forwarding import Forwarding
from moeframe_compat.interpret.shims import Shims
from moeframe_compat.model.objects import Alias, Attribute, Class, Function
from moeframe_compat.rules.annotations import check_annotations
from moeframe_compat.rules.callables import check_callable
from moeframe_compat.rules.constants import check_constant
from moeframe_compat.rules.context import Context
from moeframe_compat.rules.deprecated import check_window, removal_allowed
from moeframe_compat.rules.params import Call, ParamCheck
from moeframe_compat.rules.properties import check_property
from moeframe_compat.rules.protocols import implemented_by_others
from moeframe_compat.rules.renames import likely_member

_CONSTRUCTION = (
    "__init__",
    "__new__",
    "__post_init__",
    "__init_subclass__",
    "__class_getitem__",
    "__slots__",
    "__match_args__",
)
_SETTERS = ("__init__", "__new__", "__post_init__")


def own_members(ctx: Context, cls: Found) -> Iterator[Found]:
    """Members that this class answers for: its own, and those it got from private bases."""
    seen: set[str] = set()
    for c in ctx.old.mro(cls):
        if not isinstance(c.obj, Class) or (c.path != cls.path and c.path in ctx.old_surface):
            continue
        for name, made in c.obj.members.items():
            if name in seen or is_private(name) or isinstance(made, Alias) or name in _CONSTRUCTION:
                continue
            seen.add(name)
            meant = ctx.old.member(c, name)
            yield Found(f"{c.path}.{name}", c.module, made if meant is None else meant.obj)


def check_members(  # noqa: C901 - kinds of members
    ctx: Context, path: str, old: Found, new: Found, shims: Shims
) -> None:
    """Every public member of a class."""
    enum = ctx.old.inherits(old, "enum.Enum")
    fields = is_dataclass(ctx.old, old) or ctx.old.inherits(old, "typing.NamedTuple")
    for member in own_members(ctx, old):
        name = member.path.rpartition(".")[2]
        if member.path in ctx.scratch["hooks"]:
            continue  # pluggy calls it, by its own rules
        if isinstance(member.obj, Attribute) and (
            enum or (fields and member.obj.annotation and not member.obj.instance)
        ):
            continue
        if isinstance(member.obj, Attribute) and member.obj.instance and member.obj.setter not in _SETTERS:
            continue
        if name == "backward" and ctx.old.inherits(old, "torch.autograd.Function"):
            continue  # autograd calls it, nobody else
        found = ctx.new.member(new, name)
        if found is None:
            _removed(ctx, path, old, new, member)
        elif isinstance(member.obj, Function):
            _method(ctx, f"{path}.{name}", old, member, found, shims)
        elif isinstance(member.obj, Attribute):
            _attribute(ctx, f"{path}.{name}", new, member, found)
        elif isinstance(member.obj, Class) and isinstance(found.obj, Class):
            meant = ctx.old.member(old, name)
            if meant is not None and meant.path in ctx.old_surface:
                continue  # only a name for a class that answers for itself
            check_members(ctx, f"{path}.{name}", member, found, shims)
    _collisions(ctx, path, old, new)


def _removed(ctx: Context, path: str, old: Found, new: Found, member: Found) -> None:
    name = member.path.rpartition(".")[2]
    bases = ctx.new.mro(new)
    if any(has_member(c.path, name) for c in bases if c.external) or (name.startswith("__") and name in OBJECT):
        return
    if name.startswith("__") and (is_dataclass(ctx.new, new) and name in ("__eq__", "__hash__", "__lt__", "__repr__")):
        return
    fresh = [c for c in ctx.new.open_bases(new) if c not in {x.path for x in ctx.old.mro(old)}]
    if fresh or ctx.new.member(new, "__getattr__") is not None or removal_allowed(ctx, member):
        return
    if is_torch_module(ctx.new, new) and any(isinstance(c.obj, Class) and name in c.obj.named for c in bases):
        return  # `self.add_module("name", ...)` sets it too
    assert isinstance(old.obj, Class)
    assert isinstance(new.obj, Class)
    assert isinstance(member.obj, (Function, Attribute, Class))
    successor = likely_member(member.obj, new.obj.members, old.obj.members)
    what = "method" if isinstance(member.obj, Function) else "attribute"
    loose = isinstance(member.obj, Attribute) and member.obj.instance
    cause = f"attributes:{member.path.rpartition('.')[0]}" if loose else f"member:{member.path}"
    ctx.emit(
        "PY201",
        f"{path}.{name}",
        old=f"{what} {name}",
        new=successor,
        at=ctx.new_place(new),
        was=ctx.old_place(member),
        why=f"`.{name}` raises AttributeError" + (f"; it is now {successor}" if successor else ""),
        fix=f"keep {name} as a deprecated alias of {successor}"
        if successor
        else f"keep {name}, or announce its removal first",
        cause=cause,
    )


def _method(ctx: Context, path: str, owner: Found, old: Found, new: Found, shims: Shims) -> None:
    assert isinstance(old.obj, Function)
    if not isinstance(new.obj, Function):
        _method_to_value(ctx, path, old, new)
        return
    _final(ctx, path, old, new)
    if old.obj.role == "function" and new.obj.body.warns:
        owners = (owner.path, new.path.rpartition(".")[0])
        Forwarding(ctx, shims).check(path, old, new, owners)
    check_window(ctx, path, old, new)
    if old.obj.role != new.obj.role:
        words = {"function": "method", "property": "property"}
        effect = (
            "calling it calls the value" if new.obj.role == "property" else "code that reads it gets a bound method"
        )
        ctx.emit(
            "PY008",
            path,
            old=words[old.obj.role],
            new=words[new.obj.role],
            at=ctx.new_place(new),
            was=ctx.old_place(old),
            why=effect,
            fix=f"keep it a {words[old.obj.role]}",
        )
        return
    if old.obj.role == "property":
        check_property(ctx, path, old, new)
        check_annotations(ctx, path, old, new)
        return
    if not _binding(ctx, path, old, new):
        return
    others = implemented_by_others(ctx, owner, old)
    codes = {"PY101": "PA005", "PY102": "PA004", "PY105": "PA003", "PY114": "PA009"} if others else {}
    before, now = effective(ctx.old, old), effective(ctx.new, new)
    for choice in [now, *(bound(v) for v in new.obj.variants)]:
        call = Call(
            path,
            before,
            choice,
            ctx.new_place(new),
            ctx.old_place(old),
            old.path.rpartition(".")[0],
            new.path.rpartition(".")[0],
            target=new,
            new_body=new.obj.body,
            codes=codes,
        )
        ParamCheck(ctx, call, shims).run()
    check_callable(ctx, path, old, new, others=others)
    check_annotations(ctx, path, old, new)
    if not others:
        _grown(ctx, path, owner, old, new)


def _binding(ctx: Context, path: str, old: Found, new: Found) -> bool:
    """PY117. Returns whether the parameters are worth comparing."""
    assert isinstance(old.obj, Function)
    assert isinstance(new.obj, Function)
    a, b = old.obj.binding, new.obj.binding
    if a == b or {a, b} <= {"static", "class"}:
        return True
    if b != "method":
        ctx.emit(
            "PY117",
            path,
            old=a,
            new=b,
            at=ctx.new_place(new),
            was=ctx.old_place(old),
            severity="info",
            why=f"`Class.{old.obj.name}(instance, ...)` and overriders that use self break",
            fix=f"keep it a {a} method",
        )
        return True
    ctx.emit(
        "PY117",
        path,
        old=f"{a} method",
        new="instance method",
        at=ctx.new_place(new),
        was=ctx.old_place(old),
        why=f"`{path.rsplit('.', 2)[-2]}.{old.obj.name}(...)` without an instance raises TypeError",
        fix=f"keep it a {a} method",
    )
    return False


def _method_to_value(ctx: Context, path: str, old: Found, new: Found) -> None:
    assert isinstance(old.obj, Function)
    if old.obj.role == "property":
        return
    if isinstance(new.obj, Attribute) and new.obj.value and not new.obj.instance:
        text = new.obj.value
        if (
            text.replace(".", "").replace("_", "").isalnum()
            and not text[0].isdigit()
            and not text.startswith(("True", "False"))
        ):
            return
        if "(" in text or text.startswith("lambda"):
            return
        if text != "None":
            ctx.emit(
                "PY008",
                path,
                old="method",
                new=f"value {text[:40]}",
                at=ctx.new_place(new),
                was=ctx.old_place(old),
                why="calling it raises TypeError",
                fix="keep it a method",
            )


def _no_callable(a: Attribute) -> bool:
    """Is it surely a value that nobody calls?"""
    if a.value:
        return "(" not in a.value and not a.value.startswith("lambda")
    return (a.annotation or "").strip("'\"") in ("int", "str", "float", "bool", "bytes") or (
        a.annotation or ""
    ).startswith(("list[", "dict[", "tuple[", "set["))


def _attribute(ctx: Context, path: str, cls: Found, old: Found, new: Found) -> None:
    a = old.obj
    assert isinstance(a, Attribute)
    if isinstance(new.obj, Function):
        if new.obj.role == "property" and a.value is not None and not a.instance and not is_dataclass(ctx.old, cls):
            ctx.emit(
                "PY119",
                path,
                old="class variable",
                new="property",
                at=ctx.new_place(new),
                was=ctx.old_place(old),
                why=f"`{path.rsplit('.', 2)[-2]}.{a.name}` gives a property object",
                fix=f"keep `{a.name} = ...` in the class body",
            )
        elif new.obj.role == "property" and not new.obj.writable and (a.instance or a.annotation):
            ctx.emit(
                "PY118",
                path,
                old="attribute",
                new="read-only property",
                at=ctx.new_place(new),
                was=ctx.old_place(old),
                why="assigning to it raises AttributeError",
                fix="give the property a setter",
            )
        elif new.obj.role == "function" and not a.instance and _no_callable(a):
            ctx.emit(
                "PY008",
                path,
                old="attribute",
                new="method",
                at=ctx.new_place(new),
                was=ctx.old_place(old),
                why="code that reads it gets a bound method",
                fix="keep it an attribute, or make it a property",
            )
        return
    if not isinstance(new.obj, Attribute):
        return
    if not a.instance and a.value is not None and new.obj.instance and not is_dataclass(ctx.new, cls):
        ctx.emit(
            "PY119",
            path,
            old="class variable",
            new="set on instances only",
            at=ctx.new_place(new),
            was=ctx.old_place(old),
            why=f"`{path.rsplit('.', 2)[-2]}.{a.name}` raises AttributeError",
            fix=f"keep `{a.name} = ...` in the class body",
        )
    elif not a.instance and not new.obj.instance:
        check_constant(ctx, path, old, new)


def _grown(ctx: Context, path: str, owner: Found, old: Found, new: Found) -> None:
    """PY208: the package passes a new argument to a method that subclasses override."""
    assert isinstance(old.obj, Function)
    assert isinstance(new.obj, Function)
    if old.obj.name.startswith("__") or any(p.kind == "vk" for p in old.obj.params):
        return
    had = {p.name for p in old.obj.params}
    grown = {p.name for p in new.obj.params if p.name not in had and not p.variadic}
    if not grown:
        return
    for name, cls in _families(ctx).items():
        if name != owner.path and owner.path not in {c.path for c in ctx.new.mro(cls)}:
            continue
        assert isinstance(cls.obj, Class)
        for m in cls.obj.members.values():
            if isinstance(m, Function):
                for shape in m.body.self_calls.get(old.obj.name, ()):
                    passed = grown & set(shape.names)
                    if passed:
                        given = ", ".join(sorted(passed))
                        ctx.emit(
                            "PY208",
                            path,
                            old="",
                            new=given,
                            at=(ctx.new.modules[cls.module].file, m.line),
                            was=ctx.old_place(old),
                            why=f"{m.name}() passes {given}=: overriders with the old signature raise TypeError",
                            fix=f"pass {given} only when the method accepts it, or add a method that calls the old one",
                        )


def _families(ctx: Context) -> dict[str, Found]:
    """All classes of the new release."""
    if "classes" not in ctx.scratch:
        ctx.scratch["classes"] = {
            f"{path}.{name}": Found(f"{path}.{name}", path, m)
            for path, module in ctx.new.modules.items()
            for name, m in module.members.items()
            if isinstance(m, Class)
        }
    found: dict[str, Found] = ctx.scratch["classes"]
    return found


def _final(ctx: Context, path: str, old: Found, new: Found) -> None:
    assert isinstance(old.obj, Function)
    assert isinstance(new.obj, Function)
    if new.obj.decorated("final") and not old.obj.decorated("final"):
        ctx.emit(
            "PY205",
            path,
            old="may be overridden",
            new="@final",
            at=ctx.new_place(new),
            was=ctx.old_place(old),
            why="type checkers refuse existing overrides",
            fix="announce it one release ahead",
        )


def _collisions(ctx: Context, path: str, old: Found, new: Found) -> None:
    """PY209: methods that are new in the class and called by its older ones: a subclass may have one of that name."""
    assert isinstance(new.obj, Class)
    assert isinstance(old.obj, Class)
    if new.obj.decorated("final"):
        return
    called = {
        name
        for method, m in new.obj.members.items()
        if isinstance(m, Function) and method in old.obj.members and not method.startswith("__") and not m.body.warns
        for name in m.body.self_calls
    }
    for name, m in new.obj.members.items():
        if not isinstance(m, Function) or is_private(name) or name.startswith("__") or name not in called:
            continue
        if m.abstract or m.role != "function" or ctx.old.member(old, name) is not None:
            continue
        if any(has_member(c.path, name) for c in ctx.old.mro(old) if c.external):
            continue
        ctx.emit(
            "PY209",
            f"{path}.{name}",
            old="",
            new=f"def {name}",
            at=(ctx.new.modules[new.module].file, m.line),
            was=ctx.old_place(old),
            why=f"a subclass that already has its own {name} is now called by the base class",
            fix=f"name it _{name}, or list it in the changelog for subclassers",
            cause="new overridable methods",
        )
