"""Facts about the body of one function, read from its syntax tree without running it."""

from __future__ import annotations

import ast
import zlib
from collections.abc import Iterable

from moeframe_compat.extract.names import dotted, inner, walk
from moeframe_compat.extract.outputs import Outputs
from moeframe_compat.model.objects import NOT_SAVED, Body, CallShape, Raise

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
_DEPRECATION = ("DeprecationWarning", "FutureWarning", "PendingDeprecationWarning")
_STATE_CALLS = ("register_buffer", "register_parameter", "add_module", "register_module")
_LONGEST = 200
_TELLING = frozenset(
    {
        *(ast.If, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda, ast.Raise, ast.Assert, ast.Call),
        *(ast.Yield, ast.YieldFrom, ast.Return, ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Subscript, ast.Compare),
        ast.Name,
    }
)
"""Nodes that say something by themselves."""


class BodyReader:
    """Walks one function body. `attributes` collects `self.x = ...` as name to (line, text of the value).

    `state` collects what may be saved, and `named` what calls such as `self.add_module("x", ...)` give a name to.
    `changing` collects attributes that are assigned twice, or from a parameter that is assigned itself.
    """

    def __init__(self, node: FunctionNode, *, method: bool) -> None:
        self.body = Body()
        self.attributes: dict[str, tuple[int, str]] = {}
        self.state: dict[str, str] = {}
        self.named: list[str] = []
        self.changing: set[str] = set()
        self._stored: set[str] = set()
        args = node.args
        named = [a.arg for a in (*args.posonlyargs, *args.args, *args.kwonlyargs)]
        self._self = named[0] if method and named else None
        self._params = set(named) - {self._self}
        self._varkw = args.kwarg.arg if args.kwarg else None
        self._calls: set[str] = set()
        self._guards: list[str] = []
        self._texts = method and node.name in ("__init__", "__new__", "__post_init__", "setup", "build")
        statements = _without_docstring(node.body)
        self.body.trivial = all(isinstance(s, ast.Pass) or _is_ellipsis(s) for s in statements)
        self._outputs = Outputs(self.body)
        for s in statements:
            self._visit(s)
        only = statements[0] if len(statements) == 1 else None
        if isinstance(only, ast.Return) and only.value is not None and not (named or args.vararg or args.kwarg):
            self.body.result = ast.unparse(only.value)[:_LONGEST]
        if isinstance(only, ast.Return) and isinstance(only.value, ast.Attribute) and self._is_self(only.value.value):
            self.body.gives = only.value.attr
        self.changing |= {name for name, (_, text) in self.attributes.items() if text in self._stored}
        self.body.stub = _only_raises(statements)
        self.body.calls = f"{zlib.crc32(' '.join(sorted(self._calls)).encode()):08x}" if self._calls else ""
        self.body.reads = sorted(set(self.body.reads))

    def _visit(self, node: ast.AST) -> None:
        if type(node) not in _TELLING or not self._told(node):
            self._visit_all(node)

    def _told(self, node: ast.AST) -> bool:  # noqa: C901, PLR0911, PLR0912 - one dispatch over node types
        """Note what a node says; returns whether what is inside it is dealt with."""
        kind = type(node)
        if kind is ast.If:
            self._visit_if(node)  # type: ignore[arg-type]
            return True
        if kind in (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda):
            self._visit_nested(node)
            return True
        if kind is ast.Raise:
            self._raise(node)  # type: ignore[arg-type]
        elif kind is ast.Assert:
            test = ast.unparse(node.test)  # type: ignore[attr-defined]
            self.body.raises.append(Raise("AssertionError", test, " and ".join([*self._guards, f"not ({test})"])))
        elif kind is ast.Call:
            self._call(node)  # type: ignore[arg-type]
            return True
        elif kind in (ast.Yield, ast.YieldFrom):
            self.body.yields = True
        elif kind is ast.Return:
            shape = _return_shape(node.value)  # type: ignore[attr-defined]
            if shape not in self.body.returns and len(self.body.returns) < 4:
                self.body.returns.append(shape)
        elif kind is ast.Assign:
            for target in node.targets:  # type: ignore[attr-defined]
                self._assign(target, node.value)  # type: ignore[attr-defined]
                self._outputs.assigned(target, node.value)  # type: ignore[attr-defined]
        elif kind is ast.AnnAssign:
            self._assign(node.target, node.value)  # type: ignore[attr-defined]
        elif kind is ast.AugAssign:
            if isinstance(node.target, ast.Attribute) and self._is_self(node.target.value):  # type: ignore[attr-defined]
                self.changing.add(node.target.attr)  # type: ignore[attr-defined]
        elif kind is ast.Subscript and isinstance(node.value, ast.Name) and node.value.id in self._params:  # type: ignore[attr-defined]
            self._key(node.value.id, node.slice)  # type: ignore[attr-defined]
            self._visit(node.slice)  # type: ignore[attr-defined]
            return True
        elif kind is ast.Subscript and self._is_varkw(node.value):  # type: ignore[attr-defined]
            self._read(node.slice)  # type: ignore[attr-defined]
            self._visit(node.slice)  # type: ignore[attr-defined]
            return True
        elif kind is ast.Compare:
            if self._membership(node):  # type: ignore[arg-type]
                return True
        elif kind is ast.Name:
            if node.id == self._varkw:  # type: ignore[attr-defined]
                self.body.forwards = True
                return True
            if type(node.ctx) is ast.Store:  # type: ignore[attr-defined]
                self._stored.add(node.id)  # type: ignore[attr-defined]
        return False

    def _visit_all(self, node: ast.AST) -> None:
        for below in inner(node):
            if type(below) not in _TELLING or not self._told(below):
                self._visit_all(below)

    def _visit_if(self, node: ast.If) -> None:
        self._visit(node.test)
        if self._varkw and isinstance(node.test, ast.Name) and node.test.id == self._varkw and _only_raises(node.body):
            self.body.forwards = False
        self._guards.append(_guard(node.test))
        for s in node.body:
            self._visit(s)
        self._guards[-1] = f"not ({self._guards[-1]})"
        for s in node.orelse:
            self._visit(s)
        self._guards.pop()

    def _visit_nested(self, node: ast.AST) -> None:
        """Inside nested functions only calls and attributes count; their raises and yields are their own."""
        kept = self.body.raises, self.body.yields, self.body.returns
        self.body.raises, self.body.returns = [], []
        self._visit_all(node)
        self.body.raises, self.body.yields, self.body.returns = kept

    def _raise(self, node: ast.Raise) -> None:
        if node.exc is None:
            return
        self._outputs.raised(node.exc)
        call = node.exc if isinstance(node.exc, ast.Call) else None
        name = dotted(call.func if call else node.exc)
        if name:
            args = ", ".join(ast.unparse(a) for a in call.args) if call else ""
            self.body.raises.append(Raise(name, args, " and ".join(self._guards)))

    def _call(self, node: ast.Call) -> None:  # noqa: C901 - kinds of callees
        func = node.func
        name = dotted(func)
        self._outputs.call(node, name or "")
        if name:
            if any(k.arg is None and not self._is_varkw(k.value) for k in node.keywords):
                self.body.unpacks.append(name)
            self._calls.add(name)
            if name.rsplit(".", 1)[-1] == "warn":
                self._warning(node)
        if isinstance(func, ast.Attribute):
            owner = func.value
            if self._is_varkw(owner):
                if func.attr in ("get", "pop", "setdefault") and node.args:
                    self._read(node.args[0])
                else:
                    self.body.forwards = True
                for a in node.args:
                    self._visit(a)
                return
            if isinstance(owner, ast.Name) and owner.id in self._params and func.attr in ("get", "pop") and node.args:
                self._key(owner.id, node.args[0])
            if isinstance(owner, ast.Name) and owner.id == self._self:
                self._self_call(func.attr, node)
            if node.keywords:
                names = self.body.keyword_calls.setdefault(func.attr, [])
                names.extend(k.arg for k in node.keywords if k.arg and k.arg not in names)
        elif isinstance(func, ast.Name) and func.id in self._params:
            self.body.param_calls.setdefault(func.id, []).append(call_shape(node))
        self._visit_all(node)

    def _self_call(self, method: str, node: ast.Call) -> None:
        self.body.self_calls.setdefault(method, []).append(call_shape(node))
        given = [*node.args[:1], *(k.value for k in node.keywords if k.arg == "name")]
        if method in _STATE_CALLS and given and isinstance(given[0], ast.Constant):
            passing = any(k.arg == "persistent" and _is_false(k.value) for k in node.keywords) or (
                method == "register_buffer" and len(node.args) > 2 and _is_false(node.args[2])
            )
            self.state[str(given[0].value)] = NOT_SAVED if passing else method
            self.named.append(str(given[0].value))

    def _warning(self, node: ast.Call) -> None:
        given = [*node.args[1:2], *(k.value for k in node.keywords if k.arg == "category")]
        if any((dotted(c) or "").rsplit(".", 1)[-1] in _DEPRECATION for c in given) and node.args:
            self.body.warns = literal_text(node.args[0]) or "deprecated"

    def _assign(self, target: ast.expr, value: ast.expr | None) -> None:
        if isinstance(target, (ast.Tuple, ast.List)):
            for t in target.elts:
                self._assign(t, None)
        elif isinstance(target, ast.Attribute) and self._is_self(target.value):
            text = ast.unparse(value) if value is not None and self._texts else ""
            if target.attr in self.attributes:
                self.changing.add(target.attr)
            self.attributes.setdefault(target.attr, (target.lineno, text))
            if self._texts and self.state.get(target.attr, "None") == "None":
                self.state[target.attr] = text

    def _is_self(self, node: ast.AST) -> bool:
        return isinstance(node, ast.Name) and node.id == self._self

    def _is_varkw(self, node: ast.AST) -> bool:
        return self._varkw is not None and isinstance(node, ast.Name) and node.id == self._varkw

    def _membership(self, node: ast.Compare) -> bool:
        if len(node.ops) == 1 and isinstance(node.ops[0], (ast.In, ast.NotIn)) and self._is_varkw(node.comparators[0]):
            self._read(node.left)
            return True
        return False

    def _key(self, param: str, key: ast.AST) -> None:
        """A string key that is read from a parameter."""
        if isinstance(key, ast.Constant) and isinstance(key.value, str):
            names = self.body.param_keys.setdefault(param, [])
            if key.value not in names:
                names.append(key.value)

    def _read(self, key: ast.AST) -> None:
        if isinstance(key, ast.Constant) and isinstance(key.value, str):
            self.body.reads.append(key.value)
        else:
            self.body.forwards = True


