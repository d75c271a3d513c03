"""The value of an expression's text, as far as it follows from constants, containers, arithmetic and factories."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from moeframe_compat.index.lookup import Index, parse
from moeframe_compat.model.objects import Attribute, Class, Function, Module

_DEPTH = 12
MAX_LENGTH = 100_000


@dataclass(frozen=True, slots=True)
class Symbol:
    """A value that is known only by how it is made: `kind` is object, call, enum or text."""

    kind: str
    path: str
    args: tuple[Any, ...] = ()

    @property
    def sentinel(self) -> bool:
        """A bare `object()`, or an instance of a class made for marking the absence of a value."""
        last = self.path.rsplit(".", 1)[-1].lower().strip("_")
        marks = ("sentinel", "unset", "missing", "notgiven", "not_given", "default", "nothing", "undefined", "empty")
        return (self.kind == "call" and self.path == "builtins.object") or (
            self.kind in ("call", "object", "enum") and any(m in last for m in marks)
        )


MISSING = Symbol("object", "MISSING")
"""OmegaConf's mandatory value."""

_FACTORIES: dict[str, Any] = {
    "builtins.list": [],
    "builtins.dict": {},
    "builtins.set": set(),
    "builtins.tuple": (),
    "builtins.str": "",
    "builtins.int": 0,
    "builtins.float": 0.0,
    "builtins.bool": False,
    "builtins.frozenset": frozenset(),
}
_BINARY: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.BitOr: operator.or_,
    ast.BitAnd: operator.and_,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
}
_UNARY: dict[type, Callable[[Any], Any]] = {
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Not: operator.not_,
    ast.Invert: operator.invert,
}


def evaluate(index: Index, scope: str, text: str) -> Any:
    """The value of a text written in a module or class; a `Symbol` of kind text if it cannot be told."""
    node = parse(text)
    if node is None:
        return Symbol("text", text)
    try:
        return _Evaluator(index, scope).value(node)
    except _UnknownError:
        return Symbol("text", ast.unparse(node))


def known(value: Any) -> bool:
    """Is nothing in the value a mere text?"""
    if isinstance(value, Symbol):
        return value.kind != "text" and all(known(a) for a in value.args)
    if isinstance(value, (list, tuple, set, frozenset)):
        return all(known(v) for v in value)
    if isinstance(value, dict):
        return all(known(k) and known(v) for k, v in value.items())
    return True


def same(a: Any, b: Any) -> bool:
    """Are two values equal, types of numbers included (1 is not True, but 1 and 1.0 are the same)?"""
    if isinstance(a, bool) or isinstance(b, bool):
        return type(a) is type(b) and a == b
    if isinstance(a, Symbol) and isinstance(b, Symbol):
        return (a.kind, a.args) == (b.kind, b.args) and a.path.rsplit(".", 1)[-1] == b.path.rsplit(".", 1)[-1]
    if isinstance(a, (list, tuple)) and type(a) is type(b):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(v, b[k]) for k, v in a.items())
    if isinstance(a, float) and isinstance(b, float) and a != a and b != b:  # noqa: PLR0124 - NaN
        return True
    return (type(a) is type(b) and bool(a == b)) or (_number(a) and _number(b) and a == b)


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


class _UnknownError(Exception):
    """The value does not follow from the text."""


