"""Annotations as sets of alternatives, so that Optional, Union, |, quotes and typing's old names compare equal."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from moeframe_compat.index.builtin_types import is_subtype
from moeframe_compat.index.lookup import Index, parse
from moeframe_compat.index.values import evaluate, known
from moeframe_compat.model.objects import Attribute, Class

_OLD_NAMES = {
    "List": "list",
    "Dict": "dict",
    "Set": "set",
    "FrozenSet": "frozenset",
    "Tuple": "tuple",
    "Type": "type",
    "Text": "str",
    "Deque": "deque",
    "DefaultDict": "defaultdict",
}
_WRAPPERS = ("Annotated", "Final", "ClassVar", "Required", "NotRequired", "ReadOnly")


@dataclass(frozen=True, slots=True)
class Type:
    """One alternative of an annotation: full path (or builtin name), arguments, and the value of a Literal."""

    path: str
    args: tuple[frozenset[Type], ...] = ()
    literal: str | None = None

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rsplit(".", 1)[-1]


def alternatives(index: Index, scope: str, text: str | None) -> frozenset[Type] | None:
    """The alternatives of an annotation; None if there is none, it is Any, or it cannot be understood."""
    if not text:
        return None
    question = ("alternatives", scope, text)
    if question not in index.memo:
        index.memo[question] = _read(index, scope, text)
    return index.memo[question]  # type: ignore[no-any-return]


def _read(index: Index, scope: str, text: str) -> frozenset[Type] | None:
    node = parse(text)
    if node is None:
        return None
    try:
        return _Reader(index, scope).read(node)
    except _OpaqueError:
        return None


class _OpaqueError(Exception):
    """Not an annotation that can be understood."""


class _Reader:
    def __init__(self, index: Index, scope: str, depth: int = 0) -> None:
        self.index, self.scope, self.depth = index, scope, depth
        if depth > 8:
            raise _OpaqueError

    def read(self, node: ast.expr) -> frozenset[Type]:
        if isinstance(node, ast.Constant):
            if node.value is None:
                return frozenset({Type("None")})
            inner = parse(node.value) if isinstance(node.value, str) else None
            if inner is None:
                raise _OpaqueError
            return _Reader(self.index, self.scope, self.depth + 1).read(inner)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
            return self.read(node.left) | self.read(node.right)
        if isinstance(node, ast.Subscript):
            return self._subscript(node)
        if isinstance(node, (ast.Name, ast.Attribute)):
            return self._named(ast.unparse(node))
        raise _OpaqueError

    def _subscript(self, node: ast.Subscript) -> frozenset[Type]:
        head = ast.unparse(node.value).rsplit(".", 1)[-1]
        parts = list(node.slice.elts) if isinstance(node.slice, ast.Tuple) else [node.slice]
        if head == "Optional":
            return self.read(parts[0]) | {Type("None")}
        if head == "Union":
            return frozenset(t for p in parts for t in self.read(p))
        if head == "Literal":
            return frozenset(self._literal(p) for p in parts)
        if head in _WRAPPERS:
            return self.read(parts[0])
        if head == "Callable":
            return frozenset({Type("Callable", ())})
        named = self._named(ast.unparse(node.value))
        if len(named) != 1:
            raise _OpaqueError  # an alias of a union that takes types
        (base,) = named
        args = []
        for p in parts:
            if isinstance(p, ast.Constant) and p.value is ...:
                args.append(frozenset({Type("...")}))
            else:
                try:
                    args.append(self.read(p))
                except _OpaqueError:
                    args.append(frozenset({Type("Any")}))
        return frozenset({Type(base.path, tuple(args))})

    def _literal(self, node: ast.expr) -> Type:
        value = evaluate(self.index, self.scope, ast.unparse(node))
        if not known(value):
            raise _OpaqueError
        return Type("Literal", (), repr(value))

    def _named(self, text: str) -> frozenset[Type]:
        last = text.rsplit(".", 1)[-1]
        if last == "Any" or text == "object":
            raise _OpaqueError
        if last in _OLD_NAMES and ("." in text or self._from_typing(text)):
            return frozenset({Type(_OLD_NAMES[last])})
        found = self.index.name(self.scope, text)
        if found is None:
            return frozenset({Type(f"?{text}")})
        if isinstance(found.obj, Attribute) and found.obj.value:
            made = parse(found.obj.value)
            is_alias = isinstance(made, (ast.Subscript, ast.BinOp, ast.Name, ast.Attribute))
            if made is not None and is_alias:
                return _Reader(self.index, found.path.rpartition(".")[0], self.depth + 1).read(made)
            return frozenset({Type(f"?{last}")})
        if isinstance(found.obj, Class) or found.external:
            return frozenset({Type(found.path.removeprefix("builtins."))})
        return frozenset({Type(f"?{last}")})

    def _from_typing(self, text: str) -> bool:
        found = self.index.name(self.scope, text)
        return found is not None and found.path.startswith("typing")


_ABSTRACT = {
    "Iterable": {
        "list",
        "tuple",
        "set",
        "frozenset",
        "dict",
        "str",
        "Sequence",
        "Iterator",
        "Generator",
        "Collection",
        "Mapping",
        "MutableSequence",
        "range",
        "deque",
        "Set",
        "KeysView",
        "ValuesView",
    },
    "Iterator": {"Generator"},
    "Collection": {"list", "tuple", "set", "frozenset", "dict", "str", "Sequence", "Mapping"},
    "Sequence": {"list", "tuple", "str", "MutableSequence", "range", "deque", "bytes"},
    "MutableSequence": {"list", "deque"},
    "Mapping": {"dict", "MutableMapping", "OrderedDict", "defaultdict", "Counter"},
    "MutableMapping": {"dict", "OrderedDict", "defaultdict", "Counter"},
    "Container": {"list", "tuple", "set", "frozenset", "dict", "str"},
    "Sized": {"list", "tuple", "set", "frozenset", "dict", "str"},
    "Callable": {"type"},
    "Awaitable": {"Coroutine", "Future", "Task"},
    "Set": {"set", "frozenset"},
    "AbstractSet": {"set", "frozenset"},
    "float": {"int", "bool"},
    "complex": {"int", "float", "bool"},
    "int": {"bool"},
    "Hashable": {"str", "int", "float", "bool", "tuple", "frozenset", "bytes"},
}
_USED_UP = ("Iterator", "Generator", "AsyncIterator", "AsyncGenerator")
_LASTING = ("Collection", "Sequence", "MutableSequence", "Mapping", "MutableMapping", "Container", "Sized", "Set")
CONCRETE = frozenset({"int", "float", "str", "bool", "bytes", "list", "tuple", "dict", "set", "frozenset", "None"})


def accepts(index: Index, wide: Type, narrow: Type) -> bool | None:  # noqa: C901, PLR0911 - one way of knowing a line
    """Is every `narrow` a `wide`? None if nobody can tell."""
    if wide.literal is not None or narrow.literal is not None:
        if wide.literal is not None:
            return wide.literal == narrow.literal if narrow.literal is not None else False
        assert narrow.literal is not None
        kind = type(ast.literal_eval(narrow.literal)).__name__ if _plain(narrow.literal) else None
        return None if kind is None else wide.path == kind
    if wide.path == narrow.path or wide.name == narrow.name:
        return _arguments(index, wide, narrow)
    if wide.path.startswith("?") or narrow.path.startswith("?"):
        return None
    if narrow.name in _ABSTRACT.get(wide.name, ()):
        return True
    if narrow.name in _ABSTRACT and wide.path in CONCRETE:
        return False
    if narrow.name in _USED_UP and (wide.path in CONCRETE or wide.name in _LASTING):
        return False
    if wide.path in CONCRETE and narrow.path in CONCRETE:
        return False
    if narrow.path in CONCRETE and _nominal(index, wide.path):
        return False
    inside = index.find(narrow.path)
    if inside is not None and isinstance(inside.obj, Class):
        if wide.path in [c.path.removeprefix("builtins.") for c in index.mro(inside)]:
            return True
        return None if index.open_bases(inside) or wide.path not in CONCRETE else False
    known_type = is_subtype(
        f"builtins.{narrow.path}" if "." not in narrow.path else narrow.path,
        f"builtins.{wide.path}" if "." not in wide.path else wide.path,
    )
    return True if known_type else None


def _nominal(index: Index, path: str) -> bool:
    """Is it a class of the package whose instances its constructor makes, and nothing else is one?"""
    found = index.find(path)
    if found is None or not isinstance(found.obj, Class) or index.open_bases(found):
        return False
    return not index.inherits(found, "typing.Protocol", "typing.TypedDict", "abc.ABC", "ABCMeta")


def _plain(text: str) -> bool:
    try:
        ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return False
    return True


def _arguments(index: Index, wide: Type, narrow: Type) -> bool | None:
    if not wide.args or not narrow.args:
        return True
    if wide.name == "tuple":
        open_ended = any(t.path == "..." for a in (*wide.args, *narrow.args) for t in a)
        if not open_ended and len(wide.args) != len(narrow.args):
            return False
    if len(wide.args) != len(narrow.args):
        return None
    answers = [covers(index, w, n) for w, n in zip(wide.args, narrow.args, strict=True)]
    return False if False in answers else None if None in answers else True


def covers(index: Index, wide: frozenset[Type] | None, narrow: frozenset[Type] | None) -> bool | None:
    """Does every alternative of `narrow` fit one of `wide`? None if nobody can tell."""
    if wide is None or narrow is None:
        return None
    worst: bool | None = True
    for n in narrow:
        answers = [accepts(index, w, n) for w in wide]
        if True in answers:
            continue
        if None not in answers:
            return False
        worst = None
    return worst


def show(types: frozenset[Type]) -> str:
    """Alternatives as people write them."""
    return " | ".join(sorted(_show_one(t) for t in types))


def _show_one(t: Type) -> str:
    if t.literal:
        return t.literal
    inner = f"[{', '.join(show(a) for a in t.args)}]" if t.args else ""
    return f"{t.name.removeprefix('?')}{inner}"
