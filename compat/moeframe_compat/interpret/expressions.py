"""Evaluates expressions on trial values."""

from __future__ import annotations

import ast
import functools
import operator
from collections.abc import Callable
from typing import Any

from moeframe_compat.interpret.calls import Calls
from moeframe_compat.interpret.values import FunctionValue, Instance, Opaque, Scope, UndecidedError, key

MAX_STEPS = 4000
_COMPARE: dict[type, Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_BINARY: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.BitOr: operator.or_,
    ast.BitAnd: operator.and_,
}
_UNARY: dict[type, Callable[[Any], Any]] = {ast.USub: operator.neg, ast.UAdd: operator.pos, ast.Invert: operator.invert}


class Expressions(Calls):
    """Expressions; `Calls` holds what a call does, `Machine` adds statements."""

    def value(self, node: ast.expr, scope: Scope) -> Any:
        """The value of an expression."""
        self.trace.steps += 1
        if self.trace.steps > MAX_STEPS:
            raise UndecidedError
        method = getattr(self, f"_see_{type(node).__name__.lower()}", None)
        return method(node, scope) if method is not None else Opaque(ast.unparse(node))

    def _see_constant(self, node: ast.Constant, _scope: Scope) -> Any:
        return node.value

    def _see_name(self, node: ast.Name, scope: Scope) -> Any:
        return self.lookup(node.id, scope)

    def _see_attribute(self, node: ast.Attribute, scope: Scope) -> Any:
        return self.attribute(self.value(node.value, scope), node.attr)

    def _see_list(self, node: ast.List, scope: Scope) -> Any:
        return self._elements(node.elts, scope)

    def _see_tuple(self, node: ast.Tuple, scope: Scope) -> Any:
        return tuple(self._elements(node.elts, scope))

    def _see_set(self, node: ast.Set, scope: Scope) -> Any:
        return self.native(lambda: set(self._elements(node.elts, scope)))

    def _elements(self, nodes: list[ast.expr], scope: Scope) -> list[Any]:
        out: list[Any] = []
        for n in nodes:
            if isinstance(n, ast.Starred):
                out += self.iterate(self.value(n.value, scope))
            else:
                out.append(self.value(n, scope))
        return out

    def _see_dict(self, node: ast.Dict, scope: Scope) -> Any:
        out: dict[Any, Any] = {}
        for k, v in zip(node.keys, node.values, strict=True):
            if k is None:
                inner = self.value(v, scope)
                if not isinstance(inner, dict):
                    raise UndecidedError
                out |= inner
            else:
                name = self.value(k, scope)
                item = self.value(v, scope)
                self.native(functools.partial(out.__setitem__, name, item))
        return out

    def _see_joinedstr(self, node: ast.JoinedStr, scope: Scope) -> Any:
        parts = []
        for v in node.values:
            inner = self.value(v.value, scope) if isinstance(v, ast.FormattedValue) else self.value(v, scope)
            parts.append(inner if isinstance(inner, str) else key(inner))
        return "".join(parts)

    def _see_ifexp(self, node: ast.IfExp, scope: Scope) -> Any:
        return self.value(node.body if self.truth(self.value(node.test, scope)) else node.orelse, scope)

    def _see_boolop(self, node: ast.BoolOp, scope: Scope) -> Any:
        stop = isinstance(node.op, ast.Or)
        value: Any = None
        for n in node.values:
            value = self.value(n, scope)
            if self.truth(value) is stop:
                return value
        return value

    def _see_unaryop(self, node: ast.UnaryOp, scope: Scope) -> Any:
        value = self.value(node.operand, scope)
        if isinstance(node.op, ast.Not):
            return not self.truth(value)
        if isinstance(value, Opaque):
            return Opaque(f"{type(node.op).__name__} {value.text}")
        return self.native(lambda: _UNARY[type(node.op)](value))

    def _see_binop(self, node: ast.BinOp, scope: Scope) -> Any:
        return self._binary(node.op, self.value(node.left, scope), self.value(node.right, scope))

    def _binary(self, op: ast.operator, left: Any, right: Any) -> Any:
        plain = (bool, int, float, str, list, tuple, dict, set, type(None))
        if isinstance(left, plain) and isinstance(right, plain) and type(op) in _BINARY:
            if (
                isinstance(op, ast.Mult)
                and isinstance(right, int)
                and isinstance(left, (str, list, tuple))
                and right > 1000
            ):
                raise UndecidedError
            return self.native(lambda: _BINARY[type(op)](left, right))
        return Opaque(f"{key(left)} {type(op).__name__} {key(right)}")

    def _see_compare(self, node: ast.Compare, scope: Scope) -> Any:
        left = self.value(node.left, scope)
        for op, n in zip(node.ops, node.comparators, strict=True):
            right = self.value(n, scope)
            if not self._holds(op, left, right):
                return False
            left = right
        return True

    def _holds(self, op: ast.cmpop, left: Any, right: Any) -> bool:
        if isinstance(op, (ast.Is, ast.IsNot)):
            if isinstance(left, Opaque) or isinstance(right, Opaque):
                raise UndecidedError
            both = isinstance(left, (int, str, float)) and type(left) is type(right) and left == right
            return (left is right or both) is isinstance(op, ast.Is)
        if isinstance(op, (ast.In, ast.NotIn)):
            if (
                isinstance(right, Opaque)
                or isinstance(left, Opaque)
                or not isinstance(right, (dict, list, tuple, set, frozenset, str))
            ):
                raise UndecidedError
            return bool(self.native(lambda: left in right)) is isinstance(op, ast.In)
        if isinstance(left, Opaque) or isinstance(right, Opaque):
            raise UndecidedError
        return bool(self.native(lambda: _COMPARE[type(op)](left, right)))

    def _see_subscript(self, node: ast.Subscript, scope: Scope) -> Any:
        owner = self.value(node.value, scope)
        if isinstance(node.slice, ast.Slice):
            raise UndecidedError
        index = self.value(node.slice, scope)
        if isinstance(owner, (dict, list, tuple, str)) and not isinstance(index, Opaque):
            return self.native(lambda: owner[index])
        return Opaque(f"{key(owner)}[{key(index)}]")

    def _see_lambda(self, node: ast.Lambda, scope: Scope) -> Any:
        return FunctionValue(node, scope, scope.owner)

    def _see_namedexpr(self, node: ast.NamedExpr, scope: Scope) -> Any:
        value = self.value(node.value, scope)
        self._bind(node.target, value, scope)
        return value

    def _see_call(self, node: ast.Call, scope: Scope) -> Any:
        if isinstance(node.func, ast.Name) and node.func.id == "super" and not node.args:
            return self.super_value(scope)
        if isinstance(node.func, ast.Name) and node.func.id == "locals":
            return dict(scope.names)
        function = self.value(node.func, scope)
        args = self._elements(node.args, scope)
        named: dict[str, Any] = {}
        for k in node.keywords:
            value = self.value(k.value, scope)
            if k.arg is not None:
                named[k.arg] = value
            elif isinstance(value, dict):
                named |= value
            else:
                raise UndecidedError
        return self.call(function, args, named)

    def _see_listcomp(self, node: ast.ListComp, scope: Scope) -> Any:
        out: list[Any] = []
        self._comprehend(node.generators, scope, lambda s: out.append(self.value(node.elt, s)))
        return out

    def _see_setcomp(self, node: ast.SetComp, scope: Scope) -> Any:
        out: list[Any] = []
        self._comprehend(node.generators, scope, lambda s: out.append(self.value(node.elt, s)))
        return self.native(lambda: set(out))

    def _see_generatorexp(self, node: ast.GeneratorExp, scope: Scope) -> Any:
        out: list[Any] = []
        self._comprehend(node.generators, scope, lambda s: out.append(self.value(node.elt, s)))
        return out

    def _see_dictcomp(self, node: ast.DictComp, scope: Scope) -> Any:
        out: dict[Any, Any] = {}
        self._comprehend(
            node.generators, scope, lambda s: out.__setitem__(self.value(node.key, s), self.value(node.value, s))
        )
        return out

    def _comprehend(self, generators: list[ast.comprehension], scope: Scope, add: Callable[[Scope], None]) -> None:
        if not generators:
            add(scope)
            return
        first = generators[0]
        for item in self.iterate(self.value(first.iter, scope)):
            inner = Scope(dict(scope.names), scope.outer, scope.module, scope.owner)
            self._bind(first.target, item, inner)
            if all(self.truth(self.value(test, inner)) for test in first.ifs):
                self._comprehend(generators[1:], inner, add)

    def _bind(self, target: ast.expr, value: Any, scope: Scope) -> None:
        if isinstance(target, ast.Name):
            scope.names[target.id] = value
        elif isinstance(target, (ast.Tuple, ast.List)):
            items = self.iterate(value)
            if len(items) != len(target.elts) or any(isinstance(t, ast.Starred) for t in target.elts):
                raise UndecidedError
            for t, v in zip(target.elts, items, strict=True):
                self._bind(t, v, scope)
        elif isinstance(target, ast.Attribute):
            owner = self.value(target.value, scope)
            if isinstance(owner, Instance):
                owner.attributes[target.attr] = value
            else:
                self.trace.effects.append(f"{key(owner)}.{target.attr} = {key(value)}")
        elif isinstance(target, ast.Subscript):
            owner, index = self.value(target.value, scope), self.value(target.slice, scope)
            if isinstance(owner, (dict, list)) and not isinstance(index, Opaque):
                self.native(lambda: owner.__setitem__(index, value))
            else:
                self.trace.effects.append(f"{key(owner)}[{key(index)}] = {key(value)}")
        else:
            raise UndecidedError
