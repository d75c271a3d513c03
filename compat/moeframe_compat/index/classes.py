"""What kind of class a class is, its fields, and how it is constructed."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from moeframe_compat.index.lookup import Found, Index, parse
from moeframe_compat.model.objects import Attribute, Class, Function, Param

DATACLASS = ("dataclasses.dataclass", "pydantic.dataclasses.dataclass")
_ATTRS = ("attrs.define", "attrs.mutable", "attrs.frozen", "attr.define", "attr.frozen", "attr.mutable")
_FIELDS = ("dataclasses.field", "attrs.field", "attr.field", "attr.ib", "pydantic.Field")
_PYDANTIC = ("pydantic.BaseModel", "pydantic.main.BaseModel", "pydantic_settings.BaseSettings")
_DATACLASS_DEFAULTS = {
    "init": True,
    "eq": True,
    "order": False,
    "unsafe_hash": False,
    "frozen": False,
    "kw_only": False,
    "slots": False,
    "match_args": True,
}


@dataclass(slots=True)
class Field:
    """A field of a dataclass, NamedTuple or TypedDict; `default` is a text, such as a whole `field(...)` call."""

    name: str
    annotation: str
    default: str | None
    owner: str
    module: str
    line: int
    init: bool = True
    kw_only: bool = False

    @property
    def required(self) -> bool:
        """Must it be given?"""
        return self.default is None


@dataclass(slots=True)
class Constructor:
    """How a class is called; `known` is False when something outside the package decides."""

    params: list[Param] = field(default_factory=list)
    owner: str = ""
    known: bool = True
    line: int = 0
    how: str = "object"


def is_torch_module(index: Index, cls: Found) -> bool:
    """Is the class a `torch.nn.Module`?"""
    return any(
        c.path.startswith("torch.nn") or c.path.rpartition(".")[2] in ("Module", "?Module") for c in index.mro(cls)
    )


def is_dataclass(index: Index, cls: Found) -> bool:
    """Is the class itself decorated as a dataclass?"""
    return dataclass_flags(index, cls) is not None


def dataclass_flags(index: Index, cls: Found) -> dict[str, bool] | None:
    """The flags of a dataclass decorator, None if there is none."""
    question = ("dataclass flags", cls.path)
    if question not in index.memo:
        index.memo[question] = _read_flags(index, cls)
    return index.memo[question]  # type: ignore[no-any-return]


def _read_flags(index: Index, cls: Found) -> dict[str, bool] | None:
    assert isinstance(cls.obj, Class)
    for d in cls.obj.decorators:
        path = index.decorator_path(cls.module, d.path)
        if path in DATACLASS or d.path.endswith("dataclasses.dataclass") or path in _ATTRS:
            flags = dict(_DATACLASS_DEFAULTS)
            flags["frozen"] = path == "attrs.frozen"
            node = parse(d.text)
            for k in node.keywords if isinstance(node, ast.Call) else ():
                if k.arg in flags and isinstance(k.value, ast.Constant):
                    flags[k.arg] = bool(k.value.value)
            return flags
    pydantic = any(c.path in _PYDANTIC for c in index.mro(cls))
    return _DATACLASS_DEFAULTS | {"kw_only": True} if pydantic else None


def dataclass_ancestors(index: Index, cls: Found) -> list[Found]:
    """The class and its ancestors that are dataclasses, nearest first."""
    return [c for c in index.mro(cls) if isinstance(c.obj, Class) and is_dataclass(index, c)]


def fields(index: Index, cls: Found) -> list[Field]:
    """Fields of a dataclass, inherited ones first, in the order of the constructor."""
    question = ("fields", cls.path)
    if question not in index.memo:
        index.memo[question] = _read_fields(index, cls)
    return list(index.memo[question])


def _read_fields(index: Index, cls: Found) -> list[Field]:
    out: dict[str, Field] = {}
    for owner in reversed(index.mro(cls)):
        if isinstance(owner.obj, Class):
            flags = dataclass_flags(index, owner)
            if flags is not None:
                for f in _own_fields(index, owner, kw_only=flags["kw_only"]):
                    out[f.name] = f
    return [f for f in out.values() if not f.kw_only] + [f for f in out.values() if f.kw_only]


def _own_fields(index: Index, owner: Found, *, kw_only: bool) -> list[Field]:
    assert isinstance(owner.obj, Class)
    out = []
    for m in owner.obj.members.values():
        if not isinstance(m, Attribute) or m.annotation is None or m.instance or "ClassVar" in m.annotation:
            continue
        if m.annotation.rsplit(".", 1)[-1] == "KW_ONLY":
            kw_only = True
            continue
        made = Field(m.name, m.annotation, m.value, owner.path, owner.module, m.line, kw_only=kw_only)
        node = parse(m.value) if m.value and "(" in m.value else None
        if isinstance(node, ast.Call) and isinstance(node.func, (ast.Name, ast.Attribute)):
            called = index.name(owner.module, ast.unparse(node.func))
            if called is not None and called.path in _FIELDS:
                given = {k.arg: k.value for k in node.keywords}
                made.init = not _is_false(given.get("init"))
                made.kw_only = made.kw_only if "kw_only" not in given else not _is_false(given["kw_only"])
                first = node.args[0] if node.args and called.path == "pydantic.Field" else None
                if first is not None and not (isinstance(first, ast.Constant) and first.value is ...):
                    made.default = ast.unparse(first)
                elif not {"default", "default_factory", "factory"} & given.keys():
                    made.default = None
        out.append(made)
    return out


def _is_false(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is False


def plain_fields(index: Index, cls: Found) -> list[Field]:
    """Fields of a NamedTuple or TypedDict, inherited ones first."""
    out: dict[str, Field] = {}
    for owner in reversed(index.mro(cls)):
        if isinstance(owner.obj, Class):
            for m in owner.obj.members.values():
                if isinstance(m, Attribute) and m.annotation is not None and not m.instance:
                    out[m.name] = Field(m.name, m.annotation, m.value, owner.path, owner.module, m.line)
    return list(out.values())


def required_keys(index: Index, cls: Found) -> dict[str, bool]:
    """Keys of a TypedDict: must each be given?"""
    out = {}
    for f in plain_fields(index, cls):
        owner = index.find(f.owner)
        total = not (owner is not None and isinstance(owner.obj, Class) and owner.obj.keywords.get("total") == "False")
        head = f.annotation.split("[", 1)[0].rsplit(".", 1)[-1]
        out[f.name] = total if head not in ("Required", "NotRequired") else head == "Required"
    return out


def constructor(index: Index, cls: Found) -> Constructor:
    """How the class is called: its metaclass, `__new__`, `__init__`, fields, or object's own."""
    meta = metaclass(index, cls)
    if meta is not None and isinstance(meta.obj, Class):
        call = index.member(meta, "__call__")
        if call is not None and isinstance(call.obj, Function):
            explicit = [p for p in call.obj.params[1:] if not p.variadic]
            if explicit or not any(p.variadic for p in call.obj.params):
                inner = _from_mro(index, cls)
                rest = inner.params if any(p.variadic for p in call.obj.params) else []
                have = {p.name for p in explicit}
                params = [*explicit, *(p for p in rest if p.name not in have)]
                return Constructor(params, meta.path, known=True, line=call.obj.line, how="metaclass")
    return _from_mro(index, cls)