def _is_false(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is False


def literal_text(node: ast.AST) -> str:
    """The constant parts of a string expression, concatenated."""
    return "".join(n.value for n in walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str))


def call_shape(node: ast.Call) -> CallShape:
    """How a call passes its arguments."""
    starred = any(isinstance(a, ast.Starred) for a in node.args) or any(k.arg is None for k in node.keywords)
    return CallShape(
        sum(not isinstance(a, ast.Starred) for a in node.args), [k.arg for k in node.keywords if k.arg], starred
    )


def _guard(test: ast.expr) -> str:
    return ast.unparse(test)


def _without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    first = body[0] if body else None
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        return body[1:]
    return body


def _is_ellipsis(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and node.value.value is ...


def _only_raises(body: Iterable[ast.stmt]) -> bool:
    """Nothing but logging or warning calls, then a raise."""
    for s in body:
        if isinstance(s, ast.Raise):
            return True
        if not isinstance(s, (ast.Expr, ast.Import, ast.ImportFrom, ast.Assign)) or any(
            isinstance(n, (ast.Yield, ast.YieldFrom)) for n in walk(s)
        ):
            return False
    return False


def _return_shape(node: ast.expr | None) -> str:
    """A short word for what is returned: `call:name`, `generator`, `tuple:3`, `list`, `dict`, `none`, `other`."""
    if node is None or (isinstance(node, ast.Constant) and node.value is None):
        return "none"
    if isinstance(node, ast.Call):
        return f"call:{dotted(node.func) or ''}"
    if isinstance(node, ast.Tuple):
        starred = any(isinstance(e, ast.Starred) for e in node.elts)
        return "tuple" if starred else f"tuple:{len(node.elts)}"
    if isinstance(node, ast.Dict) and all(isinstance(k, ast.Constant) and isinstance(k.value, str) for k in node.keys):
        return "dict:" + ",".join(str(k.value) for k in node.keys if isinstance(k, ast.Constant))
    kinds: dict[type, str] = {
        ast.GeneratorExp: "generator",
        ast.List: "list",
        ast.ListComp: "list",
        ast.Dict: "dict",
        ast.DictComp: "dict",
        ast.Set: "set",
        ast.SetComp: "set",
        ast.Await: "await",
    }
    if isinstance(node, ast.Constant):
        return type(node.value).__name__
    return kinds.get(type(node), "other")