class _Evaluator:
    def __init__(self, index: Index, scope: str, depth: int = 0) -> None:
        self.index, self.scope, self.depth = index, scope, depth
        if depth > _DEPTH:
            raise _UnknownError

    def value(self, node: ast.expr) -> Any:
        method = getattr(self, f"_{type(node).__name__.lower()}", None)
        if method is None:
            raise _UnknownError
        return method(node)

    def _constant(self, node: ast.Constant) -> Any:
        return MISSING if node.value == "???" else node.value

    def _list(self, node: ast.List) -> Any:
        return [self.value(e) for e in node.elts]

    def _tuple(self, node: ast.Tuple) -> Any:
        return tuple(self.value(e) for e in node.elts)

    def _set(self, node: ast.Set) -> Any:
        return self._hashable(set, [self.value(e) for e in node.elts])

    @staticmethod
    def _hashable(kind: type, values: Any) -> Any:
        try:
            return kind(values)
        except TypeError:
            raise _UnknownError from None

    def _dict(self, node: ast.Dict) -> Any:
        out: dict[Any, Any] = {}
        for key, value in zip(node.keys, node.values, strict=True):
            if key is None:
                inner = self.value(value)
                if not isinstance(inner, dict):
                    raise _UnknownError
                out |= inner
            else:
                out = self._hashable(dict, {**out, **self._hashable(dict, [(self.value(key), self.value(value))])})
        return out

    def _unaryop(self, node: ast.UnaryOp) -> Any:
        return self._apply(_UNARY[type(node.op)], self.value(node.operand))

    def _binop(self, node: ast.BinOp) -> Any:
        if type(node.op) not in _BINARY:
            raise _UnknownError
        left, right = self.value(node.left), self.value(node.right)
        huge = isinstance(right, int) and abs(right) > MAX_LENGTH
        if huge and isinstance(node.op, (ast.Pow, ast.LShift, ast.Mult)) and not _number(left):
            raise _UnknownError
        if isinstance(node.op, (ast.Pow, ast.LShift)) and isinstance(right, int) and abs(right) > 1000:
            raise _UnknownError
        return self._apply(_BINARY[type(node.op)], left, right)

    @staticmethod
    def _apply(function: Callable[..., Any], *args: Any) -> Any:
        if any(isinstance(a, Symbol) for a in args):
            raise _UnknownError
        try:
            return function(*args)
        except Exception:  # noqa: BLE001 - any failure of the operation means the value is unknown
            raise _UnknownError from None

    def _name(self, node: ast.Name) -> Any:
        return self._named(node.id)

    def _attribute(self, node: ast.Attribute) -> Any:
        parts: list[str] = [node.attr]
        inner = node.value
        while isinstance(inner, ast.Attribute):
            parts.append(inner.attr)
            inner = inner.value
        if not isinstance(inner, ast.Name):
            raise _UnknownError
        text = ".".join([inner.id, *reversed(parts)])
        if parts[0] == "value":
            owner = self._named(text.rpartition(".")[0])
            if isinstance(owner, Symbol) and owner.kind == "enum" and owner.args:
                return owner.args[0]
        return self._named(text)

    def _named(self, text: str) -> Any:
        found = self.index.name(self.scope, text)
        if found is None:
            raise _UnknownError
        if found.external:
            return MISSING if found.path in ("omegaconf.MISSING", "hydra.MISSING") else Symbol("object", found.path)
        if isinstance(found.obj, Attribute):
            owner = self.index.find(found.path.rpartition(".")[0])
            if owner is not None and isinstance(owner.obj, Class) and self.index.inherits(owner, "enum.Enum"):
                return Symbol("enum", found.path, self._enum_value(found.obj))
            if found.obj.value is None or found.obj.rebound:
                raise _UnknownError
            node = parse(found.obj.value)
            scope = found.path.rpartition(".")[0]
            inner = _Evaluator(self.index, scope, self.depth + 1)
            if node is None:
                raise _UnknownError
            value = inner.value(node)
            if isinstance(value, Symbol) and value.kind == "call" and value.path == "builtins.object":
                return Symbol("call", "builtins.object", (found.obj.name,))
            return value
        if isinstance(found.obj, (Class, Function, Module)):
            return Symbol("object", found.path)
        raise _UnknownError

    def _enum_value(self, made: Attribute) -> tuple[Any, ...]:
        try:
            return (ast.literal_eval(made.value or ""),)
        except (ValueError, SyntaxError):
            return ()

    def _call(self, node: ast.Call) -> Any:
        callee = self.value(node.func) if isinstance(node.func, (ast.Name, ast.Attribute)) else None
        if not isinstance(callee, Symbol):
            raise _UnknownError
        if callee.path in ("dataclasses.field", "attrs.field", "attr.field", "attr.ib", "pydantic.Field"):
            return self._field(node)
        args = tuple(self.value(a) for a in node.args)
        named = tuple(sorted((k.arg or "**", show(self.value(k.value))) for k in node.keywords))
        if callee.path in _FACTORIES and not named:
            return self._construct(callee.path, args)
        try:
            hash((args, named))
        except TypeError:
            return Symbol("call", callee.path, (ast.unparse(node),))
        return Symbol("call", callee.path, args + tuple(named))

    def _construct(self, path: str, args: tuple[Any, ...]) -> Any:
        if not args:
            empty = _FACTORIES[path]
            return type(empty)()
        kind = type(_FACTORIES[path])
        return self._apply(kind, *args)

    def _field(self, node: ast.Call) -> Any:
        given = {k.arg: k.value for k in node.keywords}
        if "default" in given:
            return self.value(given["default"])
        for name in ("default_factory", "factory"):
            if name in given:
                return self.produced(given[name])
        raise _UnknownError

    def produced(self, factory: ast.expr) -> Any:
        """What a default factory makes."""
        if isinstance(factory, ast.Lambda):
            return self.value(factory.body)
        made = self.value(factory)
        if isinstance(made, Symbol) and made.path in _FACTORIES:
            return self._construct(made.path, ())
        if isinstance(made, Symbol):
            found = self.index.find(made.path)
            text = found.obj.body.result if found is not None and isinstance(found.obj, Function) else ""
            node = parse(text) if text else None
            if node is None or found is None:
                return Symbol("call", made.path)
            value = _Evaluator(self.index, found.module, self.depth + 1).value(node)
            return value if known(value) else Symbol("call", made.path)
        raise _UnknownError

    def _ifexp(self, node: ast.IfExp) -> Any:
        return self.value(node.body if self._plain(node.test) else node.orelse)

    def _plain(self, node: ast.expr) -> Any:
        value = self.value(node)
        if isinstance(value, Symbol):
            raise _UnknownError
        return value

    def _joinedstr(self, node: ast.JoinedStr) -> Any:
        parts = []
        for v in node.values:
            if isinstance(v, ast.FormattedValue):
                if v.format_spec is not None or v.conversion != -1:
                    raise _UnknownError
                parts.append(str(self._plain(v.value)))
            else:
                parts.append(str(self.value(v)))
        return "".join(parts)


def show(value: Any) -> str:
    """A value as people write it."""
    if isinstance(value, Symbol):
        if value is MISSING or value == MISSING:
            return "MISSING"
        last = value.path.rsplit(".", 2 if value.kind == "enum" else 1)[-2 if value.kind == "enum" else -1 :]
        name = value.path if value.kind == "text" else ".".join(last) if isinstance(last, list) else last
        return f"{name}()" if value.kind == "call" and not value.args else name
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
