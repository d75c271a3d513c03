"""Runs statements on trial values. Nothing of the package is imported; what is unknown stays opaque."""

from __future__ import annotations

import ast
import functools
from typing import Any

from moeframe_compat.interpret.expressions import MAX_STEPS, Expressions
from moeframe_compat.interpret.patterns import matches
from moeframe_compat.interpret.values import (
    BreakError,
    ContinueError,
    FunctionValue,
    Opaque,
    RaisedError,
    ReturnedError,
    Scope,
    UndecidedError,
    key,
)


class Machine(Expressions):
    """The whole interpreter."""

    def run(self, body: list[ast.stmt], scope: Scope) -> None:
        """Run statements in a scope."""
        for node in body:
            self.trace.steps += 1
            if self.trace.steps > MAX_STEPS:
                raise UndecidedError
            method = getattr(self, f"_do_{type(node).__name__.lower()}", None)
            if method is None:
                raise UndecidedError
            method(node, scope)

    def _do_pass(self, _node: ast.Pass, _scope: Scope) -> None: ...

    def _do_global(self, _node: ast.Global, _scope: Scope) -> None: ...

    def _do_nonlocal(self, _node: ast.Nonlocal, _scope: Scope) -> None: ...

    def _do_expr(self, node: ast.Expr, scope: Scope) -> None:
        self.value(node.value, scope)

    def _do_assign(self, node: ast.Assign, scope: Scope) -> None:
        value = self.value(node.value, scope)
        for target in node.targets:
            self._bind(target, value, scope)

    def _do_annassign(self, node: ast.AnnAssign, scope: Scope) -> None:
        if node.value is not None:
            self._bind(node.target, self.value(node.value, scope), scope)

    def _do_augassign(self, node: ast.AugAssign, scope: Scope) -> None:
        old = self.value(_loaded(node.target), scope)
        self._bind(node.target, self._binary(node.op, old, self.value(node.value, scope)), scope)

    def _do_delete(self, node: ast.Delete, scope: Scope) -> None:
        for target in node.targets:
            if isinstance(target, ast.Subscript):
                owner, index = self.value(target.value, scope), self.value(target.slice, scope)
                if isinstance(owner, (dict, list)) and not isinstance(index, Opaque):
                    self.native(functools.partial(owner.__delitem__, index))
                else:
                    self.trace.effects.append(f"del {key(owner)}[{key(index)}]")
            elif isinstance(target, ast.Name):
                scope.names.pop(target.id, None)

    def _do_if(self, node: ast.If, scope: Scope) -> None:
        self.run(node.body if self.truth(self.value(node.test, scope)) else node.orelse, scope)

    def _do_match(self, node: ast.Match, scope: Scope) -> None:
        subject = self.value(node.subject, scope)
        for case in node.cases:
            found: dict[str, Any] = {}
            if not matches(case.pattern, subject, functools.partial(self.value, scope=scope), found):
                continue
            scope.names.update(found)
            if case.guard is None or self.truth(self.value(case.guard, scope)):
                self.run(case.body, scope)
                return

    def _do_for(self, node: ast.For, scope: Scope) -> None:
        for item in self.iterate(self.value(node.iter, scope)):
            self._bind(node.target, item, scope)
            try:
                self.run(node.body, scope)
            except ContinueError:
                continue
            except BreakError:
                return
        self.run(node.orelse, scope)

    def _do_while(self, node: ast.While, scope: Scope) -> None:
        while self.truth(self.value(node.test, scope)):
            try:
                self.run(node.body, scope)
            except ContinueError:
                continue
            except BreakError:
                return

    def _do_break(self, _node: ast.Break, _scope: Scope) -> None:
        raise BreakError

    def _do_continue(self, _node: ast.Continue, _scope: Scope) -> None:
        raise ContinueError

    def _do_return(self, node: ast.Return, scope: Scope) -> None:
        raise ReturnedError(None if node.value is None else self.value(node.value, scope))

    def _do_raise(self, node: ast.Raise, _scope: Scope) -> None:
        if node.exc is None:
            raise RaisedError("Exception")
        made = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
        raise RaisedError(ast.unparse(made).rpartition(".")[2])

    def _do_assert(self, node: ast.Assert, scope: Scope) -> None:
        if not self.truth(self.value(node.test, scope)):
            raise RaisedError("AssertionError")

    def _do_try(self, node: ast.Try, scope: Scope) -> None:
        try:
            self.run(node.body, scope)
        except RaisedError as e:
            handler = next((h for h in node.handlers if _catches(h, e.name)), None)
            if handler is None:
                raise
            if handler.name:
                scope.names[handler.name] = Opaque(f"exception {e.name}")
            self.run(handler.body, scope)
        else:
            self.run(node.orelse, scope)
        finally:
            self.run(node.finalbody, scope)

    def _do_with(self, node: ast.With, scope: Scope) -> None:
        for item in node.items:
            made = self.value(item.context_expr, scope)
            if item.optional_vars is not None:
                self._bind(item.optional_vars, Opaque(f"enter {key(made)}"), scope)
        self.run(node.body, scope)

    def _do_functiondef(self, node: ast.FunctionDef, scope: Scope) -> None:
        value: Any = FunctionValue(node, scope, scope.owner)
        for d in reversed(node.decorator_list):
            value = self.call(self.value(d, scope), [value], {})
        scope.names[node.name] = value

    def _do_asyncfunctiondef(self, node: ast.AsyncFunctionDef, scope: Scope) -> None:
        scope.names[node.name] = FunctionValue(node, scope, scope.owner)

    def _do_import(self, node: ast.Import, scope: Scope) -> None:
        for n in node.names:
            scope.names[n.asname or n.name.partition(".")[0]] = self.module_value(
                n.name if n.asname else n.name.partition(".")[0]
            )

    def _do_importfrom(self, node: ast.ImportFrom, scope: Scope) -> None:
        base = node.module or ""
        if node.level:
            home = self.index.modules.get(scope.module)
            up = node.level - (1 if home is not None and home.is_package else 0)
            parts = scope.module.split(".")
            base = ".".join([*(parts[: len(parts) - up] if up else parts), *([node.module] if node.module else [])])
        for n in node.names:
            scope.names[n.asname or n.name] = self.path_value(f"{base}.{n.name}")


def _loaded(target: ast.expr) -> ast.expr:
    return ast.parse(ast.unparse(target), mode="eval").body


def _catches(handler: ast.ExceptHandler, name: str) -> bool:
    if handler.type is None:
        return True
    names = [
        ast.unparse(e).rpartition(".")[2]
        for e in (handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type])
    ]
    return name in names or bool({"Exception", "BaseException"} & set(names))