def metaclass(index: Index, cls: Found) -> Found | None:
    """The metaclass that a class or an ancestor in the package names."""
    for c in index.mro(cls):
        if isinstance(c.obj, Class) and "metaclass" in c.obj.keywords:
            return index.base(c.module, c.obj.keywords["metaclass"])
    return None


def _from_mro(index: Index, cls: Found) -> Constructor:
    if index.inherits(cls, "typing.NamedTuple", "NamedTuple"):
        made = [Param(f.name, "pk", f.default, f.annotation) for f in plain_fields(index, cls)]
        return Constructor(made, cls.path, how="fields")
    if index.inherits(cls, "enum.Enum", "typing.TypedDict", "TypedDict"):
        return Constructor(known=False)
    for c in index.mro(cls):
        if isinstance(c.obj, Class):
            flags = dataclass_flags(index, c)
            own = c.obj.members.get("__new__") or c.obj.members.get("__init__")
            if flags is not None and flags["init"] and not isinstance(c.obj.members.get("__init__"), Function):
                made = [
                    Param(f.name, "ko" if f.kw_only else "pk", f.default, f.annotation)
                    for f in fields(index, c)
                    if f.init
                ]
                return Constructor(made, c.path, line=c.obj.line, how="fields")
            init = c.obj.members.get("__init__")
            made_by = init if isinstance(init, Function) else own
            if isinstance(made_by, Function):
                return Constructor(made_by.params[1:], c.path, line=made_by.line, how=made_by.name)
        elif c.path not in ("builtins.object", "typing.Generic", "typing.Protocol", "abc.ABC"):
            return Constructor(known=False, owner=c.path)
    return Constructor(owner="builtins.object", line=cls.obj.line if isinstance(cls.obj, Class) else 0)


def enum_values(index: Index, cls: Found) -> dict[str, str]:
    """Members of an Enum and the texts of their values, with `auto()` counted out."""
    assert isinstance(cls.obj, Class)
    out: dict[str, str] = {}
    last = 0
    flag = index.inherits(cls, "enum.Flag")
    strings = index.inherits(cls, "enum.StrEnum")
    for m in cls.obj.members.values():
        if not isinstance(m, Attribute) or m.value is None or m.instance or m.name.startswith("_"):
            continue
        text = m.value
        if text.rstrip("()").rsplit(".", 1)[-1] == "auto" and text.endswith("()"):
            last = (1 if not last else last * 2) if flag else last + 1
            text = repr(m.name.lower()) if strings else str(last)
        elif text.lstrip("-").isdigit():
            last = int(text)
        out[m.name] = text
    return out
